//! Runs a test on every store, and what such tests share.

use oncebox::store::Store;
use oncebox::{Envelope, Message};
use oncebox_testing::Fixture;
use serde::{Deserialize, Serialize};

/// Writes each test twice: on SQLite and on PostgreSQL.
macro_rules! on_every_store {
    ($($test:ident),* $(,)?) => {
        mod on_sqlite {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $test() {
                    if let Some(fixture) = crate::sqlite::in_a_file(stringify!($test)).await {
                        super::$test(fixture).await;
                    }
                }
            )*
        }

        mod on_postgres {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $test() {
                    if let Some(fixture) = crate::postgres::as_owner(stringify!($test)).await {
                        super::$test(fixture).await;
                    }
                }
            )*
        }
    };
}
pub(crate) use on_every_store;

/// The connection that a fixture's handlers are lent.
pub(crate) type Conn<F> = <<F as Fixture>::Store as Store>::Conn;

/// The message of most tests.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, Message)]
#[message(kind = "order.paid", key = "order_id")]
pub(crate) struct OrderPaid {
    pub(crate) order_id: String,
    pub(crate) cents: i64,
}

pub(crate) fn order(id: &str) -> OrderPaid {
    OrderPaid { order_id: id.to_owned(), cents: 100 }
}

pub(crate) fn envelope(id: &str) -> Envelope {
    Envelope::of(&order(id)).unwrap()
}

/// The judged count with `--full`, a tenth of it otherwise.
pub(crate) fn judged(count: usize) -> usize {
    if std::env::var_os("ONCEBOX_FULL").is_some() { count } else { count / 10 }
}
