//! Units that share a transaction: faster, and otherwise as if each had its own.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;

use futures_util::future::{join_all, maybe_done};
use oncebox::{BoxError, Failure, InFlight, Inbox, InboxBuilder, InboxStore, Outcome};
use oncebox_testing::{Faults, Faulty, Fixture, Point};
use sqlx::{Executor, PgConnection};

use crate::every_store::{Conn, OrderPaid, envelope, on_every_store};

on_every_store!(
    units_that_wait_share_a_transaction,
    nothing_is_shared_if_so_wished,
    an_isolated_handler_shares_nothing,
    neighbours_of_failing_units_are_unharmed,
    a_failure_leaves_its_neighbours_together,
    a_set_that_fails_is_halved_until_the_culprit_is_found,
    neighbours_of_a_unit_that_hangs_are_unharmed,
    neighbours_of_a_caller_that_goes_away_are_unharmed,
    duplicates_in_a_batch_are_duplicates,
    replies_find_their_callers,
    two_inboxes_with_the_same_keys_never_stand_in_each_other_s_way,
    closing_finishes_what_is_under_way,
);

/// Longer than any test takes, on any machine.
const LONG: Duration = Duration::from_secs(600);

/// How many units share a transaction also depends on how long handlers took before, so on a busy machine a round may share
/// nothing. A batch that is never shared in this many rounds never will be.
const ROUNDS_MAX: usize = 200;

/// A set handler that writes an effect each, and notes the largest set that it was given.
fn counting<F: Fixture>(
    fixture: &F,
    largest: &Arc<AtomicUsize>,
    options: impl FnOnce(oncebox::HandlerOptions<OrderPaid>) -> oncebox::HandlerOptions<OrderPaid>,
) -> InboxBuilder<F::Store> {
    let (effects, largest) = (fixture.clone(), largest.clone());
    let handler = async move |orders: Vec<OrderPaid>, conn: &mut Conn<F>| -> Result<(), BoxError> {
        largest.fetch_max(orders.len(), Ordering::SeqCst);
        for order in orders {
            effects.effect(conn, &order.order_id).await?;
        }
        Ok(())
    };
    let inbox = Inbox::builder(fixture.store()).in_flight(InFlight::Wait { max: LONG });
    inbox.on_with("h", handler, options)
}

/// Delivers this many messages at once. Returns the names of the outcomes.
async fn deliver<S: InboxStore>(inbox: &Inbox<S>, ids: impl Iterator<Item = String>) -> Vec<&'static str> {
    let calls = ids.map(|id| {
        let inbox = inbox.clone();
        tokio::spawn(async move { inbox.process(envelope(&id)).await.unwrap().outcome("h").unwrap().name() })
    });
    join_all(calls).await.into_iter().map(Result::unwrap).collect()
}

/// The same from one task, which lets each of them in before it goes on with any: they find each other.
async fn deliver_together<S: InboxStore>(
    inbox: &Inbox<S>,
    ids: impl Iterator<Item = String>,
) -> Vec<&'static str> {
    let mut calls: Vec<_> = ids
        .map(|id| {
            let inbox = inbox.clone();
            Box::pin(maybe_done(async move {
                inbox.process(envelope(&id)).await.unwrap().outcome("h").unwrap().name()
            }))
        })
        .collect();
    for call in &mut calls {
        let _ = std::future::poll_fn(|cx| Poll::Ready(call.as_mut().poll(cx))).await;
    }
    join_all(calls.iter_mut()).await;
    calls.iter_mut().map(|call| call.as_mut().take_output().unwrap()).collect()
}

/// Repeats a round until it says that units shared a transaction in the way that is looked for.
async fn until_shared(mut round: impl AsyncFnMut(usize) -> bool) {
    for n in 0..ROUNDS_MAX {
        if round(n).await {
            return;
        }
    }
    panic!("nothing was shared in {ROUNDS_MAX} rounds");
}

fn ids(range: std::ops::Range<usize>) -> impl Iterator<Item = String> {
    range.map(|n| format!("o-{n}"))
}

