//! The deliveries in flight: how much room is left, which ones wait for an earlier one of their ordering key, which ones are decided.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::task::{Id, JoinError, JoinSet};
use tokio::time::timeout;

use crate::consume::ConsumeReport;
use crate::consume::deliver::{Deliverer, Prepared, Verdict};
use crate::inbox::InboxStore;
use crate::source::{Decision, Received, Room};
use crate::{Key, Settlement};

/// A number for each delivery, in the order of arrival.
pub(super) type FlightId = u64;

/// The deliveries of the current session, and those of earlier ones that still run.
pub(super) struct Flights<R> {
    prefetch: Room,
    next: FlightId,
    /// Unsettled deliveries, oldest first.
    held: BTreeMap<FlightId, Held<R>>,
    bytes: usize,
    /// The ordering keys in flight, each with the deliveries that wait for their turn.
    turns: HashMap<Key, VecDeque<(FlightId, Prepared)>>,
    running: JoinSet<Option<Verdict>>,
    ids: HashMap<Id, FlightId>,
    /// How many deliveries of a message have ended with their session while this process lived: the source counts them like crashes.
    lost: HashMap<u64, u32>,
}

/// The maximum number of messages whose lost deliveries are remembered.
const LOST_MAX: usize = 65_536;

/// A delivery that is not settled.
struct Held<R> {
    /// `None` while it is being settled, and after its session has ended.
    receipt: Option<R>,
    bytes: usize,
    since: Instant,
    order_by: Option<Key>,
    /// Tells the message apart from others.
    print: u64,
    is_current: bool,
}

/// A delivery whose outcome is durable.
pub(super) struct Decided {
    pub(super) id: FlightId,
    /// `None` if the inbox was closed before.
    pub(super) verdict: Option<Verdict>,
}

impl<R> Flights<R> {
    pub(super) fn new(prefetch: Room) -> Self {
        Self {
            prefetch,
            next: 0,
            held: BTreeMap::new(),
            bytes: 0,
            turns: HashMap::new(),
            running: JoinSet::new(),
            ids: HashMap::new(),
            lost: HashMap::new(),
        }
    }

    /// How much more may be in flight.
    pub(super) fn room(&self) -> Room {
        Room {
            messages: self.prefetch.messages.saturating_sub(self.held.len()),
            bytes: self.prefetch.bytes.saturating_sub(self.bytes),
        }
    }

    /// The number of deliveries that are not settled, and the age of the oldest one.
    pub(super) fn unsettled(&self) -> (usize, Option<Duration>) {
        let oldest = self.held.first_key_value().map(|(_, held)| held.since.elapsed());
        (self.held.len(), oldest)
    }

    /// Whether no delivery of the current session is unsettled.
    pub(super) fn is_settled(&self) -> bool {
        !self.held.values().any(|held| held.is_current)
    }

    /// The receipts of deliveries that are not decided.
    pub(super) fn receipts(&self) -> Vec<&R> {
        self.held.values().filter_map(|held| held.receipt.as_ref()).collect()
    }

    /// Starts a delivery, unless an earlier one of its ordering key is in flight. Then it waits for its turn.
    pub(super) fn start<S: InboxStore>(&mut self, deliverer: &Arc<Deliverer<S>>, received: Received<R>) {
        let id = self.next;
        self.next += 1;
        let bytes = received.message.body.len();
        let mut prepared = deliverer.prepare(received.message);
        let print = prepared.print();
        prepared.forgive(self.lost.get(&print).copied().unwrap_or(0));
        let order_by = prepared.order_by().cloned();
        self.bytes += bytes;
        self.held.insert(
            id,
            Held {
                receipt: Some(received.receipt),
                bytes,
                since: Instant::now(),
                order_by: order_by.clone(),
                print,
                is_current: true,
            },
        );
        match order_by {
            Some(key) => match self.turns.get_mut(&key) {
                Some(waiting) => waiting.push_back((id, prepared)),
                None => {
                    self.turns.insert(key, VecDeque::new());
                    self.run(deliverer, id, prepared);
                }
            },
            None => self.run(deliverer, id, prepared),
        }
    }

