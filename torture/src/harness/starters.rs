//! Many processes that start at once where there is no table yet.

use std::time::Duration;

use anyhow::Result;
use oncebox_servers::process::Signal;
use oncebox_torture::plan::{Mode, Plan};
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout_at};

use crate::checker::STARTERS;
use crate::history::Event;
use crate::run::Run;
use crate::workers::{Heard, Start, Worker};

/// Numbers that the source never gives to messages.
const FIRST_ID: u64 = 1 << 40;
const LIMIT: Duration = Duration::from_secs(120);

/// Starts them, lets all of them take the same message, and writes down what came of it.
pub(crate) async fn start(run: &mut Run) -> Result<()> {
    let number = run.starters;
    run.starters += 1;
    let id = FIRST_ID + number as u64;
    let (url, schema) = run.database.empty_place(number).await?;
    let plan = Plan { mode: Mode::Inline, ..run.plan };
    let start =
        Start { url, schema, plan, connections: 2, environment: Vec::new(), log: run.log().to_owned() };
    let (hear, mut heard) = mpsc::unbounded_channel();
    let mut workers = Vec::new();
    for starter in 0..usize::try_from(STARTERS)? {
        workers.push(Worker::start(starter, &start, hear.clone())?);
    }
    drop(hear);
    let deadline = Instant::now() + LIMIT;
    let (mut ready, mut settled) = (0, 0);
    while let Ok(Some(Heard { worker, line })) = timeout_at(deadline, heard.recv()).await {
        let line = line.unwrap_or_default();
        match line.split(' ').collect::<Vec<_>>()[..] {
            ["ready"] => {
                ready += 1;
                // The third try is one that works.
                workers[worker].tell(&format!("deliver {id} 3"));
            }
            ["settled", _, "ack", ..] => {
                settled += 1;
                workers[worker].signal(Signal::TERM);
            }
            ["settled", ..] => workers[worker].tell(&format!("deliver {id} 3")),
            _ => {}
        }
    }
    for worker in workers {
        worker.signal(Signal::KILL);
        worker.ended().await?;
    }
    let effects = run.database.clear_place(number, id).await?;
    let ready = if settled == STARTERS { ready } else { settled.min(ready) };
    run.history.write(&Event::Started { ready, effects: u64::try_from(effects)? })
}
