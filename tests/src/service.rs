//! Two services for tests. `sender DATABASE URL` sells, publishes each sale in its transaction, and relays the sales to a URL, until
//! the line `quiet` ends the selling, or `stop` the process. The URL is one of HTTP or of RabbitMQ. `receiver DATABASE PORT` books
//! each sale once; `receiver DATABASE URL` takes the sales from RabbitMQ and stores them first. `aborter FILE URL` writes the messages
//! of a queue into a file of SQLite, and aborts at the message `abort`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::post;
use oncebox::rabbitmq::{Declare, RabbitMq};
use oncebox::{Envelope, HttpSink, Inbox, Message, Outbox, PostgresStore, Relay, Settlement, SqliteStore};
use serde::{Deserialize, Serialize};
use sqlx::{PgConnection, SqliteConnection};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::sync::watch;

/// Tills that sell at the same time, and accounts that they share.
const TILLS: u64 = 8;
const ACCOUNTS: u64 = 97;
/// One of so many sales rolls back.
const CANCELLED_ONE_IN: u64 = 10;
/// The pause after an error: the database may be away.
const PAUSE: Duration = Duration::from_millis(50);

/// The queue of the sales.
const QUEUE: &str = "sales";

#[derive(Serialize, Deserialize, Message)]
#[message(kind = "sale", order_by = "account")]
struct Sale {
    account: i64,
    version: i64,
}

#[tokio::main]
async fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [role, database, peer] = &arguments[..] else { bail!("usage: ROLE DATABASE URL|PORT") };
    if role == "aborter" {
        return abort(database, peer).await;
    }
    let store = until_connected(database).await;
    match role.as_str() {
        "sender" => send(store, peer).await,
        "receiver" if is_rabbitmq(peer) => consume(store, peer).await,
        "receiver" => receive(store, peer.parse()?).await,
        _ => bail!("there is no role {role}"),
    }
}

fn is_rabbitmq(url: &str) -> bool {
    url.starts_with("amqp:")
}

/// The server may be starting.
async fn until_connected(database: &str) -> PostgresStore {
    loop {
        match PostgresStore::connect(database).await {
            Ok(store) => return store,
            Err(_) => tokio::time::sleep(PAUSE).await,
        }
    }
}

async fn send(store: PostgresStore, url: &str) -> Result<()> {
    let relay: Box<dyn Fn() -> Relay> = if is_rabbitmq(url) {
        let sink = RabbitMq::new(url)?.exchange("").routing_key(QUEUE)?;
        Box::new(move || Relay::new("sales", sink.clone()))
    } else {
        let sink = HttpSink::new(url)?.allow_private();
        Box::new(move || Relay::new("sales", sink.clone()).in_flight(64))
    };
    let outbox = loop {
        match Outbox::builder(store.clone()).relay(relay()).build().await {
            Ok(outbox) => break outbox,
            Err(_) => tokio::time::sleep(PAUSE).await,
        }
    };
    let is_selling = Arc::new(AtomicBool::new(true));
    for till in 0..TILLS {
        tokio::spawn(sell(store.clone(), outbox.clone(), till, is_selling.clone()));
    }
    let (stop, mut stopped) = watch::channel(false);
    tokio::spawn(async move {
        let mut lines = BufReader::new(tokio::io::stdin()).lines();
        while let Ok(Some(line)) = lines.next_line().await {
            is_selling.store(false, Ordering::SeqCst);
            if line == "stop" {
                break;
            }
        }
        stop.send_replace(true);
    });
    outbox
        .run(async move {
            let _ = stopped.wait_for(|stop| *stop).await;
        })
        .await?;
    Ok(())
}

async fn sell(store: PostgresStore, outbox: Outbox<PostgresStore>, till: u64, is_selling: Arc<AtomicBool>) {
    let mut number = till;
    while is_selling.load(Ordering::SeqCst) {
        number += TILLS;
        let account = i64::try_from(number % ACCOUNTS).unwrap_or_default();
        // After an error the outcome of the sale may be unknown. Its row and its message must agree all the same.
        match sell_once(&store, &outbox, account, number.is_multiple_of(CANCELLED_ONE_IN)).await {
            Ok(()) => outbox.wake(),
            Err(_) => tokio::time::sleep(PAUSE).await,
        }
    }
}

