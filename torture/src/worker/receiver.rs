//! The receiver: inboxes on a second database, and the sink that carries messages to them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::join_all;
use oncebox::rabbitmq::{RabbitMq, RabbitSink};
use oncebox::{Attempt, BoxError, Envelope, Failure, Inbox, Outgoing, Settlement, Sink, Verdict};
use oncebox_torture::kill_point::KillPoint;
use oncebox_torture::queues::EVENTS_EXCHANGE;
use oncebox_torture::scenario::{EVENTS, LEDGER, NOTES, PlannedFailure, STATEMENT, SinkFailure};

use crate::Store;
use crate::effects::EffectStore;
use crate::handlers::{Effect, HandlerContext, message_number};
use crate::sender::{Note, Sale};
use crate::services::{inline, stored};

/// How long the sink takes for a slow message.
const SLOW: Duration = Duration::from_millis(20);

/// The inboxes of the receiver.
pub(crate) struct Receiver<S: EffectStore> {
    /// Sales are stored there.
    pub(crate) stored: Inbox<Store<S>>,
    /// Notes are handled there at once.
    pub(crate) inline: Inbox<Store<S>>,
}

impl<S: EffectStore> Receiver<S> {
    pub(crate) async fn build(store: Store<S>, context: &HandlerContext) -> Result<Self, oncebox::Error> {
        let writing = |handler: &'static str| {
            let context = context.clone();
            async move |Sale { id, token, .. }: Sale,
                        Attempt(attempt): Attempt,
                        conn: &mut <S as oncebox::store::Store>::Conn|
                        -> Result<(), Failure> {
                context.write::<S>(handler, Effect { id, attempt, token: Some(token) }, conn).await
            }
        };
        let of_notes = context.clone();
        let note = async move |Note { id, token }: Note,
                               Attempt(attempt): Attempt,
                               conn: &mut <S as oncebox::store::Store>::Conn|
                    -> Result<(), Failure> {
            of_notes.write::<S>(NOTES, Effect { id, attempt, token: Some(token) }, conn).await
        };
        let stored = stored(Inbox::builder(store.clone())).on(LEDGER, writing(LEDGER)).on_with(
            STATEMENT,
            writing(STATEMENT),
            |options| options.ordered(),
        );
        let inline = inline(Inbox::builder(store)).on(NOTES, note);
        Ok(Self { stored: stored.build().await?, inline: inline.build().await? })
    }
}

/// One sending of a message.
struct Sending {
    /// How often this process has sent the message.
    number: u32,
    /// Whether the relay does not get the confirm, by plan.
    is_lost: bool,
}

impl Sending {
    /// What the relay gets to know.
    fn verdict(self, verdict: Verdict) -> Verdict {
        match verdict {
            Verdict::Confirmed if self.is_lost => Verdict::Unknown("a planned loss of a confirm".into()),
            verdict => verdict,
        }
    }
}

/// Carries messages to the receiver, or to a broker whose queues the receiver consumes. It confirms what the receiver has committed,
/// or what the broker has confirmed.
pub(crate) struct Carrier<S: EffectStore> {
    stored: Inbox<Store<S>>,
    inline: Inbox<Store<S>>,
    broker: Option<RabbitSink>,
    context: HandlerContext,
    /// How often this process has sent each message. It knows nothing about the other processes.
    sendings: Arc<Mutex<HashMap<u64, u32>>>,
}

impl<S: EffectStore> Carrier<S> {
    pub(crate) fn new(receiver: &Receiver<S>, broker: Option<&RabbitMq>, context: HandlerContext) -> Self {
        let Receiver { stored, inline } = receiver;
        let broker = broker.map(|broker| broker.exchange(EVENTS_EXCHANGE));
        Self { stored: stored.clone(), inline: inline.clone(), broker, context, sendings: Arc::default() }
    }

    fn count(&self, number: u64) -> u32 {
        let mut sendings = self.sendings.lock().unwrap_or_else(PoisonError::into_inner);
        let sending = sendings.entry(number).or_default();
        *sending += 1;
        *sending
    }

    /// What happens before a message is sent. The error is its verdict.
    async fn prepare(&self, message: &Outgoing) -> Result<Sending, Verdict> {
        let Some(number) = message_number(&message.body) else {
            return Err(Verdict::Refused(Failure::permanent("a message without a number")));
        };
        let sending = self.count(number);
        self.context.points.pass(KillPoint::BeforeSend);
        if self.context.scenario.is_slow(EVENTS, number) {
            tokio::time::sleep(SLOW).await;
        }
        let planned = self.context.sink_failure(number, sending);
        match planned {
            Some(SinkFailure::Refuse(PlannedFailure::Transient)) => {
                Err(Verdict::Refused(BoxError::from("a planned transient refusal").into()))
            }
            Some(SinkFailure::Refuse(PlannedFailure::Permanent)) => {
                Err(Verdict::Refused(Failure::permanent("a planned permanent refusal")))
            }
            Some(SinkFailure::LoseConfirm) | None => {
                Ok(Sending { number: sending, is_lost: planned.is_some() })
            }
        }
    }

    async fn carry(&self, message: &Outgoing) -> Verdict {
        let sending = match self.prepare(message).await {
            Ok(sending) => sending,
            Err(verdict) => return verdict,
        };
        let verdict = match self.receive(message, sending.number).await {
            Ok(()) => Verdict::Confirmed,
            Err(error) => Verdict::Unknown(error),
        };
        self.context.points.pass(KillPoint::BeforeConfirm);
        sending.verdict(verdict)
    }

    /// Publishes those of a wave that are not refused by plan, as one wave.
    async fn publish_to(&self, broker: &RabbitSink, wave: &[Outgoing]) -> Vec<Verdict> {
        let prepared = join_all(wave.iter().map(|message| self.prepare(message))).await;
        let is_sent = |(message, prepared): (&Outgoing, &Result<Sending, Verdict>)| {
            prepared.is_ok().then(|| message.clone())
        };
        let sent: Vec<Outgoing> = wave.iter().zip(&prepared).filter_map(is_sent).collect();
        let mut verdicts = broker.publish(&sent).await.into_iter();
        self.context.points.pass(KillPoint::BeforeConfirm);
        let verdict = |prepared: Result<Sending, Verdict>| match prepared {
            Ok(sending) => {
                sending.verdict(verdicts.next().unwrap_or(Verdict::Unknown("no verdict of the sink".into())))
            }
            Err(verdict) => verdict,
        };
        prepared.into_iter().map(verdict).collect()
    }

    /// Hands the message to the receiver, under its id as the key.
    async fn receive(&self, message: &Outgoing, sending: u32) -> Result<(), BoxError> {
        let envelope =
            Envelope::new(message.kind.clone(), message.body.clone()).with_key(message.id.to_string());
        match message.order_by.clone() {
            Some(order_by) => {
                self.stored.accept(envelope.with_order_by(order_by)).await?;
            }
            None => {
                let report = self.inline.process(envelope.with_attempt(sending)).await?;
                if !matches!(report.settlement(), Settlement::Ack) {
                    return Err("the receiver has not handled it".into());
                }
            }
        }
        Ok(())
    }
}

impl<S: EffectStore> Sink for Carrier<S> {
    const WAVE: usize = 64;

    async fn publish(&self, wave: &[Outgoing]) -> Vec<Verdict> {
        match &self.broker {
            Some(broker) => self.publish_to(broker, wave).await,
            None => join_all(wave.iter().map(|message| self.carry(message))).await,
        }
    }
}
