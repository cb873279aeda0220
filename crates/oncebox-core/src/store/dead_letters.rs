//! What operators do: each action in one transaction with its entry in the audit.

use std::time::SystemTime;

use sha2::{Digest, Sha256};

use crate::store::{FailedAttempt, HandlerId, Place, Store};
use crate::utc::to_ms;
use crate::{Error, Key};

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
    /// The failed attempts, the oldest first: the first five and the last fifteen.
    pub attempts: Vec<FailedAttempt>,
}

impl DeadLetter {
    /// The number of failed attempts, those that are not kept included.
    pub fn attempt_count(&self) -> u32 {
        self.attempts.iter().fold(0, |count, one| count.saturating_add(one.omitted).saturating_add(1))
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

    /// Those whose last error contains this text, in upper or lower case.
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
    Resolve,
}

impl Action {
    /// The action's name in the audit.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Retry => "retry",
            Self::Edit(_) => "edit",
            Self::Discard => "discard",
            Self::Resolve => "resolve",
        }
    }

    /// What becomes of the dead letters, their markers and the audit. One rule for all stores.
    pub fn plan(&self) -> ActionPlan<'_> {
        let action = self.name();
        let again = ActionPlan {
            action,
            action_if_done: ALREADY_DONE,
            runs_again: true,
            body: None,
            markers: MarkerStep::Leave,
            detail_end: String::new(),
        };
        let leaves =
            |markers| ActionPlan { action_if_done: action, runs_again: false, markers, ..again.clone() };
        match self {
            Self::Retry => again,
            Self::Edit(body) => {
                ActionPlan { body: Some(body), detail_end: format!("; {}", corrected(body)), ..again }
            }
            Self::Discard => leaves(MarkerStep::Finish),
            Self::Resolve => leaves(MarkerStep::Insert),
        }
    }
}

/// What the audit says of a dead letter that was to run again, and turned out to be done.
const ALREADY_DONE: &str = "already_done";

/// What the audit keeps of a corrected body.
fn corrected(body: &[u8]) -> String {
    let digest: String = Sha256::digest(body).iter().map(|byte| format!("{byte:02x}")).collect();
    format!("corrected to {} bytes, SHA-256 {digest}", body.len())
}

/// What a store has to do with dead letters. All of them leave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ActionPlan<'a> {
    /// The action in the audit.
    pub action: &'static str,
    /// The same for those whose handler has a marker that says done.
    pub action_if_done: &'static str,
    /// Whether they become tasks that are due now, with no failures; except those that are done.
    pub runs_again: bool,
    /// The body that takes the place of the one before.
    pub body: Option<&'a [u8]>,
    /// What becomes of their markers.
    pub markers: MarkerStep,
    /// What the audit's detail has behind the error of the dead letter; often nothing.
    pub detail_end: String,
}

/// What becomes of the markers of dead letters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MarkerStep {
    /// Nothing.
    Leave,
    /// Those that say known and not done say done.
    Finish,
    /// The same, and those with a key that have none get one that says done.
    Insert,
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
    /// What: `retry`, `edit`, `discard`, `resolve`, `pause`, `resume`, `replay`, `rename`, `remove`; `already_done` where a retry found that there was
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_action_says_what_becomes_of_dead_letters() {
        let edit = Action::Edit(b"better".to_vec());
        for (action, name, if_done, runs_again, markers) in [
            (&Action::Retry, "retry", "already_done", true, MarkerStep::Leave),
            (&edit, "edit", "already_done", true, MarkerStep::Leave),
            (&Action::Discard, "discard", "discard", false, MarkerStep::Finish),
            (&Action::Resolve, "resolve", "resolve", false, MarkerStep::Insert),
        ] {
            let plan = action.plan();
            assert_eq!((plan.action, plan.action_if_done), (name, if_done));
            assert_eq!((plan.runs_again, plan.markers), (runs_again, markers), "{name}");
            assert_eq!(plan.body.is_some(), name == "edit");
            assert_eq!(plan.detail_end.is_empty(), name != "edit");
        }
        let digest = "d7d5dcc369426e2e5f8dcb89af4308b0daed6e55910d53395ce38bd6dd1a9456";
        assert_eq!(edit.plan().detail_end, format!("; corrected to 6 bytes, SHA-256 {digest}"));
    }
}
