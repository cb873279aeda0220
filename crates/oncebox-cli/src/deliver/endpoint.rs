//! Delivery to an HTTP endpoint.

use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result};
use oncebox::{Envelope, Failure, Headers};
use reqwest::header::{CONTENT_LENGTH, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};
use reqwest::{Client, Response, StatusCode, Url, redirect};

use crate::deliver::address::{Private, PublicOnly};
use crate::deliver::beginning;
use crate::deliver::told::Told;
use crate::source::is_left_out;

/// So much of an answer is read, to say what is wrong.
const ANSWER_BYTES: usize = 4096;
/// Whoever asks for more patience than this gets this.
const LONGEST_WAIT: Duration = Duration::from_secs(24 * 60 * 60);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Headers that say where a request ends and what becomes of its connection: another length would cut the body off.
const OF_THE_CONNECTION: [&str; 9] = [
    "connection",
    "content-length",
    "expect",
    "keep-alive",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// Why a header cannot be configured, if it cannot.
pub(crate) fn objection(header: &HeaderName) -> Option<&'static str> {
    let name = header.as_str();
    if OF_THE_CONNECTION.contains(&name) {
        return Some("this header is about the connection, and the gateway's own: leave it out");
    }
    let is_told = matches!(name, "idempotency-key" | "traceparent") || name.starts_with("oncebox-");
    is_told.then_some(
        "the gateway tells the service with this header which effect a message is for: take another",
    )
}

/// An endpoint, with connections that are kept.
#[derive(Debug)]
pub(super) struct Endpoint {
    client: Client,
    url: Url,
    headers: HeaderMap,
}

impl Endpoint {
    pub(super) fn new(url: Url, headers: HeaderMap, allow_private: bool) -> Result<Self> {
        let mut client = Client::builder()
            .user_agent(concat!("oncebox/", env!("CARGO_PKG_VERSION")))
            .redirect(redirect::Policy::none())
            // A proxy would look names up itself.
            .no_proxy()
            .connect_timeout(CONNECT_TIMEOUT);
        if !allow_private {
            client = client.dns_resolver(Arc::new(PublicOnly));
        }
        let client = client.build().context("making an HTTP client")?;
        Ok(Self { client, url, headers })
    }

    /// Posts the message; what the answer means.
    pub(super) async fn deliver(&self, envelope: Envelope, told: &Told) -> Result<(), Failure> {
        let mut headers = passed_on(envelope.headers());
        for (name, value) in [
            ("idempotency-key", Some(&*told.effect_id)),
            ("oncebox-effect-id", Some(&*told.effect_id)),
            ("oncebox-attempt", Some(&*told.attempt.to_string())),
            ("oncebox-replay", told.is_replay.then_some("true")),
            ("oncebox-handler", Some(&*told.handler)),
            ("oncebox-kind", Some(&*told.kind)),
            ("oncebox-key", told.key.as_deref()),
            ("oncebox-source", told.source.as_deref()),
            ("traceparent", Some(&*told.traceparent)),
        ] {
            headers.remove(name);
            // A key or a kind need not be fit for a header: it is left out then.
            if let Some(value) = value.and_then(|value| HeaderValue::from_str(value).ok()) {
                headers.insert(HeaderName::from_static(name), value);
            }
        }
        headers.extend(self.headers.clone());
        if envelope.body().is_empty() {
            // The driver leaves it out there, and many a service insists on it.
            headers.insert(CONTENT_LENGTH, HeaderValue::from(0));
        }
        let request = self.client.post(self.url.clone()).headers(headers).body(envelope.body().to_vec());
        match request.send().await {
            Ok(answer) => judge(answer).await,
            // Its URL may have a secret in it.
            Err(error) => Err(explained(&error.without_url()).into()),
        }
    }
}

/// What came with the message, as far as it is fit for another request.
fn passed_on(headers: &Headers) -> HeaderMap {
    let mut passed_on = HeaderMap::new();
    // Not everybody who accepts is a gateway, and leaves them out.
    for (name, value) in headers.iter().filter(|(name, _)| !is_left_out(name)) {
        let name = HeaderName::from_bytes(name.as_bytes()).ok();
        if let (Some(name), Ok(value)) = (name, HeaderValue::from_str(value)) {
            passed_on.append(name, value);
        }
    }
    passed_on
}

