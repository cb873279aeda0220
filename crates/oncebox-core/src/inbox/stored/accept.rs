//! Accepting: stores a message durably and once; its handlers run later.

use std::sync::Arc;

use sha2::{Digest, Sha256};

use crate::inbox::resolve::resolve_stored;
use crate::inbox::stored::LogStore;
use crate::inbox::stored::intake::Intake;
use crate::limits::{check_envelope, check_order_by};
use crate::outcome::{Rejection, cause};
use crate::policy::{KeyReuse, MissingKey};
use crate::store::{Appended, NewMessage, Place};
use crate::{Envelope, Error, Fingerprint, Key, name, observe};

/// The handler label of accepts in metrics. No handler can have this name.
const ACCEPT: &str = "@accept";

/// The result of [`accept`](crate::Inbox::accept). Acknowledge the delivery in every case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accept {
    /// The message is in the log and will be handled.
    Accepted(Place),
    /// The message was accepted before.
    Duplicate {
        /// The place of the first copy, even if it is pruned; `None` for an imported key.
        place: Option<Place>,
    },
    /// The key was accepted before, with another body.
    KeyReuse {
        /// The place of the first message with this key, even if it is pruned; `None` for an imported key.
        place: Option<Place>,
    },
}

impl Accept {
    /// Whether the message is new.
    pub fn is_new(&self) -> bool {
        matches!(self, Self::Accepted(_))
    }

    /// Whether the same message was accepted before.
    pub fn is_duplicate(&self) -> bool {
        matches!(self, Self::Duplicate { .. })
    }

    /// The place of the message in the log, or of the first one with its key.
    pub fn place(&self) -> Option<Place> {
        match *self {
            Self::Accepted(place) => Some(place),
            Self::Duplicate { place } | Self::KeyReuse { place } => place,
        }
    }
}

impl<S: LogStore> Intake<S> {
    /// Takes a message into the log, once for each kind and key.
    pub(crate) async fn accept(self: &Arc<Self>, envelope: Envelope) -> Result<Accept, Error> {
        let kind = envelope.kind.clone();
        let message = self.to_append(envelope)?;
        let fingerprint = message.fingerprint;
        let lane = message.order_by.as_ref().map(|key| lane_of(key, self.log.lanes));
        let appended = self.append(message, lane).await?;
        self.judge_appended(appended, fingerprint, &kind)
    }

    /// Checks a message, and finds its key and ordering key. A body that cannot be decoded is accepted: its handlers reject it
    /// later, and it becomes a dead letter instead of being lost.
    fn to_append(&self, envelope: Envelope) -> Result<NewMessage, Error> {
        name::check("kind", &envelope.kind)?;
        check_envelope(&envelope, self.engine.settings.max_body_bytes)
            .map_err(|refused| refused.to_error())?;
        // One handler decodes the message to find its key. build() refuses a selector of one handler whose kind others share.
        let handlers = self.engine.by_kind.get(&envelope.kind);
        let first = handlers.and_then(|handlers| handlers.first());
        let prepared =
            first.and_then(|&first| self.engine.prepare(&self.engine.handlers[first], &envelope).ok());
        let key = resolve_stored(prepared.as_ref(), &envelope);
        if let Some(Err(error)) = key.as_ref().map(name::check_key) {
            return Err(Rejection::BadKey(cause(error)).to_error());
        }
        if key.is_none() {
            self.engine.observer.count(observe::MISSING_KEY, ACCEPT);
            if self.engine.settings.missing_key == MissingKey::Reject {
                return Err(Rejection::MissingKey.to_error());
            }
        }
        // Accepted all the same: another process, or a later version of this one, may handle this kind.
        if handlers.is_none() && self.is_first_report(&envelope.kind) {
            tracing::warn!(
                kind = envelope.kind,
                "unhandled kind: this process has no handler for it, and the message waits in the log"
            );
        }
        let fingerprint = envelope.fingerprint();
        let order_by = envelope.order_by.or_else(|| prepared.and_then(|prepared| prepared.order_by));
        check_order_by(order_by.as_ref()).map_err(|refused| refused.to_error())?;
        Ok(NewMessage {
            kind: envelope.kind,
            key: key.map(|key| key.stored()),
            fingerprint,
            order_by,
            headers: envelope.headers,
            body: envelope.body,
            occurred_at: envelope.occurred_at,
            due_at: envelope.due_at,
            waited: envelope.arrived.elapsed(),
            message_id: None,
        })
    }

    fn judge_appended(
        &self,
        appended: Appended,
        fingerprint: Fingerprint,
        kind: &str,
    ) -> Result<Accept, Error> {
        let observer = self.engine.observer;
        match appended {
            Appended::New(place) => {
                observer.accepted(kind);
                Ok(Accept::Accepted(place))
            }
            Appended::Known { fingerprint: Some(first), place } if first != fingerprint => {
                observer.count(observe::KEY_REUSE, ACCEPT);
                tracing::warn!(kind, "a key was reused for another body");
                match self.engine.settings.key_reuse {
                    KeyReuse::Skip => Ok(Accept::KeyReuse { place }),
                    KeyReuse::Reject => Err(Rejection::KeyReuse.to_error()),
                }
            }
            Appended::Known { place, .. } => {
                observer.count(observe::DUPLICATES, ACCEPT);
                Ok(Accept::Duplicate { place })
            }
        }
    }
}

/// The lane of an ordering key. The database records the name of this rule: with another rule, the messages of one key would
/// be in two lanes.
pub(crate) fn lane_of(order_by: &Key, lanes: u16) -> u16 {
    let digest = Sha256::digest(order_by.as_bytes());
    let mut first = [0; 8];
    first.copy_from_slice(&digest[..8]);
    // The remainder is smaller than a u16.
    u16::try_from(u64::from_be_bytes(first) % u64::from(lanes.max(1))).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Messages in users' databases sit in the lanes that this rule gave them.
    #[test]
    fn golden_vectors() {
        let lanes: Vec<u16> = ["", "a", "customer-1", "customer-2"]
            .into_iter()
            .map(|key| lane_of(&Key::from(key), 8))
            .collect();
        assert_eq!(lanes, [4, 2, 7, 0]);
        assert_eq!(lane_of(&Key::from("a"), 1), 0);
    }
}
