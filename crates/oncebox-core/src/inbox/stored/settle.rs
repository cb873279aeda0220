//! Settling: what is written down of a batch beside its progress, and who is told.

use std::time::Duration;

use crate::backoff::{backoff, spread};
use crate::error::chain;
use crate::inbox::registered::Registered;
use crate::inbox::stored::visit::{Course, Taken};
use crate::inbox::stored::work::{MessageEnd, Ran};
use crate::inbox::stored::worker::WorkReport;
use crate::inbox::stored::{Lanes, LogStore};
use crate::observe;
use crate::outcome::Outcome;
use crate::store::{DeadLetter, MarkerState, PastAttempt, SetApart, Settled, StoredMessage, Taker, Unit};
use crate::{Error, Fingerprint, Key, Mode, Rejection};

/// Longer waits are beyond what databases can count.
const LONGEST_WAIT: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);
/// The longest error text that is kept.
const ERROR_MAX_BYTES: usize = 8 * 1024;

/// What is to be written beside the progress.
#[derive(Default)]
pub(super) struct Account {
    pub(super) settled: Settled,
    /// Markers that say known and not done from now on.
    spilled: Vec<Unit>,
    /// Markers that said so and say done now, with the handler's result.
    pub(super) done: Vec<Unit>,
    /// Results that are kept beside markers.
    pub(super) results: Vec<(Unit, Vec<u8>)>,
    /// Markers of messages that were not come to.
    taken_back: Vec<Unit>,
    pub(super) report: WorkReport,
}

/// What is to become of a message that failed.
pub(super) enum Fate {
    Retry { due_in: Duration, error: String },
    Dead { error: String },
}

impl<S: LogStore> Lanes<S> {
    /// What a failure means for a message that has failed so often by now.
    pub(super) fn fate(&self, handler: &Registered<S>, failures: u32, outcome: &Outcome) -> Fate {
        let retry = handler.settings.retry.unwrap_or(self.log.settings.retry);
        match outcome {
            Outcome::Retry { after, cause } if retry.allows_another(failures) => {
                let due_in = after.unwrap_or_else(|| retry.delay(failures, chance())).min(LONGEST_WAIT);
                Fate::Retry { due_in, error: error_text(&**cause) }
            }
            Outcome::Retry { cause, .. } => Fate::Dead { error: error_text(&**cause) },
            Outcome::Rejected(rejection) => Fate::Dead {
                error: match rejection.cause() {
                    Some(cause) if matches!(rejection, Rejection::Permanent(_)) => error_text(&*cause),
                    _ => clipped(rejection.to_string()),
                },
            },
            other => Fate::Dead { error: other.name().to_owned() },
        }
    }

    /// What is to be written of a batch.
    pub(super) fn settle_up(&self, handler: &Registered<S>, taken: &Taken, ran: &Ran) -> Account {
        let mut account = Account::default();
        let Account { settled, spilled, done, results, taken_back, report } = &mut account;
        let marks = self.engine.mode == Mode::Mixed;
        for (n, message) in taken.messages.iter().enumerate() {
            let unit = || message.key.as_ref().map(|key| unit_of_message(handler, message, key));
            let failures = message.failures + 1;
            let ended = ran.ended.get(n);
            match ended {
                Some(MessageEnd::Done(result)) => {
                    report.done += 1;
                    // What is gone over again may have been set apart before.
                    if message.spilled || (marks && message.replay) {
                        done.extend(unit());
                    }
                    if let (true, Some(result)) = (marks || message.spilled, result) {
                        results.extend(unit().map(|unit| (unit, result.clone())));
                    }
                    continue;
                }
                Some(MessageEnd::Scheduled) => {
                    settled.apart.push(SetApart { scheduled: true, ..apart(message, message.due_in) });
                    report.scheduled += 1;
                }
                Some(MessageEnd::Parked) => {
                    settled.apart.push(apart(message, Duration::ZERO));
                    report.parked += 1;
                }
                Some(MessageEnd::Failed(outcome)) => match self.fate(handler, failures, outcome) {
                    Fate::Retry { due_in, error } => {
                        settled.apart.push(SetApart {
                            failures,
                            error: Some(error),
                            ..apart(message, due_in)
                        });
                        report.failed += 1;
                    }
                    Fate::Dead { error } => {
                        let dead = apart(message, Duration::ZERO);
                        settled.dead.push(SetApart { failures, error: Some(error), ..dead });
                        report.dead += 1;
                    }
                },
                // Tasks that were taken out of the table and not come to, or are to be tried again soon.
                Some(MessageEnd::Again) | None if taken.progress.is_none() => {
                    let due_in = if ended.is_some() { backoff(2, spread()) } else { Duration::ZERO };
                    settled.apart.push(apart(message, due_in));
                }
                Some(MessageEnd::Again) | None => {
                    if marks && !message.replay {
                        taken_back.extend(unit());
                    }
                    continue;
                }
            }
            if marks && !message.spilled {
                spilled.extend(unit());
            }
        }
        // Another copy is running inline, and will be done or not.
        let reached = taken.progress.map_or(i64::MAX, |progress| progress.pos);
        for message in taken.busy.iter().filter(|message| message.place.pos <= reached) {
            settled.apart.push(apart(message, backoff(2, spread())));
        }
        account
    }

