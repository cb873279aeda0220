//! Running: one task of the process for each message that is leased.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tokio::sync::{Notify, OwnedSemaphorePermit};
use tracing::Instrument;

use super::DetachedRuns;
use super::company::Company;
use super::lease::Leased;
use crate::inbox::body::BodyError;
use crate::inbox::registered::Registered;
use crate::inbox::stored::LogStore;
use crate::inbox::stored::presence::Process;
use crate::inbox::stored::worker::WorkReport;
use crate::outcome::Outcome;
use crate::store::StoredMessage;
use crate::{Cancellation, Headers, observe};

/// The bodies that run now, and what those came to that have ended.
#[derive(Debug, Default)]
pub(super) struct Bodies {
    state: Mutex<(usize, WorkReport)>,
    ended: Notify,
}

impl Bodies {
    pub(super) fn begin(self: &Arc<Self>) -> Body {
        self.lock().0 += 1;
        Body { bodies: self.clone(), report: WorkReport::default() }
    }

    fn lock(&self) -> MutexGuard<'_, (usize, WorkReport)> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What bodies came to since the last time this was asked.
    pub(super) fn report(&self) -> WorkReport {
        std::mem::take(&mut self.lock().1)
    }

    /// Waits until none runs.
    pub(super) async fn idle(&self) {
        loop {
            let ended = self.ended.notified();
            if self.lock().0 == 0 {
                return;
            }
            ended.await;
        }
    }
}

/// One that runs; however it ends, it is counted out.
pub(super) struct Body {
    bodies: Arc<Bodies>,
    report: WorkReport,
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

impl<S: LogStore> DetachedRuns<S> {
    /// Starts bodies, which end by themselves.
    pub(super) fn start(
        self: &Arc<Self>,
        handler: &Registered<S>,
        process: &Process,
        leased: Leased,
        permits: Vec<OwnedSemaphorePermit>,
        company: &Company,
    ) {
        for (message, permit) in leased.messages.into_iter().zip(permits) {
            let (runs, index, fence) = (self.clone(), handler.index, leased.fence);
            let (cancellation, company) = (process.cancellation.clone(), company.clone());
            let mut body = self.bodies.begin();
            let present = self.lanes.presence.stay();
            tokio::spawn(async move {
                let handler = &runs.lanes.engine.handlers[index];
                let ended = runs.run(handler, &message, cancellation).await;
                body.report += runs.end(handler, message, fence, ended).await;
                drop((permit, company));
                if let Some(present) = present {
                    present.leave().await;
                }
                // There is room again, and perhaps a message waited behind this one.
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
    ) -> Result<Option<Vec<u8>>, Outcome> {
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
        let returned = ended.map_err(BodyError::outcome)?;
        Ok(returned.into_iter().next().and_then(|one| one.result))
    }
}
