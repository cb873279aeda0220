//! A deploy under load: the schema of the handlers' own tables changes, and inboxes are replaced. No message is lost, handled
//! twice or given up.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use oncebox::store::Select;
use oncebox::{
    Attempt, Envelope, Error, ErrorKind, Inbox, Message, Outcome, PostgresStore, Retry, Settlement,
    WorkReport,
};
use oncebox_testing::Fixture;
use serde::{Deserialize, Serialize};
use sqlx::{AssertSqlSafe, Connection, Executor, PgConnection, Row, SqliteConnection};
use tokio::task::JoinHandle;

use crate::every_store::judged;
use crate::postgres::as_owner;

/// The handlers that work from the log, the second one in order.
const STORED: [&str; 2] = ["ledger", "statement"];
const INLINE: &str = "shop";
/// Accepted messages that are not handled yet, as many as the source lets there be.
const BACKLOG: usize = 400;
/// Callers of the inline inbox.
const CALLERS: usize = 4;
/// This many effects of every handler show that it works.
const EFFECTS: usize = 150;
/// A handler without any effect for this long is stuck.
const STUCK: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(10);
/// One failure, and the message is a dead letter.
const NO_SECOND_TRY: Retry =
    Retry::new().max_attempts(1).first_delay(Duration::ZERO).max_delay(Duration::ZERO);
/// Long enough for a moment without a function, on a slow machine too.
const PATIENT: Retry = Retry::new()
    .max_attempts(100)
    .first_delay(Duration::from_millis(20))
    .max_delay(Duration::from_millis(500));

const TABLES: &str = "
    create table tariff (cents bigint not null, remark text);
    insert into tariff (cents) values (250);
    create table booking (handler text not null, sale text not null, cents bigint not null);
    create function price(cents bigint) returns bigint language sql as 'select cents * 2'";
const FUNCTION: &str =
    "create function price(cents bigint) returns bigint language sql as 'select cents * 2'";

#[derive(Serialize, Deserialize, Message)]
#[message(kind = "sale", key = "id", order_by = "account")]
struct Sale {
    id: String,
    account: usize,
}

fn sale(way: &str, number: usize) -> Envelope {
    Envelope::of(&Sale { id: format!("{way}-{number}"), account: number % 17 }).unwrap()
}

/// What handlers have to do, and what they report.
#[derive(Clone, Default)]
struct Watch(Arc<WatchCounts>);

#[derive(Default)]
struct WatchCounts {
    /// Handler calls that are to drop the prepared statements of their session.
    deallocations: AtomicU32,
    /// Calls of handlers that work from the log, for which the function was missing.
    without_function: AtomicUsize,
    /// Tries beyond the first of a message.
    second_tries: AtomicUsize,
    /// Inline calls that told the sender to send the message again.
    retries: AtomicUsize,
}

impl Watch {
    /// What every handler does: reads the user's tables with prepared statements, calls the user's function, writes.
    async fn book(
        &self,
        handler: &str,
        sale: Sale,
        attempt: u32,
        db: &mut PgConnection,
    ) -> Result<(), sqlx::Error> {
        self.0.second_tries.fetch_add(usize::from(attempt > 1), Ordering::SeqCst);
        let tariff = sqlx::query("select * from tariff").fetch_one(&mut *db).await?;
        let price = sqlx::query_scalar("select price($1)").bind(tariff.try_get::<i64, _>("cents")?);
        let price: i64 = price.fetch_one(&mut *db).await.inspect_err(|error| self.note(handler, error))?;
        let book = sqlx::query("insert into booking (handler, sale, cents) values ($1, $2, $3)");
        book.bind(handler).bind(&sale.id).bind(price).execute(&mut *db).await?;
        let take = |left: u32| left.checked_sub(1);
        if self.0.deallocations.fetch_update(Ordering::SeqCst, Ordering::SeqCst, take).is_ok() {
            sqlx::raw_sql("deallocate all").execute(&mut *db).await?;
        }
        Ok(())
    }

    fn note(&self, handler: &str, error: &sqlx::Error) {
        let code = error.as_database_error().and_then(|error| error.code());
        // undefined_function
        let is_missing = handler != INLINE && code.as_deref() == Some("42883");
        self.0.without_function.fetch_add(usize::from(is_missing), Ordering::SeqCst);
    }
}

/// An inbox whose handlers work from the log, as one process has it.
struct DeployedProcess {
    inbox: Inbox<PostgresStore>,
    running: JoinHandle<Result<WorkReport, Error>>,
}

