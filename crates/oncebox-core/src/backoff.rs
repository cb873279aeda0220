//! Retries with back-off: the pauses between attempts, and the time limit for all of them.

use std::time::{Duration, Instant};

use crate::Error;
use crate::error::chain;
use crate::inbox::faults::Judgement;
use crate::store::Store;

// The first pause is twice this: `backoff` doubles once per failed attempt.
const FIRST: Duration = Duration::from_millis(10);
const LONGEST: Duration = Duration::from_secs(1);

/// The failed attempts of one operation, with the pauses between them and a time limit.
///
/// Pauses double from 20 ms to 1 s. Each is shortened at random by up to half, so that many processes do not retry at the
/// same moment. All loops of the engine that wait for a store use this type; a store's own loops can use it too.
///
/// ```
/// # use std::time::Duration;
/// use oncebox_core::store::Retries;
///
/// # fn connect() -> Result<(), &'static str> { Ok(()) }
/// # async fn example() -> Result<(), &'static str> {
/// let mut retries = Retries::within(Duration::from_secs(5));
/// let connected = loop {
///     match connect() {
///         Ok(connected) => break connected,
///         Err(error) if retries.is_over() => return Err(error),
///         Err(_) => retries.pause().await,
///     }
/// };
/// # Ok(connected)
/// # }
/// ```
#[derive(Clone, Copy, Debug)]
#[must_use]
pub struct Retries {
    failures: u32,
    /// The time of the first failure.
    since: Option<Instant>,
    /// The maximum time from the first failure to the last attempt.
    limit: Duration,
    /// The longest pause between two attempts.
    longest: Duration,
}

impl Retries {
    /// Stops when `limit` has passed since the first failure. There is always a second attempt.
    pub fn within(limit: Duration) -> Self {
        Self { failures: 0, since: None, limit, longest: LONGEST }
    }

    /// Never stops.
    pub fn unlimited() -> Self {
        Self::within(Duration::MAX)
    }

    /// Sets the longest pause between two attempts, if that is less than a second.
    pub fn with_longest_pause(self, longest: Duration) -> Self {
        Self { longest, ..self }
    }

    /// Whether no attempt has failed since the last success.
    pub fn is_clean(&self) -> bool {
        self.failures == 0
    }

    /// Forgets all failures, after an attempt has succeeded.
    pub fn reset(&mut self) {
        *self = Self { failures: 0, since: None, ..*self };
    }

    /// Whether the attempt that has just failed was the last one.
    pub fn is_over(&mut self) -> bool {
        // The clock starts here, at the first failure: the first attempt may itself have taken long.
        self.since.get_or_insert_with(Instant::now).elapsed() >= self.limit
    }

    /// Counts a failed attempt and returns the pause before the next one.
    pub fn next_pause(&mut self) -> Duration {
        self.failures = self.failures.saturating_add(1);
        Self::pause_after(self.failures).min(self.longest)
    }

    /// The pause after this number of failed attempts, for callers that count them elsewhere.
    pub fn pause_after(attempts: u32) -> Duration {
        backoff(attempts, spread())
    }

    /// Counts a failed attempt and waits before the next one.
    pub async fn pause(&mut self) {
        tokio::time::sleep(self.next_pause()).await;
    }

    /// Waits before the next attempt after an error of the store.
    ///
    /// Returns the error if another attempt cannot help, or if the time limit has passed.
    pub async fn after<S: Store>(&mut self, error: Error) -> Result<(), Error> {
        let judgement = Judgement::of::<S>(&error);
        if judgement.is_refused() || self.is_over() {
            return Err(error);
        }
        tracing::debug!(error = chain(&error), "the store did not respond: another attempt follows");
        if judgement.is_conflict() && self.is_clean() {
            // The other transaction of a first conflict is committed by now: no need to wait.
            self.failures = 1;
        } else {
            self.pause().await;
        }
        Ok(())
    }
}

/// Doubles from 10 ms to 1 s. `spread` from 0 to 255 shortens it by up to half, so that many processes do not retry at
/// the same moment.
fn backoff(attempts: u32, spread: u8) -> Duration {
    // Ten doublings exceed the longest pause; without a limit the shift would overflow.
    let full = FIRST.saturating_mul(1 << attempts.min(10)).min(LONGEST);
    full - full / 2 * u32::from(spread) / 255
}

/// A byte that differs between processes and calls; good enough to spread retries.
pub(crate) fn spread() -> u8 {
    // The last byte of a version 7 UUID is random: no need for another dependency.
    uuid::Uuid::now_v7().as_bytes()[15]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_doubles_to_a_second_and_spreads_over_half() {
        let millis: Vec<u128> = (0..9).map(|attempts| backoff(attempts, 0).as_millis()).collect();
        assert_eq!(millis, [10, 20, 40, 80, 160, 320, 640, 1000, 1000]);
        assert_eq!(backoff(40, 255), Duration::from_millis(500));
    }

    #[test]
    fn pauses_grow_until_an_attempt_succeeds() {
        let mut retries = Retries::unlimited();
        assert!(retries.is_clean());
        for expected in [20, 40, 80] {
            let pause = retries.next_pause().as_millis();
            assert!((expected / 2..=expected).contains(&pause), "{pause} of {expected}");
        }
        retries.reset();
        assert!(retries.is_clean());
        assert!(retries.next_pause().as_millis() <= 20);
        let longest = Duration::from_millis(30);
        let mut short = Retries::unlimited().with_longest_pause(longest);
        assert!((0..20).all(|_| short.next_pause() <= longest));
    }

    #[test]
    fn the_time_limit_counts_from_the_first_failure() {
        let mut retries = Retries::within(Duration::from_secs(3600));
        assert!(!retries.is_over());
        retries.since = retries.since.and_then(|since| since.checked_sub(Duration::from_secs(3600)));
        assert!(retries.is_over());
        retries.reset();
        assert!(!retries.is_over());
        assert!(Retries::within(Duration::ZERO).is_over());
    }
}