async fn units_that_wait_share_a_transaction<F: Fixture>(fixture: F) {
    let largest = Arc::new(AtomicUsize::new(0));
    let inbox = counting(&fixture, &largest, |options| options).build().await.unwrap();
    until_shared(async |round| {
        let range = round * 300..(round + 1) * 300;
        let outcomes = deliver_together(&inbox, ids(range.clone())).await;
        assert!(outcomes.iter().all(|name| *name == "done"), "{outcomes:?}");
        for id in ids(range) {
            assert_eq!(fixture.effects(&id).await, 1, "{id}");
        }
        largest.load(Ordering::SeqCst) > 1
    })
    .await;
    let largest = largest.load(Ordering::SeqCst);
    assert!(largest <= 64, "{largest}");
}

async fn nothing_is_shared_if_so_wished<F: Fixture>(fixture: F) {
    let largest = Arc::new(AtomicUsize::new(0));
    let inbox = counting(&fixture, &largest, |options| options).max_batch(1).build().await.unwrap();
    deliver(&inbox, ids(0..100)).await;
    assert_eq!(largest.load(Ordering::SeqCst), 1);
}

async fn an_isolated_handler_shares_nothing<F: Fixture>(fixture: F) {
    let largest = Arc::new(AtomicUsize::new(0));
    let inbox = counting(&fixture, &largest, |options| options.isolated()).build().await.unwrap();
    deliver(&inbox, ids(0..100)).await;
    assert_eq!(largest.load(Ordering::SeqCst), 1);
}

async fn neighbours_of_failing_units_are_unharmed<F: Fixture>(fixture: F) {
    let expected = |n: usize| match n {
        _ if n.is_multiple_of(7) => "retry",
        _ if n.is_multiple_of(11) => "retry",
        _ if n.is_multiple_of(13) => "rejected",
        _ => "done",
    };
    let effects = fixture.clone();
    let handler = async move |order: OrderPaid, conn: &mut Conn<F>| -> Result<(), Failure> {
        effects.effect(conn, &order.order_id).await?;
        let n: usize = order.order_id[2..].parse()?;
        match n {
            _ if n.is_multiple_of(7) => Err("fails".into()),
            _ if n.is_multiple_of(11) => panic!("panics"),
            _ if n.is_multiple_of(13) => Err(Failure::permanent("never")),
            _ => Ok(()),
        }
    };
    let inbox = Inbox::builder(fixture.store()).on("h", handler).build().await.unwrap();
    for round in 0..2 {
        let outcomes = deliver(&inbox, ids(0..200)).await;
        for (n, outcome) in outcomes.into_iter().enumerate() {
            let done = if round == 0 { "done" } else { "duplicate" };
            let expected = if expected(n) == "done" { done } else { expected(n) };
            assert_eq!(outcome, expected, "round {round}, {n}");
        }
    }
    for (n, id) in ids(0..200).enumerate() {
        assert_eq!(fixture.effects(&id).await, u64::from(expected(n) == "done"), "{id}");
        assert_eq!(
            inbox.markers(id.as_str()).await.unwrap().len(),
            usize::from(expected(n) == "done"),
            "{id}"
        );
    }
}

/// Counts commits.
#[derive(Clone, Default)]
struct Commits(Arc<AtomicUsize>);

impl Faults for Commits {
    async fn at(&self, point: Point) -> Result<(), oncebox::Error> {
        self.0.fetch_add(usize::from(point == Point::AfterCommit), Ordering::SeqCst);
        Ok(())
    }
}

/// Every other unit fails, and those that wait are taken in their order: where two that are done share a transaction, one
/// that failed was between them.
async fn a_failure_leaves_its_neighbours_together<F: Fixture>(fixture: F) {
    const EACH: usize = 100;
    let commits = Commits::default();
    let effects = fixture.clone();
    let handler = async move |order: OrderPaid, conn: &mut Conn<F>| -> Result<(), Failure> {
        effects.effect(conn, &order.order_id).await?;
        let n: usize = order.order_id[2..].parse()?;
        if n % 2 == 1 { Err("fails".into()) } else { Ok(()) }
    };
    let store = Faulty::new(fixture.store(), commits.clone());
    let inbox = Inbox::builder(store).on("h", handler).build().await.unwrap();
    until_shared(async |round| {
        let before = commits.0.load(Ordering::SeqCst);
        let range = round * EACH..(round + 1) * EACH;
        let outcomes = deliver_together(&inbox, ids(range.clone())).await;
        let committed = commits.0.load(Ordering::SeqCst) - before;
        for (n, outcome) in range.zip(outcomes) {
            let fails = n % 2 == 1;
            assert_eq!(outcome, if fails { "retry" } else { "done" }, "{n}");
            let id = format!("o-{n}");
            assert_eq!(fixture.effects(&id).await, u64::from(!fails), "{n}");
            assert_eq!(inbox.markers(id.as_str()).await.unwrap().len(), usize::from(!fails), "{n}");
        }
        committed < EACH / 2
    })
    .await;
}

