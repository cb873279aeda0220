//! The usual code without a gateway: a handler that inserts one row per request, and responds when it is durable.

use anyhow::Result;
use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::post;
use sqlx::postgres::PgPoolOptions;
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous};
use sqlx::{PgPool, SqlitePool};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

const TABLE: &str = "create table if not exists bare_inbox (key text primary key, body text not null)";
const CONNECTIONS: u32 = 16;

pub(super) struct BareGateway {
    address: String,
    serving: JoinHandle<()>,
}

#[derive(Clone)]
enum BareTable {
    Sqlite(SqlitePool),
    Postgres(PgPool),
}

impl BareGateway {
    pub(super) async fn start(url: &str) -> Result<Self> {
        let rows = BareTable::open(url).await?;
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?.to_string();
        let router = Router::new().route("/in/shop", post(insert)).with_state(rows);
        let serving = tokio::spawn(async move {
            if let Err(error) = axum::serve(listener, router).await {
                eprintln!("the bare handler broke down: {error}");
            }
        });
        Ok(Self { address, serving })
    }

    pub(super) fn url(&self) -> String {
        format!("http://{}/in/shop", self.address)
    }
}

impl Drop for BareGateway {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

impl BareTable {
    async fn open(url: &str) -> Result<Self> {
        if url.starts_with("postgres") {
            let pool = PgPoolOptions::new().max_connections(CONNECTIONS).connect(url).await?;
            sqlx::query(TABLE).execute(&pool).await?;
            return Ok(Self::Postgres(pool));
        }
        // As durable as Oncebox. With one connection, writers wait in the pool's queue instead of polling for the lock.
        let options: SqliteConnectOptions = url.parse()?;
        let options = options
            .create_if_missing(true)
            .journal_mode(SqliteJournalMode::Wal)
            .synchronous(SqliteSynchronous::Full);
        let pool = SqlitePoolOptions::new().max_connections(1).connect_with(options).await?;
        sqlx::query(TABLE).execute(&pool).await?;
        Ok(Self::Sqlite(pool))
    }

    async fn insert(&self, key: &str, body: &str) -> Result<u64, sqlx::Error> {
        match self {
            Self::Sqlite(pool) => {
                let insert = sqlx::query("insert into bare_inbox values (?, ?) on conflict do nothing");
                Ok(insert.bind(key).bind(body).execute(pool).await?.rows_affected())
            }
            Self::Postgres(pool) => {
                let insert = sqlx::query("insert into bare_inbox values ($1, $2) on conflict do nothing");
                Ok(insert.bind(key).bind(body).execute(pool).await?.rows_affected())
            }
        }
    }
}

async fn insert(State(rows): State<BareTable>, headers: HeaderMap, body: Bytes) -> StatusCode {
    let key = headers.get("Idempotency-Key").and_then(|key| key.to_str().ok());
    let (Some(key), Ok(body)) = (key, std::str::from_utf8(&body)) else { return StatusCode::BAD_REQUEST };
    match rows.insert(key, body).await {
        Ok(1) => StatusCode::ACCEPTED,
        Ok(_) => StatusCode::OK,
        Err(_) => StatusCode::SERVICE_UNAVAILABLE,
    }
}
