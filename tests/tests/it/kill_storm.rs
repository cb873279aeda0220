//! Processes and the database are killed again and again: every handler goes on between two kills, and every message is
//! handled once.
//!
//! With `ONCEBOX_FULL` and `--nocapture` the storm lasts a minute and prints the rate in windows of five seconds, beside the
//! undisturbed one. No verdict depends on it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use oncebox::store::Select;
use oncebox::{Envelope, Inbox, PostgresStore};
use oncebox_servers::postgres::{PostgresOptions, PostgresServer};
use tokio::task::JoinHandle;

use crate::every_store::judged;
use crate::worker::LogWorker;

/// The handlers that write effects.
const HANDLERS: [&str; 3] = ["books", "ledger", "statement"];
/// Worker processes, and the workers in each.
const PROCESSES: usize = 4;
const WORKERS: usize = 2;
const LANES: u16 = 8;
/// One kill of a worker in this time; one in `SERVER_EVERY` is followed by a kill of the server.
const KILL_EVERY: Duration = Duration::from_secs(1);
const SERVER_EVERY: usize = 12;
/// The first kills find workers that are not all at work yet.
const FIRST_KILLS: usize = 2;
/// Messages that wait for each handler, as many as the source lets there be.
const BACKLOG: u64 = 4_000;
const BATCH: usize = 200;
/// Messages with the same ordering key are this far apart.
const ACCOUNTS: usize = 97;
/// Longer than any step takes on a busy machine, and half of the long lease.
const STUCK: Duration = Duration::from_secs(300);
const POLL: Duration = Duration::from_millis(20);
const WINDOW: Duration = Duration::from_secs(5);

/// A server that can be killed, with a log.
struct KillableServer {
    server: PostgresServer,
    inbox: Inbox<PostgresStore>,
    store: PostgresStore,
}

impl KillableServer {
    /// Starts one, unless there is none at all on this machine.
    async fn start(test: &str) -> Option<Self> {
        // The test that starts the common server knows whether there is one at all.
        crate::postgres::as_owner(test).await?;
        let server = PostgresServer::start(PostgresOptions::default()).await.unwrap();
        let store = PostgresStore::connect(&server.url()).await.unwrap();
        store.migrate().await.unwrap();
        sqlx::query("create table effect (name text not null)").execute(store.pool()).await.unwrap();
        let inbox = Inbox::builder(store.clone()).stored().lanes(LANES).build().await.unwrap();
        Some(Self { server, inbox, store })
    }

    async fn worker(&self, role: &str) -> LogWorker {
        LogWorker::start(&self.server.url(), role, 0, WORKERS).await
    }

    /// Accepts messages without a hurry to have them handled.
    async fn accept(&self, messages: std::ops::Range<usize>) {
        for accept in self.inbox.accept_all(messages.map(envelope)).await {
            assert!(accept.unwrap().is_new());
        }
    }

    /// How many positions each handler has passed.
    async fn passed(&self) -> BTreeMap<String, u64> {
        loop {
            // While the server is away there is nothing to see.
            if let Ok(statuses) = self.inbox.operators().handler_statuses().await {
                return statuses.into_iter().map(|status| (status.handler.name, status.passed)).collect();
            }
            tokio::time::sleep(POLL).await;
        }
    }

    /// Waits until every handler has passed more than this.
    async fn goes_on(&self, before: &BTreeMap<String, u64>, since: &str) -> BTreeMap<String, u64> {
        let started = Instant::now();
        loop {
            let now = self.passed().await;
            if now.iter().all(|(name, passed)| before.get(name).is_none_or(|before| passed > before)) {
                return now;
            }
            assert!(started.elapsed() < STUCK, "a handler is stuck {since}: {before:?}, then {now:?}");
            tokio::time::sleep(POLL).await;
        }
    }

    /// Waits until any handler has passed more than this.
    async fn does_something(&self, before: &BTreeMap<String, u64>, worker: &str) -> BTreeMap<String, u64> {
        let started = Instant::now();
        loop {
            let now = self.passed().await;
            if now != *before {
                return now;
            }
            assert!(started.elapsed() < STUCK, "{worker} does nothing: {before:?}");
            tokio::time::sleep(POLL).await;
        }
    }

