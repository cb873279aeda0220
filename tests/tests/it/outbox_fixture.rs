//! What tests of the outbox share: receivers of messages, and transactions of an application that publishes.

use std::any::Any;
use std::collections::HashMap;
use std::process::Command;
use std::sync::{Arc, Mutex};

use oncebox::store::Select;
use oncebox::{
    Envelope, Error, MessageId, Outbox, OutboxStore, Outgoing, PostgresStore, Relay, Retry, Sink,
    SqliteStore, Verdict, WorkReport,
};
use oncebox_servers::postgres::{PostgresOptions, PostgresServer};
use oncebox_testing::Fixture;
use sqlx::{Connection, Executor, PgConnection, SqliteConnection};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::every_store::Conn;
use crate::postgres::Postgres;
use crate::sqlite::Sqlite;
use crate::stored_fixture::LogFixture;

/// The name of the relay in these tests.
pub(crate) const RELAY: &str = "events";

/// A database with an outbox and the tables of an application.
pub(crate) trait OutboxFixture: LogFixture + Fixture<Store: OutboxStore> {
    /// The number of transactions that write at once.
    const WRITERS: usize;

    /// The same database, with connections of its own.
    async fn again(&self) -> Self;

    /// Makes a row for each customer.
    async fn prepare_customers(&self, customers: u32);

    /// Locks the row of a customer and counts it up.
    fn next_number(conn: &mut Conn<Self>, customer: u32) -> impl Future<Output = i64> + Send;

    /// The current number of a customer.
    async fn number(&self, customer: u32) -> i64;

    /// Keeps all processes from writing heartbeats until what is returned is dropped. They can read.
    async fn hold_heartbeats(&self) -> Box<dyn Any + Send>;

    /// A backup of this database, restored elsewhere, and what keeps it there.
    async fn restored(&self) -> (Self, Box<dyn Any + Send>);
}

impl OutboxFixture for Sqlite {
    /// Others would wait for it, and fail after a second.
    const WRITERS: usize = 1;

    async fn again(&self) -> Self {
        self.through(self.another_store().await)
    }

    async fn prepare_customers(&self, customers: u32) {
        let table = "create table customer (id integer primary key, number integer not null)";
        sqlx::query(table).execute(self.store.pool()).await.unwrap();
        for customer in 0..customers {
            let insert = sqlx::query("insert into customer values (?, 0)").bind(customer);
            insert.execute(self.store.pool()).await.unwrap();
        }
    }

    async fn next_number(conn: &mut SqliteConnection, customer: u32) -> i64 {
        let next = "update customer set number = number + 1 where id = ? returning number";
        sqlx::query_scalar(next).bind(customer).fetch_one(conn).await.unwrap()
    }

    async fn number(&self, customer: u32) -> i64 {
        let number = sqlx::query_scalar("select number from customer where id = ?").bind(customer);
        number.fetch_one(self.store.pool()).await.unwrap()
    }

    /// There is one writer.
    async fn hold_heartbeats(&self) -> Box<dyn Any + Send> {
        let mut conn = SqliteConnection::connect(&self.path()).await.unwrap();
        conn.execute("pragma busy_timeout = 60000").await.unwrap();
        conn.execute("begin immediate").await.unwrap();
        Box::new(conn)
    }

    async fn restored(&self) -> (Self, Box<dyn Any + Send>) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("restored.db").to_str().unwrap().to_owned();
        sqlx::query("vacuum into ?").bind(&path).execute(self.store.pool()).await.unwrap();
        let store = SqliteStore::connect(&path).await.unwrap();
        (self.through(store), Box::new(folder))
    }
}

impl OutboxFixture for Postgres {
    const WRITERS: usize = 64;

    async fn again(&self) -> Self {
        self.through(self.another_store().await)
    }

