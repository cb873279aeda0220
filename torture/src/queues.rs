//! The queues of a run with a broker, and the headers of the messages in them.

/// The environment variable of workers with the broker's URL. Without it, messages do not pass a broker.
pub const BROKER_URL: &str = "TORTURE_BROKER_URL";

/// Modes without an outbox: copies of messages, from the harness.
pub const ORDERS_QUEUE: &str = "orders";
/// With an outbox: messages with an ordering key. It has a single active consumer, which keeps their order.
pub const SALES_QUEUE: &str = "sales";
/// With an outbox: messages without an ordering key.
pub const NOTES_QUEUE: &str = "notes";
/// The exchange of the relay.
pub const EVENTS_EXCHANGE: &str = "events";
/// The routing key of sales, which is their kind.
pub const SALE_KIND: &str = "sale";
/// The routing key of notes, which is their kind.
pub const NOTE_KIND: &str = "note";

/// The header with the idempotency key.
pub const ID_HEADER: &str = "oncebox-id";
/// The header with the ordering key.
pub const ORDER_HEADER: &str = "oncebox-order-by";
/// The header with the number of the delivery.
pub const DELIVERY_HEADER: &str = "torture-delivery";

/// The queue for rejected messages of a queue.
#[must_use]
pub fn dead_queue(queue: &str) -> String {
    format!("{queue}.dead")
}
