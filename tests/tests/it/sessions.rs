//! The session of a connection: what a schema change or a handler does to it hurts no message.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use oncebox::store::Select;
use oncebox::{BoxError, Inbox, InboxBuilder, Outcome, PostgresStore, Rejection, Retry, Settlement};
use oncebox_testing::Fixture;
use oncebox_testing::operator;
use sqlx::postgres::PgPoolOptions;
use sqlx::{Connection, Executor, PgConnection, Row};

use crate::every_store::{OrderPaid, envelope};
use crate::postgres::{Postgres, as_owner};

/// No failure is forgiven.
const ONCE: Retry = Retry::new().max_attempts(1).first_delay(Duration::ZERO).max_delay(Duration::ZERO);

fn stored(postgres: &Postgres) -> InboxBuilder<PostgresStore> {
    Inbox::builder(postgres.store()).stored().lanes(4).retry(ONCE)
}

async fn accept(inbox: &Inbox<PostgresStore>, ids: impl Iterator<Item = String>) {
    for accept in inbox.accept_all(ids.map(|id| envelope(&id))).await {
        assert!(accept.unwrap().is_new());
    }
}

async fn assert_all_once(postgres: &Postgres, ids: impl Iterator<Item = String>) {
    for id in ids {
        assert_eq!(postgres.effects(&id).await, 1, "{id}");
    }
}

/// A handler whose statement has another result after every schema change.
async fn reads_all_columns(
    postgres: Postgres,
    order: OrderPaid,
    db: &mut PgConnection,
) -> Result<(), BoxError> {
    postgres.effect(db, &order.order_id).await?;
    let row = sqlx::query("select * from customer").fetch_one(&mut *db).await?;
    assert!(row.len() > 0);
    Ok(())
}

async fn customers(postgres: &Postgres) {
    let create = "create table customer (id bigint); insert into customer values (1)";
    sqlx::raw_sql(create).execute(postgres.store.pool()).await.unwrap();
}

/// "cached plan must not change result type", on every connection of the pool.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_column_spends_no_attempt() {
    let Some(postgres) = as_owner("a_new_column_spends_no_attempt").await else { return };
    customers(&postgres).await;
    let (handlers, calls) = (postgres.clone(), postgres.clone());
    let inbox = stored(&postgres)
        .on("h", async move |order: OrderPaid, db: &mut PgConnection| {
            reads_all_columns(handlers.clone(), order, db).await
        })
        .build()
        .await
        .unwrap();
    let inline = Inbox::builder(postgres.store())
        .on("inline", async move |order: OrderPaid, db: &mut PgConnection| {
            reads_all_columns(calls.clone(), order, db).await
        })
        .build()
        .await
        .unwrap();
    for round in 0..4 {
        let ids = |what: &'static str| (0..40).map(move |n| format!("{what}-{round}-{n}"));
        accept(&inbox, ids("stored")).await;
        let report = inbox.work_until_idle().await.unwrap();
        assert_eq!((report.done, report.failed, report.dead), (40, 0, 0), "round {round}");
        let calls = ids("inline").map(|id| {
            let inline = inline.clone();
            tokio::spawn(async move { inline.process(envelope(&id)).await.unwrap().settlement() })
        });
        for call in calls.collect::<Vec<_>>() {
            assert_eq!(call.await.unwrap(), Settlement::Ack, "round {round}");
        }
        assert_all_once(&postgres, ids("stored").chain(ids("inline"))).await;
        let alter = sqlx::AssertSqlSafe(format!("alter table customer add column c{round} text"));
        sqlx::raw_sql(alter).execute(postgres.store.pool()).await.unwrap();
    }
}

/// "prepared statement does not exist", of the handler's statements and of the inbox's own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn prepared_statements_that_are_gone_spend_no_attempt() {
    let Some(postgres) = as_owner("prepared_statements_that_are_gone_spend_no_attempt").await else { return };
    let effects = postgres.clone();
    let handler = async move |order: OrderPaid, db: &mut PgConnection| -> Result<(), BoxError> {
        effects.effect(db, &order.order_id).await?;
        if order.order_id.ends_with('7') {
            sqlx::raw_sql("deallocate all").execute(&mut *db).await?;
        }
        Ok(())
    };
    let inbox = stored(&postgres).on("h", handler.clone()).build().await.unwrap();
    let ids = |what: &'static str| (0..100).map(move |n| format!("{what}-{n}"));
    accept(&inbox, ids("stored")).await;
    let report = inbox.work_until_idle().await.unwrap();
    assert_eq!((report.done, report.failed, report.dead), (100, 0, 0));
    let inline = Inbox::builder(postgres.store()).on("inline", handler).build().await.unwrap();
    for id in ids("inline") {
        assert_eq!(inline.process(envelope(&id)).await.unwrap().settlement(), Settlement::Ack, "{id}");
    }
    assert_all_once(&postgres, ids("stored").chain(ids("inline"))).await;
}

