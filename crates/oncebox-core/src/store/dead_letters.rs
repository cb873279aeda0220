//! What operators do: each action in one transaction with its entry in the audit.

use std::time::{Duration, SystemTime};

use sha2::{Digest, Sha256};

use crate::store::{HandlerId, Place, Store};
use crate::utc::to_ms;
use crate::{Error, Key};

/// One failed try.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PastAttempt {
    /// Which one it was, from 1.
    pub attempt: u32,
    /// When it failed.
    pub at: SystemTime,
    /// The error and its causes.
    pub error: String,
    /// How many tries right before it are not kept. Of many, the first and the last are.
    pub omitted: u32,
}

impl PastAttempt {
    /// Reads the tries as stores keep them: a JSON list of `{"attempt", "at", "error"}`, the time in milliseconds since 1970, and
    /// `"omitted"` where tries before it are not kept.
    pub fn read(json: &str) -> Vec<Self> {
        let read = |entry: serde_json::Value| {
            let at = Duration::from_millis(entry.get("at")?.as_u64()?);
            Some(Self {
                attempt: u32::try_from(entry.get("attempt")?.as_u64()?).ok()?,
                at: SystemTime::UNIX_EPOCH + at,
                error: entry.get("error")?.as_str()?.to_owned(),
                omitted: entry
                    .get("omitted")
                    .and_then(serde_json::Value::as_u64)
                    .map_or(0, |omitted| u32::try_from(omitted).unwrap_or(u32::MAX)),
            })
        };
        let entries: Vec<serde_json::Value> = serde_json::from_str(json).unwrap_or_default();
        entries.into_iter().filter_map(read).collect()
    }
}

/// A message on which a handler used up its attempts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadLetter {
    /// The handler's name.
    pub handler: String,
    /// Where the message sits.
    pub place: Place,
    /// Its kind.
    pub kind: String,
    /// Its key.
    pub key: Option<Key>,
    /// What the handler would be given now: the message's body, or an operator's correction.
    pub body: Vec<u8>,
    /// When it was received.
    pub received_at: SystemTime,
    /// When it died.
    pub died_at: SystemTime,
    /// The last error and its causes.
    pub error: String,
    /// The tries, the oldest first: the first five and the last fifteen.
    pub attempts: Vec<PastAttempt>,
}

impl DeadLetter {
    /// How many tries there were, kept or not.
    pub fn tries(&self) -> u32 {
        self.attempts.iter().fold(0, |tries, past| tries.saturating_add(past.omitted).saturating_add(1))
    }
}

/// Which dead letters are meant. Without any condition: all of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[must_use]
pub struct Select {
    pub(crate) handler: Option<String>,
    pub(crate) kind: Option<String>,
    pub(crate) place: Option<Place>,
    pub(crate) error: Option<String>,
    pub(crate) died_after: Option<SystemTime>,
    pub(crate) died_before: Option<SystemTime>,
}

impl Select {
    /// All of them.
    pub fn all() -> Self {
        Self::default()
    }

    /// Those of one handler.
    pub fn handler(mut self, name: impl Into<String>) -> Self {
        self.handler = Some(name.into());
        self
    }

    /// Those of one kind of message.
    pub fn kind(mut self, kind: impl Into<String>) -> Self {
        self.kind = Some(kind.into());
        self
    }

    /// Those of one message.
    pub fn at(mut self, place: Place) -> Self {
        self.place = Some(place);
        self
    }

    /// Those whose last error contains this text, in any case.
    pub fn error(mut self, text: impl Into<String>) -> Self {
        self.error = Some(text.into());
        self
    }

    /// Those that died at this time or later.
    pub fn died_after(mut self, time: SystemTime) -> Self {
        self.died_after = Some(time);
        self
    }

    /// Those that died before this time.
    pub fn died_before(mut self, time: SystemTime) -> Self {
        self.died_before = Some(time);
        self
    }

    /// The handler, for stores.
    pub fn handler_name(&self) -> Option<&str> {
        self.handler.as_deref()
    }

    /// The kind, for stores.
    pub fn kind_name(&self) -> Option<&str> {
        self.kind.as_deref()
    }

    /// The place, for stores.
    pub fn place(&self) -> Option<Place> {
        self.place
    }

    /// The error's text, for stores.
    pub fn error_text(&self) -> Option<&str> {
        self.error.as_deref()
    }

    /// The times between which they died, in milliseconds since 1970, for stores.
    pub fn died_between_ms(&self) -> (Option<i64>, Option<i64>) {
        (self.died_after.map(to_ms), self.died_before.map(to_ms))
    }
}

/// What an operator does with dead letters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Run them again, with all attempts ahead of them.
    Retry,
    /// The same with another body.
    Edit(Vec<u8>),
    /// Drop them.
    Discard,
    /// They were dealt with by other means: count them as done.
    MarkProcessed,
}

impl Action {
    /// The action's name in the audit.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Retry => "retry",
            Self::Edit(_) => "edit",
            Self::Discard => "discard",
            Self::MarkProcessed => "mark_processed",
        }
    }

    /// What the audit says beside the error that the dead letter had.
    pub fn note(&self) -> Option<String> {
        match self {
            Self::Edit(body) => {
                let digest = Sha256::digest(body);
                let digest: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
                Some(format!("corrected to {} bytes, SHA-256 {digest}", body.len()))
            }
            Self::Retry | Self::Discard | Self::MarkProcessed => None,
        }
    }
}

/// What came of one step of an action.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Acted {
    /// How many dead letters it was done with.
    pub letters: u64,
    /// Behind which one to go on. `None` if fewer were there than a step takes, which says nothing of those that others took meanwhile.
    pub next: Option<(HandlerId, Place)>,
}

/// One operator's action on one thing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditEntry {
    /// When.
    pub at: SystemTime,
    /// Who.
    pub operator: String,
    /// What: `retry`, `edit`, `discard`, `mark_processed`, `pause`, `resume`, `replay`, `rename`, `remove`; `already_done` where a retry found that there was
    /// nothing left to do.
    pub action: String,
    /// Which handler.
    pub handler: String,
    /// Which message, if it was one.
    pub place: Option<Place>,
    /// What else there is to know: the error that a dead letter had.
    pub detail: Option<String>,
}

/// The dead letters, and what operators may do.
pub trait DeadLetters: Store {
    /// Dead letters, the oldest first.
    fn dead_letters(
        &self,
        select: &Select,
        limit: u32,
    ) -> impl Future<Output = Result<Vec<DeadLetter>, Error>> + Send;

    /// Does something with at most `limit` dead letters, and writes it down, in one transaction that holds the locks of their
    /// lanes: the first ones by handler, lane and position that come after `after`. Those whose handler has a marker that says done
    /// are not run again: they leave as done. A marker that says known and not done says done when its dead letter is discarded or
    /// counted as done.
    fn act(
        &self,
        select: &Select,
        action: &Action,
        operator: &str,
        after: Option<(HandlerId, Place)>,
        limit: u32,
    ) -> impl Future<Output = Result<Acted, Error>> + Send;

    /// The latest actions, newest first.
    fn audit(&self, limit: u32) -> impl Future<Output = Result<Vec<AuditEntry>, Error>> + Send;
}
