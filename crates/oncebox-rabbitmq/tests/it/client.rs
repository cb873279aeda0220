//! A client of its own for the tests, and short forms of what they do with a source.

use std::sync::Arc;
use std::time::Duration;

use lapin::options::{
    BasicAckOptions, BasicGetOptions, BasicPublishOptions, ConfirmSelectOptions, ExchangeDeclareOptions,
    QueueBindOptions, QueueDeclareOptions, QueueDeleteOptions,
};
use lapin::types::FieldTable;
use lapin::{BasicProperties, Channel, Connection, ConnectionProperties, ExchangeKind};
use oncebox_core::source::{Decision, Received, Room, Session, Settled, Settler, Source};
use oncebox_core::{Cause, Error, Settlement};
use oncebox_rabbitmq::{Declare, RabbitMq, RabbitReceipt, RabbitSession, RabbitSource};
use oncebox_servers::rabbitmq::{TestVhost, test_vhost};
use tokio::time::{sleep, timeout};

/// Far more than anything takes; only a test that fails waits for so long.
pub(crate) const LONG: Duration = Duration::from_secs(120);

pub(crate) const ROOM: Room = Room { messages: 100, bytes: 1 << 20 };

/// A broker with an empty virtual host, and another client of it.
pub(crate) struct Broker {
    pub(crate) vhost: TestVhost,
    pub(crate) rabbit: RabbitMq,
    pub(crate) client: Client,
}

impl Broker {
    /// `None` if there is no server; the test returns then.
    pub(crate) async fn fresh(test: &str) -> Option<Broker> {
        let vhost = test_vhost(test).await?;
        let rabbit = RabbitMq::new(vhost.url()).unwrap();
        let client = Client::connect(&vhost.url()).await;
        Some(Broker { vhost, rabbit, client })
    }

    /// The queue `orders`, which the source creates.
    pub(crate) fn source(&self) -> RabbitSource {
        self.rabbit.queue("orders").declare(Declare::Create)
    }
}

/// A client that knows nothing of Oncebox.
pub(crate) struct Client {
    _connection: Connection,
    pub(crate) channel: Channel,
}

/// A message that the client has read.
pub(crate) struct Read {
    pub(crate) routing_key: String,
    pub(crate) properties: BasicProperties,
    pub(crate) body: Vec<u8>,
}

impl Read {
    /// A header as text.
    pub(crate) fn header(&self, name: &str) -> Option<String> {
        let value = self.properties.headers().as_ref()?.inner().get(name)?.clone();
        match value {
            lapin::types::AMQPValue::LongString(text) => Some(text.to_string()),
            lapin::types::AMQPValue::LongUInt(number) => Some(number.to_string()),
            lapin::types::AMQPValue::LongLongInt(number) => Some(number.to_string()),
            other => panic!("{name} is {other:?}"),
        }
    }
}

impl Client {
    pub(crate) async fn connect(url: &str) -> Client {
        let connection = Connection::connect(url, ConnectionProperties::default()).await.unwrap();
        let channel = connection.create_channel().await.unwrap();
        channel.confirm_select(ConfirmSelectOptions::default()).await.unwrap();
        Client { _connection: connection, channel }
    }

    /// Creates a classic queue without any arguments.
    pub(crate) async fn queue(&self, name: &str) {
        self.queue_with(name, FieldTable::default()).await;
    }

    pub(crate) async fn queue_with(&self, name: &str, arguments: FieldTable) {
        let options = QueueDeclareOptions::durable();
        self.channel.queue_declare(name.into(), options, arguments).await.unwrap();
    }

    pub(crate) async fn delete(&self, queue: &str) {
        self.channel.queue_delete(queue.into(), QueueDeleteOptions::default()).await.unwrap();
    }

    pub(crate) async fn exchange(&self, name: &str, kind: ExchangeKind) {
        let options = ExchangeDeclareOptions { durable: true, ..ExchangeDeclareOptions::default() };
        self.channel.exchange_declare(name.into(), kind, options, FieldTable::default()).await.unwrap();
    }

    pub(crate) async fn bind(&self, queue: &str, exchange: &str, routing_key: &str) {
        let options = QueueBindOptions::default();
        let (queue, exchange, routing_key) = (queue.into(), exchange.into(), routing_key.into());
        self.channel.queue_bind(queue, exchange, routing_key, options, FieldTable::default()).await.unwrap();
    }

    /// Publishes a message, and waits until it is in its queue.
    pub(crate) async fn publish(&self, queue: &str, body: &str) {
        let properties = BasicProperties::default().with_message_id(body.into());
        self.publish_with("", queue, body.as_bytes(), properties).await;
    }

