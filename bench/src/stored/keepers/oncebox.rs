//! Oncebox.

use std::ops::Range;
use std::sync::Arc;

use anyhow::{Result, ensure};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use oncebox::{Accept, Envelope, Inbox, LogStore, Message};

use super::{HANDLERS, Keeper, chunks};
use crate::message::OrderPaid;
use crate::stored::meter::Meter;

pub(crate) struct OnceboxKeeper<S: LogStore> {
    pub(crate) inbox: Inbox<S>,
    pub(crate) meter: Arc<Meter>,
}

impl<S: LogStore> Keeper for OnceboxKeeper<S> {
    fn accept(&self, body: Vec<u8>) -> BoxFuture<'_, Result<()>> {
        async move { check(self.inbox.accept(Envelope::new(OrderPaid::KIND, body)).await?) }.boxed()
    }

    fn fill(&self, numbers: Range<u64>) -> BoxFuture<'_, Result<()>> {
        async move {
            for chunk in chunks(numbers) {
                let envelopes = chunk.map(|number| Envelope::new(OrderPaid::KIND, OrderPaid::body(number)));
                for accepted in self.inbox.accept_all(envelopes).await {
                    check(accepted?)?;
                }
            }
            Ok(())
        }
        .boxed()
    }

    fn work(&self) -> BoxFuture<'_, Result<u64>> {
        async move {
            let before = self.meter.done();
            let mut report = self.inbox.run(self.meter.until_enough()).await?;
            // Handlers count before their commit, so a repeated run counts twice and the goal is reached too early.
            if report.done < self.meter.done() - before && !self.meter.gave_up() {
                report += self.inbox.work_until_idle().await?;
            }
            ensure!(report.failed == 0 && report.dead == 0, "messages failed: {report:?}");
            Ok(report.done)
        }
        .boxed()
    }

    fn waiting(&self) -> BoxFuture<'_, Result<u64>> {
        async move {
            let statuses = self.inbox.operators().handler_statuses().await?;
            let first = statuses.iter().find(|status| status.handler.name == HANDLERS[0]);
            Ok(first.map_or(0, |status| status.lag + status.tasks))
        }
        .boxed()
    }
}

fn check(accepted: Accept) -> Result<()> {
    ensure!(accepted.is_new(), "a new message was taken for a copy: {accepted:?}");
    Ok(())
}
