//! Errors that another try may not meet: tried again by themselves, found by code.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::Context;
use oncebox::{BoxError, Failure, Inbox, Outcome};
use oncebox_testing::Fixture;
use sqlx::{Executor, PgConnection};

use crate::every_store::{Conn, OrderPaid, envelope, on_every_store};

on_every_store!(
    a_transient_error_for_ever_is_the_body_s_own_fault,
    a_handler_that_has_made_up_its_mind_is_believed
);

/// Permanent is permanent, whatever the error inside.
async fn a_handler_that_has_made_up_its_mind_is_believed<F: Fixture>(fixture: F) {
    let tries = Arc::new(AtomicU32::new(0));
    let counted = tries.clone();
    let handler = async move |_: OrderPaid, _: &mut Conn<F>| -> Result<(), Failure> {
        counted.fetch_add(1, Ordering::SeqCst);
        Err(Failure::permanent(sqlx::Error::PoolTimedOut))
    };
    let inbox = Inbox::builder(fixture.store()).on("h", handler).build().await.unwrap();
    let report = inbox.process(envelope("a")).await.unwrap();
    assert!(matches!(report.outcome("h"), Some(Outcome::Rejected(_))), "{report:?}");
    assert_eq!(tries.load(Ordering::SeqCst), 1);
}

/// Five times, and the delivery goes back to its broker; else a lane of messages would never advance.
async fn a_transient_error_for_ever_is_the_body_s_own_fault<F: Fixture>(fixture: F) {
    let tries = Arc::new(AtomicU32::new(0));
    let handler = {
        let (fixture, tries) = (fixture.clone(), tries.clone());
        async move |order: OrderPaid, conn: &mut Conn<F>| -> Result<(), BoxError> {
            fixture.effect(conn, &order.order_id).await?;
            tries.fetch_add(1, Ordering::SeqCst);
            Err(sqlx::Error::Io(std::io::ErrorKind::ConnectionReset.into()).into())
        }
    };
    let inbox = Inbox::builder(fixture.store()).on("h", handler).build().await.unwrap();
    let report = inbox.process(envelope("stubborn")).await.unwrap();
    assert!(matches!(report.outcome("h"), Some(Outcome::Retry { .. })), "{report:?}");
    assert_eq!(tries.load(Ordering::SeqCst), 5);
    assert_eq!(fixture.effects("stubborn").await, 0);
}

/// Two handlers that lock two rows in opposite order: the server picks a victim, which runs again by itself.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deadlock_s_victim_runs_again_by_itself() {
    let Some(postgres) = crate::postgres::as_owner("a_deadlock_s_victim_runs_again_by_itself").await else {
        return;
    };
    let pool = postgres.store.pool();
    let rows =
        "create table account (id int primary key, cents int); insert into account values (1, 0), (2, 0)";
    sqlx::raw_sql(rows).execute(pool).await.unwrap();
    let tries = Arc::new(AtomicU32::new(0));
    let both_hold_one = Arc::new(tokio::sync::Barrier::new(2));
    let handler = {
        let tries = tries.clone();
        async move |order: OrderPaid, db: &mut PgConnection| -> Result<(), sqlx::Error> {
            let (first, second) = if order.order_id == "up" { (1, 2) } else { (2, 1) };
            let update = "update account set cents = cents + 1 where id = $1";
            sqlx::query(update).bind(first).execute(&mut *db).await?;
            if tries.fetch_add(1, Ordering::SeqCst) < 2 {
                both_hold_one.wait().await;
            }
            sqlx::query(update).bind(second).execute(db).await?;
            Ok(())
        }
    };
    let inbox = Inbox::builder(postgres.store.clone()).on("h", handler).build().await.unwrap();
    let (up, down) = tokio::join!(inbox.process(envelope("up")), inbox.process(envelope("down")));
    for report in [up.unwrap(), down.unwrap()] {
        assert!(matches!(report.outcome("h"), Some(Outcome::Done)), "{report:?}");
    }
    assert_eq!(tries.load(Ordering::SeqCst), 3, "one of the two ran again");
    let cents: Vec<i32> = sqlx::query_scalar("select cents from account").fetch_all(pool).await.unwrap();
    assert_eq!(cents, [2, 2]);
}

#[tokio::test]
async fn a_serialization_failure_runs_again_by_itself() {
    let Some(postgres) = crate::postgres::as_owner("a_serialization_failure_runs_again_by_itself").await
    else {
        return;
    };
    let tries = Arc::new(AtomicU32::new(0));
    let counted = tries.clone();
    // As most applications write it, and with a context around it, deep in the chain of causes.
    let handler = async move |_: OrderPaid, db: &mut PgConnection| -> anyhow::Result<()> {
        db.execute("insert into effect (name) values ('a')").await?;
        let raise = "do $$ begin raise exception 'conflict' using errcode = '40001'; end $$";
        match counted.fetch_add(1, Ordering::SeqCst) {
            0 => Ok(db.execute(raise).await.map(drop)?),
            1 => db.execute(raise).await.map(drop).context("posting to the ledger"),
            _ => Ok(()),
        }
    };
    let inbox = Inbox::builder(postgres.store.clone()).on("h", handler).build().await.unwrap();
    let report = inbox.process(envelope("a")).await.unwrap();
    assert!(matches!(report.outcome("h"), Some(Outcome::Done)), "{report:?}");
    assert_eq!(tries.load(Ordering::SeqCst), 3);
    let effects: i64 =
        sqlx::query_scalar("select count(*) from effect").fetch_one(postgres.store.pool()).await.unwrap();
    assert_eq!(effects, 1);
}
