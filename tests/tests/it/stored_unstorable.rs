//! Outcomes that cannot be stored because of their data: one dead letter, and the lane goes on.

use oncebox::store::{Fault, Select, Store};
use oncebox::{Attempt, BoxError, Inbox, Mode, Outcome, PostgresStore, Retry};
use oncebox_testing::Fixture;
use oncebox_testing::operator;

use crate::every_store::{Conn, OrderPaid, envelope, on_every_store};
use crate::postgres::{Postgres, as_owner};
use crate::stored_fixture::LogFixture;

on_every_store!(
    an_outcome_that_cannot_be_stored_makes_a_dead_letter_and_stops_no_lane,
    an_outcome_of_a_detached_run_that_cannot_be_stored_makes_a_dead_letter,
    an_error_that_cannot_be_stored_is_spilled_without_its_text,
);

/// A text that the tables refuse.
const UNSTORABLE: &str = "unstorable";

const AT_ONCE: Retry =
    Retry::new().max_attempts(3).first_delay(std::time::Duration::ZERO).max_delay(std::time::Duration::ZERO);

async fn an_outcome_that_cannot_be_stored_makes_a_dead_letter_and_stops_no_lane<F: LogFixture>(fixture: F) {
    fixture.refuse_errors(UNSTORABLE).await;
    let effects = fixture.clone();
    let handler =
        async move |order: OrderPaid, Attempt(n): Attempt, conn: &mut Conn<F>| -> Result<(), BoxError> {
            effects.effect(conn, &order.order_id).await?;
            match order.order_id.rsplit('-').next() {
                Some("5" | "17") => Err(UNSTORABLE.into()),
                // As a task, the second time.
                Some("8") if n == 1 => Err("storable".into()),
                Some("8") => Err(UNSTORABLE.into()),
                Some("9") if n == 1 => Err("storable".into()),
                _ => Ok(()),
            }
        };
    let builder = Inbox::builder(fixture.store()).stored().lanes(1).retry(AT_ONCE);
    let inbox = builder.on("h", handler).build().await.unwrap();
    for accept in inbox.accept_all((0..40).map(|n| envelope(&format!("o-{n}")))).await {
        assert!(accept.unwrap().is_new());
    }
    let report = inbox.work_until_idle().await.unwrap();
    assert_eq!((report.done, report.dead), (37, 3), "{report:?}");
    for n in 0..40 {
        assert_eq!(fixture.effects(&format!("o-{n}")).await, u64::from(![5, 8, 17].contains(&n)), "{n}");
    }
    let letters = inbox.operators().dead_letters(Select::all(), 10).await.unwrap();
    assert_eq!(letters.len(), 3);
    for letter in &letters {
        assert!(letter.error.contains("the outcome could not be stored"), "{}", letter.error);
    }
    // Healed or not, the operator decides.
    assert_eq!(inbox.operators().retry_dead(Select::all(), &operator("ann")).await.unwrap(), 3);
    assert_eq!(inbox.work_until_idle().await.unwrap().dead, 3);
}

async fn an_outcome_of_a_detached_run_that_cannot_be_stored_makes_a_dead_letter<F: LogFixture>(fixture: F) {
    fixture.refuse_errors(UNSTORABLE).await;
    let handler = async move |order: OrderPaid| -> Result<(), BoxError> {
        if order.order_id == "o-5" { Err(UNSTORABLE.into()) } else { Ok(()) }
    };
    let builder = Inbox::builder(fixture.store()).stored().lanes(1).retry(AT_ONCE);
    let inbox = builder.on_with("h", handler, |o| o.detached()).build().await.unwrap();
    for accept in inbox.accept_all((0..20).map(|n| envelope(&format!("o-{n}")))).await {
        assert!(accept.unwrap().is_new());
    }
    let report = inbox.work_until_idle().await.unwrap();
    assert_eq!((report.done, report.dead), (19, 1), "{report:?}");
    let letters = inbox.operators().dead_letters(Select::all(), 10).await.unwrap();
    assert!(letters[0].error.contains("the outcome could not be stored"), "{}", letters[0].error);
}

async fn an_error_that_cannot_be_stored_is_spilled_without_its_text<F: LogFixture>(fixture: F) {
    fixture.refuse_errors(UNSTORABLE).await;
    let effects = fixture.clone();
    let handler =
        async move |order: OrderPaid, Attempt(n): Attempt, conn: &mut Conn<F>| -> Result<(), BoxError> {
            effects.effect(conn, &order.order_id).await?;
            if n == 1 { Err(UNSTORABLE.into()) } else { Ok(()) }
        };
    let builder = Inbox::builder(fixture.store()).mode(Mode::inline().spill()).lanes(1).retry(AT_ONCE);
    let inbox = builder.on("h", handler).build().await.unwrap();
    let report = inbox.process(envelope("o-1")).await.unwrap();
    assert!(matches!(report.outcome("h"), Some(Outcome::Queued)), "{report:?}");
    assert_eq!(inbox.work_until_idle().await.unwrap().done, 1);
    assert_eq!(fixture.effects("o-1").await, 1);
}

/// A full disk is no message's fault: it lasts for longer than a body may meet transient errors.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_spends_no_attempt_and_makes_no_dead_letter() {
    let Some(fixture) = as_owner("a_full_disk_spends_no_attempt").await else { return };
    let effects = fixture.clone();
    let handler = async move |order: OrderPaid,
                              Attempt(n): Attempt,
                              conn: &mut Conn<Postgres>|
                -> Result<(), BoxError> {
        effects.effect(conn, &order.order_id).await?;
        if n == 1 { Err("fails once".into()) } else { Ok(()) }
    };
    let builder = Inbox::builder(fixture.store()).stored().lanes(1).retry(AT_ONCE);
    let inbox = builder.on("h", handler).build().await.unwrap();
    inbox.accept(envelope("o-1")).await.unwrap();
    let full = "create function full_disk() returns trigger language plpgsql as
        $$ begin raise exception 'No space left on device' using errcode = 'disk_full'; end $$;
        create trigger full_disk before insert on oncebox.task for each row execute function full_disk()";
    sqlx::raw_sql(full).execute(fixture.store.pool()).await.unwrap();
    for _ in 0..20 {
        let error = inbox.work_once().await.unwrap_err();
        assert_eq!(PostgresStore::classify(&error), Fault::Outage, "{error:?}");
    }
    sqlx::raw_sql("drop trigger full_disk on oncebox.task").execute(fixture.store.pool()).await.unwrap();
    let report = inbox.work_until_idle().await.unwrap();
    assert_eq!((report.done, report.failed, report.dead), (1, 1, 0), "{report:?}");
}
