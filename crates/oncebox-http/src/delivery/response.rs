//! Responses of an endpoint: what is kept of them.

use std::error::Error;
use std::fmt;
use std::time::{Duration, SystemTime};

use reqwest::Response;
use reqwest::header::RETRY_AFTER;

use super::address::PrivateAddress;

/// The maximum number of bytes of a response that are read for the error text.
const RESPONSE_MAX_BYTES: usize = 4096;
/// The maximum delay that `Retry-After` can ask for.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(24 * 60 * 60);

/// Why an endpoint has not confirmed a message.
#[derive(Debug)]
#[non_exhaustive]
pub struct PostError {
    /// The status of the response; `None` without a response.
    pub status: Option<u16>,
    /// The delay that the response asks for, one day at the longest.
    pub retry_after: Option<Duration>,
    pub(crate) text: String,
}

impl PostError {
    /// An error without a response.
    pub(super) fn unsent(text: impl Into<String>) -> Self {
        Self { status: None, retry_after: None, text: text.into() }
    }

    /// The error of a request that got no response.
    pub(super) fn without_response(error: reqwest::Error) -> Self {
        // The URL may have a secret.
        Self::unsent(send_error(&error.without_url()))
    }

    /// The error of a response that is not a success.
    pub(super) async fn of_response(response: Response) -> Self {
        let status = response.status();
        let retry_after = response
            .headers()
            .get(RETRY_AFTER)
            .and_then(|value| retry_after(value.to_str().ok()?, SystemTime::now()));
        let text = format!("{status}{}", body_text(response).await);
        Self { status: Some(status.as_u16()), retry_after, text }
    }
}

impl fmt::Display for PostError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl Error for PostError {}

/// The delay of a `Retry-After` header: seconds, or a date.
fn retry_after(value: &str, now: SystemTime) -> Option<Duration> {
    let value = value.trim();
    // A number that does not fit into 64 bits is still a number, not a date.
    let is_number = !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit());
    let wait = match is_number {
        true => value.parse().map_or(RETRY_AFTER_MAX, Duration::from_secs),
        false => {
            let date = jiff::fmt::rfc2822::parse(value).ok()?.timestamp();
            SystemTime::from(date).duration_since(now).unwrap_or_default()
        }
    };
    Some(wait.min(RETRY_AFTER_MAX))
}

/// The beginning of the response's body, after a colon.
async fn body_text(mut response: Response) -> String {
    let mut read = Vec::new();
    // An error while reading is ignored: the status has already decided the outcome.
    while read.len() < RESPONSE_MAX_BYTES
        && let Ok(Some(chunk)) = response.chunk().await
    {
        read.extend_from_slice(&chunk);
    }
    read.truncate(RESPONSE_MAX_BYTES);
    match beginning(&String::from_utf8_lossy(&read)) {
        nothing if nothing.is_empty() => nothing,
        text => format!(": {text}"),
    }
}

/// The error with its causes, because "error sending request" alone does not say what is wrong.
fn send_error(error: &reqwest::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        // Alone: the outer errors only say that sending failed.
        if let Some(private) = error.downcast_ref::<PrivateAddress>() {
            return private.to_string();
        }
        text = format!("{text}: {error}");
        cause = error.source();
    }
    beginning(&text)
}

/// The beginning of a text from another program, on one line: enough to know what is wrong.
pub fn beginning(text: &str) -> String {
    const CHARACTERS: usize = 300;
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(CHARACTERS) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retry_after_is_seconds_or_a_date() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(784_111_770);
        assert_eq!(retry_after("120", now), Some(Duration::from_secs(120)));
        assert_eq!(retry_after("Sun, 06 Nov 1994 08:49:37 GMT", now), Some(Duration::from_secs(7)));
        assert_eq!(retry_after("Sun, 06 Nov 1994 08:49:00 GMT", now), Some(Duration::ZERO));
        assert_eq!(retry_after("99999999", now), Some(RETRY_AFTER_MAX));
        assert_eq!(retry_after("99999999999999999999999", now), Some(RETRY_AFTER_MAX));
        assert_eq!(retry_after("", now), None);
        assert_eq!(retry_after("soon", now), None);
    }
}
