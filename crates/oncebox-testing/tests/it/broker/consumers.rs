//! Consumers of the broker in memory pass the suite: with SQLite in real time, with the store in memory in paused time.

/// Each shape with both stores.
macro_rules! consumers {
    ($($shape:ident)*) => {
        $(
            mod $shape {
                mod with_sqlite {
                    use crate::{broker::fixture::on_tokio_clock, sqlite};

                    oncebox_testing::consume_conformance!(on_tokio_clock::$shape, sqlite::in_memory);
                    oncebox_testing::consume_conformance!(stored on_tokio_clock::$shape, sqlite::in_memory);
                }

                mod in_paused_time {
                    use crate::{broker::fixture::on_tokio_clock, memory};

                    oncebox_testing::consume_conformance!(paused on_tokio_clock::$shape, memory::fixture);
                }
            }
        )*
    };
}

consumers! { work_queue plain_queue stream }

/// Their deadlines need a clock that stands still while a machine is busy.
mod with_deadlines {
    mod work_queue {
        use crate::{broker::fixture::on_tokio_clock, memory};

        oncebox_testing::consume_conformance!(
            paused on_tokio_clock::work_queue_with_a_deadline, memory::fixture
        );
    }

    mod lease_queue {
        use crate::{broker::fixture::on_tokio_clock, memory};

        oncebox_testing::consume_conformance!(paused on_tokio_clock::lease_queue, memory::fixture);
    }
}
