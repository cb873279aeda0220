//! A worker process on the log for tests: takes a role, works, reads from standard input what else it is to do, and reports on
//! standard output.
//!
//! ```text
//! log_worker URL ROLE SEED WORKERS LEASE_MS
//! > process KEY      < settled KEY ack|retry|reject OUTCOME
//! > accept KEY       < accepted KEY
//! > go KEY           lets the body of that key go on
//! > stop             < commits UNKNOWN RECOVERED   only in the roles that work through failovers
//!                    < report DONE FAILED DEAD LEASE_LOST
//! < begin KEY / < cancelled KEY / < end KEY
//! < again KEY        a try that was not the first, in the roles that work through failovers
//! ```
//!
//! Roles: `ordered`, `poison`, `poison_detached`, `poison_beside`, `held`, `mixed`, `spill`; `inline` and `stored` work through
//! failovers; `storm` works through kills with the default lease, `storm_leased` and `storm_detached` with a lease of ten minutes.
//! The role `relay` sends published messages to the receiver that listens on the port `SEED`.
//!
//! `SEED` decides by chance which tries fail.

mod effects;
mod relay;

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use metrics_util::debugging::{DebugValue, DebuggingRecorder, Snapshotter};
use oncebox::store::Store;
use oncebox::{
    Attempt, BoxError, Cancellation, Envelope, Failure, Inbox, InboxBuilder, LogStore, Message, Mode,
    PostgresStore, Retry, Settlement, SqliteStore, WorkReport,
};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::sync::{oneshot, watch};

use crate::effects::{Effects, say};

/// A lease that no test outlives.
const LONG_LEASE: Duration = Duration::from_secs(600);
/// The handlers of the storm, the last one in order.
const STORM: [&str; 3] = ["books", "ledger", "statement"];
const STORM_LANES: u16 = 8;

#[derive(Serialize, Deserialize, Message)]
#[message(kind = "delivery", key = "id")]
struct LogMessage {
    id: String,
    /// Kills its process, or cannot be handled until it is healed.
    #[serde(default)]
    poison: bool,
}

/// What decides by chance whether a try fails: the same for the same try.
#[derive(Clone, Copy)]
struct Fate(u64);

impl Fate {
    /// Some tries of some messages, and never the fourth one.
    fn strikes(self, id: &str, attempt: u32) -> bool {
        let mut hash = DefaultHasher::new();
        (self.0, id, attempt).hash(&mut hash);
        attempt <= 3 && hash.finish().is_multiple_of(4)
    }
}

/// Keys whose bodies may go on.
#[derive(Clone, Default)]
struct Gates(Arc<Mutex<HashMap<String, watch::Sender<bool>>>>);

impl Gates {
    fn of(&self, key: &str) -> watch::Sender<bool> {
        let mut gates = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        gates.entry(key.to_owned()).or_default().clone()
    }

    fn open(&self, key: &str) {
        self.of(key).send_replace(true);
    }

    async fn pass(&self, key: &str) {
        // The sender is kept in the map.
        let _ = self.of(key).subscribe().wait_for(|open| *open).await;
    }
}