    /// Waits until no message is left.
    async fn drained(&self) {
        let (mut moved, mut left) = (Instant::now(), None);
        while left != Some((0, 0)) {
            tokio::time::sleep(POLL).await;
            let statuses = self.inbox.operators().handler_statuses().await.unwrap();
            let now = statuses.iter().fold((0, 0), |(lag, tasks), of| (lag + of.lag, tasks + of.tasks));
            if left != Some(now) {
                (moved, left) = (Instant::now(), Some(now));
            }
            assert!(moved.elapsed() < STUCK, "messages and tasks are left, and nothing moves: {left:?}");
        }
    }

    /// No message is dead, and each was handled once by every handler.
    async fn handled_once(&self, messages: usize) {
        let mut dead = BTreeMap::<String, usize>::new();
        for letter in self.inbox.operators().dead_letters(Select::all(), 10_000).await.unwrap() {
            *dead.entry(format!("{}: {}", letter.handler, letter.error)).or_default() += 1;
        }
        assert_eq!(dead, BTreeMap::new(), "dead letters");
        let effects: Vec<(String, i64)> = sqlx::query_as("select name, count(*) from effect group by name")
            .fetch_all(self.store.pool())
            .await
            .unwrap();
        let doubled: Vec<_> = effects.iter().filter(|(_, times)| *times > 1).take(10).collect();
        assert!(doubled.is_empty(), "doubled: {doubled:?}");
        let effects: BTreeMap<String, i64> = effects.into_iter().collect();
        let all =
            HANDLERS.into_iter().flat_map(|name| (0..messages).map(move |n| format!("{name} {}", id(n))));
        let lost: Vec<_> = all.filter(|name| !effects.contains_key(name)).take(10).collect();
        assert!(lost.is_empty(), "lost: {lost:?}");
        assert_eq!(effects.len(), HANDLERS.len() * messages);
    }
}

fn id(number: usize) -> String {
    format!("m-{number}")
}

fn envelope(number: usize) -> Envelope {
    let id = id(number);
    let body = format!("{{\"id\": \"{id}\"}}");
    Envelope::new("delivery", body).with_key(id).with_order_by(format!("account {}", number % ACCOUNTS))
}

/// Accepts messages for as long as the handlers keep up, whatever happens to the server; how many.
fn keep_busy(inbox: Inbox<PostgresStore>, stop: Arc<AtomicBool>) -> JoinHandle<usize> {
    tokio::spawn(async move {
        let mut accepted = 0;
        while !stop.load(Ordering::SeqCst) {
            let statuses = inbox.operators().handler_statuses().await.unwrap_or_default();
            if statuses.is_empty() || statuses.iter().any(|status| status.lag > BACKLOG) {
                tokio::time::sleep(POLL).await;
                continue;
            }
            let mut open: Vec<usize> = (accepted..accepted + BATCH).collect();
            while !open.is_empty() {
                let answers = inbox.accept_all(open.iter().map(|&number| envelope(number))).await;
                // The server may be away: whatever was not answered is sent again.
                open = open.into_iter().zip(answers).filter(|(_, it)| it.is_err()).map(|(n, _)| n).collect();
            }
            accepted += BATCH;
        }
        accepted
    })
}

/// How many positions all handlers together had passed at which time.
type Samples = Vec<(Instant, u64)>;

fn sample(server: &KillableServer, stop: Arc<AtomicBool>) -> JoinHandle<Samples> {
    let inbox = server.inbox.clone();
    tokio::spawn(async move {
        let mut samples = Vec::new();
        while !stop.load(Ordering::SeqCst) {
            if let Ok(statuses) = inbox.operators().handler_statuses().await {
                samples.push((Instant::now(), statuses.iter().map(|status| status.passed).sum()));
            }
            tokio::time::sleep(POLL * 10).await;
        }
        samples
    })
}

/// Positions per second between two times.
#[allow(clippy::cast_precision_loss, reason = "a rate of three digits")]
fn rate(samples: &Samples, from: Instant, to: Instant) -> f64 {
    let at = |time: Instant| {
        samples.iter().rev().find(|(taken, _)| *taken <= time).map_or(0, |(_, passed)| *passed)
    };
    at(to).saturating_sub(at(from)) as f64 / to.duration_since(from).as_secs_f64()
}

