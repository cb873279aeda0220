//! Errors that another try may not meet, in the log: they spend no attempts, until the body itself is to blame.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use oncebox::store::Select;
use oncebox::{Attempt, BoxError, Inbox, LogStore, Retry};
use oncebox_testing::Fixture;
use sqlx::Executor;

use crate::every_store::{Conn, OrderPaid, envelope, on_every_store};

on_every_store!(
    a_transient_error_spends_no_attempt,
    a_transient_error_for_ever_is_a_failure_and_keeps_nobody_waiting,
);

const AT_ONCE: Retry = Retry::new().max_attempts(2).first_delay(Duration::ZERO).max_delay(Duration::ZERO);

fn reset() -> BoxError {
    sqlx::Error::Io(std::io::ErrorKind::ConnectionReset.into()).into()
}

async fn a_transient_error_spends_no_attempt<F: Fixture<Store: LogStore>>(fixture: F) {
    let runs: Arc<Mutex<HashMap<String, u32>>> = Arc::default();
    let (effects, count) = (fixture.clone(), runs.clone());
    let handler =
        async move |order: OrderPaid, Attempt(n): Attempt, conn: &mut Conn<F>| -> Result<(), BoxError> {
            effects.effect(conn, &format!("{} {n}", order.order_id)).await?;
            let run = {
                let mut runs = count.lock().unwrap();
                let run = runs.entry(order.order_id.clone()).or_default();
                *run += 1;
                *run
            };
            if order.order_id.ends_with('5') && run <= 2 { Err(reset()) } else { Ok(()) }
        };
    let builder = Inbox::builder(fixture.store()).stored().lanes(1).retry(AT_ONCE);
    let inbox = builder.on("h", handler).build().await.unwrap();
    for accept in inbox.accept_all((0..30).map(|n| envelope(&format!("o-{n}")))).await {
        assert!(accept.unwrap().is_new());
    }
    let report = inbox.work_until_idle().await.unwrap();
    assert_eq!((report.done, report.failed, report.dead), (30, 0, 0));
    for n in 0..30 {
        assert_eq!(fixture.effects(&format!("o-{n} 1")).await, 1, "{n}");
    }
    assert!(runs.lock().unwrap()["o-5"] >= 3, "nothing was transient");
}

/// Five times in a row, and it counts as a failure: at first in its lane, then as a task.
async fn a_transient_error_for_ever_is_a_failure_and_keeps_nobody_waiting<F: Fixture<Store: LogStore>>(
    fixture: F,
) {
    let runs: Arc<Mutex<HashMap<u32, u32>>> = Arc::default();
    let (effects, count) = (fixture.clone(), runs.clone());
    let handler =
        async move |order: OrderPaid, Attempt(n): Attempt, conn: &mut Conn<F>| -> Result<(), BoxError> {
            effects.effect(conn, &order.order_id).await?;
            if order.order_id != "o-5" {
                return Ok(());
            }
            *count.lock().unwrap().entry(n).or_default() += 1;
            Err(reset())
        };
    let builder = Inbox::builder(fixture.store()).stored().lanes(1).retry(AT_ONCE);
    let inbox = builder.on("h", handler).build().await.unwrap();
    for accept in inbox.accept_all((0..30).map(|n| envelope(&format!("o-{n}")))).await {
        assert!(accept.unwrap().is_new());
    }
    let mut dead = 0;
    while dead == 0 {
        // Tasks that met a transient error are due a little later.
        dead += inbox.work_until_idle().await.unwrap().dead;
        let runs = runs.lock().unwrap().clone();
        assert!(runs.values().all(|times| *times <= 20), "it is retried without end: {runs:?}");
    }
    assert_eq!(dead, 1);
    assert_eq!(inbox.operators().dead_letters(Select::all(), 10).await.unwrap()[0].attempts.len(), 2);
    for n in 0..30 {
        assert_eq!(fixture.effects(&format!("o-{n}")).await, u64::from(n != 5), "{n}");
    }
}

/// As the server reports it, from the middle of a body.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_serialization_failure_spends_no_attempt() {
    let Some(postgres) = crate::postgres::as_owner("a_serialization_failure_spends_no_attempt").await else {
        return;
    };
    let left = Arc::new(Mutex::new(3_u32));
    let handler = async move |order: OrderPaid,
                              Attempt(n): Attempt,
                              db: &mut sqlx::PgConnection|
                -> Result<(), sqlx::Error> {
        let insert =
            sqlx::query("insert into effect (name) values ($1)").bind(format!("{} {n}", order.order_id));
        insert.execute(&mut *db).await?;
        let raise = order.order_id == "o-5" && {
            let mut left = left.lock().unwrap();
            let raise = *left > 0;
            *left = left.saturating_sub(1);
            raise
        };
        if raise {
            db.execute("do $$ begin raise exception 'conflict' using errcode = '40001'; end $$").await?;
        }
        Ok(())
    };
    let builder = Inbox::builder(postgres.store()).stored().lanes(1).retry(AT_ONCE);
    let inbox = builder.on("h", handler).build().await.unwrap();
    for accept in inbox.accept_all((0..30).map(|n| envelope(&format!("o-{n}")))).await {
        assert!(accept.unwrap().is_new());
    }
    let report = inbox.work_until_idle().await.unwrap();
    assert_eq!((report.done, report.failed, report.dead), (30, 0, 0));
    for n in 0..30 {
        assert_eq!(postgres.effects(&format!("o-{n} 1")).await, 1, "{n}");
    }
}
