//! Brings dead messages back to their queue.

use std::borrow::Cow;

use lapin::Channel;
use lapin::options::{BasicAckOptions, BasicGetOptions, QueueDeclareOptions};
use lapin::types::FieldTable;
use oncebox_core::{Error, ErrorKind};

use crate::broker::Settings;
use crate::copies;
use crate::link::{Link, within};
use crate::message::Delivered;
use crate::publisher::{Post, Publisher};
use crate::topology::{dead_queue, short};

/// The maximum number of messages that are moved together.
const BATCH: u64 = 100;

pub(crate) async fn redrive(
    settings: &Settings,
    publisher: &Publisher,
    queue: &str,
    limit: u64,
) -> Result<u64, Error> {
    let link = Link::open(settings, &format!("redrive of {queue}")).await?;
    let moving =
        Redrive { settings, publisher, queue, dead: dead_queue(queue), channel: link.channel().await? };
    let mut moved = 0;
    // Those that are there now. One that fails again at once is not moved twice.
    let there = moving.count(&moving.dead).await?;
    moving.count(queue).await?;
    let result = loop {
        let batch = limit.min(there).saturating_sub(moved).min(BATCH);
        match moving.batch(batch, &mut moved).await {
            Ok(0) => break Ok(moved),
            Ok(_) => {}
            Err(error) => {
                let text = format!(
                    "{moved} messages were moved from {:?} to {queue:?}, then this failed",
                    moving.dead
                );
                break Err(Error::new(ErrorKind::Unavailable, text).with_source(error));
            }
        }
    };
    link.close().await;
    result
}

struct Redrive<'a> {
    settings: &'a Settings,
    publisher: &'a Publisher,
    queue: &'a str,
    dead: String,
    channel: Channel,
}

impl Redrive<'_> {
    /// The number of messages in a queue.
    async fn count(&self, queue: &str) -> Result<u64, Error> {
        let options = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
        let asking = self.channel.queue_declare(short(queue)?, options, FieldTable::default());
        let found = within(self.settings, &format!("checking the queue {queue:?}"), asking).await?;
        Ok(found.message_count().into())
    }

    /// Moves messages, adds to the number of those moved, and returns the number of those found.
    async fn batch(&self, size: u64, moved: &mut u64) -> Result<usize, Error> {
        let mut found = Vec::new();
        for _ in 0..size {
            let getting = self.channel.basic_get(short(&self.dead)?, BasicGetOptions { no_ack: false });
            let doing = format!("taking a message from the queue {:?}", self.dead);
            let Some(message) = within(self.settings, &doing, getting).await? else { break };
            let delivery = message.delivery;
            let delivered = Delivered {
                exchange: delivery.exchange,
                routing_key: delivery.routing_key,
                properties: delivery.properties,
                body: delivery.data,
            };
            found.push((delivery.delivery_tag, delivered));
        }
        let mut posts = Vec::new();
        for (_, message) in &found {
            posts.push(Post {
                exchange: "".into(),
                routing_key: short(self.queue)?,
                is_mandatory: true,
                properties: copies::redriven(message),
                body: Cow::Borrowed(&message.body),
            });
        }
        let posted = self.publisher.publish(&posts).await;
        let mut failure = None;
        for (((tag, _), post), posted) in found.iter().zip(&posts).zip(&posted) {
            match posted.failure(post) {
                None => {
                    let acking = self.channel.basic_ack(*tag, BasicAckOptions { multiple: false });
                    within(self.settings, "acknowledging a dead message", acking).await?;
                    *moved += 1;
                }
                // The broker puts it back when the connection ends.
                Some(error) => failure = failure.or(Some(error)),
            }
        }
        failure.map_or(Ok(found.len()), Err)
    }
}