#[allow(clippy::print_stdout, reason = "a measurement, shown on demand")]
fn print_rates(samples: &Samples, undisturbed: f64, began: Instant, ended: Instant) {
    println!("undisturbed: {undisturbed:.0} handler runs per second");
    let mut from = began;
    while from + WINDOW <= ended {
        let of_window = rate(samples, from, from + WINDOW);
        let share = 100.0 * of_window / undisturbed;
        println!("{:>4} s: {of_window:.0} per second, {share:.0} %", from.duration_since(began).as_secs());
        from += WINDOW;
    }
    let whole = rate(samples, began, ended);
    println!(
        "the whole storm of {:?}: {whole:.0} per second, {:.0} %",
        ended.duration_since(began),
        100.0 * whole / undisturbed
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_storm_of_kills_loses_and_doubles_nothing_and_every_handler_goes_on() {
    let Some(mut server) = KillableServer::start("a_storm_of_kills").await else { return };
    let mut workers = Vec::new();
    for _ in 0..PROCESSES {
        workers.push(server.worker("storm").await);
    }
    let stop = Arc::<AtomicBool>::default();
    let source = keep_busy(server.inbox.clone(), stop.clone());
    let sampling = sample(&server, stop.clone());
    let mut passed = server.goes_on(&server.passed().await, "from the beginning").await;
    let undisturbed_from = Instant::now();
    // Two windows, or a tenth of that.
    tokio::time::sleep(WINDOW / 5 * u32::try_from(judged(10)).unwrap()).await;
    let began = Instant::now();

    let kills = judged(60);
    for kill in 0..kills {
        let next = Instant::now() + KILL_EVERY;
        let victim = kill % PROCESSES;
        workers.remove(victim).kill().await;
        workers.insert(victim, server.worker("storm").await);
        if kill % SERVER_EVERY == SERVER_EVERY / 3 {
            server.server.kill().unwrap();
            server.server.restart().await.unwrap();
        }
        if kill < FIRST_KILLS {
            passed = server.passed().await;
        } else {
            passed = server.goes_on(&passed, &format!("since kill {kill}")).await;
        }
        tokio::time::sleep_until(next.into()).await;
    }
    let ended = Instant::now();
    stop.store(true, Ordering::SeqCst);
    let accepted = source.await.unwrap();
    let samples = sampling.await.unwrap();
    print_rates(&samples, rate(&samples, undisturbed_from, began), began, ended);
    server.drained().await;
    for worker in workers {
        worker.stop().await;
    }
    server.handled_once(accepted).await;
}

/// The lease is ten minutes: nothing here waits for it to expire, since the processes are on the same host.
async fn killed_twice(test: &str, role: &str) {
    let Some(server) = KillableServer::start(test).await else { return };
    let messages = judged(20_000);
    // The handlers have to be known before there is something to wait for.
    server.worker(role).await.stop().await;
    let before = server.passed().await;
    server.accept(0..messages).await;
    let worker = server.worker(role).await;
    let before = server.goes_on(&before, "from the beginning").await;
    worker.kill().await;
    // On a fast machine a handler may have nothing left to do by now.
    server.accept(messages..messages + BATCH).await;
    // The second one is killed as soon as it has done anything.
    let worker = server.worker(role).await;
    let before = server.does_something(&before, "the second worker").await;
    worker.kill().await;
    server.accept(messages + BATCH..messages + 2 * BATCH).await;
    let worker = server.worker(role).await;
    server.goes_on(&before, "since its process was killed twice").await;
    server.drained().await;
    worker.stop().await;
    server.handled_once(messages + 2 * BATCH).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lanes_of_a_worker_that_is_killed_twice_wait_for_no_lease() {
    killed_twice("killed_twice", "storm_leased").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn detached_messages_of_a_worker_that_is_killed_twice_wait_for_no_lease() {
    killed_twice("killed_twice_detached", "storm_detached").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_workers_that_live_shortly_get_work_done() {
    // One fewer than the crashes that make a message a dead letter: each kill may meet the same message again.
    const LIVES: usize = 3;
    let Some(server) = KillableServer::start("three_workers_that_live_shortly").await else { return };
    let messages = judged(20_000);
    server.worker("storm_leased").await.stop().await;
    let mut passed = server.passed().await;
    server.accept(0..messages).await;
    for life in 0..LIVES {
        // On a fast machine the life before may have left nothing to do.
        server.accept(messages + life * BATCH..messages + (life + 1) * BATCH).await;
        let worker = server.worker("storm_leased").await;
        passed = server.does_something(&passed, &format!("worker {life}")).await;
        worker.kill().await;
    }
    let worker = server.worker("storm_leased").await;
    server.drained().await;
    worker.stop().await;
    server.handled_once(messages + LIVES * BATCH).await;
}
