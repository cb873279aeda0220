//! One session: takes deliveries while there is room, and settles them as they are decided.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::time::{Instant, sleep_until};

use crate::consume::ConsumeReport;
use crate::consume::deliver::Deliverer;
use crate::consume::flights::{Decided, FlightId, Flights};
use crate::error::chain;
use crate::inbox::InboxStore;
use crate::source::{Decision, Room, Session, Settled, Settler};
use crate::{Error, Settlement};

/// How often the board is updated while nothing happens.
const TICK: Duration = Duration::from_secs(1);
const FAR: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// Why a session ended.
pub(super) enum SessionEnd {
    /// The consumer was told to stop, and has settled what it could in time.
    Drained,
    /// The connection was lost while messages in flight were finished. They are delivered again.
    LostWhileDraining,
    /// The connection was lost, or the source has ended it.
    Lost {
        error: Error,
        /// Whether it has delivered anything.
        has_worked: bool,
    },
}

/// What a session works with.
pub(super) struct Consuming<'a, S: InboxStore, R> {
    pub(super) deliverer: &'a Arc<Deliverer<S>>,
    pub(super) flights: &'a mut Flights<R>,
    pub(super) report: &'a mut ConsumeReport,
    pub(super) drain: Duration,
}

/// A call of the settler, and the deliveries that it settles.
type Settling = BoxFuture<'static, SettledCall>;

struct SettledCall {
    /// Whether the next deliveries wait for this call, so that they are settled together.
    is_batch: bool,
    results: Vec<(FlightId, Settlement, Settled)>,
}

impl<S: InboxStore, R: Send + Sync + 'static> Consuming<'_, S, R> {
    /// Consumes until the session fails or `shutdown` is ready.
    pub(super) async fn run<C: Session<Receipt = R>>(
        mut self,
        session: &mut C,
        mut shutdown: Pin<&mut (impl Future<Output = ()> + Send)>,
    ) -> SessionEnd {
        let deliverer = self.deliverer.clone();
        let settler = session.settler();
        let extend_every = session.extend_every();
        let mut extend_at = extend_every.map(|every| Instant::now() + every);
        let mut drain_until: Option<Instant> = None;
        let mut has_worked = false;
        // Settled together by the next call of the settler.
        let mut decided: Vec<(FlightId, Decision<R>)> = Vec::new();
        let mut settling: FuturesUnordered<Settling> = FuturesUnordered::new();
        let mut is_settling = false;
        let lost = loop {
            if !is_settling && !decided.is_empty() {
                settling.push(settle(settler.clone(), std::mem::take(&mut decided), true));
                is_settling = true;
            }
            self.deliverer.board.flies(self.flights.unsettled());
            if drain_until.is_some() && self.flights.is_settled() {
                return SessionEnd::Drained;
            }
            let takes = drain_until.is_none() && !deliverer.board.is_store_away();
            // Without room it still notices the end of the session.
            let room = if takes { self.flights.room() } else { Room { messages: 0, bytes: 0 } };
            tokio::select! {
                () = shutdown.as_mut(), if drain_until.is_none() => {
                    deliverer.board.draining();
                    drain_until = Some(Instant::now() + self.drain);
                }
                () = sleep_until(drain_until.unwrap_or_else(|| Instant::now() + FAR)), if drain_until.is_some() => {
                    tracing::warn!(
                        source = deliverer.rules.name,
                        in_flight = self.flights.unsettled().0,
                        "the time for messages in flight is over: they are delivered again"
                    );
                    return SessionEnd::Drained;
                }
                Some(settled) = settling.next(), if !settling.is_empty() => {
                    is_settling &= !settled.is_batch;
                    self.record(settled.results);
                }
                ended = self.flights.next_decided(&deliverer) => {
                    for Decided { id, verdict } in ended {
                        // Without a receipt it is of an earlier session: its source delivers it again.
                        match verdict.and_then(|verdict| self.flights.decision(id, verdict)) {
                            // By itself: a source without delayed messages waits before it returns one.
                            Some(decision) if matches!(decision.settlement, Settlement::Retry { .. }) => {
                                settling.push(settle(settler.clone(), vec![(id, decision)], false));
                            }
                            Some(decision) => decided.push((id, decision)),
                            None => self.leave_unsettled(id),
                        }
                    }
                }
                received = session.next(room) => match received {
                    Ok(received) => {
                        has_worked |= !received.is_empty();
                        self.report.received += received.len() as u64;
                        deliverer.board.received(received.len());
                        for one in received {
                            self.flights.start(&deliverer, one);
                        }
                    }
                    Err(error) => break error,
                },
                () = sleep_until(extend_at.unwrap_or_else(|| Instant::now() + FAR)), if extend_at.is_some() => {
                    extend_at = extend_every.map(|every| Instant::now() + every);
                    let held = self.flights.receipts();
                    if !held.is_empty()
                        && let Err(error) = settler.extend(&held).await
                    {
                        break error;
                    }
                }
                // The age of the oldest delivery grows, and the store may respond again.
                () = tokio::time::sleep(TICK) => {}
            }
        };
        self.flights.lose_session(self.report);
        if drain_until.is_some() {
            return SessionEnd::LostWhileDraining;
        }
        SessionEnd::Lost { error: lost, has_worked }
    }

    fn leave_unsettled(&mut self, id: FlightId) {
        self.report.unsettled += 1;
        self.flights.end(id);
    }

    fn record(&mut self, settled: Vec<(FlightId, Settlement, Settled)>) {
        for (id, settlement, settled) in settled {
            match settled {
                Settled::Done => {
                    let count = match settlement {
                        Settlement::Ack => &mut self.report.acknowledged,
                        Settlement::Retry { .. } => &mut self.report.retried,
                        Settlement::Reject => &mut self.report.rejected,
                    };
                    *count += 1;
                    self.deliverer.board.settled(settlement);
                    self.flights.settled(id);
                }
                Settled::Stale => self.leave_unsettled(id),
                Settled::Unknown(error) => {
                    tracing::debug!(
                        source = self.deliverer.rules.name,
                        error = chain(&error),
                        "could not settle a delivery: it is delivered again"
                    );
                    self.leave_unsettled(id);
                }
            }
        }
    }
}

fn settle<T: Settler>(
    settler: T,
    decided: Vec<(FlightId, Decision<T::Receipt>)>,
    is_batch: bool,
) -> Settling {
    let mut ids = Vec::with_capacity(decided.len());
    let mut decisions = Vec::with_capacity(decided.len());
    for (id, decision) in decided {
        ids.push((id, decision.settlement));
        decisions.push(decision);
    }
    let call = async move {
        let mut settled = settler.settle(decisions).await;
        // A settler that loses a result: the delivery comes again, or it does not.
        settled.resize_with(ids.len(), || Settled::Stale);
        let results =
            ids.into_iter().zip(settled).map(|((id, settlement), settled)| (id, settlement, settled));
        SettledCall { is_batch, results: results.collect() }
    };
    call.boxed()
}