async fn a_set_that_fails_is_halved_until_the_culprit_is_found<F: Fixture>(fixture: F) {
    const EACH: usize = 100;
    let is_culprit = |n: usize| n % EACH == EACH / 2;
    // The size of each set with the culprit in it.
    let sets: Arc<Mutex<Vec<usize>>> = Arc::default();
    let (effects, seen) = (fixture.clone(), sets.clone());
    let handler = async move |orders: Vec<OrderPaid>, conn: &mut Conn<F>| -> Result<(), BoxError> {
        for order in &orders {
            effects.effect(conn, &order.order_id).await?;
        }
        let mut numbers = orders.iter().map(|order| order.order_id[2..].parse::<usize>().unwrap());
        match numbers.any(is_culprit) {
            true => {
                seen.lock().unwrap().push(orders.len());
                Err("the culprit is among them".into())
            }
            false => Ok(()),
        }
    };
    let inbox = Inbox::builder(fixture.store()).on("h", handler).build().await.unwrap();
    until_shared(async |round| {
        let range = round * EACH..(round + 1) * EACH;
        let outcomes = deliver_together(&inbox, ids(range.clone())).await;
        for (n, outcome) in range.zip(outcomes) {
            assert_eq!(outcome, if is_culprit(n) { "retry" } else { "done" }, "{n}");
            assert_eq!(fixture.effects(&format!("o-{n}")).await, u64::from(!is_culprit(n)), "{n}");
        }
        let sizes = std::mem::take(&mut *sets.lock().unwrap());
        assert_eq!(sizes.last(), Some(&1), "the culprit fails alone in the end");
        // A set that meets contention joins the waiting messages, so only a round without contention shows every half.
        let is_halved = |pair: &[usize]| pair[1] == pair[0] / 2 || pair[1] == pair[0].div_ceil(2);
        sizes[0] >= 8 && sizes.windows(2).all(is_halved)
    })
    .await;
}

/// A constraint that is checked at commit only fails the unit that breaks it. Every fourth does, and those that wait are taken
/// in their order: where four that are done share a transaction, one that failed was among them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn neighbours_of_a_unit_that_breaks_a_deferred_constraint_are_unharmed() {
    const EACH: usize = 100;
    let test = "neighbours_of_a_unit_that_breaks_a_deferred_constraint_are_unharmed";
    let Some(postgres) = crate::postgres::as_owner(test).await else { return };
    let tables = "create table product (id int primary key);
        insert into product values (1);
        create table line (
            name text, product int references product deferrable initially deferred, transaction_id text
        )";
    postgres.store.pool().execute(tables).await.unwrap();
    let breaks = |n: usize| n % 4 == 2;
    let handler = async move |order: OrderPaid, db: &mut PgConnection| -> Result<(), sqlx::Error> {
        let n: usize = order.order_id[2..].parse().unwrap_or_default();
        let product = if breaks(n) { 2 } else { 1 };
        let insert = "insert into line values ($1, $2, pg_current_xact_id()::text)";
        sqlx::query(insert).bind(&order.order_id).bind(product).execute(db).await.map(drop)
    };
    let inbox = Inbox::builder(postgres.store.clone()).on("h", handler).build().await.unwrap();
    until_shared(async |round| {
        let range = round * EACH..(round + 1) * EACH;
        let outcomes = deliver_together(&inbox, ids(range.clone())).await;
        for (n, outcome) in range.clone().zip(outcomes) {
            assert_eq!(outcome, if breaks(n) { "retry" } else { "done" }, "{n}");
        }
        let count = "select count(*), count(distinct name) from line";
        let (rows, names): (i64, i64) = sqlx::query_as(count).fetch_one(postgres.store.pool()).await.unwrap();
        let done = range.end / 4 * 3;
        assert_eq!((rows, names), (done as i64, done as i64));
        let largest = "select max(n) from (select count(*) as n from line group by transaction_id) as shared";
        let largest: i64 = sqlx::query_scalar(largest).fetch_one(postgres.store.pool()).await.unwrap();
        largest >= 4
    })
    .await;
}

