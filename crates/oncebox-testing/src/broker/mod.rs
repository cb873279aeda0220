//! A broker in memory, for tests of consumers and relays.

mod faults;
mod kind;
mod queue;
mod sink;
mod source;
mod state;
mod status;

use std::sync::Arc;
use std::time::Duration;

use oncebox_core::source::ReceivedMessage;
use oncebox_core::{Envelope, Error, Message, Outgoing};

pub use kind::{LeaseQueue, PlainQueue, QueueKind, Stream, WorkQueue};
pub use queue::MemoryReceipt;
pub use sink::MemorySink;
pub use source::{MemoryQueue, MemorySession, MemorySettler, MemorySource};
pub use status::{QueueStatus, RejectedMessage};

use state::Shared;

/// The deadline of deliveries of a [`LeaseQueue`].
const LEASE: Duration = Duration::from_secs(30);

/// A broker in memory that delivers at least once, with faults on demand.
///
/// - A delivery belongs to a session. When the session ends, its unsettled messages return to the front of the queue, in their order.
/// - Its clock runs with tokio's, and [`advance`](Self::advance) moves it forward: no test waits for a retry.
/// - Clones are handles of the same broker.
///
/// ```
/// # use oncebox_core::{Inbox, Json, Key, Message};
/// # use oncebox_sqlite::SqliteStore;
/// # use oncebox_testing::MemoryBroker;
/// # #[derive(serde::Serialize, serde::Deserialize)]
/// # struct OrderPaid { order_id: String }
/// # impl Message for OrderPaid {
/// #     const KIND: &'static str = "order.paid";
/// #     type Codec = Json;
/// #     fn key(&self) -> Option<Key> { Some(Key::from(&self.order_id)) }
/// # }
/// # async fn post_to_ledger(order: OrderPaid, db: &mut sqlx::SqliteConnection) -> Result<(), sqlx::Error> {
/// #     sqlx::query("insert into ledger values (?)").bind(order.order_id).execute(db).await?;
/// #     Ok(())
/// # }
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let store = SqliteStore::connect("sqlite::memory:").await?;
/// # store.migrate().await?;
/// # sqlx::query("create table ledger (order_id text)").execute(store.pool()).await?;
/// let broker = MemoryBroker::new();
/// let orders = broker.queue("orders");
/// for order_id in ["o-1", "o-2", "o-3"] {
///     broker.publish("orders", &OrderPaid { order_id: order_id.into() })?;
/// }
/// broker.lose_settlements(1); // the first acknowledgement is lost, and then the connection
///
/// let inbox = Inbox::builder(store.clone()).on("ledger", post_to_ledger).build().await?;
/// let handle = broker.clone();
/// let shutdown = async move { _ = handle.until("orders", |queue| queue.backlog() == 0).await };
/// let consumer = tokio::spawn(inbox.consume(orders).run(shutdown));
/// broker.until("orders", |queue| queue.acknowledged == 2).await;
/// broker.end_sessions("orders");
///
/// assert_eq!(consumer.await??.received, 4); // one of them twice
/// let rows: i64 = sqlx::query_scalar("select count(*) from ledger").fetch_one(store.pool()).await?;
/// assert_eq!(rows, 3);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct MemoryBroker {
    shared: Arc<Shared>,
}

impl Default for MemoryBroker {
    fn default() -> Self {
        Self::new()
    }
}

impl MemoryBroker {
    /// A broker without queues.
    pub fn new() -> Self {
        Self { shared: Arc::new(Shared::new()) }
    }

    /// The queue of this name as a source. The queue is created if there is none.
    pub fn queue(&self, name: &str) -> MemoryQueue {
        MemorySource::new(self.clone(), name)
    }

    /// A queue without delayed retries, delivery counts and a place for rejected messages. It is created if there is none.
    pub fn plain_queue(&self, name: &str) -> MemorySource<PlainQueue> {
        MemorySource::new(self.clone(), name)
    }

    /// A queue whose deliveries have a deadline of 30 seconds and do not end with their session. It is created if there is none.
    pub fn lease_queue(&self, name: &str) -> MemorySource<LeaseQueue> {
        let queue = MemorySource::new(self.clone(), name);
        queue.set_deadline(LEASE);
        queue
    }

    /// A stream with one partition, which remembers a position. It is created if there is none.
    pub fn stream(&self, name: &str) -> MemorySource<Stream> {
        MemorySource::new(self.clone(), name)
    }

    /// A sink that sends all messages to this queue.
    pub fn sink(&self, queue: &str) -> MemorySink {
        let queue = queue.to_owned();
        self.sink_by(move |_| queue.clone())
    }

    /// A sink that sends each message to the queue that the function names.
    pub fn sink_by(&self, route: impl Fn(&Outgoing) -> String + Send + Sync + 'static) -> MemorySink {
        MemorySink::new(self.clone(), Arc::new(route))
    }

    /// Publishes a message. An error says that it cannot be encoded, that there is no such queue, or that the broker is stopped.
    pub fn publish<M: Message>(&self, queue: &str, message: &M) -> Result<(), Error> {
        let envelope = Envelope::of(message)?;
        let mut received = ReceivedMessage::new(envelope.body());
        received.kind = Some(envelope.kind().to_owned());
        received.order_by = envelope.order_by().cloned();
        self.publish_raw(queue, received)
    }

    /// Publishes a message without its type. Its `attempt` and `abandoned` are set by the queue.
    pub fn publish_raw(&self, queue: &str, message: ReceivedMessage) -> Result<(), Error> {
        self.shared.change(|state| state.publish(queue, message))
    }

    /// The numbers of messages in a queue. They are 0 if there is no such queue.
    pub fn status(&self, queue: &str) -> QueueStatus {
        self.shared.look(|state| state.queue(queue).map(|queue| queue.status()).unwrap_or_default())
    }

    /// Waits until the numbers of a queue are as the condition wants them.
    pub async fn until(&self, queue: &str, condition: impl Fn(QueueStatus) -> bool) -> QueueStatus {
        let status = self.shared.until(|state| {
            let status = state.queue(queue).map(|queue| queue.status()).unwrap_or_default();
            condition(status).then_some(status)
        });
        status.await
    }

    /// The messages that wait in a queue, in their order.
    pub fn waiting(&self, queue: &str) -> Vec<ReceivedMessage> {
        self.shared.look(|state| state.queue(queue).map(|queue| queue.messages()).unwrap_or_default())
    }

    /// The rejected messages of a queue that keeps them.
    pub fn rejected(&self, queue: &str) -> Vec<RejectedMessage> {
        self.shared.look(|state| state.queue(queue).map(|queue| queue.rejected.clone()).unwrap_or_default())
    }

    /// Moves the broker's clock forward. Retries fall due, and deadlines expire.
    pub fn advance(&self, time: Duration) {
        self.shared.change(|state| state.advance(time));
    }

    /// The time on the broker's clock since its creation.
    pub fn now(&self) -> Duration {
        self.shared.look(|state| state.now())
    }
}
