//! A relay as a handler: sends one message, for a task that runs on its own.

use std::any::Any;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;

use crate::backoff::Retries;
use crate::handler::{Delivery, Erased, Prepared, Returned, Selectors};
use crate::outbox::{ErasedSink, unknown};
use crate::outcome::{Outcome, Rejection};
use crate::store::Store;
use crate::{Envelope, Failure, Outgoing, Verdict};

/// The handler behind a relay's name.
pub(crate) struct RelayHandler {
    pub(crate) sink: Arc<dyn ErasedSink>,
    /// The time limit of the sink.
    pub(crate) limit: Duration,
}

/// The error of a message whose verdict is unknown. It is sent again, and no attempt is counted.
#[derive(Debug)]
struct Unconfirmed(String);

impl fmt::Display for Unconfirmed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Unconfirmed {}

/// The time until a message whose verdict is unknown is sent again; `None` for other outcomes.
pub(in crate::inbox::stored) fn unconfirmed(outcome: &Outcome) -> Option<Duration> {
    match outcome {
        Outcome::Retry { after, cause } if cause.is::<Unconfirmed>() => *after,
        _ => None,
    }
}

impl<S: Store> Erased<S> for RelayHandler {
    fn prepare(&self, _envelope: &Envelope, _selectors: &Selectors) -> Result<Prepared, Rejection> {
        Ok(Prepared { message: Box::new(()), selected: None, own: None, order_by: None })
    }

    fn takes_sets(&self) -> bool {
        false
    }

    fn is_detached(&self) -> bool {
        true
    }

    fn publishes(&self) -> bool {
        false
    }

    fn selects_keys(&self) -> bool {
        false
    }

    fn call<'t>(
        &'t self,
        _messages: Vec<Box<dyn Any + Send>>,
        deliveries: &'t [Delivery],
        _db: Option<&'t mut S::Conn>,
    ) -> BoxFuture<'t, Result<Vec<Returned>, Failure>> {
        Box::pin(async move {
            let wave: Option<Vec<Outgoing>> = deliveries.iter().map(outgoing).collect();
            let Some(wave) = wave else {
                return Err(Failure::permanent(
                    "internal error: a relay has taken a message that was not published",
                ));
            };
            let sent = tokio::time::timeout(self.limit, self.sink.publish(&wave)).await;
            let verdicts =
                sent.unwrap_or_else(|_elapsed| unknown(wave.len(), "the sink did not respond in time"));
            for verdict in verdicts {
                match verdict {
                    Verdict::Confirmed => {}
                    Verdict::Refused(failure) => return Err(failure),
                    Verdict::Unknown(why) => {
                        // The longest pause of a retry loop: a task has no count of its own for this.
                        return Err(Failure::after(
                            Retries::pause_after(u32::MAX),
                            Unconfirmed(why.to_string()),
                        ));
                    }
                }
            }
            Ok(wave.iter().map(|_| Returned::default()).collect())
        })
    }
}

fn outgoing(delivery: &Delivery) -> Option<Outgoing> {
    let envelope = &delivery.envelope;
    let id = envelope.message_id()?;
    Some(Outgoing {
        id,
        kind: envelope.kind.clone(),
        key: delivery.key.clone().unwrap_or_else(|| id.to_string().into()),
        order_by: envelope.order_by.clone(),
        headers: envelope.headers.clone(),
        body: envelope.body.clone(),
        occurred_at: envelope.occurred_at,
        relay: delivery.handler.clone(),
        is_replay: delivery.is_replay,
    })
}
