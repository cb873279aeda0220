//! The database under torture, and the faults of the database itself.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use oncebox_servers::postgres::{PostgresOptions, PostgresServer};
use oncebox_servers::proxy::FaultyProxy;
use oncebox_torture::scenario::{Scenario, TortureMode};
use sqlx::{AssertSqlSafe, Connection, Executor, PgConnection, SqliteConnection};

use crate::checker::{EffectRow, EffectRows};
use crate::disk::Disk;

/// The schema of the inbox.
const SCHEMA: &str = "oncebox";
/// The accounts, whose rows order the messages of the sender, and an index for its question whether a message is known. It is not
/// unique, so that a second effect would not be hidden.
const SENDER_TABLES: &str = "create table account (id bigint primary key, version bigint not null default 0);
    create index effect_id on effect (id)";
/// The maximum time that a schema change waits for the handlers' transactions, while they wait for it.
const ALTER_LOCK_TIMEOUT: &str = "set lock_timeout = '1s'";
/// The maximum time for a server to recover by itself.
const RECOVERY_LIMIT: Duration = Duration::from_secs(15);

/// The kind of database.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum, serde::Serialize, serde::Deserialize,
)]
#[serde(rename_all = "lowercase")]
pub(crate) enum StoreName {
    Sqlite,
    Postgres,
}

impl StoreName {
    pub(crate) const ALL: [Self; 2] = [Self::Sqlite, Self::Postgres];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Sqlite => "sqlite",
            Self::Postgres => "postgres",
        }
    }
}

/// One of the two databases of a run with an outbox. Other runs have the first one only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    /// Where messages are published.
    Sender,
    /// Where the relay carries them.
    Receiver,
}

impl Side {
    fn database(self) -> &'static str {
        match self {
            Self::Sender => "postgres",
            Self::Receiver => "receiver",
        }
    }

    fn file(self) -> &'static str {
        match self {
            Self::Sender => "torture.db",
            Self::Receiver => "receiver.db",
        }
    }
}

/// The databases that only this run uses.
#[derive(Debug)]
pub(crate) struct Database {
    kind: Kind,
    sides: &'static [Side],
    // Dropped last: the server writes to it until it has ended.
    disk: Disk,
}

#[derive(Debug)]
enum Kind {
    Sqlite { folder: PathBuf },
    Postgres { server: Box<PostgresServer>, proxy: FaultyProxy },
}

/// A connection that holds a lock or a snapshot until it is dropped.
#[derive(Debug)]
#[allow(dead_code, reason = "held, never read")]
pub(crate) enum HeldConnection {
    Sqlite(SqliteConnection),
    Postgres(PgConnection),
}

impl Database {
    /// Starts it on a disk, with the tables of the scenario.
    pub(crate) async fn start(store: StoreName, scenario: Scenario, disk: Disk) -> Result<Self> {
        let kind = match store {
            StoreName::Sqlite => Kind::Sqlite { folder: disk.path().to_owned() },
            StoreName::Postgres => {
                let options = PostgresOptions::default()
                    .inside(disk.path())
                    // The default of 1 GB would take most of the small disk.
                    .setting("max_wal_size", "256MB")
                    .setting("min_wal_size", "64MB");
                let server = PostgresServer::start(options).await?;
                let proxy = FaultyProxy::start(server.port()).await?;
                Kind::Postgres { server: Box::new(server), proxy }
            }
        };
        let sides: &[Side] = match scenario.mode {
            TortureMode::Outbox => &[Side::Sender, Side::Receiver],
            _ => &[Side::Sender],
        };
        let database = Self { kind, sides, disk };
        for side in sides {
            database.create_effects(*side).await?;
        }
        if sides.contains(&Side::Receiver) {
            database.create_accounts(scenario.plan().accounts).await?;
        }
        Ok(database)
    }

    async fn create_effects(&self, side: Side) -> Result<()> {
        if let Kind::Sqlite { .. } = &self.kind {
            return create_sqlite_effects(&self.file(side)?).await;
        }
        if side == Side::Receiver {
            self.postgres(Side::Sender).await?.execute("create database receiver").await?;
        }
        let table =
            "create table effect (seq bigserial, handler text not null, id bigint not null, token bigint)";
        self.postgres(side).await?.execute(table).await.context("creating the table of effects")?;
        Ok(())
    }

