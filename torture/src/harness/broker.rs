//! The broker under torture, its queues, and the faults of the broker itself.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use lapin::options::{
    BasicAckOptions, BasicGetOptions, ExchangeDeclareOptions, QueueBindOptions, QueueDeclareOptions,
    QueueDeleteOptions,
};
use lapin::types::FieldTable;
use lapin::{Channel, Connection, ConnectionProperties, ExchangeKind};
use oncebox_servers::rabbitmq::{RabbitOptions, RabbitServer};
use oncebox_torture::queues::{
    EVENTS_EXCHANGE, NOTE_KIND, NOTES_QUEUE, ORDERS_QUEUE, SALE_KIND, SALES_QUEUE, dead_queue,
};
use oncebox_torture::scenario::TortureMode;
use tokio::sync::Mutex;
use tokio::task::JoinHandle;
use tokio::time::sleep;

/// The kind of broker.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum, serde::Serialize, serde::Deserialize,
)]
#[serde(rename_all = "lowercase")]
pub(crate) enum BrokerName {
    Rabbitmq,
}

impl BrokerName {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Rabbitmq => "rabbitmq",
        }
    }
}

/// The pause between two looks whether a queue exists.
const POLL: Duration = Duration::from_millis(50);
/// The share of the memory above which the broker stops publishers: the default, and one that is always exceeded.
const WATERMARK: &str = "0.4";
const EXCEEDED_WATERMARK: &str = "0.0000001";

/// A fault of the broker.
#[derive(Clone, Copy, Debug)]
pub(crate) enum BrokerFault {
    /// It is killed, and starts again after this time.
    Kill(Duration),
    /// It is stopped for this time. Connections stay open.
    Stop(Duration),
    /// It closes all connections.
    Close,
    /// It closes the channel of one of the consumers with an error.
    Channel(usize),
    /// It runs out of memory for this time.
    Alarm(Duration),
    /// A queue is deleted, and exists again after this time.
    Queue(Duration),
}

/// The broker that only this run uses.
#[derive(Debug)]
pub(crate) struct Broker {
    server: Arc<Mutex<RabbitServer>>,
    url: String,
    has_outbox: bool,
}

impl Broker {
    pub(crate) async fn start(mode: TortureMode) -> Result<Self> {
        let server = RabbitServer::start(RabbitOptions::default()).await?;
        let (url, has_outbox) = (server.url(), mode == TortureMode::Outbox);
        let broker = Self { server: Arc::new(Mutex::new(server)), url, has_outbox };
        if has_outbox {
            broker.create_exchange().await.context("creating the exchange")?;
            // The workers create the queues, which takes them a moment.
            tokio::spawn(bind(broker.url.clone(), SALES_QUEUE, SALE_KIND));
            tokio::spawn(bind(broker.url.clone(), NOTES_QUEUE, NOTE_KIND));
        }
        Ok(broker)
    }

    /// The URL for workers.
    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// Creates the exchange of the relay.
    async fn create_exchange(&self) -> Result<()> {
        let (connection, channel) = connect(&self.url).await?;
        let durable = ExchangeDeclareOptions { durable: true, ..ExchangeDeclareOptions::default() };
        let exchange = EVENTS_EXCHANGE.into();
        channel.exchange_declare(exchange, ExchangeKind::Topic, durable, FieldTable::default()).await?;
        Ok(connection.close(200, "OK".into()).await?)
    }