impl DeployedProcess {
    async fn start(url: &str, retry: Retry, watch: &Watch) -> Self {
        let handler = |name: &'static str| {
            let watch = watch.clone();
            async move |sale: Sale, Attempt(n): Attempt, db: &mut PgConnection| -> Result<(), sqlx::Error> {
                watch.book(name, sale, n, db).await
            }
        };
        let [ledger, statement] = STORED;
        let inbox = Inbox::builder(PostgresStore::connect(url).await.unwrap())
            .stored()
            .retry(retry)
            .poll_every(Duration::from_millis(50))
            .work_batch(20)
            .on(ledger, handler(ledger))
            .on_with(statement, handler(statement), |options| options.ordered())
            .build()
            .await
            .unwrap();
        let running = tokio::spawn({
            let inbox = inbox.clone();
            async move { inbox.run(std::future::pending()).await }
        });
        Self { inbox, running }
    }

    /// Lets it finish in-flight work; what it has done.
    async fn close(self) -> WorkReport {
        self.inbox.close().await;
        self.running.await.unwrap().unwrap()
    }
}

async fn inline(url: &str, watch: &Watch) -> Inbox<PostgresStore> {
    let watch = watch.clone();
    let handler = async move |sale: Sale,
                              Attempt(n): Attempt,
                              db: &mut PgConnection|
                -> Result<(), sqlx::Error> { watch.book(INLINE, sale, n, db).await };
    let store = PostgresStore::connect(url).await.unwrap();
    Inbox::builder(store).on(INLINE, handler).build().await.unwrap()
}

/// Processes, callers and a source that keeps them busy.
struct DeployLoad {
    url: String,
    retry: Retry,
    watch: Watch,
    /// For the test's own statements, which are not prepared.
    db: PgConnection,
    processes: Vec<DeployedProcess>,
    reports: Vec<WorkReport>,
    /// The inbox that callers use; another one takes its place.
    inline: Arc<Mutex<Inbox<PostgresStore>>>,
    stop: Arc<AtomicBool>,
    source: JoinHandle<usize>,
    callers: Vec<JoinHandle<BTreeSet<String>>>,
}

impl DeployLoad {
    async fn start(url: String, retry: Retry) -> Self {
        let watch = Watch::default();
        let mut db = PgConnection::connect(&url).await.unwrap();
        db.execute(sqlx::raw_sql(TABLES)).await.unwrap();
        let mut processes = Vec::new();
        for _ in 0..2 {
            processes.push(DeployedProcess::start(&url, retry, &watch).await);
        }
        let inline = Arc::new(Mutex::new(inline(&url, &watch).await));
        let stop = Arc::<AtomicBool>::default();
        let source = tokio::spawn(accept(url.clone(), stop.clone()));
        let call = |caller| tokio::spawn(call(caller, inline.clone(), watch.clone(), stop.clone()));
        let callers = (0..CALLERS).map(call).collect();
        let mut load =
            Self { url, retry, watch, db, processes, reports: Vec::new(), inline, stop, source, callers };
        // All connections have their statements prepared.
        load.goes_on("from the beginning").await;
        load
    }

    async fn run(&mut self, sql: impl Into<String>) {
        self.db.execute(sqlx::raw_sql(AssertSqlSafe(sql.into()))).await.unwrap();
    }

    async fn effects(&mut self) -> BTreeMap<String, usize> {
        let count = sqlx::query("select handler, count(*) from booking group by handler").persistent(false);
        let rows = count.fetch_all(&mut self.db).await.unwrap();
        rows.iter().map(|row| (row.get(0), usize::try_from(row.get::<i64, _>(1)).unwrap())).collect()
    }

    /// Waits until every handler has done something new.
    async fn goes_on(&mut self, since: &str) {
        let before = self.effects().await;
        let (started, mut now) = (Instant::now(), BTreeMap::new());
        for handler in STORED.into_iter().chain([INLINE]) {
            let target = before.get(handler).copied().unwrap_or_default() + EFFECTS;
            while now.get(handler).copied().unwrap_or_default() < target {
                tokio::time::sleep(POLL).await;
                now = self.effects().await;
                if started.elapsed() > STUCK {
                    let dead = dead(&self.processes[0].inbox).await;
                    panic!("{handler} is stuck {since}: {before:?}, {now:?}; dead letters {dead:?}");
                }
            }
        }
    }

    /// Replaces a process that works from the log, and the inbox of the callers.
    async fn replace(&mut self) {
        let next = DeployedProcess::start(&self.url, self.retry, &self.watch).await;
        self.processes.push(next);
        let report = self.processes.remove(0).close().await;
        self.reports.push(report);
        let next = inline(&self.url, &self.watch).await;
        let before = std::mem::replace(&mut *self.inline.lock().unwrap(), next);
        before.close().await;
    }

