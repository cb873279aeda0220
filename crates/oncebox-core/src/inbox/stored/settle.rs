//! Settling: what is written down of a batch beside its progress, and who is told.

use std::time::Duration;

use crate::Rejection;
use crate::backoff::{backoff, spread};
use crate::error::chain;
use crate::inbox::Inbox;
use crate::inbox::builder::Registered;
use crate::inbox::stored::visit::Taken;
use crate::inbox::stored::work::Ran;
use crate::inbox::stored::worker::WorkReport;
use crate::inbox::stored::{LogStore, Stored};
use crate::observe;
use crate::outcome::Outcome;
use crate::store::{DeadLetter, PastAttempt, SetApart, Settled};

/// Longer waits are beyond what databases can count.
const LONGEST_WAIT: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);
/// The longest error text that is kept.
const ERROR_MAX_BYTES: usize = 8 * 1024;

impl<S: LogStore> Inbox<S> {
    /// What is to be written beside the progress.
    pub(super) fn settle_up(
        &self,
        stored: &Stored,
        handler: &Registered<S>,
        taken: &Taken,
        ran: &Ran,
    ) -> (Settled, WorkReport) {
        let retry = handler.settings.retry.unwrap_or(stored.settings.retry);
        let mut settled = Settled::default();
        let mut report = WorkReport::default();
        for (n, message) in taken.messages.iter().enumerate() {
            let put_back = |failures, due_in, error| SetApart {
                pos: message.place.pos,
                order_by: message.order_by.clone(),
                failures,
                due_in,
                error,
                attempts: message.attempts.clone(),
                body: message.edited.then(|| message.body.clone()),
            };
            let failures = message.failures + 1;
            match ran.ended.get(n) {
                Some(Some(Outcome::Done)) => report.done += 1,
                Some(Some(Outcome::Queued)) => {
                    settled.apart.push(put_back(message.failures, message.due_in, None));
                    report.scheduled += 1;
                }
                Some(Some(Outcome::Retry { after, cause })) if retry.allows_another(failures) => {
                    let due_in = after.unwrap_or_else(|| retry.delay(failures, chance())).min(LONGEST_WAIT);
                    settled.apart.push(put_back(failures, due_in, Some(error_text(&**cause))));
                    report.failed += 1;
                }
                Some(Some(outcome)) => {
                    let error = match outcome {
                        Outcome::Retry { cause, .. } => error_text(&**cause),
                        Outcome::Rejected(rejection) => match rejection.cause() {
                            Some(cause) if matches!(rejection, Rejection::Permanent(_)) => {
                                error_text(&*cause)
                            }
                            _ => clipped(rejection.to_string()),
                        },
                        other => other.name().to_owned(),
                    };
                    settled.dead.push(put_back(failures, Duration::ZERO, Some(error)));
                    report.dead += 1;
                }
                // Tasks that were taken out of the table and not come to, or are to be tried again soon.
                Some(None) | None if taken.progress.is_none() => {
                    let due_in = if n < ran.ended.len() { backoff(2, spread()) } else { Duration::ZERO };
                    settled.apart.push(put_back(message.failures, due_in, None));
                }
                Some(None) | None => {}
            }
        }
        (settled, report)
    }

    pub(super) fn observe_visit(
        &self,
        handler: &Registered<S>,
        taken: &Taken,
        ran: &Ran,
        report: &WorkReport,
    ) {
        let observer = self.inner.observer;
        if !observer.enabled {
            return;
        }
        let name = &*handler.name;
        observer.batch(name, ran.bodies);
        let each = ran.took / u32::try_from(ran.bodies.max(1)).unwrap_or(u32::MAX);
        for (message, ended) in taken.messages.iter().zip(&ran.ended) {
            match ended {
                Some(Outcome::Done) => {
                    observer.count(observe::PROCESSED, name);
                    observer.time(observe::WAIT_SECONDS, name, message.waited + ran.took);
                    observer.time(observe::HANDLE_SECONDS, name, each);
                }
                Some(Outcome::Retry { .. } | Outcome::Rejected(_)) => observer.count(observe::FAILED, name),
                _ => {}
            }
        }
        for _ in 0..report.dead {
            observer.count(observe::DEAD, name);
        }
    }

    pub(super) fn tell_of_dead(
        &self,
        stored: &Stored,
        handler: &Registered<S>,
        taken: &Taken,
        settled: &Settled,
    ) {
        for dead in &settled.dead {
            let error = dead.error.clone().unwrap_or_default();
            tracing::error!(
                handler = &*handler.name,
                error,
                pos = dead.pos,
                attempts = dead.failures,
                "a message is a dead letter"
            );
            let Some(on_dead) = &stored.settings.on_dead else { continue };
            let Some(message) = taken.messages.iter().find(|message| message.place.pos == dead.pos) else {
                continue;
            };
            let now = std::time::SystemTime::now();
            let mut attempts = message.attempts.as_deref().map(PastAttempt::read).unwrap_or_default();
            attempts.push(PastAttempt { attempt: dead.failures, at: now, error: error.clone() });
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
}

/// A number by chance, for waits that must not fall together.
fn chance() -> u32 {
    let bytes = uuid::Uuid::now_v7().into_bytes();
    u32::from_le_bytes([bytes[12], bytes[13], bytes[14], bytes[15]])
}

/// An error's own text may be anybody's code.
fn error_text(error: &(dyn std::error::Error + 'static)) -> String {
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
