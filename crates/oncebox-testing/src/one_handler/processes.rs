//! Processes that run tasks outside of transactions, and crash.

use std::time::Duration;

use oncebox_core::LogStore;
use oncebox_core::store::{
    Account, Care, Completion, End, Fence, HandlerId, NewProcess, Peer, Place, ProcessId, Processes, Store,
    StoredMessage, Unfinished, Work,
};
use uuid::Uuid;

use super::{OneHandler, place};
use crate::Fixture;

/// The maximum time without a heartbeat.
pub const LEASE: Duration = super::LATER;

impl<F: Fixture<Store: LogStore>> OneHandler<F> {
    /// A process begins to work.
    pub async fn enter(&self) -> ProcessId {
        self.enter_with(&[self.handler], 3).await
    }

    /// A process begins to work with these handlers, and this many messages in flight in each lane.
    pub async fn enter_with(&self, handlers: &[HandlerId], in_flight: u32) -> ProcessId {
        let id = ProcessId(Uuid::now_v7());
        let (name, handlers) = ("host 7".to_owned(), handlers.to_vec());
        self.store
            .enter(&NewProcess { id, name, handlers, lease: LEASE, in_flight, moves: false })
            .await
            .unwrap();
        id
    }

    /// A process sends a heartbeat; whether its lease was still valid.
    pub async fn beat(&self, process: ProcessId) -> bool {
        self.store.beat_process(process).await.unwrap()
    }

    /// A process ends as it should.
    pub async fn leave(&self, process: ProcessId) {
        self.store.leave(process).await.unwrap();
    }

    /// All processes but this one.
    pub async fn peers(&self, process: ProcessId) -> Vec<Peer> {
        self.store.peers(process).await.unwrap()
    }

    /// Removes a process if its lease has expired. Returns the number of its tasks.
    pub async fn remove_crashed(&self, process: ProcessId) -> Option<u64> {
        self.store.remove_crashed(process, false).await.unwrap()
    }

    /// A process crashes: its lease expires, and it is removed.
    pub async fn crash(&self, process: ProcessId) {
        self.travel(LEASE + Duration::from_secs(1));
        self.remove_crashed(process).await.expect("its lease has expired");
    }

    /// A process runs messages of lane 0 outside of a transaction. `None` if it is not known.
    pub async fn lease(&self, process: ProcessId, messages: &[Unfinished]) -> Option<Fence> {
        let mut tx = self.begin().await;
        let fence = self.store.lease(&mut tx, self.taker(0), process, messages).await.unwrap();
        self.store.commit(tx).await.unwrap();
        fence
    }

    /// A process takes tasks of lane 0, and runs them outside of a transaction.
    pub async fn lease_tasks(
        &self,
        process: ProcessId,
        tasks: u32,
        run: impl Fn(&StoredMessage) -> Unfinished,
    ) -> Fence {
        let (mut tx, tasks) = self.take_tasks(0, tasks).await;
        let messages: Vec<_> = tasks.iter().map(run).collect();
        let fence = self.store.lease(&mut tx, self.taker(0), process, &messages).await.unwrap();
        self.store.commit(tx).await.unwrap();
        fence.expect("the process is known")
    }

    /// Ends a task of lane 0; whether it was still under this fence.
    pub async fn complete(&self, pos: i64, fence: Fence, end: End) -> bool {
        self.complete_all(&[(pos, fence, end)]).await == [true]
    }

    /// Ends tasks of lane 0; which of them were still under their fence.
    pub async fn complete_all(&self, ends: &[(i64, Fence, End)]) -> Vec<bool> {
        let completion = |(pos, fence, end): &(i64, Fence, End)| Completion {
            handler: self.handler,
            place: place(0, *pos),
            fence: *fence,
            end: end.clone(),
        };
        self.store.complete(&ends.iter().map(completion).collect::<Vec<_>>()).await.unwrap()
    }

    /// Notes that a process is about to run a message where others have crashed. Returns how many crashes count for the message.
    pub async fn note_attempt(&self, place: Place, process: ProcessId) -> Option<u32> {
        self.store.note_attempt(self.handler, place, process).await.unwrap()
    }

    /// Takes back the note of a message that has run.
    pub async fn forget_attempt(&self, place: Place) {
        let mut tx = self.begin().await;
        self.store.settle(&mut tx, self.taker(place.lane), &noted(place)).await.unwrap();
        self.store.commit(tx).await.unwrap();
    }

    /// Takes back the note of a message in a transaction that is rolled back.
    pub async fn forget_attempt_in_vain(&self, place: Place) {
        let mut tx = self.begin().await;
        self.store.settle(&mut tx, self.taker(place.lane), &noted(place)).await.unwrap();
        self.store.rollback(tx).await;
    }

    /// Ends care in a lane.
    pub async fn end_care(&self, lane: u16) {
        self.store.end_care(self.handler, lane).await.unwrap();
    }

    /// The lanes with work where care is needed.
    pub async fn careful_lanes(&self) -> Vec<u16> {
        let waiting = self.look().await.waiting;
        waiting.iter().filter(|waiting| waiting.careful).map(|waiting| waiting.lane).collect()
    }
}

/// The account of a message that has run with a note before it.
fn noted(place: Place) -> Account {
    Account { noted: Some(place), ..Account::default() }
}
