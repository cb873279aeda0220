//! Whether messages can be stored, by the last accepts: a database may be readable but not writable.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::exit::chain_text;
use oncebox::{Accept, Error, ErrorKind};

/// How long a failed accept makes the gateway unhealthy, unless a later one succeeds. It must end by itself: a load balancer
/// sends no messages to an unhealthy gateway, so no success could end it. By then the gateway's heartbeats, at least one per
/// minute, show whether it can write.
const UNHEALTHY_FOR: Duration = Duration::from_secs(90);

/// The last failed accept: its time and its error. `None` after a success.
#[derive(Debug, Default)]
pub(super) struct AcceptHealth(Mutex<Option<(Instant, String)>>);

impl AcceptHealth {
    /// Records the result of an accept. Logs when failures begin and when they are over.
    pub(super) fn record(&self, accepted: &Result<Accept, Error>, now: Instant) {
        let mut last = self.last_failure();
        match accepted {
            Ok(_) => {
                if last.take().is_some() {
                    tracing::info!("messages are accepted again");
                }
            }
            Err(error) if error.kind() == ErrorKind::Unavailable => {
                // Once per outage: under load every request would log a line.
                if !last.as_ref().is_some_and(|failure| is_recent(failure, now)) {
                    tracing::error!(
                        error = chain_text(error),
                        "messages cannot be stored: senders get 503 and must send again"
                    );
                }
                *last = Some((now, chain_text(error)));
            }
            // The message itself was invalid, which says nothing about the database.
            Err(_) => {}
        }
    }

    /// The error of a recent failure.
    pub(super) fn problem(&self, now: Instant) -> Option<String> {
        self.last_failure().as_ref().filter(|failure| is_recent(failure, now)).map(|(_, text)| text.clone())
    }

    fn last_failure(&self) -> MutexGuard<'_, Option<(Instant, String)>> {
        // After a panic the value is still complete: each change is a single assignment.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn is_recent((when, _): &(Instant, String), now: Instant) -> bool {
    now.saturating_duration_since(*when) < UNHEALTHY_FOR
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failed(kind: ErrorKind) -> Result<Accept, Error> {
        Err(Error::new(kind, "the disk is full"))
    }

    #[test]
    fn a_failure_counts_until_an_accept_succeeds_or_time_has_passed() {
        let (health, now) = (AcceptHealth::default(), Instant::now());
        health.record(&failed(ErrorKind::Key), now);
        assert_eq!(health.problem(now), None, "an invalid message says nothing about the database");
        health.record(&failed(ErrorKind::Unavailable), now);
        assert!(health.problem(now).unwrap().contains("the disk is full"));
        health.record(&Ok(Accept::Duplicate { place: None }), now);
        assert_eq!(health.problem(now), None);

        health.record(&failed(ErrorKind::Unavailable), now);
        assert!(health.problem(now + UNHEALTHY_FOR / 2).is_some());
        assert_eq!(health.problem(now + UNHEALTHY_FOR), None);
        health.record(&failed(ErrorKind::Unavailable), now + UNHEALTHY_FOR * 2);
        assert!(health.problem(now + UNHEALTHY_FOR * 2).is_some());
    }
}
