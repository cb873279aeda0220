//! Accepting: durable and deduplicated when it returns; handled later.

use std::panic::{AssertUnwindSafe, catch_unwind};

use futures_util::future::join_all;
use sha2::{Digest, Sha256};

use crate::inbox::once::rejected;
use crate::inbox::resolve::resolve_stored;
use crate::inbox::stored::{LogStore, Stored, not_stored};
use crate::inbox::{Inbox, KEYS_AT_ONCE, checked_keys};
use crate::limits::{check_envelope, check_order_by};
use crate::outcome::{Rejection, cause};
use crate::policy::{KeyReuse, MissingKey};
use crate::store::{Appended, NewMessage, Place};
use crate::{Envelope, Error, Fingerprint, Key, name, observe};

/// The name under which accepts are counted; no handler can have it.
const ACCEPT: &str = "@accept";

/// What became of a message that was to be accepted. Whichever it is, the source can be told that it is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accept {
    /// It is in the log, and will be handled.
    Accepted {
        /// The lane in which it sits.
        lane: u16,
        /// Its position there.
        pos: i64,
    },
    /// It was accepted before.
    Duplicate,
    /// Its key was accepted before, with another body.
    KeyReuse,
}

impl Accept {
    /// Whether it is new.
    pub fn is_new(&self) -> bool {
        matches!(self, Self::Accepted { .. })
    }
}

impl<S: LogStore> Inbox<S> {
    /// Takes a message into the log, once for each kind and key. When this returns, it is durable: acknowledge. Workers run
    /// its handlers later, see [`run`](Inbox::run).
    ///
    /// Call it for one message at a time, from as many tasks as there are: those that wait share a transaction. An error is
    /// about the store ([`ErrorKind::Unavailable`](crate::ErrorKind::Unavailable): deliver again) or about the message, which
    /// has no key, is too large or is outside of another limit: delivering it again cannot help.
    pub async fn accept(&self, envelope: Envelope) -> Result<Accept, Error> {
        self.refuse_nested()?;
        let _visit = self.inner.doors.enter()?;
        let stored = self.stored()?;
        self.refuse_inline()?;
        self.refuse_operators()?;
        let kind = envelope.kind.clone();
        let message = self.to_append(envelope)?;
        let fingerprint = message.fingerprint;
        let lane = message.order_by.as_ref().map(|key| lane_of(key, stored.lanes));
        let appended = self.append(message, lane).await?;
        self.judge_appended(appended, fingerprint, &kind)
    }

    /// Takes several messages into the log; the answers are in their order. All are tried, whatever becomes of the others.
    pub async fn accept_all(
        &self,
        envelopes: impl IntoIterator<Item = Envelope>,
    ) -> Vec<Result<Accept, Error>> {
        join_all(envelopes.into_iter().map(|envelope| self.accept(envelope))).await
    }

    /// Notes that messages were accepted and handled elsewhere: copies of them will be duplicates here. Imports the inbox
    /// table of another system; how many of the keys were new.
    pub async fn mark_accepted<K: Into<Key>>(
        &self,
        kind: &str,
        keys: impl IntoIterator<Item = K>,
    ) -> Result<u64, Error> {
        self.stored()?;
        name::check("kind", kind)?;
        let keys = checked_keys(keys)?;
        let mut new = 0;
        for chunk in keys.chunks(KEYS_AT_ONCE) {
            new += self.inner.store.mark_accepted(kind, chunk).await?;
        }
        Ok(new)
    }

    pub(crate) fn stored(&self) -> Result<&Stored, Error> {
        self.inner.stored.as_ref().ok_or_else(not_stored)
    }

    /// A message that is accepted here and processed there would run twice.
    fn refuse_inline(&self) -> Result<(), Error> {
        match self.inner.mode.reads_log() {
            true => Ok(()),
            false => Err(Error::configuration(
                "this inbox handles messages inline: call process(). Its log is for what is set apart",
            )),
        }
    }

    /// Whoever only looks and acts has not said how many lanes there are to be.
    pub(crate) fn refuse_operators(&self) -> Result<(), Error> {
        match self.inner.for_operators {
            false => Ok(()),
            true => Err(Error::configuration(
                "this inbox is for operators, and takes and handles no messages: build one without for_operators()",
            )),
        }
    }

    /// Checks a message, and finds out by what it is known and ordered. A body that cannot be decoded is no obstacle: the
    /// handlers will say so, and it is not lost.
    fn to_append(&self, envelope: Envelope) -> Result<NewMessage, Error> {
        name::check("kind", &envelope.kind)?;
        check_envelope(&envelope, self.inner.settings.max_body_bytes)
            .map_err(|refused| rejected(&refused))?;
        let handlers = self.inner.by_kind.get(&envelope.kind);
        let prepared = handlers.and_then(|handlers| handlers.first()).and_then(|&first| {
            let handler = &self.inner.handlers[first].handler;
            catch_unwind(AssertUnwindSafe(|| handler.prepare(&envelope, &self.inner.selectors))).ok()?.ok()
        });
        let key = resolve_stored(prepared.as_ref(), &envelope);
        if let Some(Err(error)) = key.as_ref().map(name::check_key) {
            return Err(rejected(&Rejection::BadKey(cause(error))));
        }
        if key.is_none() {
            self.inner.observer.count(observe::MISSING_KEY, ACCEPT);
            if self.inner.settings.missing_key == MissingKey::Reject {
                return Err(rejected(&Rejection::MissingKey));
            }
        }
        if handlers.is_none() && self.stored()?.is_news(&envelope.kind) {
            tracing::warn!(
                kind = envelope.kind,
                "nobody handles this kind of message here: it waits in the log"
            );
        }
        let fingerprint = envelope.fingerprint();
        let order_by = envelope.order_by.or_else(|| prepared.and_then(|prepared| prepared.order_by));
        check_order_by(order_by.as_ref()).map_err(|refused| rejected(&refused))?;
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
        })
    }

    fn judge_appended(
        &self,
        appended: Appended,
        fingerprint: Fingerprint,
        kind: &str,
    ) -> Result<Accept, Error> {
        let observer = self.inner.observer;
        match appended {
            Appended::New(Place { lane, pos }) => {
                observer.accepted(kind);
                Ok(Accept::Accepted { lane, pos })
            }
            Appended::Known { fingerprint: Some(first), .. } if first != fingerprint => {
                observer.count(observe::KEY_REUSE, ACCEPT);
                tracing::warn!(kind, "a key came again with another body");
                match self.inner.settings.key_reuse {
                    KeyReuse::Skip => Ok(Accept::KeyReuse),
                    KeyReuse::Reject => Err(rejected(&Rejection::KeyReuse)),
                }
            }
            Appended::Known { .. } => {
                observer.count(observe::DUPLICATES, ACCEPT);
                Ok(Accept::Duplicate)
            }
        }
    }
}

/// The lane of an ordering key. The database keeps the name of this rule: another one would tear keys apart.
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