/// How the runs of a handler ended, by message: those that came to their end say so.
#[derive(Clone, Default)]
struct RunEnds(Arc<Mutex<HashMap<String, Vec<bool>>>>);

impl RunEnds {
    /// A run of this message begins.
    fn begin(&self, id: &str) {
        self.0.lock().unwrap().entry(id.to_owned()).or_default().push(false);
    }

    /// The one that began last came to its end.
    fn end(&self, id: &str) {
        *self.0.lock().unwrap().get_mut(id).unwrap().last_mut().unwrap() = true;
    }

    /// Whether the last one was cut short.
    fn was_cut(&self, id: &str) -> bool {
        self.0.lock().unwrap()[id].last() == Some(&false)
    }
}

/// On a busy machine the time of others may be up too. What counts: a message whose own run was over needs no retry.
async fn neighbours_of_a_unit_that_hangs_are_unharmed<F: Fixture>(fixture: F) {
    let runs = RunEnds::default();
    let (effects, seen) = (fixture.clone(), runs.clone());
    let handler = async move |order: OrderPaid, conn: &mut Conn<F>| -> Result<(), BoxError> {
        seen.begin(&order.order_id);
        effects.effect(conn, &order.order_id).await?;
        if order.order_id == "o-30" {
            std::future::pending::<()>().await;
        }
        seen.end(&order.order_id);
        Ok(())
    };
    let inbox = Inbox::builder(fixture.store())
        .handler_timeout(Duration::from_millis(300))
        .on("h", handler)
        .build()
        .await
        .unwrap();
    let outcomes = deliver_together(&inbox, ids(0..60)).await;
    for (id, outcome) in ids(0..60).zip(outcomes) {
        let was_cut = runs.was_cut(&id);
        assert!(was_cut || id != "o-30", "it never ends");
        assert_eq!(outcome, if was_cut { "retry" } else { "done" }, "{id}");
        assert_eq!(fixture.effects(&id).await, u64::from(!was_cut), "{id}");
    }
}

async fn neighbours_of_a_caller_that_goes_away_are_unharmed<F: Fixture>(fixture: F) {
    let effects = fixture.clone();
    let handler = async move |order: OrderPaid, conn: &mut Conn<F>| -> Result<(), BoxError> {
        effects.effect(conn, &order.order_id).await?;
        tokio::task::yield_now().await;
        Ok(())
    };
    let inbox = Inbox::builder(fixture.store()).on("h", handler).build().await.unwrap();
    let calls: Vec<_> = ids(0..200)
        .map(|id| {
            let inbox = inbox.clone();
            tokio::spawn(
                async move { inbox.process(envelope(&id)).await.unwrap().outcome("h").unwrap().name() },
            )
        })
        .collect();
    for leaving in calls.iter().step_by(5) {
        leaving.abort();
        tokio::task::yield_now().await;
    }
    for (n, call) in calls.into_iter().enumerate() {
        match call.await {
            Ok(outcome) => assert_eq!(outcome, "done", "{n}"),
            Err(aborted) => assert!(n.is_multiple_of(5) && aborted.is_cancelled(), "{n}"),
        }
    }
    // Delivered again, the messages of callers that went away have their effect too, and no message has two.
    deliver(&inbox, ids(0..200)).await;
    for id in ids(0..200) {
        assert_eq!(fixture.effects(&id).await, 1, "{id}");
    }
}

async fn duplicates_in_a_batch_are_duplicates<F: Fixture>(fixture: F) {
    let largest = Arc::new(AtomicUsize::new(0));
    let inbox = counting(&fixture, &largest, |options| options).build().await.unwrap();
    deliver(&inbox, ids(0..100)).await;
    let outcomes = deliver(&inbox, ids(50..150)).await;
    for (n, outcome) in (50..150).zip(outcomes) {
        assert_eq!(outcome, if n < 100 { "duplicate" } else { "done" }, "{n}");
    }
    for id in ids(0..150) {
        assert_eq!(fixture.effects(&id).await, 1, "{id}");
    }
}

