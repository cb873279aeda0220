//! Mistakes that `build()` finds, each with what to do about it.

use std::time::Duration;

use oncebox::lease::Lease;
use oncebox::{Envelope, ErrorKind, Inbox, InboxBuilder, MemoryStore, Retention, State};

use crate::every_store::OrderPaid;

async fn fine(_: OrderPaid, _: &mut Lease) {}

#[derive(Clone)]
struct Mailer;

async fn needs_mailer(_: OrderPaid, _: State<Mailer>, _: &mut Lease) {}

async fn bulk_needs_mailer(_: Vec<OrderPaid>, _: State<Mailer>, _: &mut Lease) {}

async fn raw(_: Envelope, _: &mut Lease) {}

fn builder() -> InboxBuilder<MemoryStore> {
    Inbox::builder(MemoryStore::in_memory())
}

async fn refused(builder: InboxBuilder<MemoryStore>) -> String {
    let error = builder.build().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Configuration);
    error.to_string()
}

#[tokio::test]
async fn a_missing_state_is_named_with_its_handler() {
    for message in [
        refused(builder().on("mail", needs_mailer)).await,
        refused(builder().on("mail", bulk_needs_mailer)).await,
    ] {
        assert!(
            message.contains("\"mail\"") && message.contains("Mailer") && message.contains(".state("),
            "{message}"
        );
    }
    // The order of the calls does not matter.
    builder().on("mail", needs_mailer).state(Mailer).build().await.unwrap();
}

#[tokio::test]
async fn two_handlers_with_one_name_are_refused() {
    let message = refused(builder().on("ledger", fine).on("ledger", fine)).await;
    assert!(message.contains("two handlers") && message.contains("\"ledger\""), "{message}");
}

#[tokio::test]
async fn names_that_cannot_be_kept_are_refused() {
    for name in ["", "@accept", "a\0b", "two\nlines", &"x".repeat(201)] {
        refused(builder().on(name, fine)).await;
        refused(builder().on_raw("h", [name], raw)).await;
    }
    let message = refused(builder().on_raw("h", Vec::<String>::new(), raw)).await;
    assert!(message.contains("on_raw"), "{message}");
    let message = refused(builder().on("h", raw)).await;
    assert!(message.contains("on_raw"), "{message}");
}

#[tokio::test]
async fn limits_of_zero_are_refused() {
    assert!(refused(builder().handler_timeout(Duration::ZERO)).await.contains("handler_timeout"));
    assert!(refused(builder().lock_timeout(Duration::ZERO)).await.contains("lock_timeout"));
    let zero = |change: fn(Retention) -> Retention| builder().retention(change(Retention::default()));
    assert!(refused(zero(|retention| retention.period(Duration::ZERO))).await.contains("period"));
    assert!(refused(zero(|retention| retention.every(Duration::ZERO))).await.contains("every"));
    assert!(refused(zero(|retention| retention.batch(0))).await.contains("batch"));
}

#[tokio::test]
async fn more_transactions_than_the_pool_can_hold_are_refused() {
    let test = "more_transactions_than_the_pool_can_hold_are_refused";
    let Some(postgres) = crate::postgres::as_owner(test).await else { return };
    let error = Inbox::builder(postgres.store.clone()).max_in_flight(16).build().await.unwrap_err();
    assert!(error.to_string().contains("needs a pool of 17 connections"), "{error}");
    Inbox::builder(postgres.store.clone()).max_in_flight(15).build().await.unwrap();
}
