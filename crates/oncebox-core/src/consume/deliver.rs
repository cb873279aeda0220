//! Passes one delivery to the inbox, and decides how it is settled.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;

use crate::backoff::Retries;
use crate::consume::RETRY_AFTER;
use crate::consume::status::StatusBoard;
use crate::error::chain;
use crate::inbox::InboxStore;
use crate::outcome::cause;
use crate::source::{Abilities, ReceivedMessage, SourceRules};
use crate::{Cause, Envelope, Error, ErrorKind, Inbox, Key, Settlement};

/// Passes deliveries of one source to the inbox.
pub(super) struct Deliverer<S: InboxStore> {
    pub(super) inbox: Inbox<S>,
    pub(super) rules: SourceRules,
    pub(super) abilities: Abilities,
    pub(super) retry_after: Option<Duration>,
    pub(super) crashes_max: u32,
    pub(super) board: Arc<StatusBoard>,
}

/// How a delivery is to be settled, and why.
#[derive(Debug)]
pub(super) struct Verdict {
    pub(super) settlement: Settlement,
    pub(super) reason: Option<Cause>,
}

/// A delivery whose rules were applied.
pub(super) struct Prepared {
    /// The message, or why it is rejected.
    envelope: Result<Envelope, Cause>,
    /// The number of earlier deliveries without a settlement.
    abandoned: u32,
}

impl Prepared {
    /// A number that tells this message apart from others.
    pub(super) fn print(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        if let Ok(envelope) = &self.envelope {
            (&envelope.kind, &envelope.key, &envelope.fallback_key, &envelope.body).hash(&mut hasher);
        }
        hasher.finish()
    }

    /// Leaves deliveries out of the count that this process has lost, and not by a crash.
    pub(super) fn forgive(&mut self, lost: u32) {
        self.abandoned = self.abandoned.saturating_sub(lost);
    }

    /// The ordering key: deliveries with equal ones run one after the other.
    pub(super) fn order_by(&self) -> Option<&Key> {
        self.envelope.as_ref().ok()?.order_by()
    }
}

impl<S: InboxStore> Deliverer<S> {
    /// Applies the rules of the source.
    pub(super) fn prepare(&self, message: ReceivedMessage) -> Prepared {
        let abandoned = message.abandoned;
        Prepared { envelope: self.rules.delivery(message).map_err(cause), abandoned }
    }

    /// Passes a delivery to the inbox until its outcome is durable. Returns `None` if the inbox was closed: the delivery is not settled
    /// then.
    pub(super) async fn deliver(&self, prepared: Prepared) -> Option<Verdict> {
        let abandoned = prepared.abandoned;
        let mut envelope = match prepared.envelope {
            Ok(envelope) => envelope,
            Err(invalid) => {
                tracing::warn!(source = self.rules.name, error = %invalid, "rejected a message");
                return Some(Verdict { settlement: Settlement::Reject, reason: Some(invalid) });
            }
        };
        let mut retries = Retries::unlimited();
        // Kept between attempts, so that an outage is reported once.
        let mut waiting = None;
        loop {
            let verdict = match self.attempt(&envelope, abandoned).await {
                Ok(verdict) => verdict,
                Err(error) if error.kind() == ErrorKind::Closed => return None,
                Err(error) => {
                    waiting.get_or_insert_with(|| self.board.store_waits(&error));
                    retries.pause().await;
                    continue;
                }
            };
            drop(waiting.take());
            retries.reset();
            let Settlement::Retry { after } = verdict.settlement else { return Some(verdict) };
            let after = after.or(self.retry_after);
            if self.abilities.delays_retries {
                return Some(Verdict { settlement: Settlement::Retry { after }, ..verdict });
            }
            sleep(after.unwrap_or(RETRY_AFTER)).await;
            if !self.abilities.settles_positions {
                return Some(verdict);
            }
            // The source cannot deliver it again while later positions are in flight.
            envelope = envelope.next_attempt();
        }
    }
}

impl<S: InboxStore> Deliverer<S> {
    async fn attempt(&self, envelope: &Envelope, abandoned: u32) -> Result<Verdict, Error> {
        // What has run only lost its acknowledgement.
        if abandoned >= self.crashes_max && self.inbox.runs_now() && !self.inbox.has_run(envelope).await? {
            let reason = format!(
                "{abandoned} deliveries of this message ended without a settlement: it may crash the processes that handle it"
            );
            tracing::error!(source = self.rules.name, reason, "rejected a message");
            return Ok(Verdict { settlement: Settlement::Reject, reason: Some(cause(reason)) });
        }
        self.inbox.settle(envelope.clone()).await
    }
}

impl<S: InboxStore> Inbox<S> {
    /// Whether deliveries are handled inline.
    fn runs_now(&self) -> bool {
        self.accept_fn().is_none()
    }

    /// Handles a message inline, or takes it into the log, as the mode says. An error concerns the store, never the message.
    async fn settle(&self, envelope: Envelope) -> Result<Verdict, Error> {
        let Some(accept) = self.accept_fn() else {
            let report = self.process(envelope).await?;
            return Ok(Verdict { settlement: report.settlement(), reason: report.reason() });
        };
        match accept(self, envelope).await {
            Ok(_) => Ok(Verdict { settlement: Settlement::Ack, reason: None }),
            Err(error) if concerns_store(&error) => Err(error),
            Err(error) => {
                tracing::warn!(error = chain(&error), "rejected a message");
                Ok(Verdict { settlement: Settlement::Reject, reason: Some(cause(error)) })
            }
        }
    }
}

/// Whether an accept may succeed later. Other errors concern the message.
fn concerns_store(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Busy | ErrorKind::Schema | ErrorKind::Closed)
}
