//! The real inbox, which is compared with the model.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use oncebox_core::store::{
    Completion, End, Fence, HandlerId, LaneChoice, MessageState, NewMessage, NewProcess, Place, ProcessId,
    Processes, ReplayFrom, Select, Spill, Spilled, Stage, Store, TakeLimits, Taker, TaskLimits, Unit, Work,
};
use oncebox_core::store::{Log, Survey};
use oncebox_core::{
    Accept, Attempt, DeadHead, Envelope, Failure, HandlerOptions, Inbox, Key, LogStore, Mode, Replay,
    Retention, Retry, Start,
};
use tokio::sync::Notify;
use uuid::Uuid;

use super::StoreCases;
use super::expected::{ATTEMPTS, Expected, ExpectedMessage, LATER};
use super::operations::{DETACHED, HANDLERS, ModelOperation, Step};
use crate::conformance::{Fixture, LIMITS};
use crate::operator;

const LANES: u16 = 2;
/// The time that one travel skips. It is longer than `LATER`, so that every retry is due.
const TRAVEL: Duration = Duration::from_secs(61 * 60);
const ORDERED: [Option<DeadHead>; HANDLERS] = [None, Some(DeadHead::Hold), Some(DeadHead::Skip), None];
const NAMES: [&str; HANDLERS] = ["plain", "holding", "skipping", "detached"];

/// Cases share a store: each has kinds, keys and handlers of its own.
static CASES: AtomicU64 = AtomicU64::new(1);

/// The planned steps of the handlers.
#[derive(Debug, Default)]
struct Script {
    steps: Mutex<HashMap<String, Vec<Vec<Step>>>>,
    healed: Mutex<HashSet<(usize, String)>>,
    /// Successful runs of the detached handler.
    detached: Mutex<HashMap<String, u64>>,
    /// The message during which a worker crashes.
    hangs: Mutex<Option<String>>,
    hung: Notify,
}

impl Script {
    fn step(&self, handler: usize, key: &str, attempt: u32, is_replay: bool) -> Step {
        if is_replay || self.healed.lock().unwrap().contains(&(handler, key.to_owned())) {
            return Step::Succeed;
        }
        let steps = self.steps.lock().unwrap();
        let of_handler = steps.get(key).map(|steps| &steps[handler]);
        of_handler.and_then(|steps| steps.get(attempt as usize - 1)).copied().unwrap_or(Step::Succeed)
    }

    async fn maybe_hang(&self, key: &str) {
        let hangs = self.hangs.lock().unwrap().as_deref() == Some(key);
        if hangs {
            self.hung.notify_one();
            // The transaction stays open, and the worker is dropped in the middle of it.
            std::future::pending::<()>().await;
        }
    }
}

fn fail(step: Step) -> Result<(), Failure> {
    match step {
        Step::Succeed => Ok(()),
        Step::Fail => Err(Failure::from("failed")),
        Step::FailUntilLater => Err(Failure::after(LATER, "later")),
        Step::FailForGood => Err(Failure::permanent("for good")),
    }
}

/// A store with an inbox, and its expected state.
pub(super) struct World<F: Fixture<Store: LogStore>> {
    fixture: F,
    case: u64,
    kind: String,
    inbox: Inbox<F::Store>,
    script: Arc<Script>,
    expected: Expected,
    /// Another process, and the tasks that it has leased.
    ghost: Option<ProcessId>,
    leases: Vec<(Place, Fence)>,
    shared: Arc<StoreCases>,
}

impl<F: Fixture<Store: LogStore>> World<F> {
    pub(super) async fn new(fixture: &F, shared: Arc<StoreCases>) -> Self {
        let case = CASES.fetch_add(1, Ordering::SeqCst);
        let kind = format!("case-{case}");
        let script = Arc::new(Script::default());
        let inbox = build(fixture, case, &kind, &script, [true; HANDLERS], Start::Now).await;
        let mut heads = Vec::new();
        for lane in 0..LANES {
            heads.push(head(fixture, lane).await);
        }
        Self {
            fixture: fixture.clone(),
            case,
            kind,
            inbox,
            script,
            expected: Expected::new(ORDERED, heads, shared.clone()),
            ghost: None,
            leases: Vec::new(),
            shared,
        }
    }

