//! The endpoint tried out over TCP by the program itself: `ONCEBOX_EXAMPLE_SELF_TEST=1 cargo run`.

use std::net::{Ipv4Addr, SocketAddr};

use anyhow::{Context, ensure};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::{JoinHandle, JoinSet};

use crate::endpoint::MAX_BODY_BYTES;
use crate::{PAYMENT, UNKNOWN, endpoint, events};

const REFUND: &str =
    r#"{"id":"evt_3","type":"charge.refunded","data":{"object":{"id":"ch_1","amount_refunded":4200}}}"#;
const SECOND_PAYMENT: &str =
    r#"{"id":"evt_4","type":"payment_intent.succeeded","data":{"object":{"id":"pi_2","amount":800}}}"#;
const COPIES: usize = 16;

/// Plays the provider, with everything that providers and networks do.
pub(crate) async fn run() -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    let database = folder.path().join("webhook.db");
    let database = database.to_str().context("the temporary folder's name is not UTF-8")?;
    let fresh = json!({ "handled": true, "duplicate": false });
    let duplicate = json!({ "handled": true, "duplicate": true });

    let server = TestedEndpoint::start(database).await?;
    server.accepts(PAYMENT, &fresh).await?;
    server.accepts(PAYMENT, &duplicate).await?;
    server.accepts(UNKNOWN, &json!({ "handled": false, "duplicate": false })).await?;
    server.accepts(UNKNOWN, &json!({ "handled": false, "duplicate": true })).await?;
    server.accepts(REFUND, &fresh).await?;
    // A field that changes between two deliveries of one event does not make it another event.
    server.accepts(&PAYMENT.replacen('{', r#"{ "pending_webhooks": 1, "#, 1), &duplicate).await?;

    server.refuses("", 400).await?;
    server.refuses("{", 400).await?;
    server.refuses(r#"{"type":"customer.created","data":{}}"#, 400).await?;
    server.refuses(r#"{"id":"","type":"customer.created","data":{}}"#, 400).await?;
    server.refuses(&PAYMENT.replace("4200", "1"), 409).await?;
    server.refuses(&"x".repeat(MAX_BODY_BYTES + 1), 413).await?;
    // The handler cannot read it; the same event can still be delivered when it can.
    server.refuses(&SECOND_PAYMENT.replace("800", "null"), 500).await?;

    let mut copies = JoinSet::new();
    for _ in 0..COPIES {
        copies.spawn(request(server.address, "POST", "/webhooks/stripe", SECOND_PAYMENT.to_owned()));
    }
    let answers = copies.join_all().await.into_iter().collect::<anyhow::Result<Vec<_>>>()?;
    ensure!(answers.iter().all(|(status, _)| *status == 200), "{answers:?}");
    let first_ones = answers.iter().filter(|(_, body)| *body == fresh).count();
    println!("{COPIES} copies at once: {first_ones} took effect, the others are duplicates");
    ensure!(first_ones == 1, "{answers:?}");

    server.has_totals().await?;
    server.stop().await?;
    println!("stopped; again on the same database:");

    let server = TestedEndpoint::start(database).await?;
    server.accepts(PAYMENT, &duplicate).await?;
    server.has_totals().await?;
    server.stop().await
}

/// The endpoint on a port of its own.
struct TestedEndpoint {
    address: SocketAddr,
    stop: oneshot::Sender<()>,
    serving: JoinHandle<anyhow::Result<()>>,
}

impl TestedEndpoint {
    async fn start(database: &str) -> anyhow::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let inbox = events::open_inbox(database).await?;
        let (stop, stopped) = oneshot::channel();
        let stopped = async {
            let _ = stopped.await;
        };
        let serving = tokio::spawn(endpoint::serve(listener, inbox, stopped));
        Ok(Self { address, stop, serving })
    }

    async fn stop(self) -> anyhow::Result<()> {
        let _ = self.stop.send(());
        self.serving.await?
    }

    /// Delivers an event that is answered with 200 and this body.
    async fn accepts(&self, event: &str, expected: &Value) -> anyhow::Result<()> {
        let body = self.deliver(event, 200).await?;
        ensure!(body == *expected, "expected {expected}");
        Ok(())
    }

    /// Delivers something that is answered with this status and an error.
    async fn refuses(&self, event: &str, expected: u16) -> anyhow::Result<()> {
        let body = self.deliver(event, expected).await?;
        ensure!(body["error"].is_string(), "expected an error");
        Ok(())
    }

    async fn deliver(&self, event: &str, expected: u16) -> anyhow::Result<Value> {
        let (status, body) = request(self.address, "POST", "/webhooks/stripe", event.to_owned()).await?;
        println!("{event:.110}\n  -> {status} {body}");
        ensure!(status == expected, "expected {expected}");
        Ok(body)
    }

    /// Two payments and a refund, whatever the number of copies.
    async fn has_totals(&self) -> anyhow::Result<()> {
        let (status, body) = request(self.address, "GET", "/payments", String::new()).await?;
        println!("/payments\n  -> {status} {body}");
        ensure!(body == json!({ "payments": 2, "paid": 5000, "refunds": 1 }));
        Ok(())
    }
}

/// As much HTTP as this program needs: one request, one connection.
async fn request(
    address: SocketAddr,
    method: &str,
    path: &str,
    body: String,
) -> anyhow::Result<(u16, Value)> {
    let length = body.len();
    let request = format!(
        "{method} {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}"
    );
    let mut stream = TcpStream::connect(address).await?;
    // The server may answer and hang up before it has read a body that is too large: look for the answer first.
    let sent = stream.write_all(request.as_bytes()).await;
    let mut answer = Vec::new();
    let received = stream.read_to_end(&mut answer).await;
    let answer = String::from_utf8(answer)?;
    let Some((head, body)) = answer.split_once("\r\n\r\n") else {
        sent?;
        received?;
        anyhow::bail!("this is no answer: {answer:?}");
    };
    let status = head.split(' ').nth(1).context("an answer without a status")?.parse()?;
    Ok((status, serde_json::from_str(body)?))
}
