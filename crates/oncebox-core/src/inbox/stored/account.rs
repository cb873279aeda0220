//! The account of a visit: what is written for each message. These rules use no store and no clock.

use std::time::Duration;

use crate::error::chain;
use crate::inbox::stored::referee::Referee;
use crate::inbox::stored::visit::TakenBatch;
use crate::inbox::stored::work::{BatchRun, MessageEnd};
use crate::inbox::stored::worker::WorkReport;
use crate::outcome::Outcome;
use crate::store::{Account, StoredMessage, Unfinished, Unit};
use crate::{Fingerprint, Rejection, Retry};

/// The maximum delay of a retry. Databases cannot represent much longer ones.
const LONGEST_WAIT: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);
/// The maximum length of a stored error text.
const ERROR_MAX_BYTES: usize = 8 * 1024;

/// The rules for a handler's accounts.
pub(super) struct AccountRules<'a> {
    /// The name that its markers use.
    pub(super) origin: &'a str,
    pub(super) retry: Retry,
    pub(super) referee: Referee,
    /// The delay of a message that runs again without a spent attempt.
    pub(super) soon: Duration,
    /// Random numbers for the jitter of retries; a constant in tests.
    pub(super) chance: fn() -> u32,
}

/// The next state of a failed message.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum NextState {
    Retry { due_in: Duration, error: String },
    Dead { error: String },
}

impl AccountRules<'_> {
    /// Decides whether a message with this number of failures is retried or becomes a dead letter.
    pub(super) fn next_state(&self, failures: u32, outcome: &Outcome) -> NextState {
        match outcome {
            Outcome::Retry { after, cause } if self.retry.allows_another(failures) => {
                let delay = || self.retry.delay(failures, (self.chance)());
                NextState::Retry {
                    due_in: after.unwrap_or_else(delay).min(LONGEST_WAIT),
                    error: error_text(&**cause),
                }
            }
            Outcome::Retry { cause, .. } => NextState::Dead { error: error_text(&**cause) },
            Outcome::Rejected(rejection) => NextState::Dead {
                error: match rejection.cause() {
                    Some(cause) if matches!(rejection, Rejection::Permanent(_)) => error_text(&*cause),
                    _ => clipped(rejection.to_string()),
                },
            },
            other => NextState::Dead { error: other.name().to_owned() },
        }
    }

    /// Creates the account of a batch, and the report of its work.
    pub(super) fn account(&self, taken: &TakenBatch, ran: &BatchRun) -> (Account, WorkReport) {
        let mut account = Account::default();
        let mut report = WorkReport::default();
        for (n, message) in taken.messages.iter().enumerate() {
            let unit = || unit_of_message(self.origin, message);
            let failures = message.failures + 1;
            let ended = ran.ended.get(n);
            match ended {
                Some(MessageEnd::Done(result)) => {
                    report.done += 1;
                    if self.referee.sets_done(message) {
                        account.done.extend(unit());
                    }
                    if let (true, Some(result)) = (self.referee.keeps_result(message), result) {
                        account.results.extend(unit().map(|unit| (unit, result.clone())));
                    }
                    continue;
                }
                Some(MessageEnd::Scheduled) => {
                    account.tasks.push(Unfinished { scheduled: true, ..unfinished(message, message.due_in) });
                    report.scheduled += 1;
                }
                Some(MessageEnd::Parked) => {
                    account.tasks.push(unfinished(message, Duration::ZERO));
                    report.parked += 1;
                }
                Some(MessageEnd::Failed(outcome)) => match self.next_state(failures, outcome) {
                    NextState::Retry { due_in, error } => {
                        let error = Some(error);
                        account.tasks.push(Unfinished { failures, error, ..unfinished(message, due_in) });
                        report.failed += 1;
                    }
                    NextState::Dead { error } => {
                        let error = Some(error);
                        account.dead.push(Unfinished {
                            failures,
                            error,
                            ..unfinished(message, Duration::ZERO)
                        });
                        report.dead += 1;
                    }
                },
                // Taking a task deletes its row. A task that did not run, or runs again soon, is written again.
                Some(MessageEnd::Again) | None if taken.progress.is_none() => {
                    let due_in = if ended.is_some() { self.soon } else { Duration::ZERO };
                    account.tasks.push(unfinished(message, due_in));
                }
                Some(MessageEnd::Again) | None => {
                    if self.referee.unclaims(message) {
                        account.unclaimed.extend(unit());
                    }
                    continue;
                }
            }
            if self.referee.sets_spilled(message) {
                account.spilled.extend(unit());
            }
        }
        // Another copy of these messages runs inline, and may still fail. They come back as tasks to check its outcome.
        let reached = taken.progress.map_or(i64::MAX, |progress| progress.pos);
        let busy = taken.busy.iter().filter(|message| message.place.pos <= reached);
        account.tasks.extend(busy.map(|message| unfinished(message, self.soon)));
        (account, report)
    }
}

