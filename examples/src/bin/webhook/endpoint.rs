//! HTTP: what the provider sends, and the response to each outcome.

use std::future::{Future, IntoFuture};
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::rejection::BytesRejection;
use axum::extract::{DefaultBodyLimit, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use oncebox::{Error, ErrorKind, Inbox, SqliteStore};
use serde::Serialize;
use serde_json::json;
use tokio::net::TcpListener;
use tokio::sync::oneshot;

use crate::events::{HANDLER, StripeWebhook, Totals, WebhookResult, totals};

/// The largest body that is read.
pub(crate) const MAX_BODY_BYTES: usize = 256 * 1024;
/// How long requests may still take when the program is to stop.
const GRACE: Duration = Duration::from_secs(10);

/// Serves until `stop` returns and the requests that are running have ended.
pub(crate) async fn serve(
    listener: TcpListener,
    inbox: Inbox<SqliteStore>,
    stop: impl Future<Output = ()> + Send + 'static,
) -> anyhow::Result<()> {
    let pool = inbox.store().pool().clone();
    let routes = Router::new()
        .route("/webhooks/stripe", post(receive))
        .route("/payments", get(payments))
        .layer(DefaultBodyLimit::max(MAX_BODY_BYTES))
        .with_state(inbox);

    let (stopping, stopped) = oneshot::channel();
    let server = axum::serve(listener, routes).with_graceful_shutdown(async move {
        stop.await;
        let _ = stopping.send(());
    });
    let grace_is_over = async {
        let _ = stopped.await;
        tokio::time::sleep(GRACE).await;
    };
    tokio::select! {
        served = server.into_future() => served?,
        // Nothing is lost: what is cut off rolls back, and the provider delivers it again.
        () = grace_is_over => tracing::warn!("stopping although a connection is still open"),
    }
    pool.close().await;
    Ok(())
}

/// The body of a 200: the provider is done with the event.
#[derive(Serialize)]
struct Received {
    handled: bool,
    duplicate: bool,
}

/// Takes one delivery. It is answered when its effect is committed, never before.
async fn receive(
    State(inbox): State<Inbox<SqliteStore>>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Json<Received>, Refusal> {
    // The bytes as they were received. A provider that signs its events signs these: check the signature here.
    let body = body.map_err(|rejection| match rejection.status() {
        status @ StatusCode::PAYLOAD_TOO_LARGE => {
            Refusal::new(status, format!("the body is larger than {MAX_BODY_BYTES} bytes"))
        }
        status => Refusal::new(status, rejection.body_text()),
    })?;
    let event: StripeWebhook = serde_json::from_slice(&body).map_err(|error| {
        let message = format!("the body is not a JSON object with id, type and data: {error}");
        Refusal::new(StatusCode::BAD_REQUEST, message)
    })?;

    let once = inbox.call::<WebhookResult, _>(HANDLER, &event).await?;
    let duplicate = once.is_replayed();
    let WebhookResult { handled } = once.into_inner();
    Ok(Json(Received { handled, duplicate }))
}

/// What all events together have done: after any number of copies, each counts once.
async fn payments(State(inbox): State<Inbox<SqliteStore>>) -> Result<Json<Totals>, Refusal> {
    Ok(Json(totals(&inbox).await?))
}

/// Any answer but 200; most of them make the provider deliver again.
struct Refusal {
    status: StatusCode,
    message: String,
}

impl Refusal {
    fn new(status: StatusCode, message: impl Into<String>) -> Self {
        Self { status, message: message.into() }
    }

    fn unavailable(error: impl Into<anyhow::Error>) -> Self {
        // With all its causes: for the operator, not for the caller.
        tracing::warn!("{:#}", error.into());
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "not now: deliver again later")
    }
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        match error.kind() {
            ErrorKind::Key => Self::new(StatusCode::BAD_REQUEST, "the id is empty or too long"),
            ErrorKind::KeyReuse => {
                Self::new(StatusCode::CONFLICT, "this id was delivered before, with another event")
            }
            ErrorKind::TooLarge => Self::new(StatusCode::PAYLOAD_TOO_LARGE, error.to_string()),
            ErrorKind::Busy | ErrorKind::Unavailable => Self::unavailable(error),
            // The inbox has logged why.
            _ => Self::new(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
        }
    }
}

impl From<sqlx::Error> for Refusal {
    fn from(error: sqlx::Error) -> Self {
        Self::unavailable(error)
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let body = Json(json!({ "error": self.message }));
        match self.status {
            StatusCode::SERVICE_UNAVAILABLE => {
                (self.status, [(header::RETRY_AFTER, "1")], body).into_response()
            }
            status => (status, body).into_response(),
        }
    }
}