    fn name(&self, handler: usize) -> String {
        format!("{} {}", NAMES[handler], self.case)
    }

    fn is_there(&self, handler: usize) -> bool {
        self.expected.handlers[handler].is_there
    }

    pub(super) async fn perform(&mut self, operation: &ModelOperation) -> Result<(), String> {
        let failed = |error: oncebox_core::Error| format!("{error}: {:?}", std::error::Error::source(&error));
        match operation {
            ModelOperation::Accept { order, is_later, steps } => {
                self.accept(*order, *is_later, steps).await.map_err(failed)?;
            }
            ModelOperation::AcceptAgain(n) => {
                let Some(key) = self.pick(*n).map(|n| self.expected.messages[n].key.clone()) else {
                    return Ok(());
                };
                let again =
                    self.inbox.accept(Envelope::new(&self.kind, key.as_bytes()).with_key(&*key)).await;
                if !matches!(again, Ok(Accept::Duplicate { .. })) {
                    return Err(format!("a copy of {key} is {again:?}"));
                }
            }
            ModelOperation::Work => self.work().await.map_err(failed)?,
            ModelOperation::CrashAndWork(n) => {
                self.crash(*n).await;
                self.work().await.map_err(failed)?;
            }
            ModelOperation::Travel => self.travel(),
            ModelOperation::Retry { handler, is_healed } if self.is_there(*handler) => {
                if *is_healed {
                    self.heal(*handler);
                }
                let select = Select::all().handler(self.name(*handler));
                self.inbox.operators().retry_dead(select, &operator("model")).await.map_err(failed)?;
                self.expected.retry(*handler);
            }
            ModelOperation::Settle { handler, is_discarded } if self.is_there(*handler) => {
                let select = Select::all().handler(self.name(*handler));
                match is_discarded {
                    true => self
                        .inbox
                        .operators()
                        .discard_dead(select, &operator("model"))
                        .await
                        .map_err(failed)?,
                    false => self
                        .inbox
                        .operators()
                        .resolve_dead(select, &operator("model"))
                        .await
                        .map_err(failed)?,
                };
                self.expected.settle(*handler, *is_discarded);
            }
            ModelOperation::Replay { handler, from } if self.is_there(*handler) => {
                self.replay(*handler, *from).await.map_err(failed)?;
            }
            ModelOperation::Pause(handler) if self.is_there(*handler) => {
                let was = std::mem::replace(&mut self.expected.handlers[*handler].is_paused, true);
                let paused = self
                    .inbox
                    .operators()
                    .pause_handler(&self.name(*handler), &operator("model"))
                    .await
                    .map_err(failed)?;
                if paused == was {
                    return Err("pausing did not tell what was before".into());
                }
            }
            ModelOperation::Resume(handler) if self.is_there(*handler) => {
                let was = std::mem::replace(&mut self.expected.handlers[*handler].is_paused, false);
                let resumed = self
                    .inbox
                    .operators()
                    .resume_handler(&self.name(*handler), &operator("model"))
                    .await
                    .map_err(failed)?;
                if resumed != was {
                    return Err("resuming did not tell what was before".into());
                }
            }
            ModelOperation::Remove(handler) if self.is_there(*handler) => {
                let there = self.expected.handlers.iter().filter(|handler| handler.is_there).count();
                if there == 1 {
                    return Ok(());
                }
                self.inbox
                    .operators()
                    .remove_handler(&self.name(*handler), &operator("model"))
                    .await
                    .map_err(failed)?;
                self.expected.remove(*handler);
                // A process learns of handlers when it starts, so the inbox starts again.
                self.rebuild().await;
            }
            // Not with spilled messages of its own: they were removed with the handler, and look done.
            ModelOperation::Revive(handler) if !self.is_there(*handler) && !self.has_own(*handler) => {
                self.expected.revive(*handler);
                self.rebuild().await;
            }
            ModelOperation::Prune => self.prune().await?,
            ModelOperation::Spill { handler, is_dead } if self.is_there(*handler) => {
                self.spill(*handler, *is_dead).await?;
            }
            ModelOperation::Lease { is_task, lane } if self.is_there(DETACHED) => {
                self.lease(*is_task, *lane).await?;
            }
            ModelOperation::EndLease { is_well } => self.end_lease(*is_well).await?,
            ModelOperation::LoseLeases => self.lose_leases().await?,
            // The operation does not apply to a handler in this state.
            _ => {}
        }
        Ok(())
    }