/// A task for a message, with the state that the message carries.
pub(super) fn unfinished(message: &StoredMessage, due_in: Duration) -> Unfinished {
    Unfinished {
        pos: message.place.pos,
        order_by: message.order_by.clone(),
        failures: message.failures,
        due_in,
        error: None,
        attempts: message.attempts.clone(),
        body: message.edited.then(|| message.body.clone()),
        scheduled: false,
        crashes: message.crashes,
    }
}

/// The unit of the handler's own marker of a message; `None` for a message without a key.
pub(super) fn unit_of_message(origin: &str, message: &StoredMessage) -> Option<Unit> {
    let key = message.key.as_ref()?.stored();
    let fingerprint = Some(Fingerprint::of(&message.body));
    Some(Unit {
        handler: origin.to_owned(),
        kind: message.kind.clone(),
        key,
        fingerprint,
        waited: message.waited,
    })
}

/// A random number, so that retries are spread over time.
pub(crate) fn chance() -> u32 {
    let bytes = uuid::Uuid::now_v7().into_bytes();
    u32::from_le_bytes([bytes[12], bytes[13], bytes[14], bytes[15]])
}

/// The text of an error with its causes. `Display` may be user code, so a panic is caught.
pub(crate) fn error_text(error: &(dyn std::error::Error + 'static)) -> String {
    let text = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| chain(error)));
    clipped(text.unwrap_or_else(|_| "the text of the error panicked".to_owned()))
}

