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

/// A time in RFC 3339, in any offset: `2026-11-18T18:00:00.5+01:00`. `None` for another text.
pub(crate) fn parse_rfc3339(text: &str) -> Option<SystemTime> {
    let number = |from: usize, to: usize| {
        let digits = text.get(from..to).filter(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()))?;
        digits.parse::<i64>().ok()
    };
    let is = |at: usize, allowed: &[u8]| text.as_bytes().get(at).is_some_and(|byte| allowed.contains(byte));
    let separators = is(4, b"-") && is(7, b"-") && is(10, b"Tt ") && is(13, b":") && is(16, b":");
    let (year, month, day) = (number(0, 4)?, number(5, 7)?, number(8, 10)?);
    // A leap second is the end of its minute.
    let (hour, minute, second) = (number(11, 13)?, number(14, 16)?, number(17, 19)?.min(59));
    let rest = text.get(19..)?;
    let (fraction, offset) = match rest.strip_prefix('.') {
        Some(rest) => rest.split_at(rest.bytes().take_while(u8::is_ascii_digit).count()),
        None => ("0", rest),
    };
    let nanos: u32 = format!("{fraction:0<9}").get(..9).filter(|_| !fraction.is_empty())?.parse().ok()?;
    let offset = match offset.as_bytes() {
        [b'Z' | b'z'] => 0,
        [sign @ (b'+' | b'-'), _, _, b':', _, _] => {
            let at = text.len() - 5;
            let (hours, minutes) = (number(at, at + 2)?, number(at + 3, at + 5)?);
            let seconds = hours * 3600 + minutes * 60;
            if hours > 23 || minutes > 59 {
                return None;
            }
            if *sign == b'-' { -seconds } else { seconds }
        }
        _ => return None,
    };
    let days = days_of(year, month, day);
    if !separators || hour > 23 || minute > 59 || civil(days) != (year, month, day) {
        return None;
    }
    let seconds = days * 86_400 + hour * 3600 + minute * 60 + second - offset;
    let whole = Duration::from_secs(seconds.unsigned_abs());
    let start = match seconds < 0 {
        true => SystemTime::UNIX_EPOCH.checked_sub(whole)?,
        false => SystemTime::UNIX_EPOCH.checked_add(whole)?,
    };
    start.checked_add(Duration::from_nanos(nanos.into()))
}

/// The number of a day since 1970: the reverse of `civil` for a day that exists.
fn days_of(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let (era, of_era) = (year.div_euclid(400), year.rem_euclid(400));
    let month = if month > 2 { month - 3 } else { month + 9 };
    let of_year = (153 * month + 2) / 5 + day - 1;
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468
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
            assert_eq!(parse_rfc3339(text), Some(at(ms)), "{text}");
        }
    }

    #[test]
    fn times_are_read_in_any_offset() {
        for (text, ms) in [
            ("2026-11-18T18:00:00+01:00", 1_795_021_200_000),
            ("2026-11-18t12:30:00.5-04:30", 1_795_021_200_500),
            ("2026-11-18 17:00:00.0009999z", 1_795_021_200_000),
            ("2016-12-31T23:59:60Z", 1_483_228_799_000),
            ("1970-01-01T00:00:00.25+00:01", -59_750),
        ] {
            assert_eq!(parse_rfc3339(text).map(to_ms), Some(ms), "{text}");
        }
        for text in [
            "",
            "2026-11-18",
            "2026-11-18T17:00:00",
            "2026-11-18T17:00Z",
            "2026-02-29T00:00:00Z",
            "2026-13-01T00:00:00Z",
            "2026-11-18T24:00:00Z",
            "2026-11-18T17:60:00Z",
            "2026-11-18T17:00:00.Z",
            "2026-11-18T17:00:00+1:00",
            "2026-11-18T17:00:00+24:00",
            "2026-11-18T17:00:00Zz",
            "+026-11-18T17:00:00Z",
            "soon",
            "2026-11-1éT17:00:00Z",
        ] {
            assert_eq!(parse_rfc3339(text), None, "{text}");
        }
    }
}