/// A body that fails so on every connection is at fault itself.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_body_that_asks_for_what_was_never_prepared_fails() {
    let Some(postgres) = as_owner("a_body_that_asks_for_what_was_never_prepared_fails").await else { return };
    let effects = postgres.clone();
    let handler = async move |order: OrderPaid, db: &mut PgConnection| -> Result<(), BoxError> {
        effects.effect(db, &order.order_id).await?;
        if order.order_id == "o-5" {
            sqlx::raw_sql("execute never_prepared").execute(&mut *db).await?;
        }
        Ok(())
    };
    let inbox = stored(&postgres).lanes(1).on("h", handler.clone()).build().await.unwrap();
    accept(&inbox, (0..10).map(|n| format!("o-{n}"))).await;
    let report = inbox.work_until_idle().await.unwrap();
    assert_eq!((report.done, report.dead), (9, 1));
    let letters = inbox.operators().dead_letters(Select::all(), 10).await.unwrap();
    assert!(letters[0].error.contains("never_prepared"), "{}", letters[0].error);
    let inline = Inbox::builder(postgres.store()).on("inline", handler).build().await.unwrap();
    assert_eq!(
        inline.process(envelope("o-5")).await.unwrap().settlement(),
        Settlement::Retry { after: None }
    );
}

/// Once a call has failed, the next one prepares its statements anew: the caller's errors cannot be looked into.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_closure_meets_a_new_column_once_at_most() {
    let Some(postgres) = as_owner("a_closure_meets_a_new_column_once_at_most").await else { return };
    customers(&postgres).await;
    let pool = PgPoolOptions::new().max_connections(4).connect(&postgres.database.url()).await.unwrap();
    let inbox = Inbox::builder(PostgresStore::new(pool)).build().await.unwrap();
    let call = async |key: String| -> Result<u64, oncebox::Error> {
        let read = async |db: &mut PgConnection| -> Result<u64, oncebox::Error> {
            let row = sqlx::query("select * from customer").fetch_one(db).await;
            row.map(|row| row.len() as u64).map_err(|error| oncebox::Error::unavailable("failed", error))
        };
        inbox.once("reader", key, read).await.map(oncebox::Once::into_inner)
    };
    for round in 0..3 {
        let mut failed = 0;
        for n in 0..40 {
            match call(format!("{round}-{n}")).await {
                Ok(columns) => assert_eq!(columns, 1 + round),
                Err(_) => failed += 1,
            }
        }
        assert!(failed <= 4, "{failed} calls failed on four connections");
        let alter = sqlx::AssertSqlSafe(format!("alter table customer add column c{round} text"));
        sqlx::raw_sql(alter).execute(postgres.store.pool()).await.unwrap();
    }
}

/// What a handler may leave behind in its session, by the last letter of its message.
fn left_behind(id: &str) -> Option<&'static str> {
    match id.chars().last()? {
        '1' => Some("set search_path = nowhere"),
        // Long enough for the engine's own statements behind the handler, on any machine.
        '2' => Some("set statement_timeout = '29min'"),
        '3' => Some("set role other_role"),
        '4' => Some("set default_transaction_isolation = 'serializable'"),
        '5' => Some("set app.tenant = 'acme'"),
        '6' => Some("select pg_advisory_lock(42)"),
        '7' => Some("reset all"),
        _ => None,
    }
}

/// What a session looks like to the next handler.
const LOOK: &str = "select current_setting('search_path'), current_setting('statement_timeout'), current_setting('role'),
    current_setting('default_transaction_isolation'), coalesce(current_setting('app.tenant', true), ''),
    (select count(*) from pg_locks where locktype = 'advisory' and pid = pg_backend_pid() and objid = 42)::text,
    current_setting('timezone')";

