//! The sweeper: heartbeats and the deletion of expired markers, on a timer of its own.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::Error;
use crate::backoff::Retries;
use crate::error::chain;
use crate::inbox::stored::{Prune, Pruning};
use crate::observe::Observer;
use crate::retention::{Retention, SweepReport, cutoff};
use crate::store::Upkeep;

/// The background task of an inbox. It ends with the inbox.
#[derive(Debug)]
pub(crate) struct Sweeper {
    /// `None` in an inbox for operators.
    task: Option<JoinHandle<()>>,
    errors: Arc<SweeperErrors>,
}

/// Why the last heartbeat and the last sweep failed, if they did. Each failure is over only when the same work succeeds.
#[derive(Debug, Default)]
struct SweeperErrors {
    beat: LastError,
    sweep: LastError,
}

#[derive(Debug, Default)]
struct LastError(Mutex<Option<String>>);

impl Sweeper {
    pub(crate) fn start<S: Upkeep>(
        store: S,
        retention: Retention,
        log: Option<(Prune<S>, Pruning)>,
        observer: Observer,
    ) -> Self {
        let errors = Arc::<SweeperErrors>::default();
        let task = tokio::spawn(run(store, retention, log, observer, errors.clone()));
        Self { task: Some(task), errors }
    }

    /// Creates a sweeper that does nothing and sends no heartbeats.
    pub(crate) fn idle() -> Self {
        Self { task: None, errors: Arc::default() }
    }

    /// Ends the task.
    pub(crate) fn stop(&self) {
        if let Some(task) = &self.task {
            task.abort();
        }
    }

    /// The error of the last sweep or heartbeat, if it failed.
    pub(crate) fn last_error(&self) -> Option<String> {
        self.errors.sweep.text().or_else(|| self.errors.beat.text())
    }
}

impl Drop for Sweeper {
    fn drop(&mut self) {
        self.stop();
    }
}

async fn run<S: Upkeep>(
    store: S,
    retention: Retention,
    log: Option<(Prune<S>, Pruning)>,
    observer: Observer,
    errors: Arc<SweeperErrors>,
) {
    let keep_messages = log.map_or(Duration::ZERO, |(_, pruning)| pruning.keep_messages);
    // The first sweep is due immediately: a process that ends before the first interval sweeps too.
    let mut next_sweep = Instant::now();
    let mut retries = Retries::unlimited();
    loop {
        let beat = store.beat(retention.tolerance()).await;
        let mut is_well = beat.is_ok();
        errors.beat.note(beat);
        if retention.automatic && Instant::now() >= next_sweep {
            let mut swept = sweep(&store, retention, keep_messages, observer).await.map(drop);
            if let (Ok(()), Some((prune, pruning))) = (&swept, log) {
                swept = prune(store.clone(), pruning, observer).await.map(drop);
            }
            is_well &= swept.is_ok();
            // A sweep that failed is due again at the next attempt.
            next_sweep = Instant::now() + if swept.is_ok() { retention.every } else { Duration::ZERO };
            errors.sweep.note(swept);
        }
        let pause = match is_well {
            true => {
                retries.reset();
                let to_sweep = next_sweep.saturating_duration_since(Instant::now());
                let to_sweep = if retention.automatic { to_sweep } else { Duration::MAX };
                retention.beat_every().min(to_sweep)
            }
            // health() reports the failure until an attempt succeeds, so that one comes soon.
            false => retention.beat_every().min(retries.next_pause()),
        };
        tokio::time::sleep(pause.max(Duration::from_millis(1))).await;
    }
}

impl LastError {
    fn text(&self) -> Option<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Records a result. It logs changes only, so that an outage does not fill the log.
    fn note(&self, result: Result<(), Error>) {
        let text = result.err().map(|error| chain(&error));
        let mut noted = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if text != *noted {
            match &text {
                Some(text) => {
                    tracing::error!(
                        error = text,
                        "cleanup failed; expired markers are kept until it succeeds"
                    );
                }
                None => tracing::info!("cleanup succeeds again"),
            }
            *noted = text;
        }
    }
}

/// Deletes expired markers, one bounded statement after the other.
pub(crate) async fn sweep<S: Upkeep>(
    store: &S,
    retention: Retention,
    keep_messages: Duration,
    observer: Observer,
) -> Result<SweepReport, Error> {
    let (live, _now_ms) = store.live_time().await?;
    // Messages and markers both count live time, so records of it are kept for the longer of the two periods.
    let forget_before_ms = cutoff(live.clone(), retention.period.max(keep_messages));
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
    if let Some(before_ms) = forget_before_ms {
        store.forget_live_time(before_ms).await?;
    }
    tracing::debug!(deleted = report.deleted, batches = report.batches, "deleted expired markers");
    Ok(report)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;

    fn failed() -> Result<(), Error> {
        Err(Error::new(ErrorKind::Unavailable, "no connection"))
    }

    #[test]
    fn a_failure_is_over_when_the_same_work_succeeds() {
        let errors = Arc::<SweeperErrors>::default();
        let sweeper = Sweeper { task: None, errors: errors.clone() };
        assert_eq!(sweeper.last_error(), None);
        errors.beat.note(failed());
        errors.sweep.note(Ok(()));
        assert_eq!(sweeper.last_error().as_deref(), Some("no connection"), "a sweep is no heartbeat");
        errors.sweep.note(failed());
        errors.beat.note(Ok(()));
        assert!(sweeper.last_error().is_some());
        errors.sweep.note(Ok(()));
        assert_eq!(sweeper.last_error(), None);
    }

    #[tokio::test]
    async fn an_inbox_for_operators_has_no_sweeper_to_stop() {
        let sweeper = Sweeper::idle();
        sweeper.stop();
        assert_eq!(sweeper.last_error(), None);
    }
}
