//! Handlers that break the transaction that they are lent: no half effect, no double one, and the lane goes on.

use std::time::Duration;

use oncebox::store::Select;
use oncebox::{BoxError, Inbox, Retry};
use oncebox_testing::Fixture;
use oncebox_testing::operator;

use crate::every_store::{Conn, OrderPaid, envelope, on_every_store};
use crate::stored_fixture::LogFixture;

on_every_store!(neighbours_of_a_message_whose_handler_breaks_the_transaction_run_once);

const AT_ONCE: Retry = Retry::new().max_attempts(2).first_delay(Duration::ZERO).max_delay(Duration::ZERO);

/// What a handler does behind its effect, by the last digit of its message.
fn misdeed(id: &str) -> Option<&'static str> {
    match id.rsplit('-').next()? {
        "13" => Some("COMMIT"),
        "27" => Some("ROLLBACK"),
        "41" => Some("COMMIT; BEGIN"),
        "42" => Some("ROLLBACK; BEGIN"),
        "43" => Some("END"),
        _ => None,
    }
}

async fn neighbours_of_a_message_whose_handler_breaks_the_transaction_run_once<F: LogFixture>(fixture: F) {
    let effects = fixture.clone();
    let handler = async move |order: OrderPaid, conn: &mut Conn<F>| -> Result<(), BoxError> {
        effects.effect(conn, &order.order_id).await?;
        if let Some(sql) = misdeed(&order.order_id) {
            F::send(conn, sql).await;
            let _ = effects.effect(conn, &order.order_id).await;
        }
        Ok(())
    };
    let builder = Inbox::builder(fixture.store()).stored().lanes(1).retry(AT_ONCE);
    let inbox = builder.on("h", handler).build().await.unwrap();
    for round in 0..2 {
        let ids = (0..60).map(|n| format!("o-{round}-{n}"));
        for accept in inbox.accept_all(ids.clone().map(|id| envelope(&id))).await {
            assert!(accept.unwrap().is_new());
        }
        let report = inbox.work_until_idle().await.unwrap();
        assert_eq!((report.done, report.dead), (55, 5), "{report:?}");
        for id in ids {
            assert_eq!(fixture.effects(&id).await, u64::from(misdeed(&id).is_none()), "{id}");
        }
    }
    let letters = inbox.operators().dead_letters(Select::all(), 100).await.unwrap();
    assert_eq!(letters.len(), 10);
    // And alone they do no better as tasks.
    assert_eq!(inbox.operators().retry_dead(Select::all(), &operator("ann")).await.unwrap(), 10);
    let report = inbox.work_until_idle().await.unwrap();
    assert_eq!((report.done, report.dead), (0, 10), "{report:?}");
    assert_eq!(fixture.totals().await, (110, 110));
}

/// An inbox on PostgreSQL whose handler sends a statement for one in ten messages, and swallows its error.
async fn sending(
    postgres: &crate::postgres::Postgres,
    statement: &'static str,
) -> Inbox<oncebox::PostgresStore> {
    let effects = postgres.clone();
    let handler = async move |order: OrderPaid, conn: &mut sqlx::PgConnection| -> Result<(), BoxError> {
        effects.effect(conn, &order.order_id).await?;
        if order.order_id.ends_with('7') {
            crate::postgres::Postgres::send(conn, statement).await;
        }
        Ok(())
    };
    let builder = Inbox::builder(postgres.store()).stored().lanes(1).retry(AT_ONCE);
    builder.on("h", handler).build().await.unwrap()
}

/// An error that is swallowed leaves a PostgreSQL transaction that can only be rolled back, and a COMMIT that says it went
/// well.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn neighbours_of_a_message_whose_handler_swallows_an_error_run_once() {
    let Some(postgres) = crate::postgres::as_owner("swallows_an_error").await else { return };
    let inbox = sending(&postgres, "select 1/0").await;
    for accept in inbox.accept_all((0..100).map(|n| envelope(&format!("o-{n}")))).await {
        assert!(accept.unwrap().is_new());
    }
    let report = inbox.work_until_idle().await.unwrap();
    assert_eq!((report.done, report.dead), (90, 10), "{report:?}");
    for n in 0..100 {
        assert_eq!(postgres.effects(&format!("o-{n}")).await, u64::from(n % 10 != 7), "{n}");
    }
}

/// The code that a server answers with that takes no writes; here it is the handler's doing, and no outage.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn neighbours_of_a_message_whose_handler_forbids_writes_run_once() {
    let Some(postgres) = crate::postgres::as_owner("forbids_writes").await else { return };
    let inbox = sending(&postgres, "set transaction read only").await;
    for accept in inbox.accept_all((0..40).map(|n| envelope(&format!("o-{n}")))).await {
        assert!(accept.unwrap().is_new());
    }
    let report = inbox.work_until_idle().await.unwrap();
    assert_eq!(report.done + report.dead, 40, "{report:?}");
    let dead = inbox.operators().dead_letters(Select::all(), 100).await.unwrap().len();
    assert_eq!(postgres.totals().await, (40 - dead as i64, 40 - dead as i64));
    for n in (0..40).filter(|n| n % 10 != 7) {
        assert_eq!(postgres.effects(&format!("o-{n}")).await, 1, "{n}");
    }
}
