//! The gateway's responses. A 2xx response means that the message is stored durably.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use oncebox::source::InvalidMessage;
use oncebox::{Error, ErrorKind};
use serde::Serialize;

use crate::exit::chain_text;

/// `Retry-After` when the store is unavailable and its error does not name a time.
const RETRY_AFTER_SECONDS: u64 = 2;

/// The response for a stored message.
#[derive(Debug, Serialize)]
pub(super) struct AcceptedResponse {
    pub(super) status: AcceptStatus,
    pub(super) source: String,
    pub(super) kind: String,
    pub(super) key: String,
    /// The place of the message. A duplicate has the place of the first copy until that is pruned.
    pub(super) lane: Option<u16>,
    pub(super) position: Option<i64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum AcceptStatus {
    Accepted,
    Duplicate,
}

impl IntoResponse for AcceptedResponse {
    fn into_response(self) -> Response {
        let code = match self.status {
            AcceptStatus::Accepted => StatusCode::ACCEPTED,
            AcceptStatus::Duplicate => StatusCode::OK,
        };
        json_response(code, &self)
    }
}

/// A JSON response. It ends with a line break, for terminals.
fn json_response(code: StatusCode, body: &impl Serialize) -> Response {
    // Strings and numbers always have a JSON form.
    let mut text = serde_json::to_vec(body).unwrap_or_default();
    text.push(b'\n');
    (code, [(header::CONTENT_TYPE, "application/json")], text).into_response()
}

/// The response for a refused message.
#[derive(Debug)]
pub(super) struct ErrorResponse {
    code: StatusCode,
    /// A code for programs.
    error: &'static str,
    /// A text for people: what is wrong, and what to do.
    message: String,
    retry_after: Option<u64>,
}

/// The JSON of a refused message.
#[derive(Debug, Serialize)]
struct ErrorBody<'a> {
    status: &'static str,
    error: &'static str,
    message: &'a str,
}

impl ErrorResponse {
    pub(super) fn new(code: StatusCode, error: &'static str, message: impl Into<String>) -> Self {
        Self { code, error, message: message.into(), retry_after: None }
    }
}

impl From<InvalidMessage> for ErrorResponse {
    fn from(invalid: InvalidMessage) -> Self {
        let error = match invalid {
            InvalidMessage::MissingKey(_) => "missing_key",
            InvalidMessage::BadKey(_) => "bad_key",
            InvalidMessage::Malformed(_) => "malformed",
        };
        Self::new(StatusCode::BAD_REQUEST, error, invalid.to_string())
    }
}

impl From<Error> for ErrorResponse {
    fn from(error: Error) -> Self {
        let (code, name) = match error.kind() {
            ErrorKind::Key => (StatusCode::BAD_REQUEST, "bad_key"),
            // The body is stored undecoded, so only the kind can be invalid.
            ErrorKind::Configuration => (StatusCode::BAD_REQUEST, "bad_kind"),
            ErrorKind::Envelope => (StatusCode::BAD_REQUEST, "bad_envelope"),
            ErrorKind::KeyReuse => (StatusCode::CONFLICT, "key_reuse"),
            ErrorKind::TooLarge => (StatusCode::PAYLOAD_TOO_LARGE, "too_large"),
            // Other errors are not caused by the message. A 4xx response would make the sender give up.
            _ => (StatusCode::SERVICE_UNAVAILABLE, "unavailable"),
        };
        // A sender can correct a refused message, so it gets all causes. Those of an outage are for the log only.
        let message = match code {
            StatusCode::SERVICE_UNAVAILABLE => error.to_string(),
            _ => chain_text(&error),
        };
        let mut refused = Self::new(code, name, message);
        if code == StatusCode::SERVICE_UNAVAILABLE {
            // The header has whole seconds, and 0 would ask for a retry at once.
            let wait = error.retry_after().map_or(RETRY_AFTER_SECONDS, |wait| wait.as_secs().max(1));
            refused.retry_after = Some(wait);
        }
        refused
    }
}

impl IntoResponse for ErrorResponse {
    fn into_response(self) -> Response {
        let body = ErrorBody { status: "refused", error: self.error, message: &self.message };
        let mut response = json_response(self.code, &body);
        if let Some(wait) = self.retry_after {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(wait));
        }
        if self.code == StatusCode::UNAUTHORIZED {
            response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}