/// Makes a text storable: without NUL characters, which PostgreSQL refuses, and within the maximum length.
fn clipped(text: String) -> String {
    let mut text = if text.contains('\0') { text.replace('\0', "\u{fffd}") } else { text };
    if text.len() > ERROR_MAX_BYTES {
        text.truncate(text.floor_char_boundary(ERROR_MAX_BYTES));
    }
    text
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::outcome::cause;
    use crate::store::{HandlerId, Place, Progress};
    use crate::{Headers, Key};

    pub(in crate::inbox::stored) fn message(pos: i64) -> StoredMessage {
        StoredMessage {
            place: Place { lane: 0, pos },
            kind: "k".into(),
            key: Some(Key::from(pos.to_string().as_str())),
            order_by: None,
            headers: Headers::new(),
            body: Vec::new(),
            occurred_at: None,
            due_at: None,
            due_in: Duration::ZERO,
            waited: Duration::ZERO,
            failures: 0,
            attempts: None,
            edited: false,
            held: false,
            replay: false,
            crashes: 0,
            spilled: false,
            message_id: None,
        }
    }

    const SOON: Duration = Duration::from_millis(7);

    fn rules(referee: Referee) -> AccountRules<'static> {
        let retry = Retry::new().max_attempts(2).first_delay(Duration::ZERO).max_delay(Duration::ZERO);
        AccountRules { origin: "h", retry, referee, soon: SOON, chance: || 0 }
    }

    fn retry() -> Outcome {
        Outcome::Retry { after: None, cause: cause("failed") }
    }

    fn lane(messages: Vec<StoredMessage>, pos: i64) -> TakenBatch {
        let mut taken = TakenBatch::tasks(messages, 10);
        taken.progress = Some(Progress { handler: HandlerId(1), lane: 0, epoch: 0, pos });
        taken
    }

    fn positions(tasks: &[Unfinished]) -> Vec<i64> {
        tasks.iter().map(|one| one.pos).collect()
    }

    #[test]
    fn a_failure_is_tried_again_until_its_attempts_are_used_up() {
        let rules = rules(Referee::Log);
        assert!(matches!(rules.next_state(1, &retry()), NextState::Retry { .. }));
        assert_eq!(rules.next_state(2, &retry()), NextState::Dead { error: "failed".into() });
        let later = Outcome::Retry { after: Some(Duration::MAX), cause: cause("later") };
        assert_eq!(
            rules.next_state(1, &later),
            NextState::Retry { due_in: LONGEST_WAIT, error: "later".into() }
        );
        let rejected = Outcome::Rejected(Rejection::Permanent(cause("never")));
        assert_eq!(rules.next_state(1, &rejected), NextState::Dead { error: "never".into() });
    }

    #[test]
    fn the_account_has_one_entry_for_each_end() {
        let tried = StoredMessage { failures: 1, ..message(3) };
        let messages = vec![message(1), message(2), tried, message(4), message(5)];
        let ended = vec![
            MessageEnd::Done(Some(b"r".to_vec())),
            MessageEnd::Failed(retry()),
            MessageEnd::Failed(retry()),
            MessageEnd::Scheduled,
            MessageEnd::Parked,
        ];
        let ran = BatchRun { ended, ..BatchRun::default() };
        let (account, report) = rules(Referee::Log).account(&lane(messages, 5), &ran);
        assert_eq!(positions(&account.tasks), [2, 4, 5]);
        assert_eq!(positions(&account.dead), [3]);
        assert!(account.tasks[1].scheduled);
        assert_eq!((account.tasks[0].failures, account.dead[0].failures), (1, 2));
        assert!(account.done.is_empty() && account.spilled.is_empty() && account.results.is_empty());
        let expected = WorkReport { done: 1, failed: 1, dead: 1, scheduled: 1, parked: 1, lease_lost: 0 };
        assert_eq!(report, expected);
    }

    #[test]
    fn tasks_that_did_not_run_are_written_again_and_messages_of_a_lane_stay() {
        let ran = BatchRun { ended: vec![MessageEnd::Again], ..BatchRun::default() };
        let tasks = TakenBatch::tasks(vec![message(1), message(2)], 10);
        let (account, _) = rules(Referee::Log).account(&tasks, &ran);
        assert_eq!(positions(&account.tasks), [1, 2]);
        assert_eq!((account.tasks[0].due_in, account.tasks[1].due_in), (SOON, Duration::ZERO));
        let (account, _) = rules(Referee::Log).account(&lane(vec![message(1), message(2)], 2), &ran);
        assert!(account.is_empty());
    }

    #[test]
    fn in_mixed_mode_markers_record_the_state_of_their_messages() {
        let replay = StoredMessage { replay: true, ..message(2) };
        let mut taken = lane(vec![message(1), replay, message(3), message(4)], 6);
        taken.busy = vec![message(5), message(9)];
        let ended =
            vec![MessageEnd::Done(Some(b"r".to_vec())), MessageEnd::Done(None), MessageEnd::Failed(retry())];
        let ran = BatchRun { ended, ..BatchRun::default() };
        let (account, _) = rules(Referee::Marker).account(&taken, &ran);
        let key = |unit: &Unit| unit.key.clone();
        let stored = |pos: &str| Key::from(pos).stored();
        assert_eq!(account.results.iter().map(|(unit, _)| key(unit)).collect::<Vec<_>>(), [stored("1")]);
        assert_eq!(account.done.iter().map(key).collect::<Vec<_>>(), [stored("2")]);
        assert_eq!(account.spilled.iter().map(key).collect::<Vec<_>>(), [stored("3")]);
        assert_eq!(account.unclaimed.iter().map(key).collect::<Vec<_>>(), [stored("4")]);
        assert_eq!(positions(&account.tasks), [3, 5], "the copy behind the progress is not passed");
    }
}