    async fn prepare_customers(&self, customers: u32) {
        let table = "create table customer (id int primary key, number int8 not null)";
        sqlx::query(table).execute(self.store.pool()).await.unwrap();
        let insert = sqlx::query("insert into customer select n, 0 from generate_series(0, $1::int8 - 1) n");
        insert.bind(i64::from(customers)).execute(self.store.pool()).await.unwrap();
    }

    async fn next_number(conn: &mut PgConnection, customer: u32) -> i64 {
        let next = "update customer set number = number + 1 where id = $1::int8 returning number";
        sqlx::query_scalar(next).bind(i64::from(customer)).fetch_one(conn).await.unwrap()
    }

    async fn number(&self, customer: u32) -> i64 {
        let number = sqlx::query_scalar("select number from customer where id = $1::int8");
        number.bind(i64::from(customer)).fetch_one(self.store.pool()).await.unwrap()
    }

    async fn hold_heartbeats(&self) -> Box<dyn Any + Send> {
        let mut conn = PgConnection::connect(&self.database.url()).await.unwrap();
        conn.execute("begin").await.unwrap();
        conn.execute("lock table oncebox.process in share mode").await.unwrap();
        Box::new(conn)
    }

    /// Into a new cluster, whose transactions have other numbers.
    async fn restored(&self) -> (Self, Box<dyn Any + Send>) {
        let server = PostgresServer::start(PostgresOptions::default()).await.unwrap();
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("dump.sql");
        let dump = |program: &str| {
            let bin = oncebox_servers::postgres::find().unwrap();
            Command::new(bin.map(|bin| bin.join(program)).filter(|it| it.exists()).unwrap_or(program.into()))
        };
        let dumped =
            dump("pg_dump").args(["--no-owner", "--file"]).arg(&file).arg(self.database.url()).output();
        let dumped = dumped.unwrap();
        assert!(dumped.status.success(), "{}", String::from_utf8_lossy(&dumped.stderr));
        let mut restore = dump("psql");
        restore.args(["--no-psqlrc", "--quiet", "--set", "ON_ERROR_STOP=1", "--file"]).arg(&file);
        let restored = restore.arg(server.url()).output().unwrap();
        assert!(restored.status.success(), "{}", String::from_utf8_lossy(&restored.stderr));
        let store = PostgresStore::connect(&server.url()).await.unwrap();
        (self.through(store), Box::new(server))
    }
}

/// A copy that a receiver has got.
#[derive(Clone, Debug)]
pub(crate) struct ReceivedCopy {
    pub(crate) key: String,
    pub(crate) id: MessageId,
    pub(crate) order_by: Option<String>,
    pub(crate) is_confirmed: bool,
    pub(crate) is_replay: bool,
}

type Respond = dyn Fn(&Outgoing, usize) -> Verdict + Send + Sync;

/// A sink that records what it gets. It responds to a message and the number of its copy, which begins with 1.
#[derive(Clone)]
pub(crate) struct Receiver {
    copies: Arc<Mutex<ReceivedCopies>>,
    respond: Arc<Respond>,
}

#[derive(Default)]
struct ReceivedCopies {
    all: Vec<ReceivedCopy>,
    of_key: HashMap<String, usize>,
}

impl Receiver {
    pub(crate) fn new(respond: impl Fn(&Outgoing, usize) -> Verdict + Send + Sync + 'static) -> Self {
        Self { copies: Arc::default(), respond: Arc::new(respond) }
    }

    pub(crate) fn confirming() -> Self {
        Self::new(|_, _| Verdict::Confirmed)
    }

    /// All copies, in the order in which they came.
    pub(crate) fn copies(&self) -> Vec<ReceivedCopy> {
        self.copies.lock().unwrap().all.clone()
    }

    /// The number of copies.
    pub(crate) fn received(&self) -> usize {
        self.copies.lock().unwrap().all.len()
    }

    /// The number of different keys.
    pub(crate) fn keys(&self) -> usize {
        self.copies.lock().unwrap().of_key.len()
    }

