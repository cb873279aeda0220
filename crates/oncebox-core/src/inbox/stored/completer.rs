//! The completer: ends of detached runs that wait to be written share a transaction.

use std::sync::{Mutex, PoisonError};

use tokio::sync::oneshot;
use tokio::time::sleep;

use crate::Error;
use crate::backoff::{backoff, spread};
use crate::error::chain;
use crate::inbox::Inbox;
use crate::inbox::stored::LogStore;
use crate::store::{Completion, Fault};

/// The most that one transaction writes.
const BATCH: usize = 256;

/// The ends that wait.
#[derive(Debug, Default)]
pub(crate) struct Completer(Mutex<Waiting>);

/// An end, and whom to tell.
type Pending = (Completion, oneshot::Sender<Result<bool, Error>>);

#[derive(Debug, Default)]
struct Waiting {
    queue: Vec<Pending>,
    is_running: bool,
}

impl Completer {
    fn lock(&self) -> std::sync::MutexGuard<'_, Waiting> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues an end; whether somebody must be found to write it.
    fn queue(&self, pending: Pending) -> bool {
        let mut waiting = self.lock();
        waiting.queue.push(pending);
        !std::mem::replace(&mut waiting.is_running, true)
    }

    /// The next transaction; without one, whoever asks is done.
    fn next(&self) -> Option<Vec<Pending>> {
        let mut waiting = self.lock();
        if waiting.queue.is_empty() {
            waiting.is_running = false;
            return None;
        }
        let most = waiting.queue.len().min(BATCH);
        Some(waiting.queue.drain(..most).collect())
    }
}

impl<S: LogStore> Inbox<S> {
    /// Writes down how a run ended, as often as it takes; whether it was still under its fence.
    pub(super) async fn complete(&self, completion: Completion) -> Result<bool, Error> {
        let stored = self.stored()?;
        let (answer, answered) = oneshot::channel();
        if stored.completer.queue((completion, answer)) {
            let inbox = self.clone();
            tokio::spawn(async move { inbox.run_completer().await });
        }
        answered.await.unwrap_or_else(|gone| Err(Error::unavailable("the runtime is shutting down", gone)))
    }

    async fn run_completer(&self) {
        let Ok(stored) = self.stored() else { return };
        while let Some(batch) = stored.completer.next() {
            let (completions, answers): (Vec<_>, Vec<_>) = batch.into_iter().unzip();
            match self.write_completions(&completions).await {
                Ok(written) => {
                    for (answer, written) in answers.into_iter().zip(written) {
                        let _ = answer.send(Ok(written));
                    }
                }
                // One of them is not to the store's liking: the others can do without it.
                Err(_) if completions.len() > 1 => {
                    for (completion, answer) in completions.iter().zip(answers) {
                        let written = self.write_completions(std::slice::from_ref(completion)).await;
                        let _ = answer.send(written.map(|written| written.contains(&true)));
                    }
                }
                Err(error) => {
                    // There is one.
                    if let Some(answer) = answers.into_iter().next() {
                        let _ = answer.send(Err(error));
                    }
                }
            }
        }
    }

    async fn write_completions(&self, completions: &[Completion]) -> Result<Vec<bool>, Error> {
        let stored = self.stored()?;
        let mut is_unknown = false;
        let mut troubles = 0;
        loop {
            let error = match self.inner.store.complete(completions).await {
                // Nobody can have taken this process for dead: what is gone was written by the try whose answer was lost.
                Ok(written) if is_unknown && stored.presence.is_sure_of_itself(stored.settings.lease) => {
                    return Ok(written.into_iter().map(|_| true).collect());
                }
                Ok(written) => return Ok(written),
                Err(error) => error,
            };
            match S::classify(&error) {
                Fault::Other => return Err(error),
                Fault::Connection => is_unknown = true,
                Fault::Session | Fault::Transient | Fault::LockTimeout | Fault::StatementTimeout => {}
            }
            troubles += 1;
            tracing::debug!(error = chain(&error), "another try: the store did not answer");
            sleep(backoff(troubles, spread())).await;
        }
    }
}