    /// Creates what the transactions of the sender use.
    async fn create_accounts(&self, accounts: u64) -> Result<()> {
        let tables = sqlx::raw_sql(SENDER_TABLES);
        let insert = "with recursive a (id) as (select 1 union all select id + 1 from a where id < $1)
            insert into account (id) select id - 1 from a";
        let insert = (insert, i64::try_from(accounts)?);
        match &self.kind {
            Kind::Sqlite { .. } => {
                let mut conn = sqlite(&self.file(Side::Sender)?).await?;
                tables.execute(&mut conn).await.context("creating the tables of the sender")?;
                sqlx::query(insert.0).bind(insert.1).execute(&mut conn).await?;
                conn.close().await?;
            }
            Kind::Postgres { .. } => {
                let mut conn = self.postgres(Side::Sender).await?;
                tables.execute(&mut conn).await.context("creating the tables of the sender")?;
                sqlx::query(insert.0).bind(insert.1).execute(&mut conn).await?;
                conn.close().await?;
            }
        }
        Ok(())
    }

    /// The databases of this run.
    pub(crate) fn sides(&self) -> &'static [Side] {
        self.sides
    }

    /// The URL for workers.
    pub(crate) fn url(&self, side: Side) -> String {
        match &self.kind {
            Kind::Sqlite { folder } => folder.join(side.file()).display().to_string(),
            Kind::Postgres { proxy, .. } => {
                // Without TLS, because the proxy reads the messages that it passes on.
                let (port, database) = (proxy.port(), side.database());
                format!("postgres://postgres@127.0.0.1:{port}/{database}?sslmode=disable")
            }
        }
    }

    /// The URL of the second database for workers, if there is one.
    pub(crate) fn receiver_url(&self) -> Option<String> {
        self.sides.contains(&Side::Receiver).then(|| self.url(Side::Receiver))
    }

    /// The schema of the inbox under torture.
    pub(crate) fn schema(&self) -> &'static str {
        SCHEMA
    }

    /// Creates an empty database for starters. Returns its URL and schema.
    pub(crate) async fn create_empty(&self, number: usize) -> Result<(String, String)> {
        match &self.kind {
            Kind::Sqlite { .. } => {
                let file = self.disk.path().join(format!("starters-{number}.db"));
                create_sqlite_effects(&file).await?;
                Ok((file.display().to_string(), SCHEMA.into()))
            }
            Kind::Postgres { .. } => Ok((self.url(Side::Sender), format!("starters_{number}"))),
        }
    }

    /// Removes the database of starters. Returns how often they took effect on a message.
    pub(crate) async fn remove_empty(&self, number: usize, message: u64) -> Result<i64> {
        let id = i64::try_from(message)?;
        match &self.kind {
            Kind::Sqlite { .. } => {
                let file = self.disk.path().join(format!("starters-{number}.db"));
                let mut conn = sqlite(&file).await?;
                let count =
                    sqlx::query_scalar("select count(*) from effect where handler = 'books' and id = ?")
                        .bind(id);
                let count = count.fetch_one(&mut conn).await?;
                conn.close().await?;
                for end in ["", "-wal", "-shm", "-oncebox-line", "-oncebox-turn"] {
                    // Closing the last connection has removed SQLite's log files already.
                    let _ = std::fs::remove_file(format!("{}{end}", file.display()));
                }
                Ok(count)
            }
            Kind::Postgres { .. } => {
                let mut conn = self.postgres(Side::Sender).await?;
                let count =
                    sqlx::query_scalar("select count(*) from effect where handler = 'books' and id = $1")
                        .bind(id);
                let count = count.fetch_one(&mut conn).await?;
                // Starters share the run's table of effects, and the checker would count this row as a ghost.
                let delete = sqlx::query("delete from effect where id = $1").bind(id);
                delete.execute(&mut conn).await?;
                let schema = AssertSqlSafe(format!("drop schema starters_{number} cascade"));
                sqlx::raw_sql(schema).execute(&mut conn).await?;
                conn.close().await?;
                Ok(count)
            }
        }
    }

    async fn postgres(&self, side: Side) -> Result<PgConnection> {
        let Kind::Postgres { server, .. } = &self.kind else { bail!("SQLite has no server") };
        // Past the proxy: its faults are for the workers only.
        let url = format!("postgres://postgres@127.0.0.1:{}/{}", server.port(), side.database());
        PgConnection::connect(&url).await.context("connecting to the server")
    }

    fn file(&self, side: Side) -> Result<PathBuf> {
        let Kind::Sqlite { folder } = &self.kind else { bail!("PostgreSQL has no single file") };
        Ok(folder.join(side.file()))
    }

    /// All effects and markers: those of the sender first.
    pub(crate) async fn effects(&self) -> Result<EffectRows> {
        let mut effects = EffectRows { rows: Vec::new(), markers: 0 };
        for side in self.sides {
            let (rows, markers): (Vec<(String, i64, Option<i64>)>, i64) = match &self.kind {
                Kind::Sqlite { .. } => {
                    let mut conn = sqlite(&self.file(*side)?).await?;
                    let rows = sqlx::query_as("select handler, id, token from effect order by rowid");
                    let markers = "select count(*) from oncebox_marker where state = 'done'";
                    (
                        rows.fetch_all(&mut conn).await?,
                        sqlx::query_scalar(markers).fetch_one(&mut conn).await?,
                    )
                }
                Kind::Postgres { .. } => {
                    let mut conn = self.postgres(*side).await?;
                    // In the order of the writes, which the check for inversions needs.
                    let rows = sqlx::query_as("select handler, id, token from effect order by seq");
                    let markers = "select count(*) from oncebox.marker where state = 'done'";
                    (
                        rows.fetch_all(&mut conn).await?,
                        sqlx::query_scalar(markers).fetch_one(&mut conn).await?,
                    )
                }
            };
            for (handler, message, token) in rows {
                effects.rows.push(EffectRow { handler, message: u64::try_from(message)?, token });
            }
            effects.markers += u64::try_from(markers)?;
        }
        Ok(effects)
    }

    /// Whether messages run one by one, or alone, because processes have crashed.
    pub(crate) async fn needs_crash_care(&self) -> Result<bool> {
        for side in self.sides {
            let needed: bool = match &self.kind {
                Kind::Sqlite { .. } => {
                    let needed = "select exists (select 1 from oncebox_careful where messages_left > 0)
                        or exists (select 1 from oncebox_task where crashes > 0)";
                    sqlx::query_scalar(needed).fetch_one(&mut sqlite(&self.file(*side)?).await?).await?
                }
                Kind::Postgres { .. } => {
                    let needed = "select exists (select from oncebox.careful where messages_left > 0)
                        or exists (select from oncebox.task where crashes > 0)";
                    sqlx::query_scalar(needed).fetch_one(&mut self.postgres(*side).await?).await?
                }
            };
            if needed {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Holds a snapshot.
    pub(crate) async fn hold_snapshot(&self, side: Side) -> Result<HeldConnection> {
        match &self.kind {
            Kind::Sqlite { .. } => {
                let mut conn = sqlite(&self.file(side)?).await?;
                conn.execute("begin").await?;
                // The first read takes the snapshot, `begin` does not.
                conn.execute("select count(*) from effect").await?;
                Ok(HeldConnection::Sqlite(conn))
            }
            Kind::Postgres { .. } => {
                let mut conn = self.postgres(side).await?;
                conn.execute("begin isolation level repeatable read").await?;
                conn.execute("select count(*) from effect").await?;
                Ok(HeldConnection::Postgres(conn))
            }
        }
    }

    /// Makes every write need new disk space at once. SQLite would overwrite its old log first.
    pub(crate) async fn use_up_log(&self) -> Result<Vec<HeldConnection>> {
        let mut held = Vec::new();
        if let Kind::Sqlite { .. } = &self.kind {
            for side in self.sides {
                sqlite(&self.file(*side)?).await?.execute("pragma wal_checkpoint(truncate)").await?;
                held.push(self.hold_snapshot(*side).await?);
            }
        }
        Ok(held)
    }

    /// Holds the write lock of SQLite.
    pub(crate) async fn hold_write_lock(&self, side: Side) -> Result<HeldConnection> {
        let mut conn = sqlite(&self.file(side)?).await?;
        conn.execute("begin immediate").await?;
        Ok(HeldConnection::Sqlite(conn))
    }

    /// Terminates one session, preferably an active one. Returns whether there was one.
    pub(crate) async fn terminate_backend(&self, number: usize) -> Result<bool> {
        let mut conn = self.postgres(Side::Sender).await?;
        // The hash makes the choice vary with the number. Otherwise the same session would be hit each time.
        let terminate = "select pg_terminate_backend(pid) from pg_stat_activity
            where backend_type = 'client backend' and pid <> pg_backend_pid()
            order by state = 'idle', hashint4(pid + $1::int) limit 1";
        let number = i32::try_from(number)?;
        Ok(sqlx::query_scalar(terminate).bind(number).fetch_optional(&mut conn).await?.unwrap_or(false))
    }

    /// Adds a column to the table of effects. Returns whether it got the lock in time.
    pub(crate) async fn add_column(&self, side: Side, number: usize) -> Result<bool> {
        let column = AssertSqlSafe(format!("alter table effect add column extra_{number} text"));
        match &self.kind {
            Kind::Sqlite { .. } => {
                let mut conn = sqlite(&self.file(side)?).await?;
                sqlx::raw_sql(column).execute(&mut conn).await?;
                conn.close().await?;
                Ok(true)
            }
            Kind::Postgres { .. } => {
                let mut conn = self.postgres(side).await?;
                conn.execute(ALTER_LOCK_TIMEOUT).await?;
                let added = sqlx::raw_sql(column).execute(&mut conn).await;
                conn.close().await?;
                match added {
                    // lock_not_available: the handlers hold the table. The fault is injected again later.
                    Err(sqlx::Error::Database(error)) if error.code().as_deref() == Some("55P03") => {
                        Ok(false)
                    }
                    added => Ok(added.map(|_| true)?),
                }
            }
        }
    }

    /// Kills a server with all its sessions and starts it again. Does nothing for SQLite.
    pub(crate) async fn kill_and_restart(&mut self, pause: Duration) -> Result<()> {
        if let Kind::Postgres { server, .. } = &mut self.kind {
            server.kill()?;
            tokio::time::sleep(pause).await;
            server.restart().await?;
        }
        Ok(())
    }

    /// Waits until the server responds, and restarts it if it does not.
    pub(crate) async fn recover(&mut self) -> Result<()> {
        let deadline = Instant::now() + RECOVERY_LIMIT;
        if let Kind::Sqlite { .. } = self.kind {
            return Ok(());
        }
        while Instant::now() < deadline {
            // A server in recovery accepts connections only to refuse them.
            if let Ok(mut conn) = self.postgres(Side::Sender).await
                && conn.execute("select 1").await.is_ok()
            {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        self.kill_and_restart(Duration::ZERO).await
    }

    /// The proxy in front of the server, if there is one.
    pub(crate) fn proxy(&self) -> Option<&FaultyProxy> {
        match &self.kind {
            Kind::Sqlite { .. } => None,
            Kind::Postgres { proxy, .. } => Some(proxy),
        }
    }

    pub(crate) fn disk(&self) -> &Disk {
        &self.disk
    }

    /// Stops a server, so that its files can be copied.
    pub(crate) fn stop(&mut self) -> Result<()> {
        match &mut self.kind {
            Kind::Sqlite { .. } => Ok(()),
            Kind::Postgres { server, .. } => server.stop(),
        }
    }
}

async fn sqlite(file: &Path) -> Result<SqliteConnection> {
    let mut conn = SqliteConnection::connect(&format!("{}?mode=rwc", file.display()))
        .await
        .context("opening the database")?;
    // The workers keep the file busy. The harness can wait, and must not fail because of them.
    conn.execute("pragma busy_timeout = 60000").await?;
    Ok(conn)
}

async fn create_sqlite_effects(file: &Path) -> Result<()> {
    let mut conn = sqlite(file).await?;
    let table = "pragma journal_mode = wal; create table effect (handler text not null, id integer not null, token integer)";
    conn.execute(sqlx::raw_sql(table)).await.context("creating the table of effects")?;
    Ok(conn.close().await?)
}