    fn has_own(&self, handler: usize) -> bool {
        let own = |message: &ExpectedMessage| message.target == Some(handler) && !message.is_pruned;
        self.expected.messages.iter().any(own)
    }

    /// One of the present messages.
    fn pick(&self, n: usize) -> Option<usize> {
        let there: Vec<usize> = (0..self.expected.messages.len())
            .filter(|&n| !self.expected.messages[n].is_pruned && self.expected.messages[n].target.is_none())
            .collect();
        (!there.is_empty()).then(|| there[n % there.len()])
    }

    async fn accept(
        &mut self,
        order: Option<u8>,
        is_later: bool,
        steps: &[Vec<Step>; HANDLERS],
    ) -> Result<(), oncebox_core::Error> {
        let key = format!("{}-{}", self.case, self.expected.messages.len());
        self.script.steps.lock().unwrap().insert(key.clone(), steps.to_vec());
        let mut envelope = Envelope::new(&self.kind, key.as_bytes()).with_key(&*key);
        if let Some(order) = order {
            envelope = envelope.with_order_by(format!("{}-{order}", self.case));
        }
        let due = if is_later { self.expected.now + LATER } else { Duration::ZERO };
        // The due time is wall time, but the store's clock is ahead of it by the time travelled.
        if is_later {
            envelope =
                envelope.with_due_at(SystemTime::now() + *self.shared.travelled.lock().unwrap() + LATER);
        }
        match self.inbox.accept(envelope).await? {
            Accept::Accepted(Place { lane, pos }) => {
                self.expected.accept(key, Place { lane, pos }, order, due, steps);
                Ok(())
            }
            known => panic!("a new key is {known:?}"),
        }
    }

    async fn work(&mut self) -> Result<(), oncebox_core::Error> {
        self.inbox.work_until_idle().await?;
        self.expected.work();
        Ok(())
    }

    /// A worker that crashes during a message leaves nothing behind.
    async fn crash(&mut self, n: usize) {
        let Some(n) = self.pick(n) else { return };
        *self.script.hangs.lock().unwrap() = Some(self.expected.messages[n].key.clone());
        let inbox = self.inbox.clone();
        let mut working = tokio::spawn(async move { inbox.work_until_idle().await });
        tokio::select! {
            () = self.script.hung.notified() => {
                working.abort();
                // Waits until the task is gone, and its transaction with it.
                let _ = working.await;
            }
            _ = &mut working => {}
        }
        *self.script.hangs.lock().unwrap() = None;
    }

    fn travel(&mut self) {
        self.fixture.travel(TRAVEL);
        *self.shared.travelled.lock().unwrap() += TRAVEL;
        self.expected.now += TRAVEL;
        self.expected.follow();
    }

    fn heal(&mut self, handler: usize) {
        for message in &mut self.expected.messages {
            if message.lives[handler].stage == Stage::Dead {
                message.lives[handler].steps.clear();
                self.script.healed.lock().unwrap().insert((handler, message.key.clone()));
            }
        }
    }

    async fn replay(&mut self, handler: usize, from: Option<usize>) -> Result<(), oncebox_core::Error> {
        let place = from.and_then(|n| self.pick(n)).map(|n| self.expected.messages[n].place);
        let mut first = Vec::new();
        for lane in 0..LANES {
            let messages = self.fixture.store().messages(lane, 0, 1).await?;
            first.push(messages.first().map(|message| message.message.place.pos));
        }
        let from = place.map_or(ReplayFrom::Beginning, ReplayFrom::Place);
        self.inbox.operators().replay(&self.name(handler), from, &operator("model")).await?;
        self.expected.replay(handler, place, &first);
        Ok(())
    }

    async fn rebuild(&mut self) {
        self.inbox.close().await;
        let there = std::array::from_fn(|n| self.is_there(n));
        let script = &self.script;
        self.inbox = build(&self.fixture, self.case, &self.kind, script, there, Start::Beginning).await;
    }

