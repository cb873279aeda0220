//! The store's reports about the handler, its messages and its markers.

use std::time::{Duration, SystemTime};

use oncebox_core::store::{
    DeadLetter, DeadLetters, HandlerStatus, Inspect, Marker, MarkerState, MessageStatus, Place, Select,
    StoredMessage, Survey, Task, UnhandledKind, Unit, Upkeep,
};
use oncebox_core::{Key, LogStore, Mode};

use super::{OneHandler, message};
use crate::Fixture;

/// More than a test has of anything.
const MANY: u32 = 10_000;

impl<F: Fixture<Store: LogStore>> OneHandler<F> {
    /// The database's time, in milliseconds since 1970.
    pub async fn now_ms(&self) -> i64 {
        self.store.live_time().await.unwrap().1
    }

    /// The database's time.
    pub async fn now(&self) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_millis(self.now_ms().await.unsigned_abs())
    }

    /// All handlers, by name.
    pub async fn statuses(&self) -> Vec<HandlerStatus> {
        self.store.handler_statuses().await.unwrap()
    }

    /// The handler's own status.
    pub async fn status(&self) -> HandlerStatus {
        let statuses = self.statuses().await;
        statuses.into_iter().find(|status| status.handler.id == self.handler).unwrap()
    }

    /// The handler's mode in the database.
    pub async fn mode(&self) -> Mode {
        self.status().await.handler.mode
    }

    /// The next messages that wait for the handler.
    pub async fn pending(&self, limit: u32) -> Vec<StoredMessage> {
        self.store.pending(self.handler, limit).await.unwrap()
    }

    /// Messages of a lane behind a position, with their states.
    pub async fn messages(&self, lane: u16, behind: i64, limit: u32) -> Vec<MessageStatus> {
        self.store.messages(lane, behind, limit).await.unwrap()
    }

    /// The positions of all messages of a lane.
    pub async fn positions(&self, lane: u16) -> Vec<i64> {
        self.messages(lane, 0, MANY).await.iter().map(|one| one.message.place.pos).collect()
    }

    /// The place of the message of that kind and key.
    pub async fn find_message(&self, kind: &str, key: &str) -> Option<Place> {
        self.store.find_message(kind, &Key::from(key)).await.unwrap()
    }

    /// All tasks of the log, the next first.
    pub async fn tasks(&self) -> Vec<Task> {
        self.store.tasks(None, MANY).await.unwrap()
    }

    /// The tasks of one handler, the next first.
    pub async fn tasks_of(&self, handler: &str) -> Vec<Task> {
        self.store.tasks(Some(handler), MANY).await.unwrap()
    }

    /// All dead letters of the log, the oldest first.
    pub async fn dead_letters(&self) -> Vec<DeadLetter> {
        self.store.dead_letters(&Select::all(), MANY).await.unwrap()
    }

    /// Kinds with messages and without a handler that takes them from the log.
    pub async fn unhandled_kinds(&self) -> Vec<UnhandledKind> {
        self.store.unhandled_kinds().await.unwrap()
    }

    /// The handler's work on a message of the kind `a`.
    pub fn unit(&self, key: &str) -> Unit {
        unit(&self.registration.name, "a", key)
    }

    /// The handler's own marker of a message of the kind `a`.
    pub async fn marker(&self, key: &str) -> Option<Marker> {
        self.store.marker(&self.unit(key)).await.unwrap()
    }

    /// The state of the handler's own marker.
    pub async fn marker_state(&self, key: &str) -> Option<MarkerState> {
        self.marker(key).await.map(|marker| marker.state)
    }

    /// Whether a message of that kind and key was accepted, and its marker not swept.
    pub async fn is_accepted(&self, kind: &str, key: &str) -> bool {
        let marker = self.store.marker(&unit("@accept", kind, key)).await.unwrap();
        marker.is_some_and(|marker| marker.state == MarkerState::Accepted)
    }
}

fn unit(handler: &str, kind: &str, key: &str) -> Unit {
    Unit { fingerprint: Some(message(kind, key).fingerprint), ..crate::conformance::unit(handler, kind, key) }
}
