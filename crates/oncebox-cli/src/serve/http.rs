//! The gateway's routes.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::extract::rejection::PathRejection;
use axum::extract::{FromRequestParts, Path, Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, Method, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use futures_util::StreamExt;
use metrics_exporter_prometheus::PrometheusHandle;
use oncebox::source::{ReceivedHeaders, SourceRules};
use oncebox::{ConsumerWatch, Error, ErrorKind, Inbox, LogStore};
use sha2::{Digest, Sha256};
use tokio::task::AbortHandle;
use tokio::time::timeout;

use crate::config::Config;
use crate::exit::chain_text;
use crate::serve::accept_health::AcceptHealth;
use crate::serve::consumers::SourceReport;
use crate::serve::response::{AcceptStatus, AcceptedResponse, ErrorResponse};
use crate::source::is_left_out;
use crate::times::rough;

/// The time limit for the body of a request.
const BODY_TIMEOUT: Duration = Duration::from_secs(30);
/// The maximum number of bytes beyond the limit that are read and dropped, so that the sender sees the response.
const DROPPED_BYTES: usize = 64 << 20;
/// The time limit for the store. After it the sender gets a 503.
const STORE_TIMEOUT: Duration = Duration::from_secs(10);

/// The state of all routes.
pub(super) struct Gateway<S: LogStore> {
    inbox: Inbox<S>,
    config: Config,
    metrics: PrometheusHandle,
    /// The task of the workers, if there are handlers, and why it has ended.
    workers: Option<(AbortHandle, WorkersEnd)>,
    accept_health: AcceptHealth,
    /// The sources that brokers deliver.
    consumers: Vec<ConsumerWatch>,
}

/// Why the workers have ended.
pub(super) type WorkersEnd = Arc<OnceLock<String>>;

impl<S: LogStore> Gateway<S> {
    pub(super) fn new(
        inbox: Inbox<S>,
        config: Config,
        metrics: PrometheusHandle,
        workers: Option<(AbortHandle, WorkersEnd)>,
        consumers: Vec<ConsumerWatch>,
    ) -> Self {
        Self { inbox, config, metrics, workers, accept_health: AcceptHealth::default(), consumers }
    }
}

type GatewayState<S> = State<Arc<Gateway<S>>>;

pub(super) fn router<S: LogStore>(gateway: Arc<Gateway<S>>) -> Router {
    Router::new()
        .route("/in/{source}", post(accept))
        .route("/metrics", get(metrics))
        .route("/sources", get(sources))
        // Without a token: load balancers rarely can send one.
        .route("/healthz", get(healthz))
        .fallback(async |uri: Uri| {
            let message = format!("no such path: {}: send messages to POST /in/SOURCE", uri.path());
            ErrorResponse::new(StatusCode::NOT_FOUND, "not_found", message)
        })
        .method_not_allowed_fallback(async |method: Method, uri: Uri| {
            let message =
                format!("{method} is not allowed for {}: send messages to POST /in/SOURCE", uri.path());
            ErrorResponse::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", message)
        })
        .with_state(gateway)
}

/// A request with the right token, where one is configured.
struct Authorized;

impl<S: LogStore> FromRequestParts<Arc<Gateway<S>>> for Authorized {
    type Rejection = ErrorResponse;

    async fn from_request_parts(parts: &mut Parts, gateway: &Arc<Gateway<S>>) -> Result<Self, ErrorResponse> {
        let Some(token) = &gateway.config.http.token else {
            // Without a token, a page of any site could send from a browser on this machine.
            return match parts.headers.get(header::ORIGIN) {
                Some(origin) => {
                    let message = format!(
                        "requests from browser pages need a token, and this one is from {}: set http.token in the \
                         configuration",
                        String::from_utf8_lossy(origin.as_bytes())
                    );
                    Err(ErrorResponse::new(StatusCode::FORBIDDEN, "forbidden_origin", message))
                }
                None => Ok(Self),
            };
        };
        let value = parts.headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
        match value.and_then(bearer) {
            // Digests, because the time of a plain comparison would reveal how much of the token is right.
            Some(given) if Sha256::digest(given) == Sha256::digest(token) => Ok(Self),
            given => {
                let problem = if given.is_some() { "wrong token" } else { "no token" };
                let message = format!("{problem}: send the header Authorization: Bearer TOKEN");
                Err(ErrorResponse::new(StatusCode::UNAUTHORIZED, "unauthorized", message))
            }
        }
    }
}

/// The token of an `Authorization` header. The scheme is case-insensitive.
fn bearer(value: &str) -> Option<&str> {
    let (scheme, token) = value.split_once(' ')?;
    scheme.eq_ignore_ascii_case("Bearer").then(|| token.trim_start_matches(' '))
}

/// Accepts a message.
async fn accept<S: LogStore>(
    _: Authorized,
    State(gateway): GatewayState<S>,
    name: Result<Path<String>, PathRejection>,
    request: Request,
) -> Result<AcceptedResponse, ErrorResponse> {
    // A name that is not UTF-8 becomes an invalid one.
    let name = name.map_or_else(|_| char::REPLACEMENT_CHARACTER.to_string(), |Path(name)| name);
    let Some(source) = gateway.config.sources.find(&name) else {
        let message = gateway.config.sources.unknown(&name);
        return Err(ErrorResponse::new(StatusCode::NOT_FOUND, "unknown_source", message));
    };
    let (parts, body) = request.into_parts();
    let max_body_bytes = gateway.inbox.max_body_bytes();
    // Before the body is read. The sender has not sent it yet.
    if announces_too_large(&parts.headers, max_body_bytes) {
        return Err(too_large(max_body_bytes));
    }
    let body = read(body, max_body_bytes).await?;
    let envelope = source.request(headers_to_store(&parts.headers), body)?;
    // The inbox takes the envelope; the response needs its kind and key.
    let (kind, key) = (envelope.kind().to_owned(), envelope.key().cloned());
    // The message may be stored even after a timeout. Then the next copy is a duplicate.
    let accepted = timeout(STORE_TIMEOUT, gateway.inbox.accept(envelope)).await;
    let accepted = accepted.unwrap_or_else(|_| Err(Error::new(ErrorKind::Unavailable, store_timed_out())));
    gateway.accept_health.record(&accepted, Instant::now());
    let key = key.map(|key| sent_key(&source, key.as_bytes())).unwrap_or_default();
    let accepted = match accepted {
        // The library's error does not name the key.
        Err(error) if error.kind() == ErrorKind::KeyReuse => {
            let message =
                format!("the key {key:?} was used before with another body: send new messages with new keys");
            return Err(ErrorResponse::new(StatusCode::CONFLICT, "key_reuse", message));
        }
        accepted => accepted?,
    };
    let status = if accepted.is_new() { AcceptStatus::Accepted } else { AcceptStatus::Duplicate };
    let (lane, position) = accepted.place().map(|place| (place.lane, place.pos)).unzip();
    Ok(AcceptedResponse { status, source: source.name, kind, key, lane, position })
}

/// The key as the sender wrote it.
fn sent_key(source: &SourceRules, stored: &[u8]) -> String {
    let stored = String::from_utf8_lossy(stored);
    stored.strip_prefix(&source.stored_key("")).unwrap_or(&stored).to_owned()
}

/// Whether a sender announces a body above the limit and waits for `100 Continue`. It gets its response before it sends the body.
fn announces_too_large(headers: &HeaderMap, limit: usize) -> bool {
    let length = headers.get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
    headers.contains_key(header::EXPECT) && length.is_some_and(|length: u64| length > limit as u64)
}

fn too_large(limit: usize) -> ErrorResponse {
    let message = format!(
        "the body is larger than {limit} bytes: send a smaller one or a reference, or raise http.max_body_bytes"
    );
    ErrorResponse::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", message)
}

async fn read(body: Body, limit: usize) -> Result<Vec<u8>, ErrorResponse> {
    match timeout(BODY_TIMEOUT, collect(body, limit)).await {
        Ok(Ok(Some(bytes))) => Ok(bytes),
        Ok(Ok(None)) => Err(too_large(limit)),
        Ok(Err(error)) => {
            let message = format!("the body is incomplete: {}: send it again", chain_text(&error));
            Err(ErrorResponse::new(StatusCode::BAD_REQUEST, "incomplete_body", message))
        }
        Err(_elapsed) => {
            let message = format!("the body did not arrive within {}: send it again", rough(BODY_TIMEOUT));
            Err(ErrorResponse::new(StatusCode::REQUEST_TIMEOUT, "timeout", message))
        }
    }
}

/// Reads the body. Returns `None` if it is above the limit. Some bytes above the limit are read and dropped, because a sender
/// whose connection is cut in the middle does not see the response.
async fn collect(body: Body, limit: usize) -> Result<Option<Vec<u8>>, axum::Error> {
    let mut chunks = body.into_data_stream();
    let (mut kept, mut total) = (Vec::new(), 0);
    while total <= limit.saturating_add(DROPPED_BYTES)
        && let Some(chunk) = chunks.next().await.transpose()?
    {
        total += chunk.len();
        if total <= limit {
            kept.extend_from_slice(&chunk);
        } else {
            // Frees the memory of the bytes read so far.
            kept = Vec::new();
        }
    }
    Ok((total <= limit).then_some(kept))
}

/// The headers that are stored with the body.
fn headers_to_store(headers: &HeaderMap) -> ReceivedHeaders {
    let mut stored = ReceivedHeaders::default();
    let hop_by_hop = headers.get_all(header::CONNECTION).iter().filter_map(|value| value.to_str().ok());
    let hop_by_hop: Vec<&str> = hop_by_hop.flat_map(|value| value.split(',')).map(str::trim).collect();
    for (name, value) in headers {
        // A header that `Connection` names belongs to this connection only.
        let is_named = hop_by_hop.iter().any(|other| other.eq_ignore_ascii_case(name.as_str()));
        if is_named || is_left_out(name.as_str()) {
            continue;
        }
        match std::str::from_utf8(value.as_bytes()) {
            Ok(text) => stored.headers.append(name.as_str(), text),
            // Only an error if a rule of the source needs this header.
            Err(_) => stored.unreadable.push(name.to_string()),
        }
    }
    stored
}

fn store_timed_out() -> String {
    format!("the database did not respond within {}: send the message again", rough(STORE_TIMEOUT))
}

async fn healthz<S: LogStore>(State(gateway): GatewayState<S>) -> Response {
    let ended = gateway.workers.as_ref().filter(|(workers, _)| workers.is_finished());
    let health = match (ended, gateway.accept_health.problem(Instant::now())) {
        // First, because without workers no message is delivered even if the database responds.
        (Some((_, reason)), _) => {
            let reason = reason.get().map_or("the workers crashed: restart the program", String::as_str);
            Err(reason.to_owned())
        }
        (None, Some(problem)) => Err(format!("the last message could not be accepted: {problem}")),
        (None, None) => match timeout(STORE_TIMEOUT, gateway.inbox.health()).await {
            Ok(health) => {
                let health =
                    health.and_then(|()| gateway.consumers.iter().try_for_each(ConsumerWatch::health));
                health.map_err(|error| chain_text(&error))
            }
            Err(_elapsed) => Err(store_timed_out()),
        },
    };
    match health {
        Ok(()) => Json(serde_json::json!({ "status": "ok" })).into_response(),
        Err(message) => {
            let body = serde_json::json!({ "status": "failing", "message": message });
            (StatusCode::SERVICE_UNAVAILABLE, Json(body)).into_response()
        }
    }
}

async fn sources<S: LogStore>(_: Authorized, State(gateway): GatewayState<S>) -> Response {
    let sources: Vec<SourceReport> = gateway.consumers.iter().map(|watch| watch.status().into()).collect();
    Json(serde_json::json!({ "sources": sources })).into_response()
}

async fn metrics<S: LogStore>(_: Authorized, State(gateway): GatewayState<S>) -> impl IntoResponse {
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], gateway.metrics.render())
}
