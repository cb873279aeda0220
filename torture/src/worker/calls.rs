//! Deliveries in hand.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;

use anyhow::Result;
use oncebox::{Envelope, Inbox, Report, Settlement};
use oncebox_torture::chance::fate;
use oncebox_torture::plan::{ACCOUNTS, Kind, Mode, Plan};
use oncebox_torture::point::KillPoint;
use tokio::task::JoinSet;

use crate::Store;
use crate::effects::Effects;
use crate::handlers::{Letter, Order};
use crate::points::Points;
use crate::say::say;

/// Calls that are dropped half way are polled this often at most.
const POLLS_MAX: u64 = 6;

/// The deliveries that this process has in hand.
pub(crate) struct Calls<S: Effects> {
    inbox: Inbox<Store<S>>,
    plan: Plan,
    points: Points,
    to_cancel: u64,
    running: JoinSet<()>,
}

impl<S: Effects> Calls<S> {
    pub(crate) fn new(inbox: Inbox<Store<S>>, plan: Plan, points: Points) -> Self {
        Self { inbox, plan, points, to_cancel: 0, running: JoinSet::new() }
    }

    /// Drops the next so many calls half way.
    pub(crate) fn cancel(&mut self, calls: u64) {
        self.to_cancel = calls;
    }

    /// Hands a delivery to the inbox, and its answer to the source.
    pub(crate) fn begin(&mut self, id: u64, attempt: u32) -> Result<()> {
        let envelope = match self.plan.kind(id) {
            Kind::Order => Envelope::of(&Order { id, account: id % ACCOUNTS })?,
            Kind::Letter => Envelope::of(&Letter { id })?,
        };
        let envelope = envelope.with_attempt(attempt);
        let cancelled = self.to_cancel > 0;
        self.to_cancel = self.to_cancel.saturating_sub(1);
        let polls = if cancelled { 1 + fate(&[id, self.to_cancel]) % POLLS_MAX } else { u64::MAX };
        let (inbox, mode, points) = (self.inbox.clone(), self.plan.mode, self.points.clone());
        self.running.spawn(async move {
            let answer = polled(polls, answer(&inbox, mode, envelope)).await;
            points.pass(KillPoint::BeforeAnswer);
            say(&format!("settled {id} {}", answer.as_deref().unwrap_or("retry cancelled")));
        });
        while self.running.try_join_next().is_some() {}
        Ok(())
    }

    /// Waits for all of them.
    pub(crate) async fn finish(mut self) {
        while self.running.join_next().await.is_some() {}
    }
}

async fn answer<S: Effects>(inbox: &Inbox<Store<S>>, mode: Mode, envelope: Envelope) -> String {
    let answered = match mode {
        Mode::Inline | Mode::Spill => inbox.process(envelope).await.map(|report| settled(&report)),
        Mode::Stored => inbox.accept(envelope).await.map(|accept| {
            let word = if accept.is_new() { "accepted" } else { "known" };
            format!("ack {word}")
        }),
    };
    answered.unwrap_or_else(|error| format!("retry {:?}", error.kind()))
}

fn settled(report: &Report) -> String {
    let settlement = match report.settlement() {
        Settlement::Ack => "ack",
        Settlement::Retry { .. } => "retry",
        Settlement::Reject => "reject",
    };
    let words: Vec<&str> = report.outcomes().map(|(_, outcome)| outcome.name()).collect();
    format!("{settlement} {}", words.join("+"))
}

/// Polls a future so often at most, and drops it then, as a caller does that goes away.
async fn polled<T>(polls: u64, future: impl Future<Output = T>) -> Option<T> {
    let mut future = pin!(future);
    let mut left = polls;
    poll_fn(move |context| match future.as_mut().poll(context) {
        Poll::Ready(value) => Poll::Ready(Some(value)),
        Poll::Pending => {
            left -= 1;
            if left == 0 { Poll::Ready(None) } else { Poll::Pending }
        }
    })
    .await
}