    /// Ends the load and waits until everything is handled; what was done. Every effect is there once, and no message is dead.
    async fn end(mut self) -> (WorkReport, Watch) {
        self.stop.store(true, Ordering::SeqCst);
        let accepted = self.source.await.unwrap();
        let mut called = BTreeSet::new();
        for caller in self.callers {
            called.extend(caller.await.unwrap());
        }
        let inbox = self.processes[0].inbox.clone();
        let (mut moved, mut left) = (Instant::now(), None);
        while left != Some((0, 0)) {
            tokio::time::sleep(POLL).await;
            let statuses = inbox.operators().handler_statuses().await.unwrap();
            let now = statuses.iter().fold((0, 0), |(lag, tasks), of| (lag + of.lag, tasks + of.tasks));
            if left != Some(now) {
                (moved, left) = (Instant::now(), Some(now));
            }
            assert!(moved.elapsed() < STUCK, "messages and tasks are left: {left:?}");
        }
        let letters = dead(&inbox).await;
        for process in self.processes {
            self.reports.push(process.close().await);
        }
        assert_eq!(letters, BTreeMap::new(), "dead letters by error");
        let stored = |handler: &'static str| {
            (0..accepted).map(move |n| (handler.to_owned(), format!("stored-{n}"), 1))
        };
        let inline = called.into_iter().map(|sale| (INLINE.to_owned(), sale, 1));
        let expected: BTreeSet<(String, String, i64)> =
            STORED.into_iter().flat_map(stored).chain(inline).collect();
        let effects = sqlx::query_as("select handler, sale, count(*) from booking group by handler, sale");
        let effects: Vec<(String, String, i64)> =
            effects.persistent(false).fetch_all(&mut self.db).await.unwrap();
        let effects: BTreeSet<(String, String, i64)> = effects.into_iter().collect();
        let wrong: Vec<_> = effects.symmetric_difference(&expected).take(10).collect();
        assert!(wrong.is_empty(), "lost or doubled: {wrong:?}");
        let mut sum = WorkReport::default();
        self.reports.into_iter().for_each(|report| sum += report);
        (sum, self.watch)
    }
}

/// How many dead letters there are, by their error.
async fn dead(inbox: &Inbox<PostgresStore>) -> BTreeMap<String, usize> {
    let mut errors = BTreeMap::new();
    for letter in inbox.operators().dead_letters(Select::all(), 10_000).await.unwrap() {
        *errors.entry(letter.error).or_default() += 1;
    }
    errors
}

/// Accepts messages for as long as the handlers keep up; how many.
async fn accept(url: String, stop: Arc<AtomicBool>) -> usize {
    let inbox = Inbox::builder(PostgresStore::connect(&url).await.unwrap()).stored().build().await.unwrap();
    let mut accepted = 0;
    while !stop.load(Ordering::SeqCst) {
        let lag: u64 =
            inbox.operators().handler_statuses().await.unwrap().iter().map(|status| status.lag).sum();
        if lag > BACKLOG as u64 {
            tokio::time::sleep(POLL).await;
            continue;
        }
        for accept in inbox.accept_all((accepted..accepted + 50).map(|n| sale("stored", n))).await {
            assert!(accept.unwrap().is_new());
        }
        accepted += 50;
    }
    accepted
}