fn of_role<S: Effects + LogStore>(
    builder: InboxBuilder<S>,
    role: &str,
    fate: Fate,
    gates: Gates,
) -> Result<InboxBuilder<S>> {
    let shaky = async move |delivered: LogMessage,
                            Attempt(n): Attempt,
                            conn: &mut <S as Store>::Conn|
                -> Result<(), Failure> {
        let id = delivered.id;
        S::effect(conn, id.clone()).await?;
        match () {
            () if delivered.poison && !S::is_healed(conn, &id).await? => {
                Err(Failure::permanent("it can never work"))
            }
            () if fate.strikes(&id, n) => Err(BoxError::from("not this time").into()),
            () => Ok(()),
        }
    };
    let deadly = async |delivered: LogMessage, conn: &mut <S as Store>::Conn| -> Result<(), BoxError> {
        S::effect(conn, delivered.id).await?;
        if delivered.poison {
            std::process::abort();
        }
        Ok(())
    };
    let deadly_detached = |delivered: LogMessage| async move {
        say(&format!("begin {}", delivered.id));
        if delivered.poison {
            std::process::abort();
        }
        say(&format!("end {}", delivered.id));
        Ok::<(), BoxError>(())
    };
    // The killer waits until another one is under way, and that one does not end before its process does.
    let another = watch::Sender::new(false);
    let deadly_beside = move |delivered: LogMessage| {
        let another = another.clone();
        async move {
            say(&format!("begin {}", delivered.id));
            if delivered.poison {
                another.subscribe().wait_for(|begun| *begun).await?;
                std::process::abort();
            }
            another.send_replace(true);
            std::future::pending::<Result<(), BoxError>>().await
        }
    };
    let held = move |delivered: LogMessage, cancellation: Cancellation| {
        let gates = gates.clone();
        async move {
            say(&format!("begin {}", delivered.id));
            let id = delivered.id.clone();
            let told = tokio::spawn(async move {
                cancellation.cancelled().await;
                say(&format!("cancelled {id}"));
            });
            gates.pass(&delivered.id).await;
            told.abort();
            say(&format!("end {}", delivered.id));
            Ok::<(), BoxError>(())
        }
    };
    let steady = async |delivered: LogMessage,
                        Attempt(n): Attempt,
                        conn: &mut <S as Store>::Conn|
           -> Result<(), BoxError> {
        if n > 1 {
            say(&format!("again {}", delivered.id));
        }
        Ok(S::effect(conn, delivered.id).await?)
    };
    if role.starts_with("storm") {
        return Ok(of_storm(builder, role));
    }
    Ok(match role {
        "inline" => builder.on("h", steady),
        "stored" => builder.stored().on("h", steady),
        "ordered" => builder.stored().on_with("h", shaky, |options| options.ordered()),
        "poison" => builder.stored().on("h", deadly),
        "poison_detached" => builder.stored().on_with("h", deadly_detached, |options| options.detached()),
        "poison_beside" => {
            builder.stored().on_with("h", deadly_beside, |options| options.detached().concurrency(1_000))
        }
        "held" => builder.stored().on_with("h", held, |options| options.detached()),
        "mixed" => builder.mode(Mode::mixed()).on("h", shaky),
        "spill" => builder.mode(Mode::inline().spill()).on("h", shaky),
        _ => bail!("there is no role {role}"),
    })
}

/// Three handlers on every message; the role `storm_detached` has one more, which is detached.
fn of_storm<S: Effects + LogStore>(builder: InboxBuilder<S>, role: &str) -> InboxBuilder<S> {
    let handler = |name: &'static str| {
        async move |delivered: LogMessage, conn: &mut <S as Store>::Conn| -> Result<(), BoxError> {
            Ok(S::effect(conn, format!("{name} {}", delivered.id)).await?)
        }
    };
    let [books, ledger, statement] = STORM;
    let builder = if role == "storm" { builder } else { builder.lease(LONG_LEASE) };
    let builder = builder.stored().lanes(STORM_LANES).on(books, handler(books)).on(ledger, handler(ledger));
    let builder = builder.on_with(statement, handler(statement), |options| options.ordered());
    if role != "storm_detached" {
        return builder;
    }
    let mail = |delivered: LogMessage| async move {
        // Long enough to be in flight when its process is killed.
        tokio::time::sleep(Duration::from_millis(5)).await;
        drop(delivered);
        Ok::<(), BoxError>(())
    };
    builder.on_with("mail", mail, |options| options.detached())
}

/// How often the answer to a commit was lost, and how often that commit turned out to have happened.
fn commits(snapshotter: &Snapshotter) -> String {
    let counts = snapshotter.snapshot().into_vec();
    let count = |name: &str| -> u64 {
        let of_name = counts.iter().filter(|(key, ..)| key.key().name() == name);
        of_name.map(|(.., value)| if let DebugValue::Counter(count) = value { *count } else { 0 }).sum()
    };
    let [unknown, recovered] =
        ["oncebox_commits_unknown_total", "oncebox_commits_recovered_total"].map(count);
    format!("commits {unknown} {recovered}")
}

/// What the parent sends.
fn envelope(id: &str, attempt: u32) -> Result<Envelope> {
    Ok(Envelope::of(&LogMessage { id: id.to_owned(), poison: false })?.with_attempt(attempt))
}

