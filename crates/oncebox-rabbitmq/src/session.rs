//! One subscription to a queue.

use std::collections::VecDeque;
use std::fmt;

use futures_util::future::BoxFuture;
use futures_util::{FutureExt, StreamExt};
use lapin::message::Delivery;
use lapin::options::{BasicCancelOptions, BasicConsumeOptions, BasicQosOptions};
use lapin::types::FieldTable;
use lapin::{Channel, Consumer};
use oncebox_core::source::{Received, Room, Session};
use oncebox_core::{Error, ErrorKind};

use crate::broker::Settings;
use crate::errors::failed;
use crate::link::{Link, within};
use crate::message::Delivered;
use crate::settler::{RabbitReceipt, RabbitSettler};
use crate::topology::short;

/// A subscription to a queue, until its connection fails.
///
/// It begins with one message at a time, as long as the broker says that it delivers them again: one of them may have crashed the
/// process that had it. The first fresh message ends this.
pub struct RabbitSession {
    link: Link,
    consumer: Consumer,
    settler: RabbitSettler,
    queue: String,
    prefetch: u16,
    /// What has left the wire, and was not taken yet.
    buffer: VecDeque<Received<RabbitReceipt>>,
    phase: Phase,
}

/// The names of the two subscriptions. When a connection is lost, a quorum queue takes back the messages of its consumers in the order of
/// these names: so the message that ended the first subscription stays ahead of those of the second.
pub(crate) const ONE_BY_ONE: &str = "oncebox-1";
const FULL: &str = "oncebox-2";

/// How messages are delivered.
enum Phase {
    /// One at a time.
    OneByOne,
    /// The subscription is being replaced. Kept here, so that a dropped `next` does not lose it.
    Switching(BoxFuture<'static, Result<Consumer, Error>>),
    /// As many as the prefetch allows.
    Full,
}

impl RabbitSession {
    pub(crate) fn new(
        link: Link,
        consumer: Consumer,
        settler: RabbitSettler,
        queue: String,
        prefetch: u16,
        is_full: bool,
    ) -> Self {
        let phase = if is_full { Phase::Full } else { Phase::OneByOne };
        Self { link, consumer, settler, queue, prefetch, buffer: VecDeque::new(), phase }
    }

    /// Takes everything that has arrived into the buffer.
    fn receive_arrived(&mut self) -> Result<(), Error> {
        while matches!(self.phase, Phase::OneByOne | Phase::Full)
            && let Some(item) = self.consumer.next().now_or_never()
        {
            self.receive(item)?;
        }
        Ok(())
    }

    fn receive(&mut self, item: Option<lapin::Result<Delivery>>) -> Result<(), Error> {
        match item {
            Some(Ok(delivery)) => {
                self.keep(delivery);
                Ok(())
            }
            None => Err(self.ended(Error::new(
                ErrorKind::Unavailable,
                format!(
                    "RabbitMQ has cancelled the consumer of the queue {:?}: the queue was deleted",
                    self.queue
                ),
            ))),
            Some(Err(error)) => {
                let doing = format!("consuming the queue {:?}", self.queue);
                let error = failed(self.settler.settings(), &doing, error);
                Err(self.ended(error))
            }
        }
    }

    fn ended(&self, error: Error) -> Error {
        self.settler.end();
        error
    }

    fn keep(&mut self, delivery: Delivery) {
        let (tag, is_redelivered) = (delivery.delivery_tag, delivery.redelivered);
        let delivered = Delivered {
            exchange: delivery.exchange,
            routing_key: delivery.routing_key,
            properties: delivery.properties,
            body: delivery.data,
        };
        self.buffer.push_back(self.settler.received(tag, delivered));
        if !is_redelivered
            && matches!(self.phase, Phase::OneByOne)
            && let Some(channel) = self.settler.channel()
        {
            let settings = self.settler.settings().clone();
            let (old, queue) = (self.consumer.clone(), self.queue.clone());
            self.phase = Phase::Switching(resubscribe(settings, channel, old, queue, self.prefetch).boxed());
        }
    }

    /// The messages for which there is room.
    fn take(&mut self, room: Room) -> Vec<Received<RabbitReceipt>> {
        let (mut taken, mut bytes) = (Vec::new(), 0_usize);
        while let Some(first) = self.buffer.front() {
            bytes = bytes.saturating_add(first.message.body.len());
            if taken.len() == room.messages || (bytes > room.bytes && !taken.is_empty()) {
                break;
            }
            taken.extend(self.buffer.pop_front());
        }
        taken
    }
}

/// Replaces a subscription: the prefetch of one that exists cannot be changed.
async fn resubscribe(
    settings: Settings,
    channel: Channel,
    old: Consumer,
    queue: String,
    prefetch: u16,
) -> Result<Consumer, Error> {
    let doing = format!("consuming the queue {queue:?}");
    within(&settings, &doing, channel.basic_cancel(old.tag(), BasicCancelOptions::default())).await?;
    within(&settings, &doing, channel.basic_qos(prefetch, BasicQosOptions::default())).await?;
    let (options, arguments) = (BasicConsumeOptions::default(), FieldTable::default());
    within(&settings, &doing, channel.basic_consume(short(&queue)?, FULL.into(), options, arguments)).await
}

impl Session for RabbitSession {
    type Receipt = RabbitReceipt;
    type Settler = RabbitSettler;

    fn settler(&self) -> RabbitSettler {
        self.settler.clone()
    }

    async fn next(&mut self, room: Room) -> Result<Vec<Received<RabbitReceipt>>, Error> {
        loop {
            self.receive_arrived()?;
            if let Phase::Switching(switching) = &mut self.phase {
                let consumer = switching.await;
                self.phase = Phase::Full;
                // Its end is no end of the session.
                self.consumer = consumer.map_err(|error| self.ended(error))?;
                continue;
            }
            if !self.buffer.is_empty() && !room.is_full() {
                return Ok(self.take(room));
            }
            // Dropping this loses nothing: an item leaves the stream when it is returned.
            let item = self.consumer.next().await;
            self.receive(item)?;
        }
    }

    async fn close(mut self) {
        self.settler.end();
        for Received { receipt, .. } in self.buffer.drain(..) {
            // The broker counts it as a delivery, but no handler has seen it.
            self.settler.give_back(&receipt);
        }
        self.link.close().await;
    }
}

impl Drop for RabbitSession {
    fn drop(&mut self) {
        for Received { receipt, .. } in self.buffer.drain(..) {
            self.settler.give_back(&receipt);
        }
        // The connection ends with its last channel, also if a settler is still there.
        self.settler.end();
    }
}

impl fmt::Debug for RabbitSession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RabbitSession")
            .field("queue", &self.queue)
            .field("prefetch", &self.prefetch)
            .field("buffered", &self.buffer.len())
            .finish_non_exhaustive()
    }
}
