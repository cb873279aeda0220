//! Whether messages can be kept, as far as the last ones tell: reading may work where writing does not.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use oncebox::{Accept, Error, ErrorKind};

/// A message that could not be kept makes the gateway sick for so long, unless another one is kept before that: whoever is taken
/// for sick gets no messages by which it could be seen to be well. By then the gateway's own signs of life, at least one a
/// minute, tell whether it can write.
const LASTS: Duration = Duration::from_secs(90);

/// The last message that could not be kept, if none was kept since: when that was, and why.
#[derive(Debug, Default)]
pub(super) struct Trouble(Mutex<Option<(Instant, String)>>);

impl Trouble {
    /// Notes what became of a message, and logs when trouble begins and when it is over.
    pub(super) fn note(&self, accepted: &Result<Accept, Error>, now: Instant) {
        let mut noted = self.noted();
        match accepted {
            Ok(_) => {
                if noted.take().is_some() {
                    tracing::info!("messages are accepted again");
                }
            }
            Err(error) if error.kind() == ErrorKind::Unavailable => {
                if !noted.as_ref().is_some_and(|noted| is_fresh(noted, now)) {
                    tracing::error!(%error, "messages cannot be accepted: senders are told to come again");
                }
                *noted = Some((now, error.to_string()));
            }
            Err(_) => {}
        }
    }

    /// What it is, if it still counts.
    pub(super) fn text(&self, now: Instant) -> Option<String> {
        self.noted().as_ref().filter(|noted| is_fresh(noted, now)).map(|(_, text)| text.clone())
    }

    fn noted(&self) -> MutexGuard<'_, Option<(Instant, String)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn is_fresh((when, _): &(Instant, String), now: Instant) -> bool {
    now.saturating_duration_since(*when) < LASTS
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failed(kind: ErrorKind) -> Result<Accept, Error> {
        Err(Error::new(kind, "the disk is full"))
    }

    #[test]
    fn trouble_counts_until_a_message_is_kept_or_time_has_passed() {
        let (trouble, now) = (Trouble::default(), Instant::now());
        trouble.note(&failed(ErrorKind::Key), now);
        assert_eq!(trouble.text(now), None, "a message that nobody could keep says nothing");
        trouble.note(&failed(ErrorKind::Unavailable), now);
        assert!(trouble.text(now).unwrap().contains("the disk is full"));
        trouble.note(&Ok(Accept::Duplicate { place: None }), now);
        assert_eq!(trouble.text(now), None);

        trouble.note(&failed(ErrorKind::Unavailable), now);
        assert!(trouble.text(now + LASTS / 2).is_some());
        assert_eq!(trouble.text(now + LASTS), None);
        trouble.note(&failed(ErrorKind::Unavailable), now + LASTS * 2);
        assert!(trouble.text(now + LASTS * 2).is_some());
    }
}
