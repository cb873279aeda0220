//! Limits of an envelope that hold for every store, whatever the limits of its database are.
//!
//! A message that exceeds one is rejected on arrival. After that, no field of a message can prevent a store from recording
//! the message's outcome.

use std::time::{Duration, SystemTime};

use crate::outcome::{Rejection, cause};
use crate::utc::rfc3339;
use crate::{Envelope, Headers, Key};

/// The maximum size of a body that a program does not set.
pub(crate) const MAX_BODY_BYTES: usize = 1024 * 1024;
/// 0001-01-01T00:00:00Z, in seconds before 1970.
const EARLIEST_BEFORE_1970: u64 = 62_135_596_800;
/// 10000-01-01T00:00:00Z, in seconds after 1970.
const END_AFTER_1970: u64 = 253_402_300_800;

/// Checks body, headers and times of an envelope. Kind and key have rules of their own: see `name`.
pub(crate) fn check_envelope(envelope: &Envelope, max_body_bytes: usize) -> Result<(), Rejection> {
    let bytes = envelope.body.len();
    if bytes > max_body_bytes {
        return Err(Rejection::TooLarge { bytes, max_bytes: max_body_bytes });
    }
    let bytes = envelope.headers.bytes();
    if bytes > Headers::MAX_BYTES {
        let max = Headers::MAX_BYTES;
        return Err(refused(format!(
            "the headers have {bytes} bytes, the limit is {max}: send fewer or shorter headers"
        )));
    }
    check_time("occurred_at", envelope.occurred_at)?;
    check_time("due_at", envelope.due_at)
}

/// Checks an ordering key, which has the same limit as a key.
pub(crate) fn check_order_by(order_by: Option<&Key>) -> Result<(), Rejection> {
    // Not a lower limit: users expect the same one for keys and ordering keys.
    match order_by.map(|key| key.as_bytes().len()) {
        Some(bytes) if bytes > Key::MAX_BYTES => {
            let max = Key::MAX_BYTES;
            Err(refused(format!(
                "the ordering key has {bytes} bytes, the limit is {max}: use a digest of it as the ordering key"
            )))
        }
        _ => Ok(()),
    }
}

/// Refuses times outside the years 1 to 9999, which some databases and tools cannot represent.
fn check_time(field: &str, time: Option<SystemTime>) -> Result<(), Rejection> {
    let Some(time) = time else { return Ok(()) };
    let is_fine = match time.duration_since(SystemTime::UNIX_EPOCH) {
        Ok(after) => after < Duration::from_secs(END_AFTER_1970),
        Err(before) => before.duration() <= Duration::from_secs(EARLIEST_BEFORE_1970),
    };
    match is_fine {
        true => Ok(()),
        false => {
            let time = rfc3339(time);
            Err(refused(format!(
                "{field} {time} is outside the years 0001 to 9999: correct it, or leave it out"
            )))
        }
    }
}

fn refused(message: String) -> Rejection {
    Rejection::BadEnvelope(cause(message))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn envelope() -> Envelope {
        Envelope::new("k", "body")
    }

    fn text(checked: Result<(), Rejection>) -> Option<String> {
        checked.err().map(|rejection| rejection.to_string())
    }

    #[test]
    fn times_outside_the_years_1_to_9999_are_refused() {
        let epoch = SystemTime::UNIX_EPOCH;
        let (earliest, end) =
            (Duration::from_secs(EARLIEST_BEFORE_1970), Duration::from_secs(END_AFTER_1970));
        let tick = Duration::from_nanos(1);
        let table = [
            (epoch, true),
            (epoch - earliest, true),
            (epoch - earliest - tick, false),
            (epoch + end - tick, true),
            (epoch + end, false),
            (epoch + end * 30, false),
        ];
        for (time, is_fine) in table {
            for envelope in [envelope().with_due_at(time), envelope().with_occurred_at(time)] {
                assert_eq!(check_envelope(&envelope, 4).is_ok(), is_fine, "{time:?}");
            }
        }
        let far = envelope().with_due_at(epoch + end);
        assert!(
            text(check_envelope(&far, 4)).unwrap().contains("due_at 10000-01-01T00:00:00.000Z is outside")
        );
    }

    #[test]
    fn sizes_have_limits() {
        assert!(matches!(
            check_envelope(&envelope(), 3),
            Err(Rejection::TooLarge { bytes: 4, max_bytes: 3 })
        ));
        let full = |bytes: usize| envelope().with_header("name", "x".repeat(bytes - 4));
        assert_eq!(text(check_envelope(&full(Headers::MAX_BYTES), 4)), None);
        let refused = text(check_envelope(&full(Headers::MAX_BYTES + 1), 4)).unwrap();
        assert!(refused.contains("65537 bytes, the limit is 65536"), "{refused}");
        let key = |bytes: usize| Key::new(vec![b'x'; bytes]);
        assert_eq!(text(check_order_by(Some(&key(Key::MAX_BYTES)))), None);
        assert!(
            text(check_order_by(Some(&key(Key::MAX_BYTES + 1)))).unwrap().contains("ordering key has 65537")
        );
        assert_eq!(text(check_order_by(None)), None);
    }
}