/// The pool's own settings stay.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_handler_sets_for_its_session_ends_with_its_transaction() {
    let test = "what_a_handler_sets_for_its_session_ends_with_its_transaction";
    let Some(postgres) = as_owner(test).await else { return };
    let roles = "do $$ begin create role other_role; exception when duplicate_object then null; end $$;
        grant usage on schema oncebox to other_role; grant all on all tables in schema oncebox to other_role;
        grant all on effect to other_role";
    // Two tests may create it at the same time.
    while sqlx::raw_sql(roles).execute(postgres.store.pool()).await.is_err() {}
    let pool = PgPoolOptions::new().max_connections(8).after_connect(|conn, _| {
        Box::pin(async move { conn.execute("set timezone = 'Asia/Tokyo'").await.map(drop) })
    });
    let pool = pool.connect(&postgres.database.url()).await.unwrap();
    let store = PostgresStore::new(pool);
    let foreign = Arc::new(AtomicUsize::new(0));
    let (effects, seen) = (postgres.clone(), foreign.clone());
    let handler = async move |order: OrderPaid, db: &mut PgConnection| -> Result<(), BoxError> {
        effects.effect(db, &order.order_id).await?;
        let row = sqlx::query(LOOK).fetch_one(&mut *db).await?;
        let state: Vec<String> = (0..7).map(|n| row.get(n)).collect();
        // The engine's own limit for a statement is set while a handler runs.
        let expected = ["\"$user\", public", "30s", "none", "read committed", "", "0", "Asia/Tokyo"];
        if state != expected {
            eprintln!("{state:?}");
            seen.fetch_add(1, Ordering::SeqCst);
        }
        if let Some(sql) = left_behind(&order.order_id) {
            sqlx::raw_sql(sql).execute(&mut *db).await?;
        }
        Ok(())
    };
    // Alone: neighbours in one transaction share its settings, as the guide says.
    let builder = Inbox::builder(store.clone()).stored().lanes(2).retry(ONCE);
    let inbox = builder.on_with("h", handler.clone(), |o| o.isolated()).build().await.unwrap();
    let ids = |what: &'static str| (0..60).map(move |n| format!("{what}-{n}"));
    accept(&inbox, ids("stored")).await;
    let report = inbox.work_until_idle().await.unwrap();
    let dead = inbox.operators().dead_letters(Select::all(), 60).await.unwrap();
    assert_eq!((report.done, report.failed, dead), (60, 0, Vec::new()));
    let inline = Inbox::builder(store).on_with("inline", handler, |o| o.isolated()).build().await.unwrap();
    for id in ids("inline") {
        assert_eq!(inline.process(envelope(&id)).await.unwrap().settlement(), Settlement::Ack, "{id}");
    }
    assert_all_once(&postgres, ids("stored").chain(ids("inline"))).await;
    assert_eq!(foreign.load(Ordering::SeqCst), 0, "sessions that were not as they should be");
}

/// Without its settings the guard still holds.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_behind_reset_all_commits_nothing() {
    let Some(postgres) = as_owner("a_commit_behind_reset_all_commits_nothing").await else { return };
    let effects = postgres.clone();
    let handler = async move |order: OrderPaid, db: &mut PgConnection| -> Result<(), BoxError> {
        effects.effect(db, &order.order_id).await?;
        if order.order_id.ends_with('7') {
            let _ = sqlx::raw_sql("reset all").execute(&mut *db).await;
            let _ = sqlx::raw_sql("commit").execute(&mut *db).await;
            let _ = effects.effect(db, &order.order_id).await;
        }
        Ok(())
    };
    let inbox = stored(&postgres).lanes(1).on("h", handler.clone()).build().await.unwrap();
    let ids = |what: &'static str| (0..50).map(move |n| format!("{what}-{n}"));
    accept(&inbox, ids("stored")).await;
    let report = inbox.work_until_idle().await.unwrap();
    assert_eq!((report.done, report.dead), (45, 5));
    let inline = Inbox::builder(postgres.store()).on("inline", handler).build().await.unwrap();
    let calls = ids("inline").map(|id| {
        let inline = inline.clone();
        tokio::spawn(async move { inline.process(envelope(&id)).await.unwrap() })
    });
    for call in calls.collect::<Vec<_>>() {
        call.await.unwrap();
    }
    for id in ids("stored").chain(ids("inline")) {
        assert_eq!(postgres.effects(&id).await, u64::from(!id.ends_with('7')), "{id}");
    }
}

