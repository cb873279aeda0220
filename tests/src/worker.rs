//! A worker process for tests: reads deliveries from standard input, reports on standard output, and stops at a named
//! point if told to, so that it can be killed there.
//!
//! ```text
//! worker URL
//! > deliver KEY COPIES POINT     POINT: none | before_claim | in_body | before_commit | after_commit
//! < at POINT                     and then nothing more: it waits to be killed
//! < enter NANOS / < leave NANOS  the body's interval
//! < settled OUTCOME              once per copy
//! ```
//!
//! `worker URL stored` works on the log instead, with two handlers, until it is killed.

mod effects;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, bail};
use oncebox::store::Store;
use oncebox::{
    Attempt, BoxError, Envelope, Error, Failure, Inbox, LogStore, Message, PostgresStore, Retry, SqliteStore,
};
use oncebox_testing::{Faults, Faulty, Point};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, BufReader};

use crate::effects::{Effects, say};

#[derive(Serialize, Deserialize, Message)]
#[message(kind = "delivery", key = "id")]
struct WorkerMessage {
    id: String,
}

/// Where to stop and wait for the end.
#[derive(Clone, Default)]
struct Stop(Arc<Mutex<Option<&'static str>>>);

impl Stop {
    fn set(&self, point: Option<&'static str>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = point;
    }

    async fn at(&self, point: &'static str) {
        let here = *self.0.lock().unwrap_or_else(PoisonError::into_inner) == Some(point);
        if here {
            say(&format!("at {point}"));
            std::future::pending::<()>().await;
        }
    }
}

impl Faults for Stop {
    async fn at(&self, point: Point) -> Result<(), Error> {
        match point {
            Point::BeforeClaim => self.at("before_claim").await,
            Point::AfterClaim => {}
            Point::BeforeCommit => self.at("before_commit").await,
            Point::AfterCommit => self.at("after_commit").await,
        }
        Ok(())
    }
}

fn nanos() -> u128 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_nanos()
}

async fn work<S: Effects>(store: S) -> Result<()> {
    let stop = Stop::default();
    let inside = stop.clone();
    let handler =
        async move |delivered: WorkerMessage, conn: &mut <S as Store>::Conn| -> Result<(), BoxError> {
            say(&format!("enter {}", nanos()));
            S::effect(conn, delivered.id).await?;
            inside.at("in_body").await;
            tokio::time::sleep(Duration::from_millis(5)).await;
            say(&format!("leave {}", nanos()));
            Ok(())
        };
    let inbox = Inbox::builder(Faulty::new(store, stop.clone())).on("effect", handler).build().await?;
    say("ready");

    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    while let Some(line) = lines.next_line().await? {
        let words: Vec<&str> = line.split(' ').collect();
        let ["deliver", key, copies, point] = words[..] else { bail!("not understood: {line}") };
        let points = ["before_claim", "in_body", "before_commit", "after_commit"];
        stop.set(points.into_iter().find(|known| *known == point));
        let envelope = Envelope::of(&WorkerMessage { id: key.to_owned() })?;
        for _ in 0..copies.parse::<u32>().context("the number of copies")? {
            let (inbox, envelope) = (inbox.clone(), envelope.clone());
            tokio::spawn(async move {
                let outcome = match inbox.process(envelope).await {
                    Ok(report) => {
                        report.outcome("effect").map_or("unhandled", |outcome| outcome.name()).to_owned()
                    }
                    Err(error) => format!("error {error:?}"),
                };
                say(&format!("settled {outcome}"));
            });
        }
    }
    Ok(())
}

/// Works on the log: one handler that always can, and one that fails every tenth at first and every hundredth for good.
async fn work_on_log<S: Effects + LogStore>(store: S) -> Result<()> {
    let steady = async |delivered: WorkerMessage, conn: &mut <S as Store>::Conn| -> Result<(), BoxError> {
        Ok(S::effect(conn, format!("steady {}", delivered.id)).await?)
    };
    let shaky = async |delivered: WorkerMessage,
                       Attempt(n): Attempt,
                       conn: &mut <S as Store>::Conn|
           -> Result<(), Failure> {
        S::effect(conn, format!("shaky {}", delivered.id)).await?;
        match delivered.id.as_str() {
            id if id.ends_with("77") => Err(Failure::permanent("it can never work")),
            id if id.ends_with('3') && n == 1 => Err(BoxError::from("at first").into()),
            _ => Ok(()),
        }
    };
    let retry = Retry::new()
        .max_attempts(100)
        .first_delay(Duration::from_millis(5))
        .max_delay(Duration::from_millis(5));
    let builder =
        Inbox::builder(store).stored().retry(retry).poll_every(Duration::from_millis(20)).work_batch(20);
    let inbox = builder.on("steady", steady).on("shaky", shaky).build().await?;
    say("ready");
    inbox.run(std::future::pending()).await?;
    Ok(())
}

#[tokio::main]
async fn main() -> Result<()> {
    let url = std::env::args().nth(1).context("usage: worker URL [stored]")?;
    let stored = std::env::args().nth(2).as_deref() == Some("stored");
    match (url.starts_with("postgres:"), stored) {
        (true, false) => work(PostgresStore::connect(&url).await?).await,
        (false, false) => work(SqliteStore::connect(&url).await?).await,
        (true, true) => work_on_log(PostgresStore::connect(&url).await?).await,
        (false, true) => work_on_log(SqliteStore::connect(&url).await?).await,
    }
}
