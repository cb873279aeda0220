//! What the appender takes into the log in one transaction.
//!
//! On one thread all callers queue before the appender begins: they are one batch.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use oncebox::{Envelope, Error, Inbox, LogStore};
use oncebox_testing::{Faults, Faulty, Point};

use crate::stored_fixture::{LogFixture, REFUSED};

macro_rules! on_one_thread {
    ($($test:ident),* $(,)?) => {
        mod on_sqlite {
            $(
                #[tokio::test]
                async fn $test() {
                    if let Some(fixture) = crate::sqlite::in_a_file(stringify!($test)).await {
                        super::$test(fixture).await;
                    }
                }
            )*
        }

        mod on_postgres {
            $(
                #[tokio::test]
                async fn $test() {
                    if let Some(fixture) = crate::postgres::as_owner(stringify!($test)).await {
                        super::$test(fixture).await;
                    }
                }
            )*
        }
    };
}

on_one_thread!(
    a_message_that_the_store_refuses_is_not_acknowledged_and_its_neighbours_are,
    equal_keys_in_one_batch_are_one_message,
);

/// Counts transactions that append.
#[derive(Clone, Default)]
struct Appends {
    tried: Arc<AtomicU32>,
    done: Arc<AtomicU32>,
}

impl Faults for Appends {
    async fn at(&self, point: Point) -> Result<(), Error> {
        match point {
            Point::BeforeCommit => self.tried.fetch_add(1, Ordering::SeqCst),
            Point::AfterCommit => self.done.fetch_add(1, Ordering::SeqCst),
            _ => 0,
        };
        Ok(())
    }
}

async fn keys<S: LogStore>(inbox: &Inbox<S>) -> Vec<String> {
    let found = inbox.operators().messages(0, 0, 1_000).await.unwrap();
    found.iter().map(|found| found.message.key.as_ref().unwrap().to_string()).collect()
}

/// A message that is reported as accepted is in the log, and no other one is reported so.
async fn a_message_that_the_store_refuses_is_not_acknowledged_and_its_neighbours_are<F: LogFixture>(
    fixture: F,
) {
    const REFUSED_ONE: usize = 13;
    let appends = Appends::default();
    let store = Faulty::new(fixture.store(), appends.clone());
    let inbox = Inbox::builder(store).stored().lanes(1).build().await.unwrap();
    fixture.refuse().await;
    let envelopes = (0..40).map(|n| {
        let body = if n == REFUSED_ONE { REFUSED } else { "{}" };
        Envelope::new("note", body).with_key(format!("k-{n:02}"))
    });
    let answers = inbox.accept_all(envelopes).await;
    assert!(
        appends.tried.load(Ordering::SeqCst) > appends.done.load(Ordering::SeqCst),
        "nothing was refused"
    );
    for (n, answer) in answers.iter().enumerate() {
        match answer {
            Ok(accept) => assert!(n != REFUSED_ONE && accept.is_new(), "{n}: {accept:?}"),
            Err(error) => assert_eq!(n, REFUSED_ONE, "{error}"),
        }
    }
    let expected: Vec<String> = (0..40).filter(|n| *n != REFUSED_ONE).map(|n| format!("k-{n:02}")).collect();
    assert_eq!(keys(&inbox).await, expected);
}

/// One transaction, at the first try: had the copies gone to the store one by one, the primary key would have refused the
/// batch, and other tries would have hidden it.
async fn equal_keys_in_one_batch_are_one_message<F: LogFixture>(fixture: F) {
    let appends = Appends::default();
    let store = Faulty::new(fixture.store(), appends.clone());
    let inbox = Inbox::builder(store).stored().lanes(1).build().await.unwrap();
    let envelopes = (0..60).map(|n| Envelope::new("note", "{}").with_key(format!("k-{:02}", n % 20)));
    let answers = inbox.accept_all(envelopes).await;
    for (n, answer) in answers.into_iter().enumerate() {
        let answer = answer.unwrap();
        assert!(if n < 20 { answer.is_new() } else { answer.is_duplicate() }, "{n}: {answer:?}");
    }
    assert_eq!(keys(&inbox).await, (0..20).map(|n| format!("k-{n:02}")).collect::<Vec<_>>());
    assert_eq!(
        (appends.tried.load(Ordering::SeqCst), appends.done.load(Ordering::SeqCst)),
        (1, 1),
        "tries, and those that were answered"
    );
}
