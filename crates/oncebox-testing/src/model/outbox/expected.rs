//! The model of an outbox: which messages were published, and what the sink has to have.

use std::collections::HashMap;

use oncebox_core::MessageId;

use super::ATTEMPTS;

/// A message that a committed transaction has published first under its key.
#[derive(Clone, Debug)]
pub(super) struct ExpectedMessage {
    pub(super) key: String,
    pub(super) id: MessageId,
    pub(super) order: Option<u8>,
    /// Whether it is in the log.
    pub(super) is_moved: bool,
    /// Whether the sink has confirmed a copy.
    pub(super) is_confirmed: bool,
    /// Whether a copy must still be confirmed. A replay asks for one more.
    pub(super) is_owed: bool,
    /// Whether an operator has given it up.
    pub(super) is_discarded: bool,
    /// How often the sink has refused it, since its attempts were counted anew.
    pub(super) refusals: u32,
}

/// A copy that the sink has got.
#[derive(Clone, Debug)]
pub(super) struct SinkCopy {
    pub(super) key: String,
    pub(super) id: MessageId,
    pub(super) verdict: SinkVerdict,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SinkVerdict {
    Confirmed,
    Refused,
    Unknown,
}

/// The expected state.
#[derive(Debug, Default)]
pub(super) struct Expected {
    /// In the order in which they were published.
    pub(super) messages: Vec<ExpectedMessage>,
    by_key: HashMap<String, usize>,
}

impl Expected {
    /// A committed transaction has published a message. A known key publishes nothing further.
    pub(super) fn publish(&mut self, key: String, id: MessageId, order: Option<u8>) {
        if self.by_key.contains_key(&key) {
            return;
        }
        self.by_key.insert(key.clone(), self.messages.len());
        self.messages.push(ExpectedMessage {
            key,
            id,
            order,
            is_moved: false,
            is_confirmed: false,
            is_owed: true,
            is_discarded: false,
            refusals: 0,
        });
    }

    /// All messages are in the log now.
    pub(super) fn move_all(&mut self) {
        for message in &mut self.messages {
            message.is_moved = true;
        }
    }

    /// The sink has got a copy.
    pub(super) fn receive(&mut self, copy: &SinkCopy) -> Result<(), String> {
        let Some(&n) = self.by_key.get(&copy.key) else {
            return Err(format!("{} was sent, and no committed transaction has published it", copy.key));
        };
        let message = &self.messages[n];
        if message.id != copy.id {
            return Err(format!(
                "{} was sent with another id: {} instead of {}",
                copy.key, copy.id, message.id
            ));
        }
        if !message.is_moved {
            return Err(format!("{} was sent before it was moved", copy.key));
        }
        let is_earlier = |earlier: &&ExpectedMessage| {
            message.order.is_some()
                && earlier.order == message.order
                && !earlier.is_confirmed
                && !earlier.is_discarded
        };
        if let Some(earlier) = self.messages[..n].iter().find(is_earlier) {
            return Err(format!("{} was sent before {}, which has its ordering key", copy.key, earlier.key));
        }
        let message = &mut self.messages[n];
        match copy.verdict {
            SinkVerdict::Confirmed => (message.is_confirmed, message.is_owed) = (true, false),
            SinkVerdict::Refused => message.refusals += 1,
            SinkVerdict::Unknown => {}
        }
        Ok(())
    }

    /// A replay asks for these messages once more.
    pub(super) fn replay(&mut self, is_meant: impl Fn(&ExpectedMessage) -> bool) {
        for message in self.messages.iter_mut().filter(|message| message.is_moved) {
            if is_meant(message) {
                (message.is_owed, message.refusals) = (true, 0);
            }
        }
    }

    /// Checks a message that the relay has passed, and that has no task and no dead letter.
    pub(super) fn check_done(message: &ExpectedMessage) -> Result<(), String> {
        match message.is_owed && !message.is_discarded {
            true => Err(format!("{} counts as sent, and the sink has not confirmed it", message.key)),
            false => Ok(()),
        }
    }

    /// Checks a dead letter: only the sink's refusals spend attempts.
    pub(super) fn check_dead(message: &ExpectedMessage) -> Result<(), String> {
        match message.refusals >= ATTEMPTS {
            true => Ok(()),
            false => Err(format!("{} is a dead letter after {} refusals", message.key, message.refusals)),
        }
    }
}