async fn process<S: LogStore>(inbox: &Inbox<S>, key: &str, attempt: u32) -> Result<String> {
    Ok(match inbox.process(envelope(key, attempt)?).await {
        Ok(report) => {
            let settlement = match report.settlement() {
                Settlement::Ack => "ack",
                Settlement::Retry { .. } => "retry",
                Settlement::Reject => "reject",
            };
            let outcome = report.outcome("h").map_or("unhandled", |outcome| outcome.name());
            format!("settled {key} {settlement} {outcome}")
        }
        Err(error) => format!("settled {key} retry {:?}", error.kind()),
    })
}

async fn accept<S: LogStore>(inbox: &Inbox<S>, key: &str) -> Result<String> {
    Ok(match inbox.accept(envelope(key, 1)?).await {
        Ok(_) => format!("accepted {key}"),
        Err(error) => format!("refused {key} {:?}", error.kind()),
    })
}

async fn work<S: Effects + LogStore>(
    store: S,
    role: &str,
    seed: u64,
    workers: usize,
    lease: Duration,
) -> Result<()> {
    let retry = Retry::new()
        .max_attempts(100)
        .first_delay(Duration::from_millis(10))
        .max_delay(Duration::from_millis(10));
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    recorder.install()?;
    let builder = Inbox::builder(store).retry(retry).workers(workers);
    let is_storm = role.starts_with("storm");
    let builder = if is_storm { builder } else { builder.lease(lease).work_batch(20) };
    let gates = Gates::default();
    let builder = builder.poll_every(Duration::from_millis(50));
    let inbox = of_role(builder, role, Fate(seed), gates.clone())?.build().await?;
    let through_failovers = ["inline", "stored"].contains(&role);
    let (stop, stopped) = oneshot::channel::<()>();
    let working = tokio::spawn({
        let inbox = inbox.clone();
        let is_inline = role == "inline";
        async move {
            if is_inline {
                let _ = stopped.await;
                return Ok(WorkReport::default());
            }
            inbox.run(async { drop(stopped.await) }).await
        }
    });
    say("ready");

    let mut attempts = HashMap::<String, u32>::new();
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    while let Some(line) = lines.next_line().await? {
        match line.split(' ').collect::<Vec<_>>()[..] {
            ["process", key] => {
                let attempt = attempts.entry(key.to_owned()).or_default();
                *attempt += 1;
                let (inbox, key, attempt) = (inbox.clone(), key.to_owned(), *attempt);
                tokio::spawn(async move { process(&inbox, &key, attempt).await.map(|line| say(&line)) });
            }
            ["accept", key] => {
                let (inbox, key) = (inbox.clone(), key.to_owned());
                tokio::spawn(async move { accept(&inbox, &key).await.map(|line| say(&line)) });
            }
            ["go", key] => gates.open(key),
            ["stop"] => {
                let _ = stop.send(());
                let report = working.await??;
                inbox.close().await;
                if through_failovers {
                    say(&commits(&snapshotter));
                }
                say(&format!(
                    "report {} {} {} {}",
                    report.done, report.failed, report.dead, report.lease_lost
                ));
                return Ok(());
            }
            _ => bail!("not understood: {line}"),
        }
    }
    Ok(())
}

#[tokio::main]
async fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [url, role, seed, workers, lease] = &arguments[..] else {
        bail!("usage: log_worker URL ROLE SEED WORKERS LEASE_MS");
    };
    let seed: u64 = seed.parse().context("the seed")?;
    let workers = workers.parse().context("the number of workers")?;
    let lease = Duration::from_millis(lease.parse().context("the lease")?);
    if role == "relay" {
        let port = u16::try_from(seed).context("the port")?;
        return match url.starts_with("postgres:") {
            true => relay::run(PostgresStore::connect(url).await?, port, lease).await,
            false => relay::run(SqliteStore::connect(url).await?, port, lease).await,
        };
    }
    match url.starts_with("postgres:") {
        true => work(PostgresStore::connect(url).await?, role, seed, workers, lease).await,
        false => work(SqliteStore::connect(url).await?, role, seed, workers, lease).await,
    }
}