    /// The keys of confirmed copies, in the order in which they came.
    pub(crate) fn confirmed(&self) -> Vec<String> {
        let copies = self.copies.lock().unwrap();
        copies.all.iter().filter(|copy| copy.is_confirmed).map(|copy| copy.key.clone()).collect()
    }

    /// A relay to this receiver. Failed attempts are repeated at once.
    pub(crate) fn relay(&self) -> Relay {
        let retry = Retry::new()
            .max_attempts(3)
            .first_delay(std::time::Duration::ZERO)
            .max_delay(std::time::Duration::ZERO);
        Relay::new(RELAY, self.clone()).retry(retry)
    }
}

impl Sink for Receiver {
    const WAVE: usize = 50;

    async fn publish(&self, wave: &[Outgoing]) -> Vec<Verdict> {
        let mut copies = self.copies.lock().unwrap();
        let mut verdicts = Vec::with_capacity(wave.len());
        for message in wave {
            let key = message.key.to_string();
            let copy = copies.of_key.entry(key.clone()).or_default();
            *copy += 1;
            let verdict = (self.respond)(message, *copy);
            copies.all.push(ReceivedCopy {
                key,
                id: message.id,
                order_by: message.order_by.as_ref().map(ToString::to_string),
                is_confirmed: matches!(verdict, Verdict::Confirmed),
                is_replay: message.is_replay,
            });
            verdicts.push(verdict);
        }
        verdicts
    }
}

/// A message whose body is its key.
pub(crate) fn message(key: &str) -> Envelope {
    Envelope::new("event", key.as_bytes()).with_key(key)
}

/// Publishes messages in one transaction of the application, which commits.
pub(crate) async fn publish<F: OutboxFixture>(
    fixture: &F,
    outbox: &Outbox<F::Store>,
    envelopes: Vec<Envelope>,
) {
    let outbox = outbox.clone();
    let transaction = fixture.transaction(
        true,
        Box::new(move |conn| {
            Box::pin(async move { drop(outbox.publish_envelopes(conn, envelopes).await.unwrap()) })
        }),
    );
    assert!(transaction.await);
}

/// An outbox that runs in the background.
pub(crate) struct RunningOutbox {
    stop: oneshot::Sender<()>,
    running: JoinHandle<Result<WorkReport, Error>>,
}

impl RunningOutbox {
    pub(crate) fn start<S: OutboxStore>(outbox: &Outbox<S>) -> Self {
        let (stop, stopped) = oneshot::channel();
        let outbox = outbox.clone();
        let running = tokio::spawn(async move { outbox.run(async { drop(stopped.await) }).await });
        Self { stop, running }
    }

    pub(crate) async fn stop(self) -> WorkReport {
        drop(self.stop);
        self.running.await.unwrap().unwrap()
    }
}

/// Waits for a condition. What never happens ends with the time limit of the whole run.
pub(crate) async fn until(is_so: impl AsyncFn() -> bool) {
    let waited = tokio::time::timeout(std::time::Duration::from_secs(300), async {
        while !is_so().await {
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
    });
    waited.await.expect("it has not happened in five minutes");
}

/// Whether all messages have left the outbox, and the relay has passed them.
pub(crate) async fn is_sent<S: OutboxStore>(outbox: &Outbox<S>) -> bool {
    // The outbox first: what it no longer holds is in the log.
    let waiting = outbox.status().await.map(|status| status.waiting);
    let statuses = outbox.operators().handler_statuses().await;
    waiting.is_ok_and(|waiting| waiting == 0)
        && statuses.is_ok_and(|statuses| {
            statuses.iter().filter(|it| it.handler.name == RELAY).all(|it| (it.lag, it.tasks) == (0, 0))
        })
}

/// No message of the relay is a dead letter.
pub(crate) async fn assert_nothing_parked<S: OutboxStore>(outbox: &Outbox<S>) {
    assert_eq!(outbox.operators().dead_letters(Select::all().handler(RELAY), 10).await.unwrap(), []);
}
