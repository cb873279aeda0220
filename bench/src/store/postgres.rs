//! PostgreSQL: a private server with its own defaults, durable ones above all.

use std::str::FromStr;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context, Result};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use oncebox::{Inbox, PostgresStore};
use oncebox_servers::postgres::{PostgresOptions, PostgresServer};
use sqlx::postgres::PgConnectOptions;
use sqlx::{AssertSqlSafe, Connection, Executor, PgConnection, PgPool, Postgres};

use super::{
    DatabaseKind, Ground, HandlerCalls, Server, TABLES, inbox_handlers, open_pool, prepared_statements,
};
use crate::business::HandlerWork;
use crate::message::OrderPaid;

impl DatabaseKind for Postgres {
    const STORE: &'static str = "postgres";
    const BEGIN: &'static str = "BEGIN";
    const POOLS: &'static [u32] = &[4, 16, 32];
    const INBOX_POOL: u32 = 16;
    const ONE_WRITER: bool = false;

    type Server = PostgresBench;
    type Ground = PostgresGround;
    type Store = PostgresStore;

    prepared_statements!(PgConnection);

    fn insert_many<'c>(
        conn: &'c mut PgConnection,
        orders: &'c [OrderPaid],
    ) -> BoxFuture<'c, Result<(), sqlx::Error>> {
        sqlx::query(
            "INSERT INTO ledger (order_id, customer, cents, note) \
             SELECT * FROM unnest($1::uuid[], $2::text[], $3::bigint[], $4::text[])",
        )
        .bind(orders.iter().map(|paid| paid.order_id).collect::<Vec<_>>())
        .bind(orders.iter().map(|paid| &*paid.customer).collect::<Vec<_>>())
        .bind(orders.iter().map(|paid| paid.cents).collect::<Vec<_>>())
        .bind(orders.iter().map(|paid| &*paid.note).collect::<Vec<_>>())
        .execute(conn)
        .map(|done| done.map(drop))
        .boxed()
    }
}

/// A server for this run.
#[derive(Debug)]
pub(crate) struct PostgresBench {
    server: PostgresServer,
    schemas: AtomicU64,
}

impl Server for PostgresBench {
    type DatabaseKind = Postgres;

    async fn start() -> Result<PostgresBench> {
        let server = PostgresServer::start(PostgresOptions::default()).await?;
        Ok(PostgresBench { server, schemas: AtomicU64::new(0) })
    }

    async fn fresh(&self) -> Result<PostgresGround> {
        let name = format!("bench_{}", self.schemas.fetch_add(1, Ordering::Relaxed));
        let address =
            PgConnectOptions::from_str(&self.server.url()).context("reading the server's address")?;
        let address = address.options([("search_path", &name)]);
        let mut admin = PgConnection::connect_with(&address).await.context("connecting to the server")?;
        // The name is made of letters, digits and an underscore only.
        let create = format!("CREATE SCHEMA {name}; {TABLES}");
        admin.execute(sqlx::raw_sql(AssertSqlSafe(create))).await.context("creating tables")?;
        let schema = PostgresGround { name, address, admin: tokio::sync::Mutex::new(admin) };
        let store = schema.store(schema.pool(1).await?)?;
        store.migrate().await?;
        store.pool().close().await;
        // Unwritten pages of the previous contender must not slow this one down.
        schema.admin.lock().await.execute("CHECKPOINT").await.context("writing a checkpoint")?;
        Ok(schema)
    }
}

/// A schema with empty tables.
#[derive(Debug)]
pub(crate) struct PostgresGround {
    name: String,
    address: PgConnectOptions,
    admin: tokio::sync::Mutex<PgConnection>,
}

impl Ground for PostgresGround {
    type DatabaseKind = Postgres;

    async fn pool(&self, connections: u32) -> Result<PgPool> {
        open_pool(connections, self.address.clone()).await
    }

    fn store(&self, pool: PgPool) -> Result<PostgresStore> {
        Ok(PostgresStore::new(pool).with_schema(&self.name)?)
    }

    async fn inbox(
        &self,
        pool: PgPool,
        batching: HandlerCalls,
        work: HandlerWork,
    ) -> Result<Inbox<PostgresStore>> {
        build_inbox(self.store(pool)?, batching, work).await
    }

    async fn ledger_rows(&self) -> Result<u64> {
        let mut admin = self.admin.lock().await;
        let rows: i64 = sqlx::query_scalar("SELECT count(*) FROM ledger").fetch_one(&mut *admin).await?;
        Ok(u64::try_from(rows)?)
    }

    async fn crossing_updates(&self) -> Result<u64> {
        let mut admin = self.admin.lock().await;
        let updates: i64 =
            sqlx::query_scalar("SELECT sum(updates)::bigint FROM crossing").fetch_one(&mut *admin).await?;
        Ok(u64::try_from(updates)?)
    }

    async fn log_bytes(&self) -> Result<Option<u64>> {
        let mut admin = self.admin.lock().await;
        let bytes: i64 = sqlx::query_scalar("SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')::bigint")
            .fetch_one(&mut *admin)
            .await?;
        Ok(Some(u64::try_from(bytes)?))
    }

    async fn discard(self) -> Result<()> {
        let mut admin = self.admin.into_inner();
        let drop = AssertSqlSafe(format!("DROP SCHEMA {} CASCADE", self.name));
        admin.execute(sqlx::raw_sql(drop)).await.context("dropping the tables")?;
        admin.close().await.context("leaving the server")
    }
}

inbox_handlers!(Postgres, PgConnection, PostgresStore);
