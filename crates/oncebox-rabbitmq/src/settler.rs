//! Settles deliveries: acknowledges them, or publishes a copy first.

use std::borrow::Cow;
use std::fmt;
use std::sync::{Arc, Mutex as StdMutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::join_all;
use lapin::Channel;
use lapin::options::{BasicAckOptions, BasicNackOptions};
use lapin::types::ShortString;
use oncebox_core::source::{Decision, Received, Settled, Settler};
use oncebox_core::{Error, ErrorKind, Settlement};
use tokio::sync::Mutex;
use tokio::time::{sleep, timeout};

use crate::acks::Unsettled;
use crate::broker::Settings;
use crate::copies;
use crate::errors::{chain, failed, no_response, nothing_was_sent};
use crate::message::Delivered;
use crate::publisher::{Post, Publisher};
use crate::requeues::Requeues;
use crate::topology::{Retries, dead_queue, delay, retry_queue, short};

/// The wait before a message goes back to its queue because its copy could not be published.
const REQUEUE_AFTER: Duration = Duration::from_secs(5);

/// The maximum wait in this process. The broker closes channels whose deliveries stay unsettled for too long.
const MAX_WAIT: Duration = Duration::from_secs(60);

/// Identifies a delivery of a session.
#[derive(Clone)]
pub struct RabbitReceipt {
    epoch: u64,
    tag: u64,
    attempt: u32,
    delivered: Arc<Delivered>,
}

impl fmt::Debug for RabbitReceipt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Without the message, which does not belong into logs.
        f.debug_struct("RabbitReceipt")
            .field("epoch", &self.epoch)
            .field("tag", &self.tag)
            .field("attempt", &self.attempt)
            .finish_non_exhaustive()
    }
}

/// Settles the deliveries of a session.
#[derive(Clone, Debug)]
pub struct RabbitSettler {
    shared: Arc<Shared>,
}

/// Where copies of the messages of a source go.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) source: String,
    pub(crate) queue: String,
    pub(crate) retries: Retries,
    pub(crate) max_retries: u32,
    pub(crate) fault_exchange: Option<String>,
}

#[derive(Debug)]
struct Shared {
    /// The number of the session.
    epoch: u64,
    /// `None` after the end of the session. Nothing is sent then, and no settler keeps the connection open.
    channel: StdMutex<Option<Channel>>,
    unsettled: StdMutex<Unsettled>,
    /// Held from choosing acknowledgements until they are sent. One that overtakes another would acknowledge its deliveries, and
    /// the broker closes a channel that acknowledges a delivery twice.
    sending: Mutex<()>,
    plan: Plan,
    publisher: Arc<Publisher>,
    requeues: Arc<Requeues>,
}

/// How a delivery is settled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    Ack,
    /// A copy goes to the retry queue with this end of its name.
    Delay(&'static str),
    /// It goes back to its queue after a wait.
    Requeue(Duration),
    /// A copy goes to the dead queue.
    Bury,
}

fn action(settlement: Settlement, attempt: u32, plan: &Plan) -> Action {
    match settlement {
        Settlement::Ack => Action::Ack,
        Settlement::Reject => Action::Bury,
        Settlement::Retry { .. } if attempt > plan.max_retries => Action::Bury,
        Settlement::Retry { after } => match plan.retries {
            Retries::Queues => Action::Delay(delay(after, attempt).1),
            Retries::Requeue => {
                Action::Requeue(after.unwrap_or_else(|| delay(None, attempt).0).min(MAX_WAIT))
            }
        },
    }
}

impl RabbitSettler {
    pub(crate) fn new(
        epoch: u64,
        channel: Channel,
        plan: Plan,
        publisher: Arc<Publisher>,
        requeues: Arc<Requeues>,
    ) -> Self {
        let shared = Shared {
            epoch,
            channel: StdMutex::new(Some(channel)),
            unsettled: StdMutex::default(),
            sending: Mutex::new(()),
            plan,
            publisher,
            requeues,
        };
        Self { shared: Arc::new(shared) }
    }

    pub(crate) fn settings(&self) -> &Settings {
        self.shared.publisher.settings()
    }

    /// The channel, while the session lasts.
    pub(crate) fn channel(&self) -> Option<Channel> {
        self.shared.channel()
    }

    /// Ends the session: nothing is sent any more.
    pub(crate) fn end(&self) {
        drop(lock(&self.shared.channel).take());
    }

