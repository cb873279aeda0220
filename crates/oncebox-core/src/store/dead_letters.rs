//! Dead letters and the actions of operators on them. Each action commits in one transaction with its entry in the audit.

use std::time::SystemTime;

use sha2::{Digest, Sha256};

use crate::store::{FailedAttempt, HandlerId, Place, Store};
use crate::utc::to_ms;
use crate::{Error, Key};

/// A message for which a handler has no attempts left.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeadLetter {
    /// The handler's name.
    pub handler: String,
    /// The message's place in the log.
    pub place: Place,
    /// Its kind.
    pub kind: String,
    /// Its key.
    pub key: Option<Key>,
    /// The body that a retry passes to the handler: the message's own, or an operator's correction.
    pub body: Vec<u8>,
    /// The time at which the message was received.
    pub received_at: SystemTime,
    /// The time at which it became a dead letter.
    pub died_at: SystemTime,
    /// The last error and its causes.
    pub error: String,
    /// The failed attempts, the oldest first: the first five and the last fifteen.
    pub attempts: Vec<FailedAttempt>,
}

impl DeadLetter {
    /// The number of failed attempts, including the omitted ones.
    pub fn attempt_count(&self) -> u32 {
        self.attempts.iter().fold(0, |count, one| count.saturating_add(one.omitted).saturating_add(1))
    }
}

/// A selection of dead letters. Without a condition it selects all.
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
    /// Selects all dead letters.
    pub fn all() -> Self {
        Self::default()
    }

    /// Selects those of one handler.
    pub fn handler(mut self, name: impl Into<String>) -> Self {
        self.handler = Some(name.into());
        self
    }

    /// Selects those of one kind of message.
    pub fn kind(mut self, kind: impl Into<String>) -> Self {
        self.kind = Some(kind.into());
        self
    }

    /// Selects those of one message.
    pub fn at(mut self, place: Place) -> Self {
        self.place = Some(place);
        self
    }

    /// Selects dead letters whose last error contains this text, ignoring case.
    pub fn error(mut self, text: impl Into<String>) -> Self {
        self.error = Some(text.into());
        self
    }

    /// Selects messages that became dead letters at this time or later.
    pub fn died_after(mut self, time: SystemTime) -> Self {
        self.died_after = Some(time);
        self
    }

    /// Selects messages that became dead letters before this time.
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

    /// The range of times at which they became dead letters, in milliseconds since 1970, for stores.
    pub fn died_between_ms(&self) -> (Option<i64>, Option<i64>) {
        (self.died_after.map(to_ms), self.died_before.map(to_ms))
    }
}

/// An operator's action on dead letters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Run them again, with all attempts.
    Retry,
    /// Run them again with another body.
    Edit(Vec<u8>),
    /// Drop them.
    Discard,
    /// Count them as done, because they were handled by other means.
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

    /// The changes of the dead letters, their markers and the audit; the same for all stores.
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
            // Sweeps delete done markers only: one that stays known and not done would be kept for ever.
            Self::Discard => leaves(MarkerStep::Finish),
            Self::Resolve => leaves(MarkerStep::Insert),
        }
    }
}

/// The action in the audit for a dead letter whose retry found that its handler is already done.
const ALREADY_DONE: &str = "already_done";

/// The text in the audit for a corrected body.
fn corrected(body: &[u8]) -> String {
    let digest: String = Sha256::digest(body).iter().map(|byte| format!("{byte:02x}")).collect();
    format!("corrected to {} bytes, SHA-256 {digest}", body.len())
}

/// The changes that a store makes for dead letters. All selected ones are deleted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ActionPlan<'a> {
    /// The action in the audit.
    pub action: &'static str,
    /// The action in the audit for those whose handler has a marker that says done.
    pub action_if_done: &'static str,
    /// Whether they become tasks that are due now, with no failures. Messages that are already done do not.
    pub runs_again: bool,
    /// The new body, if the operator corrected it.
    pub body: Option<&'a [u8]>,
    /// The change of their markers.
    pub markers: MarkerStep,
    /// The text in the audit's detail after the error of the dead letter; often empty.
    pub detail_end: String,
}

/// The change of the markers of dead letters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MarkerStep {
    /// Leave them unchanged.
    Leave,
    /// Set markers that say known and not done to done.
    Finish,
    /// Like `Finish`, and insert a marker that says done for messages with a key and without a marker.
    Insert,
}

/// The result of one step of an action.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Acted {
    /// The number of dead letters of this step.
    pub letters: u64,
    /// The dead letter after which the next step begins. `None` if there were fewer than a step takes; other operators may have
    /// taken some meanwhile.
    // By place and not by time: with clocks that jump, "all until now" would miss dead letters.
    pub next: Option<(HandlerId, Place)>,
}

/// One action of an operator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditEntry {
    /// The time of the action.
    pub at: SystemTime,
    /// The name of the operator.
    pub operator: String,
    /// The action: `retry`, `edit`, `discard`, `resolve`, `pause`, `resume`, `replay`, `rename` or `remove`; `already_done` if a
    /// retry or an edit found that the handler is already done.
    pub action: String,
    /// The name of the handler.
    pub handler: String,
    /// The place of the message, if the action concerns one.
    pub place: Option<Place>,
    /// Further details, such as the error of a dead letter.
    pub detail: Option<String>,
}

/// Reads dead letters, and carries out operators' actions on them.
pub trait DeadLetters: Store {
    /// The selected dead letters, the oldest first.
    fn dead_letters(
        &self,
        select: &Select,
        limit: u32,
    ) -> impl Future<Output = Result<Vec<DeadLetter>, Error>> + Send;

    /// Carries out an action on up to `limit` dead letters, and records it in the audit. One transaction does both, and holds the
    /// locks of their lanes. It takes the first ones by handler, lane and position after `after`.
    ///
    /// A dead letter whose handler has a marker that says done does not run again, and is deleted. If a dead letter is discarded
    /// or resolved, its marker changes from known and not done to done.
    // In steps of limited size, because workers of these lanes wait for the locks.
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