    /// Writes it, in the transaction of the batch.
    pub(super) async fn write_account(
        &self,
        tx: &mut S::Tx,
        taker: Taker<'_>,
        account: &Account,
        course: &Course,
    ) -> Result<(), Error> {
        let store = &self.engine.store;
        if let Some(place) = course.noted {
            store.forget_attempt(tx, taker.handler, place).await?;
        }
        let Account { settled, spilled, done, results, taken_back, .. } = account;
        if !settled.is_empty() && !mutant!("failed_message_dropped") {
            store.settle(tx, taker, settled).await?;
        }
        if !spilled.is_empty() {
            let units: Vec<&Unit> = spilled.iter().collect();
            store.settle_markers(tx, &units, MarkerState::Spilled).await?;
        }
        if !done.is_empty() {
            let units: Vec<&Unit> = done.iter().collect();
            store.settle_markers(tx, &units, MarkerState::Done).await?;
        }
        if !results.is_empty() {
            let results: Vec<(&Unit, &[u8])> =
                results.iter().map(|(unit, result)| (unit, &result[..])).collect();
            store.record_results(tx, &results).await?;
        }
        if !taken_back.is_empty() {
            let units: Vec<&Unit> = taken_back.iter().collect();
            store.take_back_markers(tx, &units).await?;
        }
        Ok(())
    }

    pub(super) fn observe_visit(
        &self,
        handler: &Registered<S>,
        taken: &Taken,
        ran: &Ran,
        report: &WorkReport,
    ) {
        let observer = self.engine.observer;
        if !observer.enabled {
            return;
        }
        let name = &*handler.name;
        observer.batch(name, ran.bodies);
        let each = ran.took / u32::try_from(ran.bodies.max(1)).unwrap_or(u32::MAX);
        for (message, ended) in taken.messages.iter().zip(&ran.ended) {
            match ended {
                MessageEnd::Done(_) => {
                    observer.count(observe::PROCESSED, name);
                    observer.time(observe::WAIT_SECONDS, name, message.waited + ran.took);
                    observer.time(observe::HANDLE_SECONDS, name, each);
                }
                MessageEnd::Failed(_) => observer.count(observe::FAILED, name),
                MessageEnd::Scheduled | MessageEnd::Parked | MessageEnd::Again => {}
            }
        }
        for _ in 0..report.dead {
            observer.count(observe::DEAD, name);
        }
    }

    /// Tells of messages that are dead letters now.
    pub(super) fn tell_of_dead(&self, handler: &Registered<S>, taken: &Taken, settled: &Settled) {
        for dead in &settled.dead {
            if let Some(message) = taken.messages.iter().find(|message| message.place.pos == dead.pos) {
                self.tell_of_one_dead(handler, message, dead.failures, dead.error.clone());
            }
        }
    }

    pub(super) fn tell_of_one_dead(
        &self,
        handler: &Registered<S>,
        message: &StoredMessage,
        failures: u32,
        error: Option<String>,
    ) {
        let error = error.unwrap_or_default();
        tracing::error!(
            handler = &*handler.name,
            error,
            lane = message.place.lane,
            pos = message.place.pos,
            attempts = failures,
            "a message is a dead letter"
        );
        let Some(on_dead) = &self.log.settings.on_dead else { return };
        let now = std::time::SystemTime::now();
        let mut attempts = message.attempts.as_deref().map(PastAttempt::read).unwrap_or_default();
        attempts.push(PastAttempt { attempt: failures, at: now, error: error.clone(), omitted: 0 });
        let letter = DeadLetter {
            handler: handler.name.to_string(),
            place: message.place,
            kind: message.kind.clone(),
            key: message.key.clone(),
            body: message.body.clone(),
            received_at: now.checked_sub(message.waited).unwrap_or(now),
            died_at: now,
            error,
            attempts,
        };
        let told = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| on_dead(&letter)));
        if told.is_err() {
            tracing::error!("the on_dead hook panicked");
        }
    }
}

/// A message that is set apart with what it carries along.
pub(super) fn apart(message: &StoredMessage, due_in: Duration) -> SetApart {
    SetApart {
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

/// What the handler's own marker of a message is known by.
pub(super) fn unit_of_message<S: LogStore>(
    handler: &Registered<S>,
    message: &StoredMessage,
    key: &Key,
) -> Unit {
    Unit {
        handler: handler.origin.to_string(),
        kind: message.kind.clone(),
        key: key.stored(),
        fingerprint: Some(Fingerprint::of(&message.body)),
        waited: message.waited,
    }
}

/// A number by chance, for waits that must not fall together.
pub(crate) fn chance() -> u32 {
    let bytes = uuid::Uuid::now_v7().into_bytes();
    u32::from_le_bytes([bytes[12], bytes[13], bytes[14], bytes[15]])
}

/// An error's own text may be anybody's code.
pub(crate) fn error_text(error: &(dyn std::error::Error + 'static)) -> String {
    let text = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| chain(error)));
    clipped(text.unwrap_or_else(|_| "the text of the error panicked".to_owned()))
}

/// A text that any database takes.
fn clipped(text: String) -> String {
    let mut text = if text.contains('\0') { text.replace('\0', "\u{fffd}") } else { text };
    if text.len() > ERROR_MAX_BYTES {
        text.truncate(text.floor_char_boundary(ERROR_MAX_BYTES));
    }
    text
}
