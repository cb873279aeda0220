//! When a failed message runs again: rules without clocks.

use std::time::Duration;

/// The maximum number of attempts for a stored message, and the delays between them. Inline, the broker decides.
///
/// ```
/// # use oncebox_core::Retry;
/// # use std::time::Duration;
/// let retry = Retry::default().max_attempts(5).first_delay(Duration::from_secs(10));
/// # assert_eq!(retry, Retry::new().max_attempts(5).first_delay(Duration::from_secs(10)));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct Retry {
    max_attempts: u32,
    first_delay: Duration,
    max_delay: Duration,
}

impl Default for Retry {
    fn default() -> Self {
        Self::new()
    }
}

impl Retry {
    /// 25 attempts; the delay doubles from 1 s to 10 min.
    ///
    /// That outlasts an outage of an hour, which is no fault of the message.
    pub const fn new() -> Self {
        Self { max_attempts: 25, first_delay: Duration::from_secs(1), max_delay: Duration::from_secs(600) }
    }

    /// The maximum number of attempts; after the last one the message is a dead letter. 25.
    pub const fn max_attempts(mut self, attempts: u32) -> Self {
        self.max_attempts = attempts;
        self
    }

    /// The maximum delay after the first failure; it doubles with each further one. 1 s.
    pub const fn first_delay(mut self, delay: Duration) -> Self {
        self.first_delay = delay;
        self
    }

    /// The maximum delay after any failure. 10 min.
    pub const fn max_delay(mut self, delay: Duration) -> Self {
        self.max_delay = delay;
        self
    }

    /// The maximum delay after the first failure, and after any.
    pub const fn delays(&self) -> (Duration, Duration) {
        (self.first_delay, self.max_delay)
    }

    pub(crate) fn is_possible(&self) -> bool {
        self.max_attempts > 0
    }

    /// The delay after this many failures, with full jitter: a `chance` of 0 means no delay, `u32::MAX` the maximum.
    pub(crate) fn delay(&self, failures: u32, chance: u32) -> Duration {
        // A shift by 32 would overflow, and 2^31 times the first delay exceeds any sensible maximum.
        let doublings = failures.saturating_sub(1).min(31);
        let max = self.first_delay.saturating_mul(1 << doublings).min(self.max_delay);
        // Full jitter: messages that failed together, as in an outage, do not return together.
        max.mul_f64(f64::from(chance) / f64::from(u32::MAX))
    }

    /// Whether another attempt is left after this many failures.
    pub(crate) fn allows_another(&self, failures: u32) -> bool {
        failures < self.max_attempts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_doubles_to_its_limit_with_full_jitter() {
        let retry = Retry::default();
        let longest: Vec<u64> = (1..=12).map(|n| retry.delay(n, u32::MAX).as_secs()).collect();
        assert_eq!(longest, [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 600, 600]);
        assert_eq!(retry.delay(5, 0), Duration::ZERO);
        assert_eq!(retry.delay(u32::MAX, u32::MAX), retry.max_delay);
        assert!(retry.allows_another(24));
        assert!(!retry.allows_another(25));
    }
}
