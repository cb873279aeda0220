//! Times as the tables keep them: milliseconds since 1970.

use std::time::{Duration, SystemTime};

pub(crate) fn from_ms(ms: i64) -> SystemTime {
    let away = Duration::from_millis(ms.unsigned_abs());
    let time = if ms < 0 {
        SystemTime::UNIX_EPOCH.checked_sub(away)
    } else {
        SystemTime::UNIX_EPOCH.checked_add(away)
    };
    time.unwrap_or(SystemTime::UNIX_EPOCH)
}

pub(crate) fn to_ms(time: SystemTime) -> i64 {
    match time.duration_since(SystemTime::UNIX_EPOCH) {
        Ok(since) => as_ms(since),
        Err(before) => -as_ms(before.duration()),
    }
}

pub(crate) fn as_ms(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

/// A stretch of time; one that would be negative is none.
pub(crate) fn duration(ms: i64) -> Duration {
    Duration::from_millis(u64::try_from(ms).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_before_1970_come_back_too() {
        for ms in [0, 1, -1, 1_700_000_000_123, -1_700_000_000_123] {
            assert_eq!(to_ms(from_ms(ms)), ms);
        }
        assert_eq!(duration(-1), Duration::ZERO);
    }
}