async fn replies_find_their_callers<F: Fixture>(fixture: F) {
    let handler = async |order: OrderPaid, _: &mut Conn<F>| oncebox::Reply(order.order_id);
    let inbox = Inbox::builder(fixture.store()).on("h", handler).build().await.unwrap();
    for replayed in [false, true] {
        let calls = ids(0..150).map(|id| {
            let inbox = inbox.clone();
            tokio::spawn(
                async move { (inbox.call_envelope::<String>("h", envelope(&id)).await.unwrap(), id) },
            )
        });
        for call in join_all(calls).await {
            let (once, id) = call.unwrap();
            assert_eq!((once.is_replayed(), once.into_inner()), (replayed, id));
        }
    }
}

/// As two processes with the same deliveries in different order: no deadlock, one effect each.
async fn two_inboxes_with_the_same_keys_never_stand_in_each_other_s_way<F: Fixture>(fixture: F) {
    let largest = Arc::new(AtomicUsize::new(0));
    let one = counting(&fixture, &largest, |options| options).build().await.unwrap();
    let other = counting(&fixture, &largest, |options| options).build().await.unwrap();
    for round in 0..3 {
        let range = round * 200..(round + 1) * 200;
        let backwards = ids(range.clone()).collect::<Vec<_>>().into_iter().rev();
        let (a, b) = tokio::join!(deliver(&one, ids(range.clone())), deliver(&other, backwards));
        let done = a.iter().chain(&b).filter(|name| **name == "done").count();
        let duplicates = a.iter().chain(&b).filter(|name| **name == "duplicate").count();
        assert_eq!((done, duplicates), (200, 200), "round {round}");
        for id in ids(range) {
            assert_eq!(fixture.effects(&id).await, 1, "{id}");
        }
    }
}

/// A neighbour that swallows an SQL error, or ends the transaction, fails alone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn neighbours_of_a_unit_that_breaks_the_transaction_are_unharmed() {
    let test = "neighbours_of_a_unit_that_breaks_the_transaction_are_unharmed";
    let Some(postgres) = crate::postgres::as_owner(test).await else { return };
    let handler = async |order: OrderPaid, db: &mut PgConnection| -> Result<(), sqlx::Error> {
        sqlx::query("insert into effect (name) values ($1)").bind(&order.order_id).execute(&mut *db).await?;
        let n: usize = order.order_id[2..].parse().unwrap_or_default();
        let _ = match n % 20 {
            3 => db.execute("select 1/0").await,
            7 => db.execute("ROLLBACK").await,
            11 => db.execute("COMMIT").await,
            _ => db.execute("select 1").await,
        };
        Ok(())
    };
    let inbox = Inbox::builder(postgres.store.clone()).on("h", handler).build().await.unwrap();
    let calls = ids(0..200).map(|id| {
        let inbox = inbox.clone();
        tokio::spawn(async move { inbox.process(envelope(&id)).await.unwrap().outcome("h").unwrap().clone() })
    });
    for (n, outcome) in join_all(calls).await.into_iter().enumerate() {
        let breaks = [3, 7, 11].contains(&(n % 20));
        assert_eq!(matches!(outcome.unwrap(), Outcome::Done), !breaks, "{n}");
        assert_eq!(postgres.effects(&format!("o-{n}")).await, u64::from(!breaks), "{n}");
    }
}

async fn closing_finishes_what_is_under_way<F: Fixture>(fixture: F) {
    let largest = Arc::new(AtomicUsize::new(0));
    let inbox = counting(&fixture, &largest, |options| options).build().await.unwrap();
    let mut calls: Vec<_> = ids(0..100)
        .map(|id| {
            let inbox = inbox.clone();
            Box::pin(async move { inbox.process(envelope(&id)).await })
        })
        .collect();
    // One poll lets each of them in.
    for call in &mut calls {
        assert!(std::future::poll_fn(|cx| Poll::Ready(call.as_mut().poll(cx).is_pending())).await);
    }
    let closing = tokio::spawn({
        let inbox = inbox.clone();
        async move { inbox.close().await }
    });
    for report in join_all(calls).await {
        assert!(matches!(report.unwrap().outcome("h"), Some(Outcome::Done)));
    }
    closing.await.unwrap();
    let refused = inbox.process(envelope("late")).await.unwrap_err();
    assert_eq!(refused.kind(), oncebox::ErrorKind::Closed);
    assert_eq!(fixture.effects("late").await, 0);
    for id in ids(0..100) {
        assert_eq!(fixture.effects(&id).await, 1, "{id}");
    }
}

