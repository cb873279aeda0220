//! A log of four lanes with one handler, which takes `a`, driven as the engine drives it.

use std::time::Duration;

use oncebox_core::store::{
    Appended, Batch, Fence, HandlerId, Inspect, LaneChoice, Lanes, Limits, Log, MarkerState, NewMessage,
    NewProcess, Place, ProcessId, Processes, Progress, Registration, Registry, SetApart, Settled, Store,
    StoredMessage, TakeLimits, Taker, TaskLimits, Unit, Upkeep, Work,
};
use oncebox_core::{Error, Fingerprint, Headers, Key, Mode, Start};
use oncebox_sqlite::{SqliteStore, SqliteTx};
use sqlx::AssertSqlSafe;

use crate::fixture;

pub(crate) const LIMITS: Limits = Limits {
    lock_timeout: Duration::from_secs(120),
    body_lock_timeout: None,
    handler_timeout: Duration::from_secs(120),
};
pub(crate) const ALL: TakeLimits =
    TakeLimits { messages: 1000, positions: 1000, bytes: 1 << 20, open_tasks: None };
pub(crate) const LATER: Duration = Duration::from_secs(3600);
/// What is not done within this time never will be.
pub(crate) const A_WHILE: Duration = Duration::from_secs(600);
pub(crate) const FOUR_LANES: Option<Lanes> = Some(Lanes(Some(4)));

pub(crate) fn at_most(tasks: u32) -> TaskLimits {
    TaskLimits { tasks, heads_only: false }
}

pub(crate) fn place(lane: u16, pos: i64) -> Place {
    Place { lane, pos }
}

pub(crate) fn message(kind: &str, key: &str) -> NewMessage {
    let body = format!("{{\"of\":\"{key}\"}}").into_bytes();
    NewMessage {
        kind: kind.to_owned(),
        key: Some(Key::from(key).stored()),
        fingerprint: Fingerprint::of(&body),
        order_by: None,
        headers: Headers::new(),
        body,
        occurred_at: None,
        due_at: None,
        waited: Duration::ZERO,
    }
}

pub(crate) fn stored(name: &str, kinds: &[&str]) -> Registration {
    Registration {
        name: name.to_owned(),
        kinds: kinds.iter().map(|&kind| kind.to_owned()).collect(),
        mode: Mode::Stored,
        ordered: None,
        start: Start::Beginning,
        revive: false,
    }
}

/// A log of four lanes with one handler, which takes `a`.
pub(crate) struct OneHandler {
    pub(crate) store: SqliteStore,
    pub(crate) handler: HandlerId,
    pub(crate) kinds: Vec<String>,
    /// As it is registered.
    pub(crate) as_wanted: Registration,
    _fixture: fixture::Sqlite,
}

impl OneHandler {
    pub(crate) async fn new() -> Self {
        Self::of(stored("ledger", &["a"])).await
    }

    pub(crate) async fn of(as_wanted: Registration) -> Self {
        let fixture = fixture::in_a_file("log").await.unwrap();
        let layout = fixture.store.register(FOUR_LANES, std::slice::from_ref(&as_wanted)).await.unwrap();
        assert_eq!(layout.lanes, 4);
        Self {
            store: fixture.store.clone(),
            handler: layout.handlers[0],
            kinds: as_wanted.kinds.clone(),
            as_wanted,
            _fixture: fixture,
        }
    }

    /// The same log through another store.
    pub(crate) fn seen_by(&self, store: SqliteStore) -> Self {
        let (kinds, as_wanted) = (self.kinds.clone(), self.as_wanted.clone());
        Self { store, handler: self.handler, kinds, as_wanted, _fixture: self._fixture.clone() }
    }

