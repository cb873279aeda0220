//! Running: one task of the process for each message that is leased.

use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use futures_util::FutureExt;
use tokio::sync::{Notify, OwnedSemaphorePermit};
use tracing::Instrument;

use super::company::Company;
use super::lease::Leased;
use crate::handler::Returned;
use crate::inbox::Inbox;
use crate::inbox::builder::Registered;
use crate::inbox::stored::presence::Process;
use crate::inbox::stored::worker::WorkReport;
use crate::inbox::stored::{LogStore, Stored};
use crate::inbox::unit::{failed, panicked};
use crate::outcome::Outcome;
use crate::store::StoredMessage;
use crate::{Cancellation, Failure, observe};

/// The bodies that run now, and what those came to that have ended.
#[derive(Debug, Default)]
pub(crate) struct Bodies {
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
    pub(in crate::inbox::stored) fn report(&self) -> WorkReport {
        std::mem::take(&mut self.lock().1)
    }

    /// Waits until none runs.
    pub(in crate::inbox::stored) async fn idle(&self) {
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

impl<S: LogStore> Inbox<S> {
    /// Starts bodies, which end by themselves.
    pub(super) fn start(
        &self,
        stored: &Stored,
        handler: &Registered<S>,
        process: &Process,
        leased: Leased,
        permits: Vec<OwnedSemaphorePermit>,
        company: &Company,
    ) {
        for (message, permit) in leased.messages.into_iter().zip(permits) {
            let (inbox, index, fence) = (self.clone(), handler.index, leased.fence);
            let (cancellation, company) = (process.cancellation.clone(), company.clone());
            let mut body = stored.bodies.begin();
            let present = self.stay_present(stored);
            tokio::spawn(async move {
                let Ok(stored) = inbox.stored() else { return };
                let handler = &inbox.inner.handlers[index];
                let ended = inbox.run_detached(handler, &message, cancellation).await;
                let report = inbox.end_detached(stored, handler, message, fence, ended).await;
                body.report += report;
                drop((permit, company));
                if let Some(present) = present {
                    present.leave().await;
                }
                // There is room again, and perhaps somebody waited behind this one.
                stored.wake.notify_one();
                drop(body);
            });
        }
    }

    async fn run_detached(
        &self,
        handler: &Registered<S>,
        message: &StoredMessage,
        cancellation: Cancellation,
    ) -> Result<Option<Vec<u8>>, Outcome> {
        let ready = self.decode(handler, message, cancellation).map_err(Outcome::Rejected)?;
        let span = tracing::info_span!(
            "oncebox.unit",
            handler = &*handler.name,
            kind = message.kind,
            traceparent = ready.delivery.envelope.headers().get(crate::Headers::TRACEPARENT),
        );
        let limit = handler.settings.timeout.unwrap_or(self.inner.settings.handler_timeout);
        let deliveries = [ready.delivery];
        let started = Instant::now();
        let body = handler.handler.call(vec![ready.message], &deliveries, None);
        let body = self.inside(AssertUnwindSafe(body).catch_unwind()).instrument(span);
        let ran = tokio::time::timeout(limit, body).await;
        self.inner.observer.time(observe::HANDLE_SECONDS, &handler.name, started.elapsed());
        match ran {
            Ok(Ok(Ok(returned))) => Ok(returned.into_iter().next().and_then(|one: Returned| one.result)),
            Ok(Ok(Err(failure))) => Err(failed(handler.settings.judge(failure))),
            Ok(Err(panic)) => Err(failed(panicked(&*panic))),
            Err(_elapsed) => Err(failed(Failure::from(format!("the handler ran longer than {limit:?}")))),
        }
    }
}