/// Neighbours of a handler that puts another connection in the place of the one that it was lent.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn neighbours_of_a_handler_that_exchanges_its_connection_run_once() {
    let test = "neighbours_of_a_handler_that_exchanges_its_connection_run_once";
    let Some(postgres) = as_owner(test).await else { return };
    let (effects, url) = (postgres.clone(), postgres.database.url());
    let handler = async move |order: OrderPaid, db: &mut PgConnection| -> Result<(), BoxError> {
        effects.effect(db, &order.order_id).await?;
        if order.order_id.ends_with('7') {
            let another = PgConnection::connect(&url).await?;
            drop(std::mem::replace(db, another));
        }
        Ok(())
    };
    let inbox = stored(&postgres).lanes(1).on("h", handler.clone()).build().await.unwrap();
    let ids = |what: &'static str| (0..50).map(move |n| format!("{what}-{n}"));
    accept(&inbox, ids("stored")).await;
    let report = inbox.work_until_idle().await.unwrap();
    assert_eq!((report.done, report.dead), (45, 5));
    let inline = Inbox::builder(postgres.store()).on("inline", handler).build().await.unwrap();
    let calls = ids("inline").map(|id| {
        let inline = inline.clone();
        tokio::spawn(async move { (inline.process(envelope(&id)).await.unwrap(), id) })
    });
    for call in calls.collect::<Vec<_>>() {
        let (report, id) = call.await.unwrap();
        let ended =
            matches!(report.outcome("inline"), Some(Outcome::Rejected(Rejection::EndedTransaction(_))));
        assert_eq!(ended, id.ends_with('7'), "{id}: {report:?}");
    }
    for id in ids("stored").chain(ids("inline")) {
        assert_eq!(postgres.effects(&id).await, u64::from(!id.ends_with('7')), "{id}");
    }
}

/// `pg_terminate_backend(pg_backend_pid())`, or a pooler that cuts slow queries: five times, and it is the body's own fault.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_body_that_loses_its_connection_every_time_is_a_dead_letter() {
    let test = "a_body_that_loses_its_connection_every_time_is_a_dead_letter";
    let Some(postgres) = as_owner(test).await else { return };
    for swallows in [false, true] {
        let effects = postgres.clone();
        let handler = async move |order: OrderPaid, db: &mut PgConnection| -> Result<(), BoxError> {
            effects.effect(db, &order.order_id).await?;
            if order.order_id.ends_with("-5") {
                let cut =
                    sqlx::raw_sql("select pg_terminate_backend(pg_backend_pid())").execute(&mut *db).await;
                if !swallows {
                    cut?;
                }
            }
            Ok(())
        };
        let name = if swallows { "swallows" } else { "fails" };
        let builder = Inbox::builder(postgres.store()).stored().lanes(1).retry(ONCE);
        let inbox = builder.on(name, handler).build().await.unwrap();
        accept(&inbox, (0..20).map(|n| format!("{name}-{n}"))).await;
        // While it waits for the connection of a task, a lane may have nothing to do.
        while inbox.operators().dead_letters(Select::all().handler(name), 10).await.unwrap().is_empty() {
            inbox.work_until_idle().await.unwrap();
        }
        inbox.work_until_idle().await.unwrap();
        for n in 0..20 {
            assert_eq!(postgres.effects(&format!("{name}-{n}")).await, u64::from(n != 5), "{name} {n}");
        }
        inbox.operators().remove_handler(name, &operator("test")).await.unwrap();
        inbox.close().await;
    }
}

/// A session in which body after body fails, for a reason that no error names, is not kept.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_on_which_body_after_body_fails_is_closed() {
    let test = "a_connection_on_which_body_after_body_fails_is_closed";
    let Some(postgres) = as_owner(test).await else { return };
    // The first connection of the pool is of no use, from the beginning.
    let is_first = Arc::new(AtomicBool::new(true));
    let pool = PgPoolOptions::new().max_connections(1).after_connect(move |conn, _| {
        let is_first = is_first.swap(false, Ordering::SeqCst);
        Box::pin(async move {
            let sql = if is_first { "set search_path = nowhere" } else { "select 1" };
            conn.execute(sql).await.map(drop)
        })
    });
    let pool = pool.connect(&postgres.database.url()).await.unwrap();
    let effects = postgres.clone();
    let handler =
        async move |order: OrderPaid, db: &mut PgConnection| effects.effect(db, &order.order_id).await;
    let inbox = Inbox::builder(PostgresStore::new(pool)).on("h", handler).build().await.unwrap();
    let mut retries = 0;
    while inbox.process(envelope("o-1")).await.unwrap().settlement() != Settlement::Ack {
        retries += 1;
        assert!(retries <= 3, "the connection is never closed");
    }
    assert_eq!(retries, 3);
    assert_eq!(postgres.effects("o-1").await, 1);
}
