//! Billing: a service that writes one invoice for each message, however often it arrives.

use std::future::pending;

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::post;
use oncebox::rabbitmq::{Declare, RabbitMq};
use oncebox::{Envelope, Inbox, Settlement, SqliteStore};
use sqlx::SqliteConnection;
use tokio::net::TcpListener;

use crate::is_broker;
use crate::orders::OrderPlaced;

/// The queue of its messages.
pub(crate) const QUEUE: &str = "billing";

pub(crate) const DATABASE: &str = "billing.db";
pub(crate) const INVOICES: &str = "select count(*) from invoices";
pub(crate) const INVOICED_ORDERS: &str = "select count(distinct number) from invoices";

/// Serves until it is killed.
pub(crate) async fn run(url: &str) -> anyhow::Result<()> {
    let store = SqliteStore::connect(DATABASE).await?;
    store.migrate().await?;
    // No unique constraint: nothing but the inbox keeps a second invoice out.
    let table = "create table if not exists invoices (number integer not null, cents integer not null)";
    sqlx::query(table).execute(store.pool()).await?;
    let inbox = Inbox::builder(store).on("billing", write_invoice).build().await?;

    if is_broker(url) {
        // Acknowledges each message after the commit of its invoice.
        let queue = RabbitMq::new(url)?.queue(QUEUE).declare(Declare::Create);
        inbox.consume(queue).run(pending()).await?;
        return Ok(());
    }
    let routes = Router::new().route("/messages", post(receive)).with_state(inbox);
    let listener = TcpListener::bind(url.trim_start_matches("http://")).await?;
    axum::serve(listener, routes).await?;
    Ok(())
}

/// The invoice and the proof that this message was handled commit together.
async fn write_invoice(order: OrderPlaced, db: &mut SqliteConnection) -> Result<(), sqlx::Error> {
    let insert = sqlx::query("insert into invoices (number, cents) values (?, ?)");
    insert.bind(order.number).bind(order.cents).execute(db).await?;
    Ok(())
}

/// Takes one delivery of a message. A 2xx is sent when its effect is committed, never before.
async fn receive(State(inbox): State<Inbox<SqliteStore>>, headers: HeaderMap, body: Bytes) -> StatusCode {
    let header = |name| headers.get(name).and_then(|value| value.to_str().ok());
    // The id is the same for every copy of the message, so it is the key.
    let (Some(id), Some(kind)) = (header("oncebox-id"), header("oncebox-kind")) else {
        return StatusCode::BAD_REQUEST;
    };
    let envelope = Envelope::new(kind, body).with_key(id);
    match inbox.process(envelope).await.map(|report| report.settlement()) {
        // Also a copy of a message that was handled before.
        Ok(Settlement::Ack) => StatusCode::NO_CONTENT,
        // The relay parks it: no further attempt can succeed.
        Ok(Settlement::Reject) => StatusCode::UNPROCESSABLE_ENTITY,
        // The handler has failed. The relay counts an attempt, and tries again later.
        Ok(Settlement::Retry { .. }) => StatusCode::INTERNAL_SERVER_ERROR,
        // The database does not respond. The relay waits, and counts nothing.
        Err(_) => StatusCode::SERVICE_UNAVAILABLE,
    }
}
