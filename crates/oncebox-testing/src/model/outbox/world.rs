//! The real outbox with its relay, which is compared with the model.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use oncebox_core::store::{Place, ProcessId, Processes, ReplayFrom, Select, Stage, Store, Survey};
use oncebox_core::{
    Envelope, Error, Failure, HandlerOptions, Inbox, MessageId, Outbox, OutboxStore, Outgoing, Relay,
    Retention, Retry, Sink, Start, Verdict,
};

use super::ATTEMPTS;
use super::expected::{Expected, ExpectedMessage, SinkCopy, SinkVerdict};
use super::operations::{CrashPoint, OutboxOperation, PlannedMessage, PlannedVerdict};
use crate::conformance::Fixture;
use crate::faulty::{Faults, Faulty, Point, crash};
use crate::operator;

const LANES: u16 = 2;
/// The delay of a sink that asks for one.
const LATER: Duration = Duration::from_secs(60 * 60);
/// The time that one travel skips. It is longer than `LATER`, so that every retry is due.
const TRAVEL: Duration = Duration::from_secs(61 * 60);
/// The maximum number of rounds until everything is sent. Each round of a healthy sink sends something.
const ROUNDS: usize = 200;

/// Cases share a store: each has kinds, keys, a relay and a handler of its own.
static CASES: AtomicU64 = AtomicU64::new(1);

/// A sink whose verdicts are planned.
#[derive(Clone)]
struct PlannedSink<F> {
    fixture: F,
    plan: Arc<Mutex<SinkPlan>>,
}

#[derive(Debug, Default)]
struct SinkPlan {
    verdicts: HashMap<String, VecDeque<PlannedVerdict>>,
    /// Copies that the model has not seen yet.
    copies: Vec<SinkCopy>,
    /// Whether other processes take the relay for dead when it sends next.
    loses_lease: bool,
}

impl<F: Fixture<Store: OutboxStore>> Sink for PlannedSink<F> {
    const WAVE: usize = 3;

    async fn publish(&self, wave: &[Outgoing]) -> Vec<Verdict> {
        let loses_lease = std::mem::take(&mut self.plan.lock().unwrap().loses_lease);
        if loses_lease {
            let store = self.fixture.store();
            for process in store.peers(ProcessId(Default::default())).await.unwrap() {
                store.remove_crashed(process.id, true).await.unwrap();
            }
        }
        let mut plan = self.plan.lock().unwrap();
        let mut verdicts = Vec::new();
        for message in wave {
            let key = message.key.to_string();
            let planned = plan.verdicts.get_mut(&key).and_then(VecDeque::pop_front);
            let (seen, verdict) = match planned.unwrap_or(PlannedVerdict::Confirm) {
                PlannedVerdict::Confirm => (SinkVerdict::Confirmed, Verdict::Confirmed),
                PlannedVerdict::Refuse => (SinkVerdict::Refused, Verdict::Refused("refused".into())),
                PlannedVerdict::RefuseUntilLater => {
                    (SinkVerdict::Refused, Verdict::Refused(Failure::after(LATER, "later")))
                }
                PlannedVerdict::LoseConfirm => (SinkVerdict::Unknown, Verdict::Unknown("lost".into())),
            };
            plan.copies.push(SinkCopy { key, id: message.id, verdict: seen });
            verdicts.push(verdict);
        }
        verdicts
    }
}

/// Fails one commit of the relay, behind that of the mover.
#[derive(Clone, Debug, Default)]
struct OneCrash(Arc<Mutex<Option<(Point, u32)>>>);

impl OneCrash {
    /// The mover has the first commit of a flush.
    fn arm(&self, point: Point) {
        *self.0.lock().unwrap() = Some((point, 1));
    }

    fn disarm(&self) {
        *self.0.lock().unwrap() = None;
    }
}

impl Faults for OneCrash {
    async fn at(&self, point: Point) -> Result<(), Error> {
        let mut armed = self.0.lock().unwrap();
        match &mut *armed {
            Some((at, 0)) if *at == point => {
                *armed = None;
                Err(crash())
            }
            Some((at, passed)) if *at == point => {
                *passed -= 1;
                Ok(())
            }
            _ => Ok(()),
        }
    }
}

