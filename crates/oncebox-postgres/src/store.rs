//! The store: a pool, a schema, and the statements in it.

use std::error::Error as StdError;
use std::net::IpAddr;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use oncebox_core::Error;
use oncebox_core::store::{Fault, Guarantee, Limits, Lingering, Retries, Store, TestTime, doing, refusal};
use sqlx::postgres::{PgConnectOptions, PgPoolOptions, PgSslMode};
use sqlx::{ConnectOptions, Connection, PgConnection, PgPool, Row};
use tokio::sync::Mutex;

use crate::connection::depth;
use crate::connections::Connections;
use crate::fault::{classify, failed, is_about_data, is_starting};
use crate::hosts::{Hosts, place};
use crate::log::Kinds;
use crate::servers::Servers;
use crate::sessions::{SessionHealth, SessionSettings};
use crate::statements::{Schema, Statements};
use crate::target::Target;
use crate::transaction::{PostgresBegun, PostgresTx};

const SCHEMA: &str = "oncebox";
const CONNECTIONS: u32 = 16;
const ACQUIRE_TIMEOUT: Duration = Duration::from_secs(5);
const ANSWER_TIMEOUT: Duration = Duration::from_secs(15);

/// What operators and new programs ask for waits for handlers at work, and may read or write a whole log.
pub(crate) const LONG: Duration = Duration::from_secs(10 * 60);

/// The longest pause before a server that is starting is asked again.
const ASK_AGAIN: Duration = Duration::from_millis(100);

const UNREACHABLE: &str = "PostgreSQL cannot be reached: check host, port, user, password and database";

/// Oncebox on PostgreSQL.
#[derive(Clone, Debug)]
pub struct PostgresStore {
    pub(crate) connections: Connections,
    pub(crate) schema: Schema,
    pub(crate) statements: Arc<Statements>,
    pub(crate) kinds: Arc<Kinds>,
    clock_offset_ms: Arc<AtomicI64>,
    session: Session,
    /// The connection for this process's heartbeats.
    pub(crate) pulse: Arc<Mutex<Option<PgConnection>>>,
    sessions: Arc<SessionHealth>,
    /// How the pool sets its sessions; known when the store was checked.
    session_settings: Arc<OnceLock<SessionSettings>>,
    /// Transactions that were begun along with the commit of the one before.
    begun: Lingering<PostgresBegun>,
}

/// Whether a connection of the pool is one session of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Session {
    /// It is, and stays so: its settings are ours.
    Own,
    /// A transaction pooler hands it to others between two transactions.
    Shared,
}

impl PostgresStore {
    /// A store on your own pool, in the schema `oncebox`.
    ///
    /// It connects to wherever the pool does: one address, which has to lead to the primary at all times. Only
    /// [`connect`](Self::connect) follows a primary from one host to another.
    pub fn new(pool: PgPool) -> Self {
        Self::on(Servers::of(pool))
    }

    fn on(servers: Servers) -> Self {
        // `SCHEMA` is a valid name: a test beside `Schema` checks it.
        let schema = Schema::new(SCHEMA).unwrap_or_else(|error| unreachable!("{error}"));
        let statements = Arc::new(Statements::new(&schema));
        Self {
            connections: Connections::new(servers, ANSWER_TIMEOUT, statements.clone()),
            schema,
            statements,
            kinds: Arc::default(),
            clock_offset_ms: Arc::default(),
            session: Session::Own,
            pulse: Arc::default(),
            sessions: Arc::default(),
            session_settings: Arc::default(),
            begun: Lingering::new(),
        }
    }

    /// A store on a pool of its own, in the schema `oncebox`.
    ///
    /// The URL may name several hosts, `postgres://user@one:5432,two:5432/db`: the store writes to the one that is the primary, and
    /// follows when another one becomes it. `target_session_attrs` says which one will do, as in libpq: `read-write` (the default
    /// for several hosts), `primary` or `any`.
    ///
    /// Away from this machine the connection is encrypted, unless the URL says `sslmode=` something else.
    ///
    /// A server that is starting gets 5 s.
    pub async fn connect(url: &str) -> Result<Self, Error> {
        Self::open(url, ACQUIRE_TIMEOUT).await
    }

    /// As [`connect`](Self::connect), but fails at once if a single server refuses the connection: for tools that report errors
    /// rather than wait.
    pub async fn connect_at_once(url: &str) -> Result<Self, Error> {
        Self::open(url, Duration::ZERO).await
    }

