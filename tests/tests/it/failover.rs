//! A primary that dies under load, and a standby that takes its place: nothing lost, nothing double.
//!
//! Both servers wait for a standby before they answer a commit. So between a promotion and the next standby no client can be told
//! anything new, and what is on the promoted server is what it had when the other one died.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use oncebox::PostgresStore;
use oncebox_servers::postgres::{PostgresOptions, PostgresPair, PostgresServer};
use sqlx::{Connection, PgConnection};
use tokio::task::JoinHandle;

use crate::every_store::judged;
use crate::worker::LogWorker;

/// Processes, each of which is sent every message.
const PROCESSES: usize = 3;
/// Messages that a process has in flight.
const IN_HAND: usize = 24;
/// Messages that must be answered between two kills.
const MESSAGES: usize = 150;
const POLL: Duration = Duration::from_millis(5);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_primary_that_dies_under_load_loses_and_doubles_nothing_inline() {
    work_through_failovers("a_primary_that_dies_under_load_inline", "inline").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_primary_that_dies_under_load_loses_and_doubles_nothing_stored() {
    work_through_failovers("a_primary_that_dies_under_load_stored", "stored").await;
}

/// What the sources have been told.
#[derive(Default)]
struct Reported {
    /// Messages that were answered at least once.
    answered: BTreeSet<String>,
    /// Answers, by what they said.
    answers: BTreeMap<String, usize>,
}

#[allow(clippy::print_stdout, reason = "shown with a failure, or on demand")]
async fn work_through_failovers(test: &str, role: &'static str) {
    // The test that starts the common server knows whether there is one at all.
    if crate::postgres::as_owner(test).await.is_none() {
        return;
    }
    let mut pair = PostgresPair::start(PostgresOptions::default()).await.unwrap();
    let store = PostgresStore::connect(&pair.url()).await.unwrap();
    store.migrate().await.unwrap();
    sqlx::query("create table effect (name text not null)").execute(store.pool()).await.unwrap();
    drop(store);

    let (told, stop) = (Arc::<Mutex<Reported>>::default(), Arc::<AtomicBool>::default());
    let mut sources = Vec::new();
    for _ in 0..PROCESSES {
        let worker = LogWorker::start(&pair.url(), role, 0, 2).await;
        sources.push(deliver(worker, role, told.clone(), stop.clone()));
    }
    let answered = || told.lock().unwrap().answered.len();
    for round in 0..judged(10).div_ceil(2) {
        let before = answered();
        while answered() < before + MESSAGES {
            tokio::time::sleep(POLL).await;
        }
        let old = pair.fail_over().await.unwrap();
        drop(old);
        let known: Vec<String> = told.lock().unwrap().answered.iter().cloned().collect();
        assert_eq!(
            missing(pair.primary(), role, &known).await,
            Vec::<String>::new(),
            "lost in round {round}"
        );
        println!("round {round}: {} were answered when the primary died", known.len());
        pair.add_standby().await.unwrap();
        let (standing, before) = (Instant::now(), answered());
        while answered() == before {
            tokio::time::sleep(POLL).await;
        }
        println!(
            "round {round}: the next answer came {:?} after there was a standby again",
            standing.elapsed()
        );
    }
    let before = answered();
    while answered() < before + MESSAGES {
        tokio::time::sleep(POLL).await;
    }
    stop.store(true, Ordering::SeqCst);

    let mut workers = Vec::new();
    for source in sources {
        workers.push(source.await.unwrap());
    }
    let (answered, answers) = {
        let told = told.lock().unwrap();
        (told.answered.clone(), told.answers.clone())
    };
    let mut conn = PgConnection::connect(&pair.primary().url()).await.unwrap();
    let mut effects = async || -> Vec<String> {
        sqlx::query_scalar("select name from effect order by name").fetch_all(&mut conn).await.unwrap()
    };
    while role == "stored" && effects().await.len() < answered.len() {
        tokio::time::sleep(POLL).await;
    }
    let mut commits = Vec::new();
    for worker in workers {
        let (said, [_, failed, dead, _]) = worker.stop().await;
        assert_eq!((failed, dead), (0, 0), "an outage is no handler's failure");
        commits.extend(said.into_iter().filter(|line| line.starts_with("commits ")));
    }
    println!("{} messages, answers {answers:?}, unknown and recovered: {commits:?}", answered.len());
    let expected: Vec<String> = answered.into_iter().collect();
    assert_eq!(effects().await, expected, "lost or doubled");
}

/// A source: sends every message twice, the second time when the first is under way, and each until it is answered.
fn deliver(
    mut worker: LogWorker,
    role: &'static str,
    told: Arc<Mutex<Reported>>,
    stop: Arc<AtomicBool>,
) -> JoinHandle<LogWorker> {
    let ask = if role == "inline" { "process" } else { "accept" };
    tokio::spawn(async move {
        let mut open = BTreeMap::<String, usize>::new();
        for n in 0.. {
            if stop.load(Ordering::SeqCst) && open.is_empty() {
                break;
            }
            if !stop.load(Ordering::SeqCst) {
                let key = format!("k-{n:06}");
                worker.tell(&format!("{ask} {key}")).await;
                worker.tell(&format!("{ask} {key}")).await;
                open.insert(key, 2);
            }
            let limit = if stop.load(Ordering::SeqCst) { 0 } else { IN_HAND };
            while open.len() > limit {
                let line = worker.line().await.expect("the process died by itself");
                let words: Vec<&str> = line.split(' ').collect();
                match words[..] {
                    ["settled", key, "ack", answer] | [answer @ "accepted", key] => {
                        let mut told = told.lock().unwrap();
                        *told.answers.entry(answer.to_owned()).or_default() += 1;
                        told.answered.insert(key.to_owned());
                        let left = open.get_mut(key).expect("it was asked");
                        *left -= 1;
                        if *left == 0 {
                            open.remove(key);
                        }
                    }
                    ["settled", key, "retry", why] | ["refused", key, why] => {
                        *told.lock().unwrap().answers.entry(why.to_owned()).or_default() += 1;
                        let key = key.to_owned();
                        worker.tell(&format!("{ask} {key}")).await;
                    }
                    // Inline that is the source's count.
                    ["again", _] if role == "inline" => {}
                    _ => panic!("{line}"),
                }
            }
        }
        worker
    })
}

/// Which of these messages a server does not know.
async fn missing(server: &PostgresServer, role: &str, keys: &[String]) -> Vec<String> {
    let mut conn = PgConnection::connect(&server.url()).await.unwrap();
    let known = match role {
        "inline" => {
            "select k from unnest($1::text[]) as k where not exists (select from effect where name = k)"
        }
        _ => {
            "select k from unnest($1::text[]) as k
             where not exists (select from oncebox.message m where m.key = oncebox.stored_key(convert_to(k, 'UTF8')))"
        }
    };
    sqlx::query_scalar(known).bind(keys).fetch_all(&mut conn).await.unwrap()
}
