//! Delivery to an HTTP endpoint.

use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result};
use oncebox::{Envelope, Failure, Headers};
use reqwest::header::{CONTENT_LENGTH, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};
use reqwest::{Client, Response, StatusCode, Url, redirect};

use crate::deliver::address::{PrivateAddress, PublicAddressResolver};
use crate::deliver::beginning;
use crate::deliver::delivery_info::DeliveryInfo;
use crate::source::is_left_out;

/// The maximum number of bytes of a response that are read for the error text.
const RESPONSE_MAX_BYTES: usize = 4096;
/// The maximum delay that `Retry-After` can ask for.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(24 * 60 * 60);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Headers of the connection, which the gateway sets itself. A wrong length, for example, would cut the body.
const HOP_BY_HOP: [&str; 9] = [
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

/// The error text for a header that cannot be configured.
pub(crate) fn header_problem(header: &HeaderName) -> Option<String> {
    let name = header.as_str();
    if HOP_BY_HOP.contains(&name) {
        return Some(format!(
            "the header {name} belongs to the connection, and the gateway sets it: remove it"
        ));
    }
    let is_reserved = matches!(name, "idempotency-key" | "traceparent") || name.starts_with("oncebox-");
    is_reserved.then(|| {
        format!("the header {name} is reserved: the gateway sets it on each delivery; use another one")
    })
}

/// An endpoint, and a client that reuses its connections.
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
            // A redirect could lead to a private address, and many turn a POST into a GET.
            .redirect(redirect::Policy::none())
            // A proxy would resolve names itself, private addresses included.
            .no_proxy()
            .connect_timeout(CONNECT_TIMEOUT);
        // For names only: an IP address in the URL needs no resolver, so the configuration check refuses it.
        if !allow_private {
            client = client.dns_resolver(Arc::new(PublicAddressResolver));
        }
        let client = client.build().context("cannot create an HTTP client")?;
        Ok(Self { client, url, headers })
    }

    /// Posts the message, and returns the outcome by the response.
    pub(super) async fn deliver(&self, envelope: Envelope, info: &DeliveryInfo) -> Result<(), Failure> {
        let mut headers = forwarded(envelope.headers());
        for (name, value) in [
            ("idempotency-key", Some(&*info.effect_id)),
            ("oncebox-effect-id", Some(&*info.effect_id)),
            ("oncebox-attempt", Some(&*info.attempt.to_string())),
            ("oncebox-replay", info.is_replay.then_some("true")),
            ("oncebox-handler", Some(&*info.handler)),
            ("oncebox-kind", Some(&*info.kind)),
            ("oncebox-key", info.key.as_deref()),
            ("oncebox-source", info.source.as_deref()),
            ("traceparent", Some(&*info.traceparent)),
        ] {
            // A sender must not be able to set these.
            headers.remove(name);
            // A key or a kind with characters that headers cannot have is left out.
            if let Some(value) = value.and_then(|value| HeaderValue::from_str(value).ok()) {
                headers.insert(HeaderName::from_static(name), value);
            }
        }
        // Configured headers win over those of the sender.
        headers.extend(self.headers.clone());
        if envelope.body().is_empty() {
            // The client leaves it out for empty bodies, but many services require it.
            headers.insert(CONTENT_LENGTH, HeaderValue::from(0));
        }
        let request = self.client.post(self.url.clone()).headers(headers).body(envelope.body().to_vec());
        match request.send().await {
            Ok(response) => outcome_of(response).await,
            // The URL may have a secret.
            Err(error) => Err(send_error(&error.without_url()).into()),
        }
    }
}

/// The stored headers that can be part of another request.
fn forwarded(headers: &Headers) -> HeaderMap {
    let mut forwarded = HeaderMap::new();
    // A program with the library may have stored headers that the gateway leaves out.
    for (name, value) in headers.iter().filter(|(name, _)| !is_left_out(name)) {
        let name = HeaderName::from_bytes(name.as_bytes()).ok();
        // Stored headers are any text, so some of them are not valid in HTTP.
        if let (Some(name), Ok(value)) = (name, HeaderValue::from_str(value)) {
            forwarded.append(name, value);
        }
    }
    forwarded
}

/// The outcome by a response: done, dead, or a retry, and when.
async fn outcome_of(response: Response) -> Result<(), Failure> {
    let status = response.status();
    if status.is_success() {
        return Ok(());
    }
    let wait = response
        .headers()
        .get(RETRY_AFTER)
        .and_then(|value| retry_after(value.to_str().ok()?, SystemTime::now()));
    let error = format!("{status}{}", body_text(response).await);
    Err(match (is_final(status), wait) {
        (true, _) => Failure::permanent(error),
        (false, Some(wait)) => Failure::after(wait, error),
        (false, None) => error.into(),
    })
}

/// Whether another attempt would get the same response.
fn is_final(status: StatusCode) -> bool {
    status.is_client_error()
        // These four ask for another attempt.
        && !matches!(
            status,
            StatusCode::REQUEST_TIMEOUT
                | StatusCode::CONFLICT
                | StatusCode::TOO_EARLY
                | StatusCode::TOO_MANY_REQUESTS
        )
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_means_done_dead_or_retry() {
        for code in [400, 401, 403, 404, 405, 410, 413, 415, 422, 451] {
            assert!(is_final(StatusCode::from_u16(code).unwrap()), "{code}");
        }
        for code in [301, 302, 307, 408, 409, 425, 429, 500, 502, 503, 504] {
            assert!(!is_final(StatusCode::from_u16(code).unwrap()), "{code}");
        }
    }

    /// The remedy comes first, because the end may be cut.
    #[tokio::test]
    async fn a_name_of_this_machine_is_named_in_the_error() {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let client =
            Client::builder().no_proxy().dns_resolver(Arc::new(PublicAddressResolver)).build().unwrap();
        let error = client.post("http://localhost:1/").send().await.unwrap_err();
        assert!(send_error(&error).starts_with("localhost is on this machine"), "{}", send_error(&error));
    }

    #[test]
    fn headers_of_the_connection_are_not_forwarded() {
        let stored: Headers =
            [("Content-Length", "1"), ("host", "x"), ("X-Tenant", "a"), ("Transfer-Encoding", "chunked")]
                .into_iter()
                .collect();
        let forwarded = forwarded(&stored);
        assert_eq!(forwarded.keys().map(HeaderName::as_str).collect::<Vec<_>>(), ["x-tenant"]);
    }

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