    async fn open(url: &str, wait: Duration) -> Result<Self, Error> {
        let Hosts { mut options, target } = Hosts::parse(url)?;
        let said =
            url.contains("sslmode=") || url.contains("ssl-mode=") || std::env::var_os("PGSSLMODE").is_some();
        for options in &mut options {
            // `Prefer` is the driver's default: without TLS it falls back to plain text. Only an explicit choice may
            // do that.
            let unsaid = !said && matches!(options.get_ssl_mode(), PgSslMode::Prefer);
            if unsaid && !is_local(options) {
                *options = options.clone().ssl_mode(PgSslMode::Require);
            }
        }
        let pool = PgPoolOptions::new()
            .max_connections(CONNECTIONS)
            .acquire_timeout(ACQUIRE_TIMEOUT)
            // A round trip less: a dead connection shows with the next statement, and the unit is tried again.
            .test_before_acquire(false);
        let servers = match (options.pop(), target) {
            (Some(only), None) => match reach(&only, wait).await {
                Ok(()) => Ok(Servers::of(pool.connect_lazy_with(only))),
                Err(error) => return Err(not_connected(&only, error)),
            },
            (last, target) => {
                options.extend(last);
                Servers::follow(options, target.unwrap_or(Target::ReadWrite), pool).await
            }
        };
        servers.map(Self::on).map_err(|error| Error::unavailable(UNREACHABLE, error))
    }

    /// The same store with its tables in another schema, for several inboxes in one database.
    pub fn with_schema(self, schema: &str) -> Result<Self, Error> {
        let schema = Schema::new(schema)?;
        let statements = Arc::new(Statements::new(&schema));
        // Transactions that were begun ahead have the statements of the other schema.
        let connections = self.connections.with_statements(statements.clone());
        Ok(Self { connections, schema, statements, kinds: Arc::default(), begun: Lingering::new(), ..self })
    }

    /// For connections through a transaction pooler, such as PgBouncer in transaction mode: leaves the settings of the
    /// session alone, which others use in turn. Switch the pool's statement cache off too.
    ///
    /// What is lost: a handler that runs `ROLLBACK` itself and then writes on is found out, but what it wrote stays.
    #[must_use]
    pub fn behind_pooler(self) -> Self {
        // Transactions that were begun ahead have made their session read-only, which others would get.
        Self { session: Session::Shared, begun: Lingering::new(), ..self }
    }

    /// The maximum time to wait for a response of the server, beyond the time limit of the statement itself. 15 s.
    ///
    /// A connection without a response in that time is closed: the server or the network may be gone.
    /// The call goes on as if the connection had broken. Handlers have `handler_timeout` instead, and [`migrate`](Self::migrate)
    /// takes as long as it takes.
    #[must_use]
    pub fn answer_timeout(mut self, timeout: Duration) -> Self {
        self.connections.answer_timeout = timeout;
        self
    }

    /// The pool underneath.
    pub fn pool(&self) -> &PgPool {
        self.connections.servers.pool()
    }

    /// Keeps a transaction that was begun ahead.
    pub(crate) fn keep_begun(&self, begun: Option<PostgresBegun>) {
        if let Some(begun) = begun {
            self.begun.keep(begun);
        }
    }

    /// Reads how the pool sets its sessions, once.
    async fn note_session_settings(&self) -> Result<(), Error> {
        let doing = doing::READ_SETTINGS;
        if self.session_settings.get().is_none() {
            // Not prepared: it runs once in the life of a store.
            let read = sqlx::query(self.statements.session_settings.clone()).persistent(false);
            let row = self.connections.open(doing).await?.fetch_one(read).await.map_err(failed(doing))?;
            let settings = SessionSettings::new(row.try_get(0).map_err(failed(doing))?);
            // Another inbox of this store may have been faster, and has read the same.
            let _ = self.session_settings.set(settings);
        }
        Ok(())
    }

    pub(crate) fn clock_offset_ms(&self) -> i64 {
        self.clock_offset_ms.load(Ordering::SeqCst)
    }
}

