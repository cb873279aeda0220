//! The completer: waiting ends of detached runs share a transaction.

use std::sync::Arc;

use crate::Error;
use crate::backoff::Retries;
use crate::inbox::InboxStore;
use crate::inbox::combiner::{Combiner, InOrder, Promise, Runner, promise};
use crate::inbox::engine::Engine;
use crate::inbox::faults::Judgement;
use crate::inbox::stored::LogStore;
use crate::inbox::stored::presence::Presence;
use crate::store::Completion;

/// The maximum number of ends in one transaction.
const BATCH: usize = 256;

/// Records the ends of detached runs.
pub(super) struct Completer<S: InboxStore> {
    engine: Arc<Engine<S>>,
    presence: Arc<Presence<S>>,
    calls: Combiner<InOrder<(Completion, Promise<bool>)>>,
}

impl<S: InboxStore> Completer<S> {
    pub(super) fn new(engine: Arc<Engine<S>>, presence: Arc<Presence<S>>) -> Self {
        Self { engine, presence, calls: Combiner::new(InOrder::new(BATCH)) }
    }
}

impl<S: LogStore> Completer<S> {
    /// Records the end of a run, and retries until the store responds. Returns whether the run still had its fence.
    pub(super) async fn complete(self: &Arc<Self>, completion: Completion) -> Result<bool, Error> {
        let (promise, answer) = promise();
        if self.calls.push((completion, promise)) {
            let completer = self.clone();
            tokio::spawn(async move { completer.run().await });
        }
        answer.wait().await
    }

    async fn run(&self) {
        let mut runner = Runner::new(&self.calls);
        while let Some(batch) = runner.next().await {
            let (completions, mut promises): (Vec<_>, Vec<_>) = batch.into_iter().unzip();
            match self.write(&completions).await {
                Ok(written) => {
                    promises
                        .into_iter()
                        .zip(written)
                        .for_each(|(promise, written)| promise.keep(Ok(written)));
                }
                // The store refuses one of them. Written one by one, the others are not affected.
                Err(_) if completions.len() > 1 => {
                    for (completion, promise) in completions.iter().zip(promises) {
                        let written = self.write(std::slice::from_ref(completion)).await;
                        promise.keep(written.map(|written| written.contains(&true)));
                    }
                }
                Err(error) => {
                    if let Some(promise) = promises.pop() {
                        promise.keep(Err(error));
                    }
                }
            }
        }
    }

    async fn write(&self, completions: &[Completion]) -> Result<Vec<bool>, Error> {
        let written = self.write_until_answered(completions).await?;
        for (completion, _) in completions.iter().zip(&written).filter(|(_, written)| **written) {
            self.engine.captured(completion.end.published());
        }
        Ok(written)
    }

    async fn write_until_answered(&self, completions: &[Completion]) -> Result<Vec<bool>, Error> {
        let mut is_unknown = false;
        let mut retries = Retries::unlimited();
        loop {
            let error = match self.engine.store.complete(completions).await {
                // The lease has not expired, so no other process can have taken over. A missing task was completed by the attempt
                // whose response was lost.
                Ok(written) if is_unknown && self.presence.has_valid_lease() => {
                    return Ok(written.into_iter().map(|_| true).collect());
                }
                Ok(written) => return Ok(written),
                Err(error) => error,
            };
            is_unknown |= Judgement::of::<S>(&error).is_lost();
            retries.after::<S>(error).await?;
        }
    }
}
