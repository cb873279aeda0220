//! The sweeper: signs of life, and the removal of old markers, on a timer of its own.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::Error;
use crate::error::chain;
use crate::observe::Observer;
use crate::retention::{Retention, SweepReport, cutoff};
use crate::store::Upkeep;

/// The background task of an inbox; ends with it.
#[derive(Debug)]
pub(crate) struct Sweeper {
    task: JoinHandle<()>,
    trouble: Trouble,
}

/// Why the last sweep failed, if it did.
type Trouble = Arc<Mutex<Option<String>>>;

impl Sweeper {
    pub(crate) fn start<S: Upkeep>(store: S, retention: Retention, observer: Observer) -> Self {
        let trouble = Trouble::default();
        let task = tokio::spawn(run(store, retention, observer, trouble.clone()));
        Self { task, trouble }
    }

    /// Why the last sweep failed, if it did.
    pub(crate) fn trouble(&self) -> Option<String> {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Drop for Sweeper {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn run<S: Upkeep>(store: S, retention: Retention, observer: Observer, trouble: Trouble) {
    let mut next_sweep = Instant::now() + retention.every;
    loop {
        let mut result = store.beat(retention.tolerance()).await;
        if result.is_ok() && retention.automatic && Instant::now() >= next_sweep {
            result = sweep(&store, retention, observer).await.map(drop);
            next_sweep = Instant::now() + retention.every;
        }
        note(&trouble, result);
        let pause = match retention.automatic {
            true => retention.beat_every().min(next_sweep.saturating_duration_since(Instant::now())),
            false => retention.beat_every(),
        };
        tokio::time::sleep(pause.max(Duration::from_millis(1))).await;
    }
}

fn note(trouble: &Trouble, result: Result<(), Error>) {
    let text = result.err().map(|error| chain(&error));
    let mut noted = trouble.lock().unwrap_or_else(PoisonError::into_inner);
    if text != *noted {
        match &text {
            Some(text) => tracing::error!(error = text, "upkeep fails: old markers stay until it does not"),
            None => tracing::info!("upkeep works again"),
        }
        *noted = text;
    }
}

/// Deletes what is due, one bounded statement after the other.
pub(crate) async fn sweep<S: Upkeep>(
    store: &S,
    retention: Retention,
    observer: Observer,
) -> Result<SweepReport, Error> {
    let (live, _now_ms) = store.live_time().await?;
    let mut report = SweepReport { before_ms: cutoff(live, retention.period), ..SweepReport::default() };
    let Some(before_ms) = report.before_ms else { return Ok(report) };
    loop {
        let deleted = store.sweep(before_ms, retention.batch).await?;
        report.deleted += deleted;
        report.batches += 1;
        observer.swept(deleted);
        if deleted < u64::from(retention.batch) {
            break;
        }
    }
    store.forget_live_time(before_ms).await?;
    tracing::debug!(deleted = report.deleted, batches = report.batches, "swept old markers");
    Ok(report)
}
