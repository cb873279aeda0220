//! The process that faults happen to: takes deliveries from standard input and answers on standard output.
//!
//! ```text
//! torture-worker URL MODE SEED POOL SCHEMA
//! > deliver ID ATTEMPT       < settled ID ack|retry|reject WORD
//! > die POINT                kills itself at the next passage of the point
//! > lose N                   loses the answers of the next N commits
//! > cancel N                 drops the next N calls half way
//! > deallocate N             the next N handler calls drop the prepared statements of their session: < deallocated
//! > heal                     what failed for good works from now on
//! > revive                   < dead ID HANDLER ERROR for each dead letter, < revived N: they are tried again
//! > status                   < status WAITING TASKS DEAD
//! > clock                    < clock SECONDS, as this process reads it
//! < body ID HANDLER ENTER LEAVE      a body, and when its transaction was open for certain
//! < unknown N / < recovered N
//! ```
//!
//! `SIGTERM` lets it finish what is in hand.

#![allow(clippy::print_stderr, reason = "a program that speaks to a person")]

mod calls;
mod effects;
mod handlers;
mod points;
mod say;
mod stores;

use std::convert::Infallible;
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, bail};
use oncebox::store::Select;
use oncebox::{Inbox, InboxBuilder, Mode as InboxMode, Retry};
use oncebox_testing::Faulty;
use oncebox_torture::plan::{LEASE, Mode, Plan};
use oncebox_torture::point::KillPoint;
use rustix::process::{Signal, set_parent_process_death_signal};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tracing_subscriber::EnvFilter;

use crate::calls::Calls;
use crate::effects::Effects;
use crate::handlers::{Scene, with_handlers};
use crate::points::Points;
use crate::say::{Telling, say};

const LANES: u16 = 8;
const BATCH: usize = 32;
/// The maximum number of dead letters that are reported and revived at once.
const LETTERS: u32 = 500;

type Store<S> = Faulty<S, Points>;

#[tokio::main]
async fn main() {
    if let Ok(filter) = EnvFilter::try_from_env("ONCEBOX_LOG") {
        tracing_subscriber::fmt()
            .with_env_filter(filter)
            .with_writer(std::io::stderr)
            .with_ansi(false)
            .init();
    }
    let Err(error) = start().await;
    eprintln!("{error:?}");
    end(1)
}

/// Ends at once: the thread that reads standard input would be waited for.
fn end(code: i32) -> ! {
    std::process::exit(code)
}

async fn start() -> Result<Infallible> {
    // Even a stopped worker goes with its harness.
    set_parent_process_death_signal(Some(Signal::KILL)).context("tying this process to its parent")?;
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [url, mode, seed, pool, schema] = &arguments[..] else {
        bail!("usage: torture-worker URL MODE SEED POOL SCHEMA");
    };
    let mode = Mode::named(mode).with_context(|| format!("there is no mode {mode}"))?;
    let plan = Plan { mode, seed: seed.parse().context("the seed")? };
    let pool = pool.parse().context("the size of the pool")?;
    metrics::set_global_recorder(Telling).ok().context("counting unknown commits")?;
    match url.starts_with("postgres:") {
        true => work(stores::postgres(url, pool, schema).await?, plan).await,
        false => work(stores::sqlite(url, pool).await?, plan).await,
    }
}

async fn work<S: Effects>(store: S, plan: Plan) -> Result<Infallible> {
    let points = Points::default();
    let scene = Scene::new(plan, points.clone());
    let builder = Inbox::builder(Faulty::new(store, points.clone()));
    let inbox = with_handlers::<S>(in_mode(builder, plan.mode), &scene).build().await?;
    let (stop, stopped) = watch::channel(false);
    let working = (plan.mode != Mode::Inline).then(|| {
        let (inbox, mut stopped) = (inbox.clone(), stopped.clone());
        tokio::spawn(
            async move { inbox.run(async move { drop(stopped.wait_for(|stop| *stop).await) }).await },
        )
    });
    let mut terminated = signal(SignalKind::terminate()).context("listening to signals")?;
    let mut calls = Calls::new(inbox.clone(), plan, points.clone());
    say("ready");

    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    loop {
        let line = tokio::select! {
            line = lines.next_line() => line?,
            _ = terminated.recv() => break,
        };
        let Some(line) = line else { break };
        match line.split(' ').collect::<Vec<_>>()[..] {
            ["deliver", id, attempt] => calls.begin(id.parse()?, attempt.parse()?)?,
            ["die", point] => points.die_at(KillPoint::named(point).context("a point to die at")?),
            ["lose", commits] => points.lose_answers(commits.parse()?),
            ["cancel", number] => calls.cancel(number.parse()?),
            ["deallocate", calls] => points.deallocate(calls.parse()?),
            ["heal"] => scene.heal(),
            ["revive"] => revive(&inbox).await,
            ["status"] => tell_status(&inbox).await,
            ["clock"] => {
                let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
                say(&format!("clock {}", now.as_secs()));
            }
            _ => bail!("not understood: {line}"),
        }
    }
    calls.finish().await;
    stop.send_replace(true);
    if let Some(working) = working {
        working.await??;
    }
    inbox.close().await;
    end(0)
}

fn in_mode<S: Effects>(builder: InboxBuilder<Store<S>>, mode: Mode) -> InboxBuilder<Store<S>> {
    // The plan lets the third try work. An outage spends no try, so a few are enough: more would hide faults that do.
    let retry =
        Retry { max_attempts: 6, first: Duration::from_millis(20), longest: Duration::from_millis(200) };
    let builder = builder.lock_timeout(Duration::from_secs(2));
    let builder = match mode {
        Mode::Inline => return builder,
        Mode::Stored => builder.stored(),
        Mode::Spill => builder.mode(InboxMode::inline().spill()),
    };
    // After each death as many messages of every lane run one by one as fit into a batch.
    builder.retry(retry).lease(LEASE).poll_every(Duration::from_millis(100)).lanes(LANES).work_batch(BATCH)
}

async fn revive<S: Effects>(inbox: &Inbox<Store<S>>) {
    // The harness asks until nothing is left.
    let letters = inbox.operators().dead_letters(Select::all(), LETTERS).await.unwrap_or_default();
    let mut revived = 0;
    for letter in letters {
        let key = letter.key.map(|key| key.to_string()).unwrap_or_default();
        say(&format!("dead {key} {} {}", letter.handler, letter.error.replace('\n', " ")));
        // Those that were reported, and no others.
        let reported = Select::all().handler(letter.handler).at(letter.place);
        revived += inbox.operators().retry_dead(reported, "torture").await.unwrap_or_default();
    }
    say(&format!("revived {revived}"));
}

async fn tell_status<S: Effects>(inbox: &Inbox<Store<S>>) {
    match inbox.operators().handler_statuses().await {
        Ok(statuses) => {
            let sum = statuses
                .iter()
                .fold((0, 0, 0), |(lag, tasks, dead), of| (lag + of.lag, tasks + of.tasks, dead + of.dead));
            say(&format!("status {} {} {}", sum.0, sum.1, sum.2));
        }
        Err(error) => eprintln!("no status: {error}"),
    }
}