/// What an answer means: done, dead, or again, and when.
async fn judge(answer: Response) -> Result<(), Failure> {
    let status = answer.status();
    if status.is_success() {
        return Ok(());
    }
    let wait = answer
        .headers()
        .get(RETRY_AFTER)
        .and_then(|value| retry_after(value.to_str().ok()?, SystemTime::now()));
    let error = format!("{status}{}", said(answer).await);
    Err(match (is_final(status), wait) {
        (true, _) => Failure::permanent(error),
        (false, Some(wait)) => Failure::after(wait, error),
        (false, None) => error.into(),
    })
}

/// Whether another try would get the same answer.
fn is_final(status: StatusCode) -> bool {
    status.is_client_error()
        && !matches!(
            status,
            StatusCode::REQUEST_TIMEOUT
                | StatusCode::CONFLICT
                | StatusCode::TOO_EARLY
                | StatusCode::TOO_MANY_REQUESTS
        )
}

/// How long to wait: seconds, or until a date.
fn retry_after(value: &str, now: SystemTime) -> Option<Duration> {
    let value = value.trim();
    let is_number = !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit());
    let wait = match is_number {
        true => value.parse().map_or(LONGEST_WAIT, Duration::from_secs),
        false => {
            let date = jiff::fmt::rfc2822::parse(value).ok()?.timestamp();
            SystemTime::from(date).duration_since(now).unwrap_or_default()
        }
    };
    Some(wait.min(LONGEST_WAIT))
}

/// The beginning of what the service says.
async fn said(mut answer: Response) -> String {
    let mut read = Vec::new();
    while read.len() < ANSWER_BYTES
        && let Ok(Some(chunk)) = answer.chunk().await
    {
        read.extend_from_slice(&chunk);
    }
    read.truncate(ANSWER_BYTES);
    match beginning(&String::from_utf8_lossy(&read)) {
        nothing if nothing.is_empty() => nothing,
        text => format!(": {text}"),
    }
}

/// The error with its causes: "error sending request" alone helps nobody.
fn explained(error: &reqwest::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        if let Some(private) = error.downcast_ref::<Private>() {
            return private.to_string();
        }
        text = format!("{text}: {error}");
        cause = error.source();
    }
    beginning(&text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_means_done_dead_or_again() {
        for code in [400, 401, 403, 404, 405, 410, 413, 415, 422, 451] {
            assert!(is_final(StatusCode::from_u16(code).unwrap()), "{code}");
        }
        for code in [301, 302, 307, 408, 409, 425, 429, 500, 502, 503, 504] {
            assert!(!is_final(StatusCode::from_u16(code).unwrap()), "{code}");
        }
    }

    /// What to do stands first: the rest may be cut off.
    #[tokio::test]
    async fn a_name_that_leads_to_this_machine_is_said_to() {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let client = Client::builder().no_proxy().dns_resolver(Arc::new(PublicOnly)).build().unwrap();
        let error = client.post("http://localhost:1/").send().await.unwrap_err();
        assert!(explained(&error).starts_with("localhost is on this machine"), "{}", explained(&error));
    }

    #[test]
    fn what_is_about_the_connection_is_not_passed_on() {
        let came: Headers =
            [("Content-Length", "1"), ("host", "x"), ("X-Tenant", "a"), ("Transfer-Encoding", "chunked")]
                .into_iter()
                .collect();
        let passed_on = passed_on(&came);
        assert_eq!(passed_on.keys().map(HeaderName::as_str).collect::<Vec<_>>(), ["x-tenant"]);
    }

    #[test]
    fn retry_after_is_seconds_or_a_date() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(784_111_770);
        assert_eq!(retry_after("120", now), Some(Duration::from_secs(120)));
        assert_eq!(retry_after("Sun, 06 Nov 1994 08:49:37 GMT", now), Some(Duration::from_secs(7)));
        assert_eq!(retry_after("Sun, 06 Nov 1994 08:49:00 GMT", now), Some(Duration::ZERO));
        assert_eq!(retry_after("99999999", now), Some(LONGEST_WAIT));
        assert_eq!(retry_after("99999999999999999999999", now), Some(LONGEST_WAIT));
        assert_eq!(retry_after("", now), None);
        assert_eq!(retry_after("soon", now), None);
    }
}