    pub(crate) async fn publish_with(
        &self,
        exchange: &str,
        routing_key: &str,
        body: &[u8],
        properties: BasicProperties,
    ) {
        let options = BasicPublishOptions { mandatory: true, immediate: false };
        let confirm = self
            .channel
            .basic_publish(exchange.into(), routing_key.into(), options, body, properties)
            .await
            .unwrap();
        let confirm = confirm.await.unwrap();
        assert!(confirm.is_ack() && confirm.take_message().is_none(), "{exchange} {routing_key}");
    }

    /// Takes the next message of a queue, and waits for it.
    pub(crate) async fn read(&self, queue: &str) -> Read {
        let reading = async {
            loop {
                if let Some(read) = self.try_read(queue).await {
                    return read;
                }
                sleep(Duration::from_millis(20)).await;
            }
        };
        timeout(LONG, reading).await.unwrap_or_else(|_| panic!("no message in {queue}"))
    }

    /// Takes the next message of a queue, if there is one.
    pub(crate) async fn try_read(&self, queue: &str) -> Option<Read> {
        let got = self.channel.basic_get(queue.into(), BasicGetOptions { no_ack: false }).await.unwrap()?;
        got.ack(BasicAckOptions::default()).await.unwrap();
        let delivery = got.delivery;
        let routing_key = delivery.routing_key.to_string();
        Some(Read { routing_key, properties: delivery.properties, body: delivery.data })
    }

    /// The number of messages in a queue that no consumer has.
    pub(crate) async fn count(&self, queue: &str) -> u32 {
        let options = QueueDeclareOptions::default().passive();
        let queue = self.channel.queue_declare(queue.into(), options, FieldTable::default()).await.unwrap();
        queue.message_count()
    }

    /// Waits until a queue has this number of messages that no consumer has.
    pub(crate) async fn until_count(&self, queue: &str, count: u32) {
        let waiting = async {
            while self.count(queue).await != count {
                sleep(Duration::from_millis(20)).await;
            }
        };
        timeout(LONG, waiting).await.unwrap_or_else(|_| panic!("{queue} never has {count} messages"));
    }
}

/// Opens a session with a prefetch of 100.
pub(crate) async fn open(source: &mut RabbitSource) -> RabbitSession {
    open_with_warnings(source).await.0
}

pub(crate) async fn open_with_warnings(source: &mut RabbitSource) -> (RabbitSession, Vec<String>) {
    let opened = timeout(LONG, source.open(ROOM)).await.unwrap().unwrap();
    (opened.session, opened.warnings)
}

/// The error of a session that cannot be opened, with its causes.
pub(crate) async fn open_error(source: &mut RabbitSource) -> String {
    match timeout(LONG, source.open(ROOM)).await.unwrap() {
        Ok(_) => panic!("it opens"),
        Err(error) => error.report().to_string(),
    }
}

/// The next message.
pub(crate) async fn next(session: &mut RabbitSession) -> Received<RabbitReceipt> {
    let room = Room { messages: 1, ..ROOM };
    let mut received = timeout(LONG, session.next(room)).await.expect("a message arrives").unwrap();
    assert_eq!(received.len(), 1);
    received.remove(0)
}

/// The next messages, as many as requested.
pub(crate) async fn next_many(session: &mut RabbitSession, count: usize) -> Vec<Received<RabbitReceipt>> {
    let mut all = Vec::new();
    while all.len() < count {
        all.push(next(session).await);
    }
    all
}

/// The error that ends a session.
pub(crate) async fn session_error(session: &mut RabbitSession) -> Error {
    loop {
        match timeout(LONG, session.next(ROOM)).await.expect("the session ends") {
            Ok(received) => assert!(!received.is_empty()),
            Err(error) => return error,
        }
    }
}

pub(crate) fn body(received: &Received<RabbitReceipt>) -> &str {
    std::str::from_utf8(&received.message.body).unwrap()
}

pub(crate) fn bodies(received: &[Received<RabbitReceipt>]) -> Vec<&str> {
    received.iter().map(body).collect()
}

pub(crate) fn decision(receipt: RabbitReceipt, settlement: Settlement) -> Decision<RabbitReceipt> {
    let reason: Cause = Arc::new(std::io::Error::other("no such customer"));
    let reason = (settlement != Settlement::Ack).then_some(reason);
    Decision { receipt, settlement, reason }
}

/// Settles one delivery.
pub(crate) async fn settle(
    session: &RabbitSession,
    received: Received<RabbitReceipt>,
    settlement: Settlement,
) -> Settled {
    let mut settled = session.settler().settle(vec![decision(received.receipt, settlement)]).await;
    assert_eq!(settled.len(), 1);
    settled.remove(0)
}

/// Settles one delivery, which works.
pub(crate) async fn settled(
    session: &RabbitSession,
    received: Received<RabbitReceipt>,
    settlement: Settlement,
) {
    let result = settle(session, received, settlement).await;
    assert!(matches!(result, Settled::Done), "{result:?}");
}

pub(crate) fn retry_now() -> Settlement {
    Settlement::Retry { after: Some(Duration::ZERO) }
}
