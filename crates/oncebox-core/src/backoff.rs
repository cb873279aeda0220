//! How long to wait before the next try.

use std::time::Duration;

const FIRST: Duration = Duration::from_millis(10);
const LONGEST: Duration = Duration::from_secs(1);

/// Doubles from 10 ms to 1 s. `spread` from 0 to 255 takes up to half of it away, so that many processes do
/// not come back at the same moment.
pub(crate) fn backoff(tries: u32, spread: u8) -> Duration {
    let full = FIRST.saturating_mul(1 << tries.min(10)).min(LONGEST);
    full - full / 2 * u32::from(spread) / 255
}

/// A byte that differs between processes and calls; good enough to spread retries.
pub(crate) fn spread() -> u8 {
    uuid::Uuid::now_v7().as_bytes()[15]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_doubles_to_a_second_and_spreads_over_half() {
        let millis: Vec<u128> = (0..9).map(|tries| backoff(tries, 0).as_millis()).collect();
        assert_eq!(millis, [10, 20, 40, 80, 160, 320, 640, 1000, 1000]);
        assert_eq!(backoff(40, 255), Duration::from_millis(500));
    }
}