/// A store with an outbox, a relay and a handler, and their expected state.
pub(super) struct OutboxWorld<F: Fixture<Store: OutboxStore>> {
    fixture: F,
    case: u64,
    kind: String,
    /// Publishes and moves; it has no relay.
    publisher: Outbox<F::Store>,
    outbox: Outbox<Faulty<F::Store, OneCrash>>,
    inbox: Inbox<F::Store>,
    crashes: OneCrash,
    plan: Arc<Mutex<SinkPlan>>,
    expected: Expected,
    /// All published messages with keys, also of transactions that rolled back.
    keys: Vec<String>,
}

#[allow(clippy::needless_pass_by_value, reason = "for map_err")]
fn text(error: Error) -> String {
    format!("{error}: {:?}", std::error::Error::source(&error))
}

impl<F: Fixture<Store: OutboxStore>> OutboxWorld<F> {
    pub(super) async fn new(fixture: &F) -> Self {
        let case = CASES.fetch_add(1, Ordering::SeqCst);
        let kind = format!("published-{case}");
        let plan = Arc::new(Mutex::new(SinkPlan::default()));
        let sink = PlannedSink { fixture: fixture.clone(), plan: plan.clone() };
        let retry = Retry::new().max_attempts(ATTEMPTS).first_delay(Duration::ZERO).max_delay(Duration::ZERO);
        let relay = Relay::new(format!("relay {case}"), sink)
            .kinds([&kind])
            .start(Start::Now)
            .in_flight(4)
            .retry(retry);
        let crashes = OneCrash::default();
        let store = Faulty::new(fixture.store(), crashes.clone());
        let publisher = Outbox::builder(fixture.store()).lanes(LANES).build().await.unwrap();
        let outbox = Outbox::builder(store).lanes(LANES).relay(relay).build().await.unwrap();
        let (effects, name) = (fixture.clone(), format!("module {case}"));
        let handler =
            async move |envelope: Envelope, conn: &mut <F::Store as Store>::Conn| -> Result<(), Failure> {
                let key = envelope.key().map(ToString::to_string).unwrap_or_default();
                Ok(effects.effect(conn, &format!("module {key}")).await?)
            };
        let options = |options: HandlerOptions<Envelope>| options.start(Start::Now);
        let inbox = Inbox::builder(fixture.store())
            .stored()
            .lanes(LANES)
            // Only operations of the model may change the store.
            .retention(Retention::new().automatic(false))
            .on_raw_with(name, [kind.as_str()], handler, options)
            .build()
            .await
            .unwrap();
        Self {
            fixture: fixture.clone(),
            case,
            kind,
            publisher,
            outbox,
            inbox,
            crashes,
            plan,
            expected: Expected::default(),
            keys: Vec::new(),
        }
    }

    fn relay(&self) -> String {
        format!("relay {}", self.case)
    }

    pub(super) async fn perform(&mut self, operation: &OutboxOperation) -> Result<(), String> {
        let (relay, model) = (self.relay(), operator("model"));
        match operation {
            OutboxOperation::Publish { messages, commits } => self.publish(messages, *commits).await?,
            OutboxOperation::Move => self.move_all().await?,
            OutboxOperation::Send => self.send().await?,
            OutboxOperation::Crash(point) => self.crash(*point).await?,
            OutboxOperation::Work => drop(self.inbox.work_until_idle().await.map_err(text)?),
            OutboxOperation::Travel => self.fixture.travel(TRAVEL),
            OutboxOperation::Replay(from) => self.replay(*from).await?,
            OutboxOperation::Retry { is_healed } => {
                for message in self.of_stage(Stage::Dead).await? {
                    if *is_healed {
                        self.plan.lock().unwrap().verdicts.remove(&self.expected.messages[message].key);
                    }
                    self.expected.messages[message].refusals = 0;
                }
                let select = Select::all().handler(&relay);
                self.outbox.operators().retry_dead(select, &model).await.map_err(text)?;
            }
            OutboxOperation::Discard => {
                for message in self.of_stage(Stage::Dead).await? {
                    self.expected.messages[message].is_discarded = true;
                }
                let select = Select::all().handler(&relay);
                self.outbox.operators().discard_dead(select, &model).await.map_err(text)?;
            }
            OutboxOperation::Pause => {
                self.outbox.operators().pause_handler(&relay, &model).await.map_err(text)?;
            }
            OutboxOperation::Resume => {
                self.outbox.operators().resume_handler(&relay, &model).await.map_err(text)?;
            }
        }
        Ok(())
    }