async fn sell_once(
    store: &PostgresStore,
    outbox: &Outbox<PostgresStore>,
    account: i64,
    is_cancelled: bool,
) -> Result<()> {
    let mut tx = store.pool().begin().await?;
    // First the lock of the account, then its message: so the order of messages is that of the commits.
    let next = "update account set version = version + 1 where id = $1 returning version";
    let version: i64 = sqlx::query_scalar(next).bind(account).fetch_one(&mut *tx).await?;
    let sale = "insert into sale (account, version) values ($1, $2)";
    sqlx::query(sale).bind(account).bind(version).execute(&mut *tx).await?;
    let sale = Envelope::new("sale", serde_json::to_vec(&Sale { account, version })?);
    outbox.publish_envelope(&mut *tx, sale.with_order_by(account.to_string())).await?;
    if is_cancelled {
        tx.rollback().await?;
    } else {
        tx.commit().await?;
    }
    Ok(())
}

/// Handles the messages of the queue `orders`.
async fn abort(file: &str, url: &str) -> Result<()> {
    let store = SqliteStore::connect(file).await?;
    let write = async |order: Envelope, db: &mut SqliteConnection| -> Result<()> {
        let body = std::str::from_utf8(order.body())?;
        if body == "abort" {
            std::process::abort();
        }
        sqlx::query("insert into effect (body) values (?)").bind(body).execute(db).await?;
        Ok(())
    };
    let inbox = Inbox::builder(store).on_raw("books", ["order"], write).build().await?;
    let source = RabbitMq::new(url)?.queue("orders");
    inbox.consume(source).prefetch(500).run(std::future::pending()).await?;
    Ok(())
}

async fn receive(store: PostgresStore, port: u16) -> Result<()> {
    let inbox = loop {
        let builder = Inbox::builder(store.clone()).on_raw("books", ["sale"], book);
        match builder.build().await {
            Ok(inbox) => break inbox,
            Err(_) => tokio::time::sleep(PAUSE).await,
        }
    };
    let router = Router::new().route("/", post(deliver)).with_state(inbox);
    let listener = tokio::net::TcpListener::bind(("127.0.0.1", port)).await.context("binding the port")?;
    axum::serve(listener, router).await?;
    Ok(())
}

/// Stores the sales of the queue, and books them in the order of their accounts.
async fn consume(store: PostgresStore, url: &str) -> Result<()> {
    let inbox = loop {
        let builder =
            Inbox::builder(store.clone()).stored().on_with("books", book_stored, |options| options.ordered());
        match builder.build().await {
            Ok(inbox) => break inbox,
            Err(_) => tokio::time::sleep(PAUSE).await,
        }
    };
    let consumer = inbox.consume(RabbitMq::new(url)?.queue(QUEUE).declare(Declare::Create));
    // Until the process is killed.
    tokio::try_join!(inbox.run(std::future::pending()), consumer.run(std::future::pending()))?;
    Ok(())
}

async fn book_stored(sale: Sale, db: &mut PgConnection) -> Result<()> {
    insert(&sale, db).await
}

async fn book(sale: Envelope, db: &mut PgConnection) -> Result<()> {
    insert(&serde_json::from_slice(sale.body())?, db).await
}

async fn insert(sale: &Sale, db: &mut PgConnection) -> Result<()> {
    let book = "insert into booked (account, version) values ($1, $2)";
    sqlx::query(book).bind(sale.account).bind(sale.version).execute(db).await?;
    Ok(())
}

async fn deliver(State(inbox): State<Inbox<PostgresStore>>, headers: HeaderMap, body: Bytes) -> StatusCode {
    let Some(key) = headers.get("idempotency-key") else { return StatusCode::BAD_REQUEST };
    let envelope = Envelope::new("sale", body.to_vec()).with_key(key.as_bytes());
    match inbox.process(envelope).await.map(|report| report.settlement()) {
        Ok(Settlement::Ack) => StatusCode::OK,
        Ok(Settlement::Reject) => StatusCode::UNPROCESSABLE_ENTITY,
        Ok(_) | Err(_) => StatusCode::SERVICE_UNAVAILABLE,
    }
}
