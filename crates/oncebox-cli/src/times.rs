//! Times and durations in the forms that people write and read.

use std::time::{Duration, SystemTime};

use jiff::Timestamp;

/// RFC 3339 in UTC, to the millisecond.
pub(crate) fn rfc3339(time: SystemTime) -> String {
    match Timestamp::try_from(time) {
        // Always with milliseconds, so that times align in tables and sort as text.
        Ok(time) => format!("{time:.3}"),
        Err(_) => "(out of range)".to_owned(),
    }
}

/// The two largest units: `2 d 3 h`, `1 m 4 s`, `350 ms`.
pub(crate) fn rough(time: Duration) -> String {
    let seconds = time.as_secs();
    match seconds {
        0 => format!("{} ms", time.as_millis()),
        1..60 => format!("{seconds} s"),
        60..3600 => format!("{} m {} s", seconds / 60, seconds % 60),
        3600..86400 => format!("{} h {} m", seconds / 3600, seconds % 3600 / 60),
        _ => format!("{} d {} h", seconds / 86400, seconds % 86400 / 3600),
    }
}

/// How long ago a time was.
pub(crate) fn ago(time: SystemTime) -> String {
    // The time may be in the future, because the clock of the database may be ahead of this machine's.
    format!("{} ago", rough(SystemTime::now().duration_since(time).unwrap_or_default()))
}

/// `500ms`, `30s`, `10m`, `6h`, `7d`.
pub(crate) fn parse_duration(text: &str) -> Result<Duration, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    // The unit is required: a bare number could mean seconds or minutes.
    let (number, unit) = text.split_at(digits);
    let wrong = || {
        format!("invalid duration {text:?}: write a number and a unit, for example 500ms, 30s, 10m, 6h or 7d")
    };
    let number: u64 = number.parse().map_err(|_| wrong())?;
    let millis = match unit {
        "ms" => 1,
        "s" => 1000,
        "m" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => return Err(wrong()),
    };
    number.checked_mul(millis).map(Duration::from_millis).ok_or_else(wrong)
}

/// A point in time: RFC 3339, or how long ago.
pub(crate) fn parse_time(text: &str) -> Result<SystemTime, String> {
    if let Ok(ago) = parse_duration(text) {
        return SystemTime::now()
            .checked_sub(ago)
            .ok_or_else(|| format!("invalid time {text:?}: it is too long ago"));
    }
    let time: Result<Timestamp, _> = text.parse();
    time.map(SystemTime::from).map_err(|_| {
        format!(
            "invalid time {text:?}: write a time as in 2026-01-31T12:00:00Z, or how long ago, for example 30m or 2d"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_a_unit() {
        assert_eq!(parse_duration("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(parse_duration("7d"), Ok(Duration::from_secs(7 * 86400)));
        for wrong in ["", "5", "5 s", "-5s", "s", "1.5h", "99999999999999999999s", "18446744073709551615d"] {
            assert!(parse_duration(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn times_are_absolute_or_relative() {
        let noon = parse_time("2026-01-31T12:00:00Z").unwrap();
        assert_eq!(rfc3339(noon), "2026-01-31T12:00:00.000Z");
        let then = parse_time("30m").unwrap();
        let ago = SystemTime::now().duration_since(then).unwrap();
        assert!(ago >= Duration::from_secs(1800), "{ago:?}");
        assert!(parse_time("yesterday").is_err());
    }

    #[test]
    fn durations_are_read_at_a_glance() {
        assert_eq!(rough(Duration::from_millis(350)), "350 ms");
        assert_eq!(rough(Duration::from_secs(64)), "1 m 4 s");
        assert_eq!(rough(Duration::from_secs(2 * 86400 + 3 * 3600)), "2 d 3 h");
    }
}