    async fn publish(&mut self, messages: &[PlannedMessage], commits: bool) -> Result<(), String> {
        let mut envelopes = Vec::new();
        let mut planned = Vec::new();
        for message in messages {
            let known = message.copy_of.filter(|_| !self.keys.is_empty());
            let key = match known {
                Some(n) => self.keys[n % self.keys.len()].clone(),
                None => format!("{}-{}", self.case, self.keys.len()),
            };
            if known.is_none() {
                self.keys.push(key.clone());
                let verdicts = message.verdicts.iter().copied().collect();
                self.plan.lock().unwrap().verdicts.insert(key.clone(), verdicts);
            }
            let envelope = Envelope::new(&self.kind, key.as_bytes()).with_key(&*key);
            envelopes.push(match message.order {
                Some(order) => envelope.with_order_by(format!("{}-{order}", self.case)),
                None => envelope,
            });
            planned.push((key, message.order));
        }
        let ids = Arc::new(Mutex::new(None));
        let (publisher, published) = (self.publisher.clone(), ids.clone());
        let has_transactions = self.fixture.transaction(
            commits,
            Box::new(move |conn| {
                Box::pin(async move {
                    let ids = publisher.publish_envelopes(conn, envelopes).await;
                    *published.lock().unwrap() = Some(ids);
                })
            }),
        );
        assert!(has_transactions.await, "an outbox needs transactions of the application");
        let ids: Vec<MessageId> = ids.lock().unwrap().take().unwrap().map_err(text)?;
        if commits {
            for ((key, order), id) in planned.into_iter().zip(ids) {
                self.expected.publish(key, id, order);
            }
        }
        Ok(())
    }

    async fn move_all(&mut self) -> Result<(), String> {
        self.publisher.flush().await.map_err(text)?;
        self.expected.move_all();
        match self.publisher.status().await.map_err(text)?.waiting {
            0 => Ok(()),
            waiting => Err(format!("{waiting} messages are left in the outbox")),
        }
    }

    async fn send(&mut self) -> Result<(), String> {
        self.move_all().await?;
        self.outbox.flush().await.map_err(text)?;
        self.receive()
    }

    async fn crash(&mut self, point: CrashPoint) -> Result<(), String> {
        self.move_all().await?;
        match point {
            CrashPoint::BeforeCommit => self.crashes.arm(Point::BeforeCommit),
            CrashPoint::AfterCommit => self.crashes.arm(Point::AfterCommit),
            CrashPoint::LeaseLost => self.plan.lock().unwrap().loses_lease = true,
        }
        // What a crash returns does not matter.
        let _ = self.outbox.flush().await;
        self.crashes.disarm();
        self.plan.lock().unwrap().loses_lease = false;
        self.receive()
    }

    /// Tells the model what the sink has got.
    fn receive(&mut self) -> Result<(), String> {
        let copies = std::mem::take(&mut self.plan.lock().unwrap().copies);
        copies.iter().try_for_each(|copy| self.expected.receive(copy))
    }

    async fn place(&self, message: &ExpectedMessage) -> Result<Option<Place>, String> {
        self.inbox.operators().find_message(&self.kind, message.key.as_str()).await.map_err(text)
    }

    async fn replay(&mut self, from: Option<usize>) -> Result<(), String> {
        let moved: Vec<_> = self.expected.messages.iter().filter(|message| message.is_moved).collect();
        let mut places = HashMap::new();
        for message in &moved {
            let Some(place) = self.place(message).await? else {
                return Err(format!("{} is not in the log", message.key));
            };
            places.insert(message.key.clone(), place);
        }
        let from = from.filter(|_| !moved.is_empty()).map(|n| places[&moved[n % moved.len()].key]);
        let select = from.map_or(ReplayFrom::Beginning, ReplayFrom::Place);
        // A lane that has not reached the place goes on as it is. Its later messages are owed all the same.
        self.outbox.operators().replay(&self.relay(), select, &operator("model")).await.map_err(text)?;
        self.expected.replay(|message| {
            let place = places[&message.key];
            from.is_none_or(|from| place.lane == from.lane && place.pos >= from.pos)
        });
        Ok(())
    }

