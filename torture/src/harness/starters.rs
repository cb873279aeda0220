//! Many processes that start at once on an empty database.

use std::time::Duration;

use anyhow::{Context, Result};
use oncebox_servers::process::Signal;
use oncebox_torture::event::TortureEvent;
use oncebox_torture::protocol::{WorkerCommand, WorkerReport};
use oncebox_torture::scenario::{Scenario, TortureMode};
use oncebox_workload::deliverer::DeliveryResult;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout_at};

use crate::checker::STARTERS;
use crate::run::Run;
use crate::workers::{Worker, WorkerOutput, WorkerSettings};

/// A number that the source never gives to messages.
const FIRST_MESSAGE: u64 = 1 << 40;
const LIMIT: Duration = Duration::from_secs(120);

/// Starts them, delivers the same message to all of them, and adds the result to the history.
pub(crate) async fn start(run: &mut Run) -> Result<()> {
    let number = run.starters;
    run.starters += 1;
    let message = FIRST_MESSAGE + number as u64;
    let (url, schema) = run.database.create_empty(number).await?;
    let settings = WorkerSettings {
        url,
        schema,
        receiver: None,
        scenario: Scenario { mode: TortureMode::Inline, ..run.scenario },
        connections: 2,
        environment: Vec::new(),
        log: run.log().to_owned(),
    };
    let (output_sender, output) = mpsc::unbounded_channel();
    let mut workers = Vec::new();
    for starter in 0..usize::try_from(STARTERS)? {
        workers.push(Worker::start(starter, &settings, output_sender.clone())?);
    }
    // The channel closes when all of them have ended.
    drop(output_sender);
    let ready = deliver(&workers, output, message).await?;
    for worker in workers {
        // Those that never acknowledged are still running.
        worker.signal(Signal::KILL);
        worker.wait().await?;
    }
    let effects = run.database.remove_empty(number, message).await?;
    run.history.add(TortureEvent::Starters { ready, effects: u64::try_from(effects)? })
}

/// Delivers the message to each worker until it is acknowledged. Returns how many workers have acknowledged it.
async fn deliver(
    workers: &[Worker],
    mut output: mpsc::UnboundedReceiver<WorkerOutput>,
    message: u64,
) -> Result<u64> {
    // No failure is planned for the third copy.
    let delivery = WorkerCommand::Deliver { delivery: 1, message, copy: 3 };
    let deadline = Instant::now() + LIMIT;
    let mut acknowledged = 0;
    while let Ok(Some(WorkerOutput { worker, line })) = timeout_at(deadline, output.recv()).await {
        let Some(line) = line else { continue };
        let report = serde_json::from_str(&line);
        match report.with_context(|| format!("invalid line of starter {worker}: {line}"))? {
            WorkerReport::Settled { result: DeliveryResult::Ack, .. } => {
                acknowledged += 1;
                // Its end closes its output. The loop ends when the last output is closed.
                workers[worker].signal(Signal::TERM);
            }
            // Delivered again after a failure, as a source does.
            WorkerReport::Ready | WorkerReport::Settled { .. } => workers[worker].send(delivery)?,
            _ => {}
        }
    }
    Ok(acknowledged)
}
