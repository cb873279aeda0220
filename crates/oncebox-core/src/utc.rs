//! Times for databases and people, without a calendar library or a clock.

use std::time::{Duration, SystemTime};

const DAY_MS: i64 = 86_400_000;

/// Milliseconds since 1970; negative before.
pub(crate) fn to_ms(time: SystemTime) -> i64 {
    let ms = |duration: Duration| i64::try_from(duration.as_millis()).unwrap_or(i64::MAX);
    match time.duration_since(SystemTime::UNIX_EPOCH) {
        Ok(since) => ms(since),
        Err(before) => -ms(before.duration()),
    }
}

/// RFC 3339 in UTC, to the millisecond: `2026-11-18T17:00:00.000Z`.
pub(crate) fn rfc3339(time: SystemTime) -> String {
    let ms = to_ms(time);
    // Euclidean division rounds down, so that times before 1970 fall on the right day too.
    let (year, month, day) = civil(ms.div_euclid(DAY_MS));
    let of_day = ms.rem_euclid(DAY_MS);
    let (seconds, ms) = (of_day / 1000, of_day % 1000);
    let (hour, minute, second) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{ms:03}Z")
}

/// Year, month and day of a day since 1970, in the Gregorian calendar.
///
/// Years begin in March here, so that the leap day is the last day of a year. The calendar repeats after 146,097 days. The
/// formulas are those of Howard Hinnant's `civil_from_days`.
fn civil(days: i64) -> (i64, i64, i64) {
    // 719,468 days lie between 0000-03-01, where these years begin, and 1970-01-01.
    let days = days + 719_468;
    let (era, of_era) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let (month, next_year) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    (400 * era + year + next_year, month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: i64) -> SystemTime {
        let away = Duration::from_millis(ms.unsigned_abs());
        if ms < 0 { SystemTime::UNIX_EPOCH - away } else { SystemTime::UNIX_EPOCH + away }
    }

    #[test]
    fn times_are_written_in_utc_to_the_millisecond() {
        for (ms, text) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (-1, "1969-12-31T23:59:59.999Z"),
            (951_782_400_000, "2000-02-29T00:00:00.000Z"),
            (951_868_800_000, "2000-03-01T00:00:00.000Z"),
            (1_709_164_800_000, "2024-02-29T00:00:00.000Z"),
            (1_735_689_599_999, "2024-12-31T23:59:59.999Z"),
            (1_795_021_200_000, "2026-11-18T17:00:00.000Z"),
            (4_107_542_400_000, "2100-03-01T00:00:00.000Z"),
            (253_402_300_799_999, "9999-12-31T23:59:59.999Z"),
            (-62_135_596_800_000, "0001-01-01T00:00:00.000Z"),
        ] {
            assert_eq!(rfc3339(at(ms)), text, "{ms}");
            assert_eq!(to_ms(at(ms)), ms);
        }
    }
}
