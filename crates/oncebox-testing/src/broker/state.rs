//! The state of a broker: its queues, its clock, and the faults that are on.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use oncebox_core::source::{Abilities, Received, ReceivedMessage, Room, Settled};
use oncebox_core::{Cause, Error, ErrorKind, Settlement};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep};

use super::queue::{MemoryReceipt, Queue, SessionEnd, SessionId};

/// The state behind all handles of one broker.
#[derive(Debug)]
pub(super) struct Shared {
    state: Mutex<State>,
    changed: Notify,
}

/// What a handle of the broker reads and changes under the lock.
#[derive(Debug)]
pub(super) struct State {
    started: Instant,
    advanced: Duration,
    queues: HashMap<String, Queue>,
    sessions: SessionId,
    /// Why a session has ended, until its owner drops it.
    ended: HashMap<SessionId, String>,
    pub(super) is_stopped: bool,
    pub(super) acks_to_lose: usize,
    pub(super) confirms_to_lose: usize,
}

impl Shared {
    pub(super) fn new() -> Self {
        let state = State {
            started: Instant::now(),
            advanced: Duration::ZERO,
            queues: HashMap::new(),
            sessions: 0,
            ended: HashMap::new(),
            is_stopped: false,
            acks_to_lose: 0,
            confirms_to_lose: 0,
        };
        Self { state: Mutex::new(state), changed: Notify::new() }
    }

    /// Changes the state, and wakes all sessions.
    pub(super) fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let changed = self.look(|state| {
            let changed = change(state);
            state.dispatch();
            changed
        });
        self.changed.notify_waiters();
        changed
    }

    /// Reads the state as it is now. It wakes no session, so that waiting sessions do not wake each other for ever.
    pub(super) fn look<T>(&self, look: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.dispatch();
        look(&mut state)
    }

    /// Waits until the state holds a value, at each change and at each time at which something is due.
    pub(super) async fn until<T>(&self, mut look: impl FnMut(&mut State) -> Option<T>) -> T {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            // Before the look, so that no change between the two is missed.
            changed.as_mut().enable();
            let (found, next_event) = self.look(|state| (look(state), state.next_event()));
            if let Some(found) = found {
                return found;
            }
            match next_event {
                None => changed.await,
                Some(wait) => tokio::select! { () = changed => (), () = sleep(wait) => () },
            }
        }
    }
}

impl State {
    /// The time on the broker's clock.
    pub(super) fn now(&self) -> Duration {
        self.started.elapsed() + self.advanced
    }

    pub(super) fn advance(&mut self, time: Duration) {
        self.advanced += time;
    }

    fn dispatch(&mut self) {
        let now = self.now();
        for queue in self.queues.values_mut() {
            queue.dispatch(now);
        }
    }

    /// The time until something is due in a queue.
    fn next_event(&self) -> Option<Duration> {
        let at = self.queues.values().filter_map(Queue::next_event).min()?;
        Some(at.saturating_sub(self.now()))
    }

    pub(super) fn queue(&mut self, name: &str) -> Option<&mut Queue> {
        self.queues.get_mut(name)
    }

    pub(super) fn create_queue(&mut self, name: &str, abilities: Abilities) {
        self.queues.entry(name.to_owned()).or_insert_with(|| Queue::new(abilities));
    }

    pub(super) fn delete_queue(&mut self, name: &str) {
        self.end_sessions(name, &format!("the queue {name:?} was deleted"));
        self.queues.remove(name);
    }

    pub(super) fn publish(&mut self, name: &str, message: ReceivedMessage) -> Result<(), Error> {
        self.check_running()?;
        self.queue(name).ok_or_else(|| missing(name))?.push(message);
        Ok(())
    }

    pub(super) fn check_running(&self) -> Result<(), Error> {
        match self.is_stopped {
            true => Err(Error::new(ErrorKind::Unavailable, "the broker refuses connections: it is stopped")),
            false => Ok(()),
        }
    }

    pub(super) fn open(
        &mut self,
        name: &str,
        abilities: Abilities,
        prefetch: Room,
    ) -> Result<SessionId, Error> {
        self.check_running()?;
        let session = self.sessions;
        let queue = self.queue(name).ok_or_else(|| missing(name))?;
        if queue.abilities != abilities {
            return Err(Error::configuration(format!("the queue {name:?} is of another kind")));
        }
        queue.subscribe(session, prefetch);
        self.sessions += 1;
        Ok(session)
    }

    pub(super) fn receive(
        &mut self,
        name: &str,
        session: SessionId,
        room: Room,
    ) -> Result<Vec<Received<MemoryReceipt>>, Error> {
        if let Some(why) = self.ended.get(&session) {
            return Err(Error::new(ErrorKind::Unavailable, why.clone()));
        }
        let queue = self.queue(name).ok_or_else(|| missing(name))?;
        let received = queue.receive(session, room);
        Ok(received)
    }

    pub(super) fn settle(
        &mut self,
        name: &str,
        receipt: MemoryReceipt,
        settlement: Settlement,
        reason: Option<Cause>,
    ) -> Settled {
        let now = self.now();
        if self.acks_to_lose > 0 {
            self.acks_to_lose -= 1;
            return Settled::Unknown(Error::new(ErrorKind::Unavailable, "the settlement was lost"));
        }
        match self.queue(name) {
            Some(queue) => queue.settle(now, receipt, settlement, reason),
            None => Settled::Stale,
        }
    }

    pub(super) fn extend(
        &mut self,
        name: &str,
        session: SessionId,
        held: &[&MemoryReceipt],
    ) -> Result<(), Error> {
        let now = self.now();
        self.check_running()?;
        let queue = self.queue(name).ok_or_else(|| missing(name))?;
        if !queue.is_subscribed(session) {
            return Err(Error::new(ErrorKind::Unavailable, "cannot extend deadlines: the session has ended"));
        }
        for receipt in held {
            queue.extend(now, **receipt);
        }
        Ok(())
    }

    /// Ends the sessions of a queue from the broker's side. Their owners get an error.
    pub(super) fn end_sessions(&mut self, name: &str, why: &str) {
        let Some(queue) = self.queues.get_mut(name) else { return };
        for session in queue.sessions() {
            queue.end_session(session, SessionEnd::Lost);
            self.ended.insert(session, why.to_owned());
        }
    }

    pub(super) fn end_all_sessions(&mut self, why: &str) {
        let names: Vec<String> = self.queues.keys().cloned().collect();
        for name in names {
            self.end_sessions(&name, why);
        }
    }

    /// Ends a session from its owner's side.
    pub(super) fn leave(&mut self, name: &str, session: SessionId, end: SessionEnd) {
        let was_ended = self.ended.remove(&session).is_some();
        if let Some(queue) = self.queue(name).filter(|_| !was_ended) {
            queue.end_session(session, end);
        }
    }
}

fn missing(name: &str) -> Error {
    Error::configuration(format!("no queue {name:?}: create it with MemoryBroker::queue"))
}