    async fn prune(&mut self) -> Result<(), String> {
        self.inbox.prune().await.map_err(|error| error.to_string())?;
        for n in 0..self.expected.messages.len() {
            let place = self.expected.messages[n].place;
            if self.expected.messages[n].is_pruned {
                continue;
            }
            let there =
                self.inbox.operators().message(place).await.map_err(|error| error.to_string())?.is_some();
            match (there, self.expected.may_go(n)) {
                // The other way round is no mistake: pruning may leave a message for a later round.
                (false, true) => self.expected.prune(n),
                (false, false) => {
                    return Err(format!("{place:?} is gone, and a handler still needs it"));
                }
                (true, _) => {}
            }
        }
        Ok(())
    }

    async fn ids(&self) -> Result<Vec<HandlerId>, String> {
        let statuses = self.inbox.operators().handler_statuses().await.map_err(|error| error.to_string())?;
        let id = |n| {
            let name = self.name(n);
            let status = statuses.iter().find(|status| status.handler.name == name);
            status.map_or(HandlerId(0), |status| status.handler.id)
        };
        Ok((0..HANDLERS).map(id).collect())
    }

    async fn spill(&mut self, handler: usize, is_dead: bool) -> Result<(), String> {
        let key = format!("{}-{}", self.case, self.expected.messages.len());
        let unit = Unit {
            handler: self.name(handler),
            kind: self.kind.clone(),
            key: Key::from(&*key).stored(),
            fingerprint: None,
            waited: Duration::ZERO,
        };
        let envelope = Envelope::new(&self.kind, key.as_bytes());
        let lane = u16::try_from(self.expected.messages.len()).unwrap_or(0) % LANES;
        let spill = Spill {
            handler: self.ids().await?[handler],
            marker: Some(unit.clone()),
            message: NewMessage {
                kind: self.kind.clone(),
                key: Some(unit.key),
                fingerprint: envelope.fingerprint(),
                order_by: None,
                headers: envelope.headers().clone(),
                body: envelope.body().to_vec(),
                occurred_at: None,
                due_at: None,
                waited: Duration::ZERO,
                message_id: None,
            },
            lane: LaneChoice::Only(lane),
            failures: 1,
            due_in: Duration::ZERO,
            error: Some("failed inline".into()),
            is_dead,
        };
        let store = self.fixture.store();
        let spilled = store.spill(&spill, LIMITS.lock_timeout).await.map_err(|error| error.to_string())?;
        let Spilled::New(place) = spilled else { return Err(format!("a new key is {spilled:?}")) };
        // The source delivers again what fails inline: the copy must be a duplicate.
        let again = store.spill(&spill, LIMITS.lock_timeout).await.map_err(|error| error.to_string())?;
        if !matches!(again, Spilled::Known(_)) {
            return Err(format!("a spilled key is {again:?}"));
        }
        self.expected.spill(key, place, handler, is_dead);
        Ok(())
    }

