//! A queue as a sink.

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;

use oncebox_core::source::ReceivedMessage;
use oncebox_core::{Key, Outgoing, Sink, Verdict};
use tokio::task::yield_now;

use super::MemoryBroker;
use super::state::State;

/// Chooses the queue of a message.
pub(super) type Route = dyn Fn(&Outgoing) -> String + Send + Sync;

/// Queues of a [`MemoryBroker`] as a sink. It refuses messages for queues that do not exist.
#[derive(Clone)]
pub struct MemorySink {
    broker: MemoryBroker,
    route: Arc<Route>,
}

impl MemorySink {
    pub(super) fn new(broker: MemoryBroker, route: Arc<Route>) -> Self {
        Self { broker, route }
    }
}

impl fmt::Debug for MemorySink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemorySink").finish_non_exhaustive()
    }
}

impl Sink for MemorySink {
    const KEEPS_ORDER: bool = true;

    async fn publish(&self, wave: &[Outgoing]) -> Vec<Verdict> {
        // Where a caller may be dropped: before anything is sent, and before the confirms arrive.
        yield_now().await;
        let verdicts = self.broker.shared.change(|state| {
            let mut failed = HashSet::new();
            wave.iter().map(|message| self.send(state, message, &mut failed)).collect()
        });
        yield_now().await;
        verdicts
    }
}

impl MemorySink {
    fn send<'w>(&self, state: &mut State, message: &'w Outgoing, failed: &mut HashSet<&'w Key>) -> Verdict {
        if message.order_by.as_ref().is_some_and(|key| failed.contains(key)) {
            return Verdict::Unknown(
                "not sent: an earlier message of the same ordering key was not confirmed".into(),
            );
        }
        let verdict = self.send_one(state, message);
        if !matches!(verdict, Verdict::Confirmed) {
            failed.extend(&message.order_by);
        }
        verdict
    }

    fn send_one(&self, state: &mut State, message: &Outgoing) -> Verdict {
        if let Err(error) = state.check_running() {
            return Verdict::Unknown(error.into());
        }
        if let Err(unroutable) = state.publish(&(self.route)(message), received(message)) {
            return Verdict::Refused(unroutable.into());
        }
        if state.confirms_to_lose > 0 {
            state.confirms_to_lose -= 1;
            return Verdict::Unknown("the confirm was lost".into());
        }
        Verdict::Confirmed
    }
}

/// The message as a source delivers it.
fn received(message: &Outgoing) -> ReceivedMessage {
    let mut headers = message.headers.clone();
    headers.set("oncebox-id", message.id.to_string());
    let mut received = ReceivedMessage::new(message.body.clone());
    received.headers = headers.into();
    received.kind = Some(message.kind.clone());
    received.message_id = Some(message.id.to_string());
    received.order_by.clone_from(&message.order_by);
    received.occurred_at = message.occurred_at;
    received
}