    /// Records a delivery.
    pub(crate) fn received(&self, tag: u64, delivered: Delivered) -> Received<RabbitReceipt> {
        let shared = &self.shared;
        lock(&shared.unsettled).delivered(tag);
        let own = shared.requeues.count(&delivered);
        let attempt = delivered.attempt().saturating_add(own.failed);
        let abandoned = delivered.delivery_count().saturating_sub(own.total());
        let message = delivered.to_message(attempt, abandoned);
        let receipt = RabbitReceipt { epoch: shared.epoch, tag, attempt, delivered: Arc::new(delivered) };
        Received { receipt, message }
    }

    /// Notes that a delivery returns to its queue without having been handled.
    pub(crate) fn give_back(&self, receipt: &RabbitReceipt) {
        self.shared.requeues.add_unhandled(&receipt.delivered);
    }
}

impl Shared {
    fn channel(&self) -> Option<Channel> {
        lock(&self.channel).clone()
    }

    fn is_current(&self, receipt: &RabbitReceipt) -> bool {
        receipt.epoch == self.epoch && self.channel().is_some() && lock(&self.unsettled).contains(receipt.tag)
    }

    /// The copies of a message that must be stored before it is acknowledged.
    fn posts<'r>(
        &self,
        receipt: &'r RabbitReceipt,
        action: Action,
        reason: &str,
    ) -> Result<Vec<Post<'r>>, Error> {
        let (message, plan) = (&*receipt.delivered, &self.plan);
        let to_queue = |queue: String, properties| {
            Ok::<_, Error>(Post {
                exchange: "".into(),
                routing_key: short(&queue)?,
                is_mandatory: true,
                properties,
                body: Cow::Borrowed(&message.body),
            })
        };
        Ok(match action {
            Action::Ack | Action::Requeue(_) => Vec::new(),
            Action::Delay(end) => {
                let properties = copies::for_attempt(message, receipt.attempt.saturating_add(1));
                vec![to_queue(retry_queue(&plan.queue, end), properties)?]
            }
            Action::Bury => {
                let dead = copies::dead(message, receipt.attempt, reason);
                let mut posts = vec![to_queue(dead_queue(&plan.queue), dead)?];
                if let Some(exchange) = &plan.fault_exchange {
                    let (properties, body) = copies::fault(message, &plan.source, receipt.attempt, reason);
                    posts.push(Post {
                        exchange: short(exchange)?,
                        routing_key: ShortString::from(copies::FAULT),
                        // No queue has to be bound.
                        is_mandatory: false,
                        properties,
                        body: Cow::Owned(body),
                    });
                }
                posts
            }
        })
    }

    /// Acknowledges deliveries.
    async fn ack(&self, receipts: &[&RabbitReceipt]) -> Result<(), AckError> {
        let tags: Vec<u64> = receipts.iter().map(|receipt| receipt.tag).collect();
        if tags.is_empty() {
            return Ok(());
        }
        let _sending = self.sending.lock().await;
        let Some(channel) = self.channel() else { return Err(AckError::Stale) };
        let acks = lock(&self.unsettled).acks(&tags);
        // All are handed to the client at the first poll of this, so a drop later loses none of them.
        let sending = join_all(
            acks.iter().map(|ack| channel.basic_ack(ack.tag, BasicAckOptions { multiple: ack.is_multiple })),
        );
        let settings = self.publisher.settings();
        let limit = settings.timeout;
        let Ok(sent) = timeout(limit, sending).await else {
            return Err(AckError::Unknown(no_response(settings, "acknowledging messages", limit)));
        };
        match sent.into_iter().find_map(Result::err) {
            None => {
                receipts.iter().for_each(|receipt| self.requeues.forget(&receipt.delivered));
                Ok(())
            }
            Some(error) if nothing_was_sent(&error) => Err(AckError::Stale),
            Some(error) => Err(AckError::Unknown(failed(settings, "acknowledging messages", error))),
        }
    }

    /// Gives a delivery back to its queue.
    async fn requeue(&self, receipt: &RabbitReceipt) {
        let _sending = self.sending.lock().await;
        let Some(channel) = self.channel() else { return };
        if !lock(&self.unsettled).remove(receipt.tag) {
            return;
        }
        self.requeues.add_failed(&receipt.delivered);
        let options = BasicNackOptions { multiple: false, requeue: true };
        // On an error the session ends, and the broker delivers the message again anyway.
        let _ = timeout(self.publisher.settings().timeout, channel.basic_nack(receipt.tag, options)).await;
    }
}

