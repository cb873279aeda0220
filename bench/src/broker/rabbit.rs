//! A private RabbitMQ server, and queues with messages.

use anyhow::{Context, Result, ensure};
use futures_util::future::join_all;
use lapin::options::{BasicPublishOptions, ConfirmSelectOptions, QueueDeclareOptions};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, Confirmation, Connection, ConnectionProperties};
use oncebox::Message;
use oncebox::rabbitmq::RabbitMq;
use oncebox_servers::rabbitmq::{RabbitOptions, RabbitServer};

use crate::message::OrderPaid;

/// The queue of every measurement, in a virtual host of its own.
pub(super) const QUEUE: &str = "orders";
/// The number of messages without a confirm while a queue is filled.
const WINDOW: usize = 1_000;
const PERSISTENT: u8 = 2;

/// A private server.
pub(super) struct Rabbit {
    pub(super) server: RabbitServer,
}

impl Rabbit {
    pub(super) async fn start() -> Result<Self> {
        let server = RabbitServer::start(RabbitOptions::default()).await.context("starting RabbitMQ")?;
        Ok(Self { server })
    }

    pub(super) fn stop(mut self) -> Result<()> {
        self.server.stop()
    }

    /// A virtual host with an empty quorum queue. Returns its URL.
    pub(super) async fn fresh(&self) -> Result<String> {
        let url = self.server.fresh_vhost().await?.url();
        let connection = Connection::connect(&url, ConnectionProperties::default()).await?;
        let channel = connection.create_channel().await?;
        let mut arguments = FieldTable::default();
        arguments.insert("x-queue-type".into(), AMQPValue::LongString("quorum".into()));
        let durable = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
        channel.queue_declare(QUEUE.into(), durable, arguments).await?;
        connection.close(200, "done".into()).await?;
        Ok(url)
    }

    /// The number of messages in the queue.
    pub(super) async fn waiting(url: &str) -> Result<u64> {
        let connection = Connection::connect(url, ConnectionProperties::default()).await?;
        let channel = connection.create_channel().await?;
        let passive = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
        let queue = channel.queue_declare(QUEUE.into(), passive, FieldTable::default()).await?;
        connection.close(200, "done".into()).await?;
        Ok(queue.message_count().into())
    }

    /// Publishes messages to the queue, and waits for their confirms.
    pub(super) async fn fill(url: &str, messages: u64) -> Result<()> {
        let connection = Connection::connect(url, ConnectionProperties::default()).await?;
        let channel = connection.create_channel().await?;
        channel.confirm_select(ConfirmSelectOptions::default()).await?;
        let numbers: Vec<u64> = (0..messages).collect();
        for window in numbers.chunks(WINDOW) {
            let mut confirms = Vec::with_capacity(window.len());
            for number in window {
                let properties = BasicProperties::default()
                    .with_delivery_mode(PERSISTENT)
                    .with_type(OrderPaid::KIND.into())
                    .with_message_id(number.to_string().into());
                let body = OrderPaid::body(*number);
                let options = BasicPublishOptions::default();
                confirms
                    .push(channel.basic_publish("".into(), QUEUE.into(), options, &body, properties).await?);
            }
            for confirm in join_all(confirms).await {
                ensure!(matches!(confirm?, Confirmation::Ack(None)), "the broker refused a message");
            }
        }
        connection.close(200, "done".into()).await?;
        Ok(())
    }

    /// The client of the library.
    pub(super) fn client(url: &str) -> Result<RabbitMq> {
        Ok(RabbitMq::new(url)?)
    }
}