/// Sends messages inline, each until it is acknowledged; which.
async fn call(
    caller: usize,
    inbox: Arc<Mutex<Inbox<PostgresStore>>>,
    watch: Watch,
    stop: Arc<AtomicBool>,
) -> BTreeSet<String> {
    let mut sent = BTreeSet::new();
    for number in 0.. {
        if stop.load(Ordering::SeqCst) {
            break;
        }
        let way = format!("inline-{caller}");
        sent.insert(format!("{way}-{number}"));
        loop {
            let current = inbox.lock().unwrap().clone();
            match current.process(sale(&way, number)).await {
                Ok(report) if report.settlement() == Settlement::Ack => break,
                Ok(report) => {
                    let outcome = report.outcome(INLINE).unwrap();
                    assert!(matches!(outcome, Outcome::Retry { .. } | Outcome::Busy), "{outcome:?}");
                    watch.0.retries.fetch_add(1, Ordering::SeqCst);
                }
                // It was replaced meanwhile.
                Err(error) if error.kind() == ErrorKind::Closed => {}
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
                    watch.0.retries.fetch_add(1, Ordering::SeqCst);
                }
            }
            assert!(!stop.load(Ordering::SeqCst), "{way}-{number} is never acknowledged");
            tokio::time::sleep(POLL).await;
        }
    }
    sent
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_column_spends_no_attempt() {
    let Some(postgres) = as_owner("a_new_column_spends_no_attempt").await else { return };
    let mut load = DeployLoad::start(postgres.database.url(), NO_SECOND_TRY).await;
    for round in 0..judged(50) {
        // One that `select *` reads, and one that is only written to.
        load.run(format!("alter table tariff add column extra_{round} text")).await;
        load.run(format!("alter table booking add column extra_{round} text")).await;
        load.goes_on("since there are new columns").await;
    }
    let (report, watch) = load.end().await;
    assert_eq!((report.failed, report.dead), (0, 0), "failures and dead letters, from the log");
    assert_eq!(watch.0.second_tries.load(Ordering::SeqCst), 0, "tries beyond the first");
    assert_eq!(watch.0.retries.load(Ordering::SeqCst), 0, "retries by callers");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_prepared_statements_spend_no_attempt() {
    let Some(postgres) = as_owner("lost_prepared_statements_spend_no_attempt").await else { return };
    let mut load = DeployLoad::start(postgres.database.url(), NO_SECOND_TRY).await;
    for _ in 0..judged(50) {
        load.watch.0.deallocations.store(4, Ordering::SeqCst);
        load.goes_on("since sessions have lost their prepared statements").await;
        assert_eq!(load.watch.0.deallocations.load(Ordering::SeqCst), 0);
    }
    let (report, _) = load.end().await;
    assert_eq!((report.failed, report.dead), (0, 0), "failures and dead letters, from the log");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deploy_with_schema_changes_loses_and_doubles_nothing() {
    let Some(postgres) = as_owner("a_deploy_with_schema_changes").await else { return };
    let mut load = DeployLoad::start(postgres.database.url(), PATIENT).await;
    for round in 0..judged(20) {
        load.run(format!("alter table tariff add column extra_{round} text")).await;
        load.goes_on("since there is a new column").await;
        let (from, to) = if round % 2 == 0 { ("remark", "comment") } else { ("comment", "remark") };
        load.run(format!("alter table tariff rename column {from} to {to}")).await;
        load.goes_on("since a column has another name").await;
        load.run(format!("create index booking_{round} on booking (sale)")).await;
        load.goes_on("since there is a new index").await;
        load.run(format!("begin; drop function price(bigint); {FUNCTION}; commit")).await;
        load.goes_on("since a function was replaced").await;

        let before = load.watch.0.without_function.load(Ordering::SeqCst);
        load.run("drop function price(bigint)").await;
        let started = Instant::now();
        while load.watch.0.without_function.load(Ordering::SeqCst) == before {
            tokio::time::sleep(POLL).await;
            assert!(started.elapsed() < STUCK, "no handler has called the function");
        }
        load.run(FUNCTION).await;
        load.goes_on("since a function was gone for a moment").await;

        load.watch.0.deallocations.store(4, Ordering::SeqCst);
        load.goes_on("since sessions have lost their prepared statements").await;
        load.replace().await;
        load.goes_on("since a process was replaced").await;
    }
    assert_eq!(load.end().await.0.dead, 0);
}

/// The driver's thread panics on a cached `select *` that has another column by now, and may leave the answer to a rollback
/// open without end. Such a connection must not keep the writer's lock, or every process on the database stops.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_column_stops_no_handler_on_sqlite() {
    const ROUNDS: usize = 20;
    const SALES: usize = 20;
    let sqlite = crate::sqlite::in_a_file("a_new_column").await.unwrap();
    let handler = async |sale: Sale, db: &mut SqliteConnection| -> Result<(), sqlx::Error> {
        let insert = sqlx::query("insert into effect (name) values (?)").bind(&sale.id);
        insert.execute(&mut *db).await?;
        sqlx::query("select * from effect limit 1").fetch_one(&mut *db).await.map(drop)
    };
    let inbox = Inbox::builder(sqlite.store()).on(INLINE, handler).build().await.unwrap();
    let mut other = SqliteConnection::connect(&sqlite.path()).await.unwrap();
    for round in 0..ROUNDS {
        let until_done = async |number: usize| {
            // The handler finds no row, and fails.
            while inbox.process(sale(&format!("round-{round}"), number)).await.unwrap().settlement()
                != Settlement::Ack
            {}
        };
        let done = join_all((0..SALES).map(until_done));
        tokio::time::timeout(STUCK, done).await.unwrap_or_else(|_elapsed| panic!("stuck in round {round}"));
        let column = AssertSqlSafe(format!("alter table effect add column extra_{round} text"));
        other.execute(sqlx::raw_sql(column)).await.unwrap();
    }
    let effects = sqlx::query_as("select count(*), count(distinct name) from effect").persistent(false);
    let effects: (i64, i64) = effects.fetch_one(&mut other).await.unwrap();
    assert_eq!(effects, ((ROUNDS * SALES) as i64, (ROUNDS * SALES) as i64));
}