enum AckError {
    Stale,
    Unknown(Error),
}

/// Gives a delivery back to its queue after a wait, if the session lasts until then. Otherwise the broker does it.
fn requeue_later(shared: &Arc<Shared>, receipt: RabbitReceipt, wait: Duration) {
    let shared = Arc::downgrade(shared);
    tokio::spawn(async move {
        sleep(wait).await;
        if let Some(shared) = shared.upgrade() {
            shared.requeue(&receipt).await;
        }
    });
}

impl Settler for RabbitSettler {
    type Receipt = RabbitReceipt;

    async fn settle(&self, decisions: Vec<Decision<RabbitReceipt>>) -> Vec<Settled> {
        let shared = &self.shared;
        let mut results: Vec<Option<Settled>> = Vec::with_capacity(decisions.len());
        let mut posts = Vec::new();
        // The decision that each post belongs to.
        let mut owners = Vec::new();
        for (n, Decision { receipt, settlement, reason }) in decisions.iter().enumerate() {
            if !shared.is_current(receipt) {
                results.push(Some(Settled::Stale));
                continue;
            }
            let action = action(*settlement, receipt.attempt, &shared.plan);
            if let Action::Requeue(wait) = action {
                requeue_later(shared, receipt.clone(), wait);
                results.push(Some(Settled::Done));
                continue;
            }
            let reason = reason.as_ref().map_or_else(|| "rejected".to_owned(), |reason| chain(&**reason));
            match shared.posts(receipt, action, &reason) {
                Ok(copies) => {
                    owners.extend(copies.iter().map(|_| n));
                    posts.extend(copies);
                    results.push(None);
                }
                Err(error) => results.push(Some(Settled::Unknown(error))),
            }
        }
        let posted = shared.publisher.publish(&posts).await;
        for ((owner, post), posted) in owners.iter().zip(&posts).zip(&posted) {
            if let (Some(failure), Some(result @ None)) = (posted.failure(post), results.get_mut(*owner)) {
                *result = Some(Settled::Unknown(failure));
            }
        }
        for (result, decision) in results.iter().zip(&decisions) {
            if matches!(result, Some(Settled::Unknown(_))) {
                requeue_later(shared, decision.receipt.clone(), REQUEUE_AFTER);
            }
        }
        let stored: Vec<&RabbitReceipt> = results
            .iter()
            .zip(&decisions)
            .filter(|(result, _)| result.is_none())
            .map(|(_, decision)| &decision.receipt)
            .collect();
        let acked = shared.ack(&stored).await;
        results.into_iter().map(|result| result.unwrap_or_else(|| settled(&acked))).collect()
    }
}

/// The result of deliveries that were acknowledged together.
fn settled(acked: &Result<(), AckError>) -> Settled {
    match acked {
        Ok(()) => Settled::Done,
        Err(AckError::Stale) => Settled::Stale,
        Err(AckError::Unknown(error)) => {
            Settled::Unknown(Error::new(ErrorKind::Unavailable, error.report().to_string()))
        }
    }
}

fn lock<T>(mutex: &StdMutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(retries: Retries) -> Plan {
        Plan { source: "s".into(), queue: "q".into(), retries, max_retries: 3, fault_exchange: None }
    }

    #[test]
    fn a_failed_message_is_retried_until_no_retry_is_left() {
        let seconds = Duration::from_secs;
        let retry = |after: Option<u64>| Settlement::Retry { after: after.map(seconds) };
        for (settlement, attempt, with_queues, without) in [
            (Settlement::Ack, 9, Action::Ack, Action::Ack),
            (Settlement::Reject, 1, Action::Bury, Action::Bury),
            (retry(None), 1, Action::Delay("1s"), Action::Requeue(seconds(1))),
            (retry(Some(5)), 3, Action::Delay("10s"), Action::Requeue(seconds(5))),
            (retry(Some(900)), 3, Action::Delay("10m"), Action::Requeue(MAX_WAIT)),
            (retry(Some(5)), 4, Action::Bury, Action::Bury),
        ] {
            assert_eq!(action(settlement, attempt, &plan(Retries::Queues)), with_queues);
            assert_eq!(action(settlement, attempt, &plan(Retries::Requeue)), without);
        }
    }
}
