//! Appending to lanes, taking from them, and settling the messages taken.

use std::slice;
use std::time::Duration;

use oncebox_core::store::{
    Account, Appended, Batch, Claims, DueLanes, LaneChoice, Log, MarkerState, NewMessage, Progress,
    PruneRange, Pruned, Spill, Spilled, Store, StoredMessage, TakeLimits, TaskLimits, Unit, Upkeep, Work,
};
use oncebox_core::{Error, Key, LogStore};

use super::{ALL, LATER, NOW, OneHandler, all_done, at_most, dead, failure, message, sorted};
use crate::Fixture;
use crate::conformance::LIMITS;

type Tx<F> = <<F as Fixture>::Store as Store>::Tx;

impl<F: Fixture<Store: LogStore>> OneHandler<F> {
    /// Appends messages to a lane.
    pub async fn append(&self, lane: u16, messages: &[NewMessage]) -> Vec<Appended> {
        self.append_to(LaneChoice::Only(lane), messages).await.unwrap()
    }

    /// Appends messages to a lane of the store's choice, or to one that may not be there.
    pub async fn append_to(&self, lane: LaneChoice, messages: &[NewMessage]) -> Result<Vec<Appended>, Error> {
        self.store.append(lane, messages).await
    }

    /// Appends messages of the kind `a` to a lane.
    pub async fn append_keys(&self, lane: u16, keys: &[&str]) {
        let messages: Vec<_> = keys.iter().map(|key| message("a", key)).collect();
        self.append(lane, &messages).await;
    }

    /// Notes that keys of the kind `a` were accepted elsewhere; how many were new.
    pub async fn import(&self, keys: &[&str]) -> u64 {
        let keys: Vec<_> = keys.iter().map(|&key| Key::from(key).stored()).collect();
        self.store.import_accepted("a", &keys).await.unwrap()
    }

    /// The lanes with work for the handler.
    pub async fn look(&self) -> DueLanes {
        self.store.look(&[self.handler]).await.unwrap()
    }

    /// The batch that could be taken from a lane. Takes nothing.
    pub async fn peek(&self, lane: u16, limits: TakeLimits) -> Option<Batch> {
        let mut tx = self.begin().await;
        let batch = self.store.take(&mut tx, self.taker(lane), limits).await.unwrap();
        self.store.rollback(tx).await;
        batch
    }

    /// Takes everything in a lane and settles it.
    pub async fn pass(&self, lane: u16, settled: &Account) -> Batch {
        self.pass_up_to(lane, ALL, settled).await
    }

    /// Takes messages of a lane and settles them.
    pub async fn pass_up_to(&self, lane: u16, limits: TakeLimits, settled: &Account) -> Batch {
        let mut tx = self.begin().await;
        let batch = self.store.take(&mut tx, self.taker(lane), limits).await.unwrap().unwrap();
        self.store.settle(&mut tx, self.taker(lane), settled).await.unwrap();
        let progress = Progress { handler: self.handler, lane, epoch: batch.epoch, pos: batch.reached };
        self.store.finish(tx, Some(progress)).await.unwrap();
        batch
    }

    /// Settles messages of a lane that the handler has passed already.
    pub async fn settle(&self, lane: u16, settled: &Account) {
        let mut tx = self.begin().await;
        self.store.settle(&mut tx, self.taker(lane), settled).await.unwrap();
        self.store.commit(tx).await.unwrap();
    }

    /// Appends messages to lane 0 that all die with these errors.
    pub async fn make_dead(&self, deaths: &[(&str, &str)]) {
        let keys: Vec<&str> = deaths.iter().map(|(key, _)| *key).collect();
        self.append_keys(0, &keys).await;
        let letters: Vec<_> =
            deaths.iter().zip(1..).map(|((_, error), pos)| failure(pos, 1, error)).collect();
        self.pass(0, &dead(letters)).await;
    }

    /// The tasks that could be taken. Takes none.
    pub async fn peek_tasks(&self, lane: u16, limits: TaskLimits) -> Option<Vec<StoredMessage>> {
        let mut tx = self.begin().await;
        let tasks = self.store.take_tasks(&mut tx, self.taker(lane), limits).await.unwrap();
        self.store.rollback(tx).await;
        tasks
    }

    /// All tasks of a lane that could be taken.
    pub async fn due_tasks(&self, lane: u16) -> Vec<StoredMessage> {
        self.peek_tasks(lane, at_most(10_000)).await.unwrap_or_default()
    }

    /// The positions of the tasks in lane 0 that could be taken, sorted.
    pub async fn runnable(&self) -> Vec<i64> {
        sorted(&self.due_tasks(0).await)
    }

    /// Takes tasks of a lane and settles them.
    pub async fn work_tasks(
        &self,
        lane: u16,
        tasks: u32,
        settled: impl FnOnce(&[StoredMessage]) -> Account,
    ) -> Vec<StoredMessage> {
        let (mut tx, tasks) = self.take_tasks(lane, tasks).await;
        self.store.settle(&mut tx, self.taker(lane), &settled(&tasks)).await.unwrap();
        self.store.finish(tx, None).await.unwrap();
        tasks
    }

