//! Oncebox.

use anyhow::{Context, Result, bail};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use oncebox::{Envelope, Inbox, InboxStore, Message, Outcome};

use super::{Contender, HANDLER, Tally};
use crate::feed::Feed;
use crate::message::OrderPaid;

pub(super) struct Oncebox<S: InboxStore>(pub(super) Inbox<S>);

impl<S: InboxStore> Contender for Oncebox<S> {
    fn deliver<'a>(&'a self, feed: &'a Feed) -> BoxFuture<'a, Result<Option<Tally>>> {
        async move {
            let Some(body) = feed.next() else { return Ok(None) };
            let report = self.0.process(Envelope::new(OrderPaid::KIND, body)).await?;
            match report.outcome(HANDLER).context("the handler is missing")? {
                Outcome::Done => Ok(Some(Tally::DONE)),
                Outcome::Duplicate => Ok(Some(Tally::DUPLICATE)),
                Outcome::Retry { .. } => Ok(Some(Tally::FAILED)),
                other => bail!("a delivery ended as {other:?}"),
            }
        }
        .boxed()
    }
}
