//! When a failed message runs again: rules without clocks.

use std::time::Duration;

/// How often a stored message is tried, and how long it waits in between. Inline, the broker decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retry {
    /// So many tries, then the message is a dead letter. 10.
    pub max_attempts: u32,
    /// The longest wait after the first failure; it doubles with each. 1 s.
    pub first: Duration,
    /// The longest wait of all. 10 minutes.
    pub longest: Duration,
}

impl Default for Retry {
    fn default() -> Self {
        Self { max_attempts: 10, first: Duration::from_secs(1), longest: Duration::from_secs(600) }
    }
}

impl Retry {
    /// How long a message waits that has failed so often, with full jitter: `chance` of 0 is not at all, of `u32::MAX` as long
    /// as it may.
    pub(crate) fn delay(&self, failures: u32, chance: u32) -> Duration {
        let doublings = failures.saturating_sub(1).min(31);
        let most = self.first.saturating_mul(1 << doublings).min(self.longest);
        most.mul_f64(f64::from(chance) / f64::from(u32::MAX))
    }

    /// Whether a message that has failed so often is tried again.
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
        assert_eq!(retry.delay(u32::MAX, u32::MAX), retry.longest);
        assert!(retry.allows_another(9));
        assert!(!retry.allows_another(10));
    }
}