/// Whether a connection stays on this machine.
fn is_local(options: &PgConnectOptions) -> bool {
    let host = options.get_host();
    options.get_socket().is_some()
        || host.starts_with('/')
        || host == "localhost"
        || host.trim_matches(['[', ']']).parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

/// Connects once, or until a server that is starting has started. The pool would do the same, without the reason when it gives up.
async fn reach(options: &PgConnectOptions, wait: Duration) -> Result<(), sqlx::Error> {
    let mut retries = Retries::within(wait).with_longest_pause(ASK_AGAIN);
    loop {
        let connected = tokio::time::timeout(ACQUIRE_TIMEOUT, options.connect()).await;
        match connected.unwrap_or(Err(sqlx::Error::PoolTimedOut)) {
            Ok(conn) => {
                // The server has responded, which is all that was asked: closing may fail.
                let _ = tokio::time::timeout(ASK_AGAIN, conn.close()).await;
                return Ok(());
            }
            Err(error) if is_starting(&error) && !retries.is_over() => retries.pause().await,
            Err(error) => return Err(error),
        }
    }
}

/// Says what to do, by what the server or the driver said.
fn not_connected(options: &PgConnectOptions, error: sqlx::Error) -> Error {
    let code = error.as_database_error().and_then(|error| error.code());
    let message = match (&error, code.as_deref()) {
        // invalid_password, invalid_authorization_specification
        (_, Some("28P01" | "28000")) => format!(
            "PostgreSQL refused the user or the password of {}: check both, and what pg_hba.conf allows",
            options.get_username()
        ),
        // invalid_catalog_name
        (_, Some("3D000")) => {
            let name = options.get_database().unwrap_or_else(|| options.get_username());
            format!("there is no database {name} on this PostgreSQL server: create it, or name another")
        }
        (sqlx::Error::Tls(_), _) => {
            "the connection to PostgreSQL cannot be encrypted: enable the feature `tls` of oncebox and TLS on the server, or \
             say sslmode=disable in the URL"
                .to_owned()
        }
        (sqlx::Error::Io(_) | sqlx::Error::PoolTimedOut, _) => {
            format!("PostgreSQL cannot be reached at {}: check host and port, and that it runs", place(options))
        }
        _ => UNREACHABLE.to_owned(),
    };
    Error::unavailable(message, error)
}

impl TestTime for PostgresStore {
    fn travel(&self, time: Duration) {
        self.clock_offset_ms.fetch_add(i64::try_from(time.as_millis()).unwrap_or(i64::MAX), Ordering::SeqCst);
    }
}

impl Store for PostgresStore {
    const NAME: &'static str = "postgres";
    const GUARANTEE: Guarantee = Guarantee::Exactly;
    type Conn = PgConnection;
    type Tx = PostgresTx;

    fn capacity(&self) -> usize {
        self.pool().options().get_max_connections() as usize
    }

    async fn check(&self) -> Result<(), Error> {
        self.check_version().await?;
        self.check_durability().await?;
        self.note_session_settings().await
    }

    async fn begin(&self, limits: Limits) -> Result<PostgresTx, Error> {
        // Begun along with an earlier commit, which saves this round trip (decision 12).
        if let Some(begun) = self.begun.take() {
            return Ok(begun.with(limits));
        }
        let (connections, statements, session) =
            (self.connections.clone(), self.statements.clone(), self.session);
        let settings = self.session_settings.clone();
        // In a task of its own: a caller that goes away must not leave a transaction half begun.
        let begun = tokio::spawn(async move {
            PostgresTx::begin(connections.take().await?, session, settings, statements, limits).await
        });
        match begun.await {
            Ok(begun) => begun.map_err(self.connections.not_begun(doing::BEGIN)),
            Err(stopped) => Err(refusal::runtime_stops(stopped)),
        }
    }

    fn connection(tx: &mut PostgresTx) -> &mut PgConnection {
        tx.connection()
    }

    async fn arm(&self, tx: &mut PostgresTx) -> Result<(), Error> {
        tx.arm().await
    }

    async fn guard(&self, tx: &mut PostgresTx) -> Result<(), Error> {
        tx.guard().await
    }

    /// The next transaction begins in the same round trip.
    async fn commit(&self, mut tx: PostgresTx) -> Result<(), Error> {
        // Others wait for a connection, or this one leads to a former primary.
        if !self.connections.may_go_on(tx.since()) {
            return tx.commit().await;
        }
        let begun = tx.commit_and_begin().await?;
        self.keep_begun(begun);
        Ok(())
    }

    async fn rollback(&self, tx: PostgresTx) {
        if tx.is_lost() {
            // In the background: this may get no response either.
            let store = self.clone();
            tokio::spawn(async move { store.abandon(tx).await });
        } else {
            tx.rollback().await;
        }
    }

    async fn abandon(&self, tx: PostgresTx) {
        let Some(backend) = tx.abandon() else { return };
        let doing = "end the backend of a handler that ran too long";
        let end = sqlx::query(self.statements.terminate_backend.clone()).bind(backend);
        // On another connection: the handler's own is still busy with its statement.
        let ended = match self.connections.open(doing).await {
            Ok(mut conn) => conn.execute(end).await.map(drop).map_err(failed(doing)),
            Err(error) => Err(error),
        };
        if let Err(error) = ended {
            tracing::warn!(%error, backend, "could not end the backend of a handler that ran too long; its own time limit ends it");
        }
    }

    fn body_ended(&self, tx: &mut PostgresTx, ended: Result<(), &(dyn StdError + 'static)>) {
        tx.body_ended(&self.sessions, ended);
    }

    fn is_lent(conn: &mut PgConnection) -> bool {
        depth(conn) == 1
    }

    fn classify(error: &(dyn StdError + 'static)) -> Fault {
        classify(error)
    }

    fn is_about_data(error: &(dyn StdError + 'static)) -> bool {
        is_about_data(error)
    }
}

#[cfg(test)]
mod tests {
    use std::str::FromStr;

    use super::*;

    #[test]
    fn only_this_machine_is_local() {
        let local = |url: &str| is_local(&PgConnectOptions::from_str(url).unwrap());
        assert!(local("postgres://u@localhost/db"));
        assert!(local("postgres://u@127.0.0.1:5433/db"));
        assert!(local("postgres://u@[::1]/db"));
        assert!(local("postgres:///db?host=/run/postgresql"));
        assert!(!local("postgres://u@db.example/db"));
        assert!(!local("postgres://u@10.0.0.1/db"));
    }
}
