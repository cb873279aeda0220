//! Running: one Tokio task for each leased message.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tokio::sync::{Notify, OwnedSemaphorePermit};
use tracing::Instrument;

use super::DetachedRuns;
use super::company::Isolation;
use super::lease::LeasedMessages;
use crate::inbox::body::BodyFailure;
use crate::inbox::registered::Registered;
use crate::inbox::stored::LogStore;
use crate::inbox::stored::presence::ThisProcess;
use crate::inbox::stored::worker::WorkReport;
use crate::outcome::Outcome;
use crate::store::{Captured, StoredMessage};
use crate::{Cancellation, Failure, Headers, observe};

/// The number of running bodies, and the report of ended ones.
#[derive(Debug, Default)]
pub(in crate::inbox::stored) struct Bodies {
    state: Mutex<(usize, WorkReport)>,
    ended: Notify,
}

impl Bodies {
    pub(in crate::inbox::stored) fn begin(self: &Arc<Self>) -> Body {
        self.lock().0 += 1;
        Body { bodies: self.clone(), report: WorkReport::default() }
    }

    fn lock(&self) -> MutexGuard<'_, (usize, WorkReport)> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the report of the bodies that ended since the last call.
    pub(super) fn report(&self) -> WorkReport {
        std::mem::take(&mut self.lock().1)
    }

    /// Waits until no body runs.
    pub(super) async fn idle(&self) {
        loop {
            // Created before the check: a body that ends in between still wakes this wait.
            let ended = self.ended.notified();
            if self.lock().0 == 0 {
                return;
            }
            ended.await;
        }
    }
}

/// A running body. Dropping it subtracts it, however it ended.
pub(in crate::inbox::stored) struct Body {
    bodies: Arc<Bodies>,
    pub(in crate::inbox::stored) report: WorkReport,
}

impl Drop for Body {
    fn drop(&mut self) {
        let mut state = self.bodies.lock();
        state.0 -= 1;
        state.1 += self.report;
        drop(state);
        self.bodies.ended.notify_waiters();
    }
}

/// What a detached run leaves to its completion.
#[derive(Debug)]
pub(super) struct DetachedOutput {
    pub(super) result: Option<Vec<u8>>,
    pub(super) published: Vec<Captured>,
}

impl<S: LogStore> DetachedRuns<S> {
    /// Starts the bodies of leased messages, and does not wait for them.
    pub(super) fn start(
        self: &Arc<Self>,
        handler: &Registered<S>,
        process: &ThisProcess,
        leased: LeasedMessages,
        permits: Vec<OwnedSemaphorePermit>,
        isolation: &Isolation,
    ) {
        for (message, permit) in leased.messages.into_iter().zip(permits) {
            let (runs, index, fence) = (self.clone(), handler.index, leased.fence);
            let (cancellation, isolation) = (process.cancellation.clone(), isolation.clone());
            let mut body = self.bodies.begin();
            let present = self.lanes.presence.stay();
            tokio::spawn(async move {
                let handler = &runs.lanes.engine.handlers[index];
                let ended = runs.run(handler, &message, cancellation).await;
                body.report += runs.end(handler, message, fence, ended).await;
                drop((permit, isolation));
                if let Some(present) = present {
                    present.leave().await;
                }
                // A slot is free again, and a message may have waited behind this one.
                runs.lanes.log.wake.notify_one();
                drop(body);
            });
        }
    }

    async fn run(
        &self,
        handler: &Registered<S>,
        message: &StoredMessage,
        cancellation: Cancellation,
    ) -> Result<DetachedOutput, Outcome> {
        let engine = &self.lanes.engine;
        let ready = self.lanes.decode(handler, message, cancellation).map_err(Outcome::Rejected)?;
        let span = tracing::info_span!(
            "oncebox.unit",
            handler = &*handler.name,
            kind = message.kind,
            traceparent = ready.delivery.envelope.headers().get(Headers::TRACEPARENT),
        );
        let deliveries = [ready.delivery];
        let started = Instant::now();
        let ended = engine.run_detached(handler, vec![ready.message], &deliveries).instrument(span).await;
        engine.observer.time(observe::HANDLE_SECONDS, &handler.name, started.elapsed());
        let mut returned = ended.map_err(BodyFailure::outcome)?;
        let published =
            engine.to_capture(&mut returned).map_err(|error| Outcome::failed(Failure::permanent(error)))?;
        Ok(DetachedOutput { result: returned.into_iter().next().and_then(|one| one.result), published })
    }
}