    fn run<S: InboxStore>(&mut self, deliverer: &Arc<Deliverer<S>>, id: FlightId, prepared: Prepared) {
        let deliverer = deliverer.clone();
        let task = self.running.spawn(async move { deliverer.deliver(prepared).await });
        self.ids.insert(task.id(), id);
    }

    /// Waits for decided deliveries, and starts the next ones of their ordering keys. Never returns while none runs. Can be dropped at
    /// any time.
    pub(super) async fn next_decided<S: InboxStore>(
        &mut self,
        deliverer: &Arc<Deliverer<S>>,
    ) -> Vec<Decided> {
        let Some(first) = self.running.join_next_with_id().await else {
            return std::future::pending().await;
        };
        let mut all = Vec::new();
        let mut next = Some(first);
        while let Some(ended) = next {
            all.extend(self.decided(deliverer, ended));
            next = self.running.try_join_next_with_id();
        }
        all
    }

    fn decided<S: InboxStore>(
        &mut self,
        deliverer: &Arc<Deliverer<S>>,
        ended: Result<(Id, Option<Verdict>), JoinError>,
    ) -> Option<Decided> {
        let (task, verdict) = ended.unwrap_or_else(|error| {
            tracing::error!(%error, "internal error: the task of a delivery failed; it is delivered again");
            let retry = Settlement::Retry { after: None };
            (error.id(), Some(Verdict { settlement: retry, reason: None }))
        });
        let id = self.ids.remove(&task)?;
        let order_by = self.held.get_mut(&id).and_then(|held| held.order_by.take());
        if let Some(key) = order_by {
            match self.turns.get_mut(&key).and_then(VecDeque::pop_front) {
                Some((id, prepared)) => self.run(deliverer, id, prepared),
                None => _ = self.turns.remove(&key),
            }
        }
        Some(Decided { id, verdict })
    }

    /// The decision about a delivery, to be sent to its source. `None` if its session has ended.
    pub(super) fn decision(&mut self, id: FlightId, verdict: Verdict) -> Option<Decision<R>> {
        let receipt = self.held.get_mut(&id)?.receipt.take()?;
        Some(Decision { receipt, settlement: verdict.settlement, reason: verdict.reason })
    }

    /// Forgets a delivery that is settled.
    pub(super) fn settled(&mut self, id: FlightId) {
        if let Some(held) = self.held.get(&id) {
            self.lost.remove(&held.print);
        }
        self.end(id);
    }

    /// Forgets a delivery that will never be settled.
    pub(super) fn end(&mut self, id: FlightId) {
        if let Some(held) = self.held.remove(&id) {
            self.bytes -= held.bytes;
        }
    }

    /// The session has ended, and its receipts with it. Deliveries that wait for their turn are dropped: their source delivers them
    /// again. Running handlers may finish, so that their effects are not lost.
    pub(super) fn lose_session(&mut self, report: &mut ConsumeReport) {
        for held in self.held.values().filter(|held| held.is_current) {
            if self.lost.len() >= LOST_MAX {
                self.lost.clear();
            }
            *self.lost.entry(held.print).or_default() += 1;
        }
        for waiting in self.turns.values_mut() {
            for (id, _) in waiting.drain(..) {
                if let Some(held) = self.held.remove(&id) {
                    self.bytes -= held.bytes;
                    report.unsettled += 1;
                }
            }
        }
        let running: Vec<FlightId> = self.ids.values().copied().collect();
        let decided: Vec<FlightId> = self.held.keys().copied().filter(|id| !running.contains(id)).collect();
        for id in decided {
            report.unsettled += 1;
            self.end(id);
        }
        for held in self.held.values_mut() {
            (held.receipt, held.is_current) = (None, false);
        }
    }

    /// Waits for what still runs, without settling it.
    pub(super) async fn abandon(mut self, limit: Duration, report: &mut ConsumeReport) {
        report.unsettled += self.held.len() as u64;
        let _ = timeout(limit, async { while self.running.join_next().await.is_some() {} }).await;
    }
}