    pub(crate) fn taker(&self, lane: u16) -> Taker<'_> {
        let Registration { mode, ordered, .. } = self.as_wanted;
        Taker { handler: self.handler, kinds: &self.kinds, mode, ordered, lane }
    }

    pub(crate) async fn append(&self, lane: u16, messages: &[NewMessage]) -> Vec<Appended> {
        self.store.append(LaneChoice::Only(lane), messages).await.unwrap()
    }

    pub(crate) async fn append_keys(&self, lane: u16, keys: &[&str]) {
        let messages: Vec<_> = keys.iter().map(|key| message("a", key)).collect();
        self.append(lane, &messages).await;
    }

    /// A take without an end.
    pub(crate) async fn peek(&self, lane: u16, limits: TakeLimits) -> Option<Batch> {
        let mut tx = self.store.begin(LIMITS).await.unwrap();
        let batch = self.store.take(&mut tx, self.taker(lane), limits).await.unwrap();
        self.store.rollback(tx).await;
        batch
    }

    /// Takes all of a lane and settles it.
    pub(crate) async fn pass(&self, lane: u16, settled: &Settled) -> Batch {
        let mut tx = self.store.begin(LIMITS).await.unwrap();
        let batch = self.store.take(&mut tx, self.taker(lane), ALL).await.unwrap().unwrap();
        self.store.guard(&mut tx).await.unwrap();
        self.store.settle(&mut tx, self.taker(lane), settled).await.unwrap();
        self.finish(tx, lane, &batch).await;
        batch
    }

    pub(crate) async fn finish(&self, tx: SqliteTx, lane: u16, batch: &Batch) {
        let progress = Progress { handler: self.handler, lane, epoch: batch.epoch, pos: batch.reached };
        self.store.finish(tx, Some(progress)).await.unwrap();
    }

    pub(crate) async fn take_tasks(&self, lane: u16, limit: u32) -> (SqliteTx, Vec<StoredMessage>) {
        let mut tx = self.store.begin(LIMITS).await.unwrap();
        let tasks = self.store.take_tasks(&mut tx, self.taker(lane), at_most(limit)).await.unwrap().unwrap();
        (tx, tasks)
    }

    /// Writes down what became of messages, without any progress.
    pub(crate) async fn settle(&self, lane: u16, settled: &Settled) {
        let mut tx = self.store.begin(LIMITS).await.unwrap();
        self.store.settle(&mut tx, self.taker(lane), settled).await.unwrap();
        self.store.commit(tx).await.unwrap();
    }

    /// Which tasks could be taken; none of them is.
    pub(crate) async fn peek_tasks(&self, lane: u16, limits: TaskLimits) -> Option<Vec<StoredMessage>> {
        let mut tx = self.store.begin(LIMITS).await.unwrap();
        let tasks = self.store.take_tasks(&mut tx, self.taker(lane), limits).await.unwrap();
        self.store.rollback(tx).await;
        tasks
    }

    /// The positions of the tasks in lane 0 that could be taken.
    pub(crate) async fn runnable(&self) -> Vec<i64> {
        positions(&self.peek_tasks(0, at_most(100)).await.unwrap())
    }

    /// Lets a process run messages of lane 0 outside of a transaction.
    pub(crate) async fn lease(&self, process: ProcessId, messages: &[SetApart]) -> Fence {
        let peers = self.store.peers(ProcessId(uuid::Uuid::nil())).await.unwrap();
        if peers.iter().all(|peer| peer.id != process) {
            let (name, handlers) = ("host 7".to_owned(), vec![self.handler]);
            let lease = Duration::from_secs(60);
            let process = NewProcess { id: process, name, handlers, lease, in_hand: 3 };
            self.store.enter(&process).await.unwrap();
        }
        let mut tx = self.store.begin(LIMITS).await.unwrap();
        let fence = self.store.lease(&mut tx, self.taker(0), process, messages).await.unwrap().unwrap();
        self.store.commit(tx).await.unwrap();
        fence
    }

    /// The handler's own mark on a message of its kind.
    pub(crate) fn unit(&self, key: &str) -> Unit {
        Unit {
            handler: self.as_wanted.name.clone(),
            kind: "a".to_owned(),
            key: Key::from(key).stored(),
            fingerprint: Some(message("a", key).fingerprint),
            waited: Duration::ZERO,
        }
    }

    /// The state of the handler's own marker.
    pub(crate) async fn marker(&self, key: &str) -> Option<MarkerState> {
        self.store.marker(&self.unit(key)).await.unwrap().map(|marker| marker.state)
    }

    /// Registers the handler again, with another mode.
    pub(crate) async fn become_mode(&mut self, mode: Mode) -> Result<(), Error> {
        let wanted = Registration { mode, ..self.as_wanted.clone() };
        let layout = self.store.register(FOUR_LANES, std::slice::from_ref(&wanted)).await?;
        assert_eq!(layout.handlers, [self.handler]);
        self.as_wanted = wanted;
        Ok(())
    }

    /// Appends messages to lane 0 of which all die with these errors.
    pub(crate) async fn bury(&self, deaths: &[(&str, &str)]) {
        let keys: Vec<&str> = deaths.iter().map(|(key, _)| *key).collect();
        self.append_keys(0, &keys).await;
        let dead = deaths.iter().zip(1..).map(|((_, error), pos)| failure(pos, 1, error)).collect();
        self.pass(0, &Settled { apart: vec![], dead }).await;
    }

    pub(crate) async fn now_ms(&self) -> i64 {
        self.store.live_time().await.unwrap().1
    }

    pub(crate) async fn count(&self, from: &str) -> i64 {
        let count = AssertSqlSafe(format!("select count(*) from {from}"));
        sqlx::query_scalar(count).fetch_one(self.store.pool()).await.unwrap()
    }

    pub(crate) async fn positions(&self, lane: u16) -> Vec<i64> {
        sqlx::query_scalar("select pos from oncebox_message where lane = ? order by pos")
            .bind(lane)
            .fetch_all(self.store.pool())
            .await
            .unwrap()
    }
}

pub(crate) fn failure(pos: i64, failures: u32, error: &str) -> SetApart {
    SetApart {
        pos,
        order_by: None,
        failures,
        due_in: Duration::ZERO,
        error: Some(error.to_owned()),
        attempts: None,
        body: None,
        scheduled: false,
        crashes: 0,
    }
}

/// A message that stays in order with others.
pub(crate) fn in_order(key: &str, order_by: Option<&str>) -> NewMessage {
    NewMessage { order_by: order_by.map(Key::from), ..message("a", key) }
}

/// The same, set apart.
pub(crate) fn apart(pos: i64, order_by: &str, due_in: Duration) -> SetApart {
    SetApart { order_by: Some(Key::from(order_by)), due_in, ..failure(pos, 1, "x") }
}

pub(crate) fn positions(messages: &[StoredMessage]) -> Vec<i64> {
    messages.iter().map(|message| message.place.pos).collect()
}