/// As another process would: holds a key in a transaction of its own. The others of its batches do not wait for it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_that_another_process_holds_does_not_stall_its_batch() {
    let test = "a_key_that_another_process_holds_does_not_stall_its_batch";
    let Some(postgres) = crate::postgres::as_owner(test).await else { return };
    let (begins, mut begun) = tokio::sync::mpsc::unbounded_channel();
    let let_go = Arc::new(tokio::sync::Semaphore::new(0));
    let hold = let_go.clone();
    let holding = async move |_: OrderPaid, _: &mut PgConnection| -> Result<(), BoxError> {
        let _ = begins.send(());
        hold.acquire().await?.forget();
        Ok(())
    };
    let other_process = Inbox::builder(postgres.store.clone()).handler_timeout(LONG).on("h", holding);
    let other_process = other_process.build().await.unwrap();
    let held = tokio::spawn(async move { other_process.process(envelope("o-50")).await });
    begun.recv().await.unwrap();

    let largest = Arc::new(AtomicUsize::new(0));
    let inbox = counting(&postgres, &largest, |options| options).build().await.unwrap();
    let calls: Vec<_> = ids(0..300)
        .map(|id| {
            let inbox = inbox.clone();
            tokio::spawn(
                async move { inbox.process(envelope(&id)).await.unwrap().outcome("h").unwrap().name() },
            )
        })
        .collect();
    let mut busy = None;
    for (n, call) in calls.into_iter().enumerate() {
        match n {
            // All others are done while this one waits.
            50 => busy = Some(call),
            _ => assert_eq!(call.await.unwrap(), "done", "{n}"),
        }
    }
    let busy = busy.unwrap();
    // Nor do later callers.
    until_shared(async |round| {
        let later = (0..100).map(|n| format!("later-{round}-{n}"));
        let outcomes = deliver_together(&inbox, later).await;
        assert!(outcomes.iter().all(|name| *name == "done"), "{outcomes:?}");
        largest.load(Ordering::SeqCst) > 1
    })
    .await;
    assert!(!busy.is_finished());
    let_go.add_permits(1);
    held.await.unwrap().unwrap();
    assert_eq!(busy.await.unwrap(), "duplicate");
}

/// Two batches that update the same rows in different order would deadlock; they are taken apart long before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn batches_that_want_the_same_rows_get_through() {
    let test = "batches_that_want_the_same_rows_get_through";
    let Some(postgres) = crate::postgres::as_owner(test).await else { return };
    let rows = "create table account (id int primary key, cents int not null);
        insert into account select n, 0 from generate_series(0, 9) n";
    sqlx::raw_sql(rows).execute(postgres.store.pool()).await.unwrap();
    let handler = async |order: OrderPaid, db: &mut PgConnection| -> Result<(), sqlx::Error> {
        let n: i32 = order.order_id[2..].parse().unwrap_or_default();
        let update = sqlx::query("update account set cents = cents + 1 where id = $1").bind(n * 7919 % 10);
        update.execute(db).await.map(drop)
    };
    let inbox = Inbox::builder(postgres.store.clone()).on("h", handler).build().await.unwrap();
    let calls = ids(0..500).map(|id| {
        let inbox = inbox.clone();
        tokio::spawn(async move { inbox.process(envelope(&id)).await.unwrap().outcome("h").unwrap().name() })
    });
    for call in join_all(calls).await {
        assert_eq!(call.unwrap(), "done");
    }
    let cents: i64 =
        sqlx::query_scalar("select sum(cents) from account").fetch_one(postgres.store.pool()).await.unwrap();
    assert_eq!(cents, 500);
}
