//! Oncebox.

use anyhow::{Result, bail, ensure};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use oncebox::{Envelope, Inbox, InboxStore, Message, Outcome, Report};

use super::{Contender, Tally};
use crate::business::HandlerWork;
use crate::feed::Feed;
use crate::message::OrderPaid;

pub(super) struct Oncebox<S: InboxStore> {
    pub(super) inbox: Inbox<S>,
    pub(super) work: HandlerWork,
}

impl<S: InboxStore> Contender for Oncebox<S> {
    fn deliver<'a>(&'a self, feed: &'a Feed) -> BoxFuture<'a, Result<Option<Tally>>> {
        async move {
            let Some(body) = feed.next() else { return Ok(None) };
            let mut delivered_before = false;
            loop {
                let tally = tally(&self.inbox.process(Envelope::new(OrderPaid::KIND, body.clone())).await?)?;
                // A broker would deliver a failed message again. Where failing is the scenario, failures count instead.
                if tally == Tally::FAILED && self.work != HandlerWork::Failing {
                    delivered_before = true;
                    continue;
                }
                // In the last delivery, handlers that were done before report a duplicate. The message itself is done.
                return Ok(Some(if delivered_before { Tally::DONE } else { tally }));
            }
        }
        .boxed()
    }
}

/// The outcome of a delivery: done if all handlers are.
fn tally(report: &Report) -> Result<Tally> {
    ensure!(report.is_handled(), "the handler is missing");
    let mut tally = Tally::DONE;
    for (_, outcome) in report.outcomes() {
        match outcome {
            Outcome::Done => {}
            Outcome::Duplicate if tally == Tally::DONE => tally = Tally::DUPLICATE,
            Outcome::Duplicate => {}
            Outcome::Retry { .. } => tally = Tally::FAILED,
            other => bail!("a delivery ended as {other:?}"),
        }
    }
    Ok(tally)
}