    /// The stage of every message for the relay.
    async fn stages(&self) -> Result<HashMap<String, Stage>, String> {
        let mut stages = HashMap::new();
        let name = self.relay();
        for lane in 0..LANES {
            let mut behind = 0;
            loop {
                let found = self.fixture.store().messages(lane, behind, 1_000).await.map_err(text)?;
                let Some(last) = found.last() else { break };
                behind = last.message.place.pos;
                for status in found.iter().filter(|status| status.message.kind == self.kind) {
                    let state = status.handlers.iter().find(|(its, _)| *its == name);
                    let stage = state.map_or(Stage::Absent, |(_, state)| Stage::of(state));
                    let key = status.message.key.as_ref().map(ToString::to_string).unwrap_or_default();
                    if stages.insert(key.clone(), stage).is_some() {
                        return Err(format!("{key} is in the log twice"));
                    }
                }
            }
        }
        Ok(stages)
    }

    async fn of_stage(&self, wanted: Stage) -> Result<Vec<usize>, String> {
        let stages = self.stages().await?;
        let messages = 0..self.expected.messages.len();
        Ok(messages.filter(|n| stages.get(&self.expected.messages[*n].key) == Some(&wanted)).collect())
    }

    /// Whether the store agrees with the model.
    pub(super) async fn compare(&self) -> Result<(), String> {
        let mut stages = self.stages().await?;
        for message in &self.expected.messages {
            match (stages.remove(&message.key), message.is_moved) {
                (None, false) => {}
                (Some(Stage::Done), true) => Expected::check_done(message)?,
                (Some(Stage::Dead), true) => Expected::check_dead(message)?,
                (Some(Stage::Absent) | None, true) => return Err(format!("{} is lost", message.key)),
                (Some(_), true) => {}
                (Some(_), false) => return Err(format!("{} is in the log and was not moved", message.key)),
            }
        }
        let tasks = self.outbox.operators().tasks(Some(&self.relay()), 1_000).await.map_err(text)?;
        for task in tasks {
            let is_its = |message: &&ExpectedMessage| task.key == Some(message.key.as_str().into());
            let refusals = self.expected.messages.iter().find(is_its).map_or(0, |message| message.refusals);
            if task.failures > refusals {
                return Err(format!(
                    "{:?} has {} failed attempts after {refusals} refusals",
                    task.key, task.failures
                ));
            }
        }
        match stages.keys().next() {
            Some(key) => Err(format!("{key} is in the log, and no committed transaction has published it")),
            None => Ok(()),
        }
    }

    /// Sends everything: the sink confirms, and operators retry dead letters.
    pub(super) async fn finish(&mut self) -> Result<(), String> {
        self.perform(&OutboxOperation::Resume).await?;
        self.plan.lock().unwrap().verdicts.clear();
        for _round in 0..ROUNDS {
            self.perform(&OutboxOperation::Retry { is_healed: true }).await?;
            // Also messages whose verdict was unknown wait for their time.
            self.perform(&OutboxOperation::Travel).await?;
            self.send().await?;
            self.compare().await?;
            let stages = self.stages().await?;
            if stages.values().all(|stage| *stage == Stage::Done) {
                break;
            }
            // After an outage a relay pauses by the clock of this machine, for at most a second.
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        if let Some((key, stage)) = self.stages().await?.into_iter().find(|(_, stage)| *stage != Stage::Done)
        {
            return Err(format!("{key} stands at {stage} for the relay, although its sink confirms"));
        }
        self.inbox.work_until_idle().await.map_err(text)?;
        for key in &self.keys {
            let expected = u64::from(self.expected.messages.iter().any(|message| message.key == *key));
            let effects = self.fixture.effects(&format!("module {key}")).await;
            if effects != expected {
                return Err(format!("the handler had {key} {effects} times, expected {expected}"));
            }
        }
        Ok(())
    }

    /// Leaves the store to the next case.
    pub(super) async fn leave(self) {
        let model = operator("model");
        let _ = self.outbox.operators().remove_handler(&self.relay(), &model).await;
        let _ = self.inbox.operators().remove_handler(&format!("module {}", self.case), &model).await;
        self.inbox.close().await;
    }
}
