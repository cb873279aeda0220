//! The gateway's routes.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::extract::rejection::PathRejection;
use axum::extract::{FromRequestParts, Path, Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use futures_util::StreamExt;
use metrics_exporter_prometheus::PrometheusHandle;
use oncebox::{Error, ErrorKind, Inbox, LogStore};
use sha2::{Digest, Sha256};
use tokio::task::AbortHandle;
use tokio::time::timeout;

use crate::config::Config;
use crate::serve::answer::{Kept, Refused, Status};
use crate::serve::trouble::Trouble;
use crate::source::{Came, Source, is_left_out};

/// A sender has so long to send a body.
const BODY_TIMEOUT: Duration = Duration::from_secs(30);

/// So much more than the limit is read before a sender is cut off.
const FORGOTTEN_BYTES: usize = 64 << 20;
/// The store has so long to answer, before the sender is told to come again.
const STORE_TIMEOUT: Duration = Duration::from_secs(10);

/// What the routes share.
pub(super) struct Gateway<S: LogStore> {
    inbox: Inbox<S>,
    config: Config,
    metrics: PrometheusHandle,
    /// The workers, if there are any, and why they have ended, if they have.
    workers: Option<(AbortHandle, Ended)>,
    trouble: Trouble,
}

/// Why the workers have ended.
pub(super) type Ended = Arc<OnceLock<String>>;

impl<S: LogStore> Gateway<S> {
    pub(super) fn new(
        inbox: Inbox<S>,
        config: Config,
        metrics: PrometheusHandle,
        workers: Option<(AbortHandle, Ended)>,
    ) -> Self {
        Self { inbox, config, metrics, workers, trouble: Trouble::default() }
    }
}

type Shared<S> = State<Arc<Gateway<S>>>;

pub(super) fn router<S: LogStore>(gateway: Arc<Gateway<S>>) -> Router {
    Router::new()
        .route("/in/{source}", post(accept))
        .route("/metrics", get(metrics))
        .route("/healthz", get(healthz))
        .fallback(async || {
            Refused::new(StatusCode::NOT_FOUND, "no_such_page", "messages go to POST /in/SOURCE")
        })
        .method_not_allowed_fallback(async || {
            Refused::new(StatusCode::METHOD_NOT_ALLOWED, "method", "messages go to POST /in/SOURCE")
        })
        .with_state(gateway)
}

/// Whoever sends may do so: where a token is to be shown, it is the right one.
struct Admitted;

impl<S: LogStore> FromRequestParts<Arc<Gateway<S>>> for Admitted {
    type Rejection = Refused;

    async fn from_request_parts(parts: &mut Parts, gateway: &Arc<Gateway<S>>) -> Result<Self, Refused> {
        let Some(token) = &gateway.config.http.token else {
            // Pages of others, in a browser on this machine.
            return match parts.headers.contains_key(header::ORIGIN) {
                true => {
                    let message = "browsers may not send from other pages: set a token for that";
                    Err(Refused::new(StatusCode::FORBIDDEN, "origin", message))
                }
                false => Ok(Self),
            };
        };
        let shown = parts.headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
        match shown.and_then(bearer) {
            // Digests: how long a comparison takes tells nothing.
            Some(shown) if Sha256::digest(shown) == Sha256::digest(token) => Ok(Self),
            _ => {
                let message = "send the header Authorization: Bearer TOKEN";
                Err(Refused::new(StatusCode::UNAUTHORIZED, "token", message))
            }
        }
    }
}

/// The token of an `Authorization` header. The scheme may be written in any case.
fn bearer(value: &str) -> Option<&str> {
    let (scheme, token) = value.split_once(' ')?;
    scheme.eq_ignore_ascii_case("Bearer").then(|| token.trim_start_matches(' '))
}

/// Takes a message, once.
async fn accept<S: LogStore>(
    _: Admitted,
    State(gateway): Shared<S>,
    name: Result<Path<String>, PathRejection>,
    request: Request,
) -> Result<Kept, Refused> {
    // What is no UTF-8 is no source's name either.
    let name = name.map_or_else(|_| char::REPLACEMENT_CHARACTER.to_string(), |Path(name)| name);
    let Some(source) = gateway.config.sources.find(&name) else {
        return Err(no_such_source(&gateway.config, &name));
    };
    let (parts, body) = request.into_parts();
    let max_body_bytes = gateway.config.http.max_body_bytes;
    if asks_first(&parts.headers, max_body_bytes) {
        return Err(too_large(max_body_bytes));
    }
    let body = read(body, max_body_bytes).await?;
    let envelope = source.envelope(to_keep(&parts.headers), body)?;
    let (kind, key) = (envelope.kind().to_owned(), envelope.key().cloned());
    // It may be accepted after all: then the next copy is a duplicate.
    let accepted = timeout(STORE_TIMEOUT, gateway.inbox.accept(envelope)).await;
    let accepted =
        accepted.unwrap_or_else(|_| Err(Error::new(ErrorKind::Unavailable, "the store does not answer")));
    gateway.trouble.note(&accepted, Instant::now());
    let accepted = accepted?;
    let status = if accepted.is_new() { Status::Accepted } else { Status::Duplicate };
    let key = key.map(|key| shown_key(&source, key.as_bytes())).unwrap_or_default();
    let (lane, position) = accepted.place().map(|place| (place.lane, place.pos)).unzip();
    Ok(Kept { status, source: source.name, kind, key, lane, position })
}

/// The key as it was sent.
fn shown_key(source: &Source, stored: &[u8]) -> String {
    let stored = String::from_utf8_lossy(stored);
    stored.strip_prefix(&source.stored_key("")).unwrap_or(&stored).to_owned()
}

fn no_such_source(config: &Config, name: &str) -> Refused {
    let names = config.sources.names();
    let message = match names.is_empty() {
        true => format!("{name:?} cannot be a source's name: use letters, digits, `-`, `_` and `.`"),
        false => format!("there is no source {name:?}: configured are {}", names.join(", ")),
    };
    Refused::new(StatusCode::NOT_FOUND, "no_such_source", message)
}

/// Whether a sender waits to be told to send a body, by `Expect: 100-continue`, and says that it is larger than that.
fn asks_first(headers: &HeaderMap, limit: usize) -> bool {
    let length = headers.get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
    headers.contains_key(header::EXPECT) && length.is_some_and(|length: u64| length > limit as u64)
}

fn too_large(limit: usize) -> Refused {
    let message = format!("the limit is {limit} bytes: raise http.max_body_bytes, or send a reference");
    Refused::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", message)
}

async fn read(body: Body, limit: usize) -> Result<Vec<u8>, Refused> {
    match timeout(BODY_TIMEOUT, collect(body, limit)).await {
        Ok(Ok(Some(bytes))) => Ok(bytes),
        Ok(Ok(None)) => Err(too_large(limit)),
        Ok(Err(error)) => {
            Err(Refused::new(StatusCode::BAD_REQUEST, "broken_off", format!("the body broke off: {error}")))
        }
        Err(_elapsed) => {
            let message = "the body did not come in time: send it again";
            Err(Refused::new(StatusCode::REQUEST_TIMEOUT, "too_slow", message))
        }
    }
}

/// The body; nothing if it is larger than that. What is too large is read on for a while and forgotten: a sender that is cut off
/// in the middle does not see the answer.
async fn collect(body: Body, limit: usize) -> Result<Option<Vec<u8>>, axum::Error> {
    let mut chunks = body.into_data_stream();
    let (mut kept, mut total) = (Vec::new(), 0);
    while total <= limit.saturating_add(FORGOTTEN_BYTES)
        && let Some(chunk) = chunks.next().await.transpose()?
    {
        total += chunk.len();
        if total <= limit {
            kept.extend_from_slice(&chunk);
        } else {
            kept = Vec::new();
        }
    }
    Ok((total <= limit).then_some(kept))
}

/// What is kept beside the body.
fn to_keep(headers: &HeaderMap) -> Came {
    let mut came = Came::default();
    let of_the_connection =
        headers.get_all(header::CONNECTION).iter().filter_map(|value| value.to_str().ok());
    let of_the_connection: Vec<&str> =
        of_the_connection.flat_map(|value| value.split(',')).map(str::trim).collect();
    for (name, value) in headers {
        let is_named = of_the_connection.iter().any(|other| other.eq_ignore_ascii_case(name.as_str()));
        if is_named || is_left_out(name.as_str()) {
            continue;
        }
        match std::str::from_utf8(value.as_bytes()) {
            Ok(text) => came.headers.append(name.as_str(), text),
            // It is not kept. Whether that matters is for the source to say.
            Err(_) => came.unreadable.push(name.to_string()),
        }
    }
    came
}

async fn healthz<S: LogStore>(State(gateway): Shared<S>) -> Response {
    let ended = gateway.workers.as_ref().filter(|(workers, _)| workers.is_finished());
    let health = match (ended, gateway.trouble.text(Instant::now())) {
        (Some((_, why)), _) => {
            let why = why.get().map_or("the workers broke down: start the program again", String::as_str);
            Err(why.to_owned())
        }
        (None, Some(trouble)) => Err(format!("the last message could not be accepted: {trouble}")),
        (None, None) => match timeout(STORE_TIMEOUT, gateway.inbox.health()).await {
            Ok(health) => health.map_err(|error| error.to_string()),
            Err(_elapsed) => Err("the store does not answer".to_owned()),
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

async fn metrics<S: LogStore>(_: Admitted, State(gateway): Shared<S>) -> impl IntoResponse {
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], gateway.metrics.render())
}