    /// Another process takes one message, or one task, of the detached handler.
    async fn lease(&mut self, is_task: bool, lane: u16) -> Result<(), String> {
        let store = self.fixture.store();
        let process = match self.ghost {
            Some(process) => process,
            None => {
                let process = NewProcess {
                    id: ProcessId(Uuid::now_v7()),
                    name: "a ghost".into(),
                    handlers: self.ids().await?,
                    // It sends no heartbeats, so the lease must outlast the test.
                    lease: Duration::from_secs(365 * 24 * 60 * 60),
                    in_flight: 10,
                    moves: false,
                };
                store.enter(&process).await.map_err(|error| error.to_string())?;
                *self.ghost.insert(process.id)
            }
        };
        let kinds = [self.kind.clone()];
        let taker = Taker {
            handler: self.ids().await?[DETACHED],
            kinds: &kinds,
            mode: Mode::Stored,
            ordered: ORDERED[DETACHED],
            lane,
        };
        let mut tx = store.begin(LIMITS).await.map_err(|error| error.to_string())?;
        let (message, progress) = if is_task {
            let limits = TaskLimits { tasks: 1, heads_only: true };
            let taken = store.take_tasks(&mut tx, taker, limits).await.map_err(|error| error.to_string())?;
            (taken.and_then(|mut taken| taken.pop()), None)
        } else {
            let limits = TakeLimits { messages: 1, positions: 10_000, bytes: 1 << 20, open_tasks: None };
            let taken = store.take(&mut tx, taker, limits).await.map_err(|error| error.to_string())?;
            let (next, lane_number) = (self.expected.next_waiting(DETACHED, lane), lane);
            let found = taken.as_ref().and_then(|batch| batch.messages.first());
            let is_paused = self.expected.handlers[DETACHED].is_paused;
            if !is_paused && found.map(|message| message.place) != next.map(|(place, _)| place) {
                return Err(format!("next is {found:?}, expected {next:?}"));
            }
            match taken {
                Some(mut batch) if !batch.messages.is_empty() => {
                    let message = batch.messages.remove(0);
                    let progress = oncebox_core::store::Progress {
                        handler: taker.handler,
                        lane: lane_number,
                        epoch: batch.epoch,
                        pos: message.place.pos,
                    };
                    (Some(message), Some(progress))
                }
                _ => (None, None),
            }
        };
        let Some(message) = message.filter(|message| message.due_in.is_zero()) else {
            store.rollback(tx).await;
            return Ok(());
        };
        let unfinished = oncebox_core::store::Unfinished {
            pos: message.place.pos,
            order_by: message.order_by.clone(),
            failures: message.failures,
            due_in: Duration::ZERO,
            error: None,
            attempts: message.attempts.clone(),
            body: None,
            scheduled: false,
            crashes: message.crashes,
        };
        let fence =
            store.lease(&mut tx, taker, process, &[unfinished]).await.map_err(|error| error.to_string())?;
        let Some(fence) = fence else { return Err("a process that is there is not known".into()) };
        store.finish(tx, progress).await.map_err(|error| error.to_string())?;
        // Only a number that grows tells a late outcome from a newer one (S7).
        if self.leases.iter().any(|(_, before)| *before >= fence) {
            return Err("fences do not grow".into());
        }
        self.leases.push((message.place, fence));
        self.expected.lease(DETACHED, message.place, fence);
        Ok(())
    }

    async fn end_lease(&mut self, is_well: bool) -> Result<(), String> {
        if self.leases.is_empty() {
            return Ok(());
        }
        let (place, fence) = self.leases.remove(0);
        let under = self.expected.under(DETACHED, place, fence);
        let failures = under.map_or(1, |n| self.expected.messages[n].lives[DETACHED].failures + 1);
        let end = match (is_well, failures < ATTEMPTS) {
            (true, _) => End::Done { marker: None, result: None, published: Vec::new() },
            (false, true) => End::Retry { failures, due_in: Duration::ZERO, error: Some("failed".into()) },
            (false, false) => End::Dead { failures, error: "failed".into() },
        };
        let completion = Completion { handler: self.ids().await?[DETACHED], place, fence, end };
        let counted =
            self.fixture.store().complete(&[completion]).await.map_err(|error| error.to_string())?;
        if counted != [under.is_some()] {
            return Err(format!("{place:?} under {fence:?} counted: {counted:?}, expected {under:?}"));
        }
        if let Some(message) = under {
            self.expected.end(DETACHED, message, Some(if is_well { Step::Succeed } else { Step::Fail }));
            self.expected.follow();
        }
        Ok(())
    }

    async fn lose_leases(&mut self) -> Result<(), String> {
        let Some(process) = self.ghost.take() else { return Ok(()) };
        let store = self.fixture.store();
        let tasks = store.remove_crashed(process, true).await.map_err(|error| error.to_string())?;
        if tasks.is_none() {
            return Err("a process that has ended is taken for alive".into());
        }
        self.expected.lose_leases(DETACHED);
        // The outcomes that it reports later do not count.
        while !self.leases.is_empty() {
            self.end_lease(true).await?;
        }
        Ok(())
    }

