//! What the gateway answers. Nothing that begins with 2 is said before the message is durable.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use oncebox::{Error, ErrorKind};
use serde::Serialize;

use crate::source::Refusal;

/// So long a sender should wait for a store that does not answer, if nothing else is known.
const RETRY_AFTER_SECONDS: u64 = 2;

/// A message that is kept.
#[derive(Debug, Serialize)]
pub(super) struct Kept {
    pub(super) status: Status,
    pub(super) source: String,
    pub(super) kind: String,
    pub(super) key: String,
    /// Where it sits; a copy is told where the first one sits, as long as it is there.
    pub(super) lane: Option<u16>,
    pub(super) position: Option<i64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Status {
    Accepted,
    Duplicate,
}

impl IntoResponse for Kept {
    fn into_response(self) -> Response {
        let code = match self.status {
            Status::Accepted => StatusCode::ACCEPTED,
            Status::Duplicate => StatusCode::OK,
        };
        said(code, &self)
    }
}

/// JSON, on a line of its own in a terminal.
fn said(code: StatusCode, body: &impl Serialize) -> Response {
    // Strings and numbers always have a JSON form.
    let mut text = serde_json::to_vec(body).unwrap_or_default();
    text.push(b'\n');
    (code, [(header::CONTENT_TYPE, "application/json")], text).into_response()
}

/// A message that is not kept.
#[derive(Debug)]
pub(super) struct Refused {
    code: StatusCode,
    /// For programs.
    error: &'static str,
    /// For people: what to do.
    message: String,
    retry_after: Option<u64>,
}

/// What is said of it, in this order.
#[derive(Debug, Serialize)]
struct Body<'a> {
    status: &'static str,
    error: &'static str,
    message: &'a str,
}

impl Refused {
    pub(super) fn new(code: StatusCode, error: &'static str, message: impl Into<String>) -> Self {
        Self { code, error, message: message.into(), retry_after: None }
    }
}

impl From<Refusal> for Refused {
    fn from(refusal: Refusal) -> Self {
        let error = match refusal {
            Refusal::MissingKey(_) => "missing_key",
            Refusal::BadKey(_) => "bad_key",
            Refusal::Malformed(_) => "malformed",
        };
        Self::new(StatusCode::BAD_REQUEST, error, refusal.to_string())
    }
}

impl From<Error> for Refused {
    fn from(error: Error) -> Self {
        let (code, name) = match error.kind() {
            ErrorKind::Key => (StatusCode::BAD_REQUEST, "bad_key"),
            // What can be wrong with a message that is kept undecoded: its kind.
            ErrorKind::Configuration => (StatusCode::BAD_REQUEST, "bad_kind"),
            ErrorKind::Envelope => (StatusCode::BAD_REQUEST, "bad_envelope"),
            ErrorKind::KeyReuse => (StatusCode::CONFLICT, "key_reuse"),
            ErrorKind::TooLarge => (StatusCode::PAYLOAD_TOO_LARGE, "too_large"),
            _ => (StatusCode::SERVICE_UNAVAILABLE, "unavailable"),
        };
        let mut refused = Self::new(code, name, error.to_string());
        if code == StatusCode::SERVICE_UNAVAILABLE {
            let wait = error.retry_after().map_or(RETRY_AFTER_SECONDS, |wait| wait.as_secs().max(1));
            refused.retry_after = Some(wait);
        }
        refused
    }
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        let body = Body { status: "refused", error: self.error, message: &self.message };
        let mut answer = said(self.code, &body);
        if let Some(wait) = self.retry_after {
            answer.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(wait));
        }
        if self.code == StatusCode::UNAUTHORIZED {
            answer.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        answer
    }
}