    /// Begins a fault. The task ends when the fault is over.
    pub(crate) fn begin(&self, fault: BrokerFault) -> JoinHandle<Result<()>> {
        let (server, url, has_outbox) = (self.server.clone(), self.url.clone(), self.has_outbox);
        tokio::spawn(async move {
            let mut server = server.lock().await;
            match fault {
                BrokerFault::Kill(pause) => {
                    server.kill()?;
                    sleep(pause).await;
                    server.restart().await
                }
                BrokerFault::Stop(time) => {
                    server.pause()?;
                    sleep(time).await;
                    server.resume()
                }
                BrokerFault::Close => server.ctl(&["close_all_connections", "torture"]).await.map(drop),
                BrokerFault::Channel(number) => {
                    // The connection stays open: the client gets the error of one channel.
                    let program = format!(
                        "Consumers = rabbit_amqqueue:consumers_all(<<\"/\">>), \
                         Consumer = lists:nth({number} rem length(Consumers) + 1, Consumers), \
                         exit(proplists:get_value(channel_pid, Consumer), \
                         {{amqp_error, precondition_failed, \"torture\", none}})."
                    );
                    server.ctl(&["eval", &program]).await.map(drop)
                }
                BrokerFault::Alarm(time) => {
                    server.ctl(&["set_vm_memory_high_watermark", EXCEEDED_WATERMARK]).await?;
                    sleep(time).await;
                    server.ctl(&["set_vm_memory_high_watermark", WATERMARK]).await.map(drop)
                }
                BrokerFault::Queue(time) => {
                    let queue = if has_outbox { NOTES_QUEUE } else { ORDERS_QUEUE };
                    let (_connection, channel) = connect(&url).await?;
                    channel.queue_delete(queue.into(), QueueDeleteOptions::default()).await?;
                    sleep(time).await;
                    if has_outbox {
                        bind(url, queue, NOTE_KIND).await;
                    } else {
                        until_created(&url, queue).await;
                    }
                    Ok(())
                }
            }
        })
    }

    /// The number of messages in all queues, also of those that consumers have not settled.
    pub(crate) async fn messages(&self) -> Result<u64> {
        let server = self.server.lock().await;
        let list = server.ctl(&["--no-table-headers", "list_queues", "messages"]).await?;
        Ok(list.lines().filter_map(|line| line.trim().parse::<u64>().ok()).sum())
    }

    /// Removes the rejected messages of all queues. Returns their bodies.
    pub(crate) async fn take_rejected(&self) -> Result<Vec<Vec<u8>>> {
        let (connection, channel) = connect(&self.url).await?;
        let queues: &[&str] = if self.has_outbox { &[SALES_QUEUE, NOTES_QUEUE] } else { &[ORDERS_QUEUE] };
        let mut bodies = Vec::new();
        for queue in queues {
            let get = || channel.basic_get(dead_queue(queue).into(), BasicGetOptions::default());
            while let Some(message) = get().await? {
                channel.basic_ack(message.delivery.delivery_tag, BasicAckOptions::default()).await?;
                bodies.push(message.delivery.data);
            }
        }
        connection.close(200, "OK".into()).await?;
        Ok(bodies)
    }
}

/// Opens a connection with a channel.
pub(crate) async fn connect(url: &str) -> Result<(Connection, Channel)> {
    let connection = Connection::connect(url, ConnectionProperties::default()).await?;
    let channel = connection.create_channel().await?;
    Ok((connection, channel))
}

/// Waits until a worker has created a queue. Another fault may end the connection meanwhile.
async fn until_created(url: &str, queue: &str) -> (Connection, Channel) {
    loop {
        let passive = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
        if let Ok((connection, channel)) = connect(url).await
            && channel.queue_declare(queue.into(), passive, FieldTable::default()).await.is_ok()
        {
            return (connection, channel);
        }
        sleep(POLL).await;
    }
}

/// Binds a queue to the exchange of the relay, as soon as it exists.
async fn bind(url: String, queue: &'static str, kind: &'static str) {
    loop {
        let (_connection, channel) = until_created(&url, queue).await;
        let options = QueueBindOptions::default();
        let (name, exchange) = (queue.into(), EVENTS_EXCHANGE.into());
        let bound = channel.queue_bind(name, exchange, kind.into(), options, FieldTable::default()).await;
        if bound.is_ok() {
            return;
        }
    }
}