    /// Whether the store agrees with the model.
    pub(super) async fn compare(&self) -> Result<(), String> {
        let store = self.fixture.store();
        for lane in 0..LANES {
            let first = self.expected.messages.iter().filter(|message| message.place.lane == lane);
            // The cases share a store: earlier positions belong to other cases.
            let Some(behind) = first.map(|message| message.place.pos - 1).min() else { continue };
            let found = store.messages(lane, behind, 1_000).await.map_err(|error| error.to_string())?;
            let found: HashMap<i64, Vec<(String, MessageState)>> =
                found.into_iter().map(|status| (status.message.place.pos, status.handlers)).collect();
            for message in self.expected.messages.iter().filter(|message| message.place.lane == lane) {
                let states = found.get(&message.place.pos);
                if states.is_none() != message.is_pruned {
                    return Err(format!("{:?} is there: {}", message.place, states.is_some()));
                }
                for handler in 0..HANDLERS {
                    let name = self.name(handler);
                    let state = states.and_then(|states| states.iter().find(|(its, _)| *its == name));
                    let stage = state.map_or(Stage::Absent, |(_, state)| Stage::of(state));
                    let life = &message.lives[handler];
                    if stage != life.stage {
                        return Err(format!(
                            "{} stands at {stage} for {name}, expected {} ({state:?}, {life:?})",
                            message.key, life.stage
                        ));
                    }
                    let effects = match handler {
                        DETACHED => {
                            self.script.detached.lock().unwrap().get(&message.key).copied().unwrap_or(0)
                        }
                        _ => self.fixture.effects(&format!("{name} {}", message.key)).await,
                    };
                    if effects != life.effects {
                        return Err(format!(
                            "{} has {effects} effects for {name}, expected {}",
                            message.key, life.effects
                        ));
                    }
                }
            }
        }
        Ok(())
    }

    /// Leaves the store to the next case.
    pub(super) async fn leave(self) {
        if let Some(process) = self.ghost {
            let _ = self.fixture.store().leave(process).await;
        }
        for handler in 0..HANDLERS {
            let _ = self.inbox.operators().remove_handler(&self.name(handler), &operator("model")).await;
        }
        self.inbox.close().await;
    }
}

/// An inbox with the present handlers.
async fn build<F: Fixture<Store: LogStore>>(
    fixture: &F,
    case: u64,
    kind: &str,
    script: &Arc<Script>,
    there: [bool; HANDLERS],
    start: Start,
) -> Inbox<F::Store> {
    let mut builder = Inbox::builder(fixture.store())
        .stored()
        .lanes(LANES)
        // A passed message can be pruned at once, because the model has no retention period.
        .keep_messages(Duration::ZERO)
        // Only operations of the model may change the store.
        .retention(Retention::new().automatic(false))
        .retry(Retry::new().max_attempts(ATTEMPTS).first_delay(Duration::ZERO).max_delay(Duration::ZERO));
    for handler in (0..HANDLERS).filter(|&handler| there[handler]) {
        let name = format!("{} {case}", NAMES[handler]);
        let options = move |options: HandlerOptions<Envelope>| {
            // Registered handlers keep their progress.
            let options = options.start(start);
            let options = if start == Start::Beginning { options.revive() } else { options };
            match ORDERED[handler] {
                Some(policy) => options.dead_head(policy),
                None => options,
            }
        };
        let script = script.clone();
        builder = if handler == DETACHED {
            let run = async move |envelope: Envelope, Attempt(attempt): Attempt, Replay(again): Replay| {
                let key = body(&envelope);
                fail(script.step(handler, &key, attempt, again))?;
                *script.detached.lock().unwrap().entry(key).or_default() += 1;
                Ok::<(), Failure>(())
            };
            builder.on_raw_with(name, [kind], run, move |of_it| options(of_it).detached())
        } else {
            let (effects, prefix) = (fixture.clone(), name.clone());
            let run = async move |envelope: Envelope,
                                  Attempt(attempt): Attempt,
                                  Replay(again): Replay,
                                  conn: &mut <F::Store as Store>::Conn|
                        -> Result<(), Failure> {
                let key = body(&envelope);
                effects.effect(conn, &format!("{prefix} {key}")).await?;
                script.maybe_hang(&key).await;
                fail(script.step(handler, &key, attempt, again))
            };
            builder.on_raw_with(name, [kind], run, options)
        };
    }
    builder.build().await.unwrap()
}

fn body(envelope: &Envelope) -> String {
    String::from_utf8_lossy(envelope.body()).into_owned()
}

/// The newest position of a lane.
async fn head<F: Fixture<Store: LogStore>>(fixture: &F, lane: u16) -> i64 {
    let mut head = 0;
    loop {
        let messages = fixture.store().messages(lane, head, 1_000).await.unwrap();
        match messages.last() {
            Some(last) => head = last.message.place.pos,
            None => return head,
        }
    }
}