    /// Takes tasks of a lane, of which all are done.
    pub async fn finish_tasks(&self, lane: u16, tasks: u32) -> Vec<StoredMessage> {
        self.work_tasks(lane, tasks, |_| all_done()).await
    }

    /// Takes tasks of a lane in a transaction that is still open.
    pub(super) async fn take_tasks(&self, lane: u16, tasks: u32) -> (Tx<F>, Vec<StoredMessage>) {
        let mut tx = self.begin().await;
        let tasks = self.store.take_tasks(&mut tx, self.taker(lane), at_most(tasks)).await.unwrap().unwrap();
        (tx, tasks)
    }

    /// A message for the handler alone, which has failed once and may run at once. It has no marker.
    pub fn failed_inline(&self, lane: u16, key: &str) -> Spill {
        Spill {
            handler: self.handler,
            marker: None,
            message: message("a", key),
            lane: LaneChoice::Only(lane),
            failures: 1,
            due_in: NOW,
            error: Some("x".into()),
            is_dead: false,
        }
    }

    /// Spills a message for one handler, however long that takes.
    pub async fn spill(&self, spill: &Spill) -> Spilled {
        self.try_spill(spill, LATER).await.unwrap()
    }

    /// Spills a message for one handler, and waits for locks no longer than this.
    pub async fn try_spill(&self, spill: &Spill, lock_timeout: Duration) -> Result<Spilled, Error> {
        self.store.spill(spill, lock_timeout).await
    }

    /// Claims a key, as it comes inline, and leaves its marker in this state.
    pub async fn claim(&self, key: &str, state: MarkerState) {
        let (mut tx, unit) = (self.begin().await, self.unit(key));
        self.store.claim(&mut tx, slice::from_ref(&unit)).await.unwrap();
        let account = settled(vec![unit], state);
        self.store.settle(&mut tx, self.taker(0), &account).await.unwrap();
        self.store.commit(tx).await.unwrap();
    }

    /// Claims a key, as it comes inline, and records the handler's result.
    pub async fn claim_with_result(&self, key: &str, result: &[u8]) {
        let (mut tx, unit) = (self.begin().await, self.unit(key));
        self.store.claim(&mut tx, slice::from_ref(&unit)).await.unwrap();
        self.store.record_results(&mut tx, &[(&unit, result)]).await.unwrap();
        self.store.commit(tx).await.unwrap();
    }

    /// Sets the handler's markers of these keys to a state.
    pub async fn settle_markers(&self, keys: &[&str], state: MarkerState) {
        let units: Vec<_> = keys.iter().map(|key| self.unit(key)).collect();
        let mut tx = self.begin().await;
        self.store.settle(&mut tx, self.taker(0), &settled(units, state)).await.unwrap();
        self.store.commit(tx).await.unwrap();
    }

    /// Marks a key as handled elsewhere.
    pub async fn import_processed(&self, key: &str) {
        let keys = [Key::from(key).stored()];
        assert_eq!(self.store.import_processed(&self.registration.name, "a", &keys).await.unwrap(), 1);
    }

    /// Runs something while a transaction is open that has claimed a key.
    pub async fn while_claimed<T>(&self, key: &str, inside: impl Future<Output = T>) -> T {
        let mut tx = self.begin().await;
        self.store.claim(&mut tx, &[self.unit(key)]).await.unwrap();
        let result = inside.await;
        self.store.rollback(tx).await;
        result
    }

    /// One step of pruning a lane.
    pub async fn prune(&self, lane: u16, behind: i64, positions: u32, before_ms: i64) -> Pruned {
        let range = PruneRange { behind, positions, before_ms: Some(before_ms) };
        self.store.prune(lane, range).await.unwrap()
    }

    /// Prunes all of a lane that was received until now; how many messages.
    pub async fn prune_all(&self, lane: u16) -> u64 {
        // The limit is exclusive, and a message may have been received in this millisecond.
        self.prune(lane, 0, 10_000, self.now_ms().await + 1).await.deleted
    }

    /// Sweeps markers that are done; how many.
    pub async fn sweep(&self, before_ms: i64) -> u64 {
        self.store.sweep(before_ms, 10_000).await.unwrap()
    }

    /// Sweeps accept markers; how many.
    pub async fn sweep_accepted(&self, before_ms: i64, limit: u32) -> u64 {
        self.store.sweep_accepted(before_ms, limit).await.unwrap()
    }

    /// Opens a transaction, with limits that no test reaches.
    pub async fn begin(&self) -> Tx<F> {
        self.store.begin(LIMITS).await.unwrap()
    }
}

/// The account that sets markers to a state.
fn settled(markers: Vec<Unit>, state: MarkerState) -> Account {
    match state {
        MarkerState::Done => Account { done: markers, ..Account::default() },
        MarkerState::Spilled => Account { spilled: markers, ..Account::default() },
        MarkerState::Accepted => panic!("no account makes a marker say accepted"),
    }
}
