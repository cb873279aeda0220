//! The appender: messages that wait to be accepted share a transaction.
//!
//! There is one queue for each lane and one for messages that go to any. Each lane has at most one transaction in flight from
//! this process, tried again before the next, so that the order of the calls is the order of the log.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tokio::runtime::Handle;
use tokio::sync::oneshot;

use crate::backoff::{backoff, spread};
use crate::error::chain;
use crate::inbox::Inbox;
use crate::inbox::stored::LogStore;
use crate::store::{Appended, Fault, LaneChoice, NewMessage, Place};
use crate::{Error, ErrorKind, StoredKey};

/// The most that one transaction appends: messages, and bytes of bodies.
const BATCH_MESSAGES: usize = 256;
const BATCH_BYTES: usize = 4 * 1024 * 1024;

/// So many transactions keep a log busy: one is written while the next one is made. Another one for so many more that wait.
const RUNNERS_FOR_ANY: usize = 2;
const WAITING_FOR_ANOTHER: usize = 64;

/// The messages that wait for their transaction.
#[derive(Debug)]
pub(crate) struct Appender {
    state: Mutex<State>,
    max_runners: usize,
}

#[derive(Debug)]
struct State {
    any: VecDeque<Pending>,
    lanes: Vec<Lane>,
    /// Lanes that have messages and no transaction in flight.
    ready: VecDeque<u16>,
    runners: usize,
    /// Where messages for any lane go next.
    turn: u16,
}

#[derive(Debug, Default)]
struct Lane {
    queue: VecDeque<Pending>,
    in_flight: bool,
}

/// A message, and whom to tell.
#[derive(Debug)]
struct Pending {
    message: NewMessage,
    answer: oneshot::Sender<Result<Appended, Error>>,
}

impl Appender {
    /// With at most so many transactions in flight.
    pub(crate) fn new(lanes: u16, max_runners: usize) -> Self {
        let state = State {
            any: VecDeque::new(),
            lanes: (0..lanes).map(|_| Lane::default()).collect(),
            ready: VecDeque::new(),
            runners: 0,
            // Processes that start together begin in different lanes.
            turn: u16::from(spread()) % lanes.max(1),
        };
        Self { state: Mutex::new(state), max_runners: max_runners.clamp(1, usize::from(lanes.max(1))) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues a message; whether somebody must be found to append it.
    fn queue(&self, pending: Pending, lane: Option<u16>) -> bool {
        let mut state = self.state();
        let max = match lane {
            None => {
                state.any.push_back(pending);
                (RUNNERS_FOR_ANY + state.any.len() / WAITING_FOR_ANOTHER).min(self.max_runners)
            }
            Some(number) => {
                let lane = &mut state.lanes[usize::from(number)];
                lane.queue.push_back(pending);
                if lane.queue.len() == 1 && !lane.in_flight {
                    state.ready.push_back(number);
                }
                self.max_runners
            }
        };
        let needed = state.runners < max;
        state.runners += usize::from(needed);
        needed
    }

    /// The next transaction: a lane that has messages of its own, else any. Without one, the runner is done.
    fn next(&self) -> Option<(LaneChoice, Vec<Pending>)> {
        let mut state = self.state();
        let State { any, lanes, ready, turn, .. } = &mut *state;
        let mut batch = Vec::new();
        let mut bytes = 0;
        while let Some(number) = ready.pop_front() {
            let lane = &mut lanes[usize::from(number)];
            fill(&mut batch, &mut bytes, &mut lane.queue);
            if batch.is_empty() {
                continue;
            }
            lane.in_flight = true;
            fill(&mut batch, &mut bytes, any);
            return Some((LaneChoice::Only(number), batch));
        }
        fill(&mut batch, &mut bytes, any);
        let count = u16::try_from(lanes.len()).unwrap_or(u16::MAX);
        let free = (0..count).map(|n| (*turn + n) % count).find(|&n| !lanes[usize::from(n)].in_flight);
        match free {
            Some(number) if !batch.is_empty() => {
                lanes[usize::from(number)].in_flight = true;
                *turn = (number + 1) % count;
                Some((LaneChoice::Prefer(number), batch))
            }
            _ => {
                // Without a free lane there are others who will come for these.
                batch.into_iter().rev().for_each(|pending| any.push_front(pending));
                state.runners -= 1;
                None
            }
        }
    }

    /// A lane's transaction has ended.
    fn ended(&self, number: u16) {
        let mut state = self.state();
        let lane = &mut state.lanes[usize::from(number)];
        lane.in_flight = false;
        if !lane.queue.is_empty() {
            state.ready.push_back(number);
        }
    }
}

/// A lane's transaction. However it ends, the lane is free again.
struct InFlight<'a> {
    appender: &'a Appender,
    lane: u16,
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.appender.ended(self.lane);
    }
}

/// One who appends. However it ends, another one may begin.
struct Runner<'a>(Option<&'a Appender>);

impl Drop for Runner<'_> {
    fn drop(&mut self) {
        if let Some(appender) = self.0 {
            appender.state().runners -= 1;
        }
    }
}

/// Takes messages from a queue into a batch, within its limits.
fn fill(batch: &mut Vec<Pending>, bytes: &mut usize, queue: &mut VecDeque<Pending>) {
    while batch.len() < BATCH_MESSAGES && *bytes < BATCH_BYTES {
        let Some(pending) = queue.pop_front() else { return };
        // Whoever went away while waiting was told nothing.
        if !pending.answer.is_closed() {
            *bytes += pending.message.body.len();
            batch.push(pending);
        }
    }
}

/// Messages with the copies of each: equal keys in one transaction are one message.
struct Collapsed {
    messages: Vec<NewMessage>,
    answers: Vec<Vec<oneshot::Sender<Result<Appended, Error>>>>,
}

impl Collapsed {
    fn of(batch: Vec<Pending>) -> Self {
        let mut collapsed = Self { messages: Vec::new(), answers: Vec::new() };
        let mut seen: HashMap<(String, StoredKey), usize> = HashMap::new();
        for Pending { message, answer } in batch {
            let copy = message.key.as_ref().and_then(|key| {
                let next = collapsed.messages.len();
                let first = *seen.entry((message.kind.clone(), key.clone())).or_insert(next);
                (first < next).then_some(first)
            });
            match copy.filter(|_| !mutant!("equal_keys_not_collapsed")) {
                Some(first) => collapsed.answers[first].push(answer),
                None => {
                    collapsed.messages.push(message);
                    collapsed.answers.push(vec![answer]);
                }
            }
        }
        collapsed
    }

    /// Tells everybody: the first copy what became of the message, the others that it is known.
    fn tell(self, appended: Vec<Appended>) {
        for ((message, answers), appended) in self.messages.iter().zip(self.answers).zip(appended) {
            let mut told = appended;
            for answer in answers {
                let _ = answer.send(Ok(told));
                if let Appended::New(place) = appended {
                    told = Appended::Known { place: Some(place), fingerprint: Some(message.fingerprint) };
                }
            }
        }
    }

    fn fail(self, error: &Error) {
        for answer in self.answers.into_iter().flatten() {
            let _ = answer.send(Err(Error::new(error.kind(), chain(error))));
        }
    }

    fn halves(mut self) -> [Self; 2] {
        let half = self.messages.len().div_ceil(2);
        let messages = self.messages.split_off(half);
        let answers = self.answers.split_off(half);
        [self, Self { messages, answers }]
    }
}

impl<S: LogStore> Inbox<S> {
    /// Appends a message, with others that wait.
    pub(crate) async fn append(&self, message: NewMessage, lane: Option<u16>) -> Result<Appended, Error> {
        let stored = self.stored()?;
        let (answer, answered) = oneshot::channel();
        if stored.appender.queue(Pending { message, answer }, lane) {
            let inbox = self.clone();
            // In a task of its own: a caller that goes away must not take the others along.
            Handle::current().spawn(async move { inbox.run_appender().await });
        }
        match answered.await {
            Ok(appended) => appended,
            Err(gone) => Err(Error::unavailable("the runtime is shutting down", gone)),
        }
    }

    /// Appends what waits until nothing does.
    async fn run_appender(&self) {
        let Ok(stored) = self.stored() else { return };
        let mut runner = Runner(Some(&stored.appender));
        let mut appending = S::Appending::default();
        while let Some((lane, batch)) = stored.appender.next() {
            let in_flight = InFlight { appender: &stored.appender, lane: lane.lane() };
            self.append_batch(&mut appending, lane, Collapsed::of(batch)).await;
            drop(in_flight);
            stored.wake.notify_one();
            if stored.settings.notify {
                self.announce();
            }
            // Those who were told come back with their next message, and go along.
            tokio::task::yield_now().await;
        }
        // Whoever finds nothing to do has been counted out already, under the lock under which others queue.
        runner.0 = None;
    }

    /// Appends a batch, as often as it takes to know what became of it.
    async fn append_batch(&self, appending: &mut S::Appending, lane: LaneChoice, batch: Collapsed) {
        let mut parts = VecDeque::from([batch]);
        while let Some(part) = parts.pop_front() {
            match self.append_part(appending, lane, &part.messages).await {
                Ok(appended) => part.tell(appended),
                Err(_) if mutant!("whole_batch_ack") && part.messages.len() > 1 => {
                    let known = Appended::Known { place: None, fingerprint: None };
                    let known = vec![known; part.messages.len()];
                    part.tell(known);
                }
                // One of them is not to the store's liking: the others can do without it.
                Err(error) if part.messages.len() > 1 && S::classify(&error) == Fault::Other => {
                    for half in part.halves().into_iter().rev() {
                        parts.push_front(half);
                    }
                }
                Err(error) => part.fail(&error),
            }
        }
    }

    async fn append_part(
        &self,
        appending: &mut S::Appending,
        lane: LaneChoice,
        messages: &[NewMessage],
    ) -> Result<Vec<Appended>, Error> {
        if mutant!("accept_before_commit") {
            let (inbox, later) = (self.clone(), messages.to_vec());
            drop(tokio::spawn(async move {
                inbox.inner.store.append(&mut S::Appending::default(), lane, &later).await
            }));
            return Ok(vec![Appended::New(Place { lane: lane.lane(), pos: 0 }); messages.len()]);
        }
        let mut troubled_since = None;
        let mut troubles = 0;
        loop {
            let error = match self.inner.store.append(appending, lane, messages).await {
                Ok(appended) if appended.len() == messages.len() => return Ok(appended),
                Ok(_) => Error::new(
                    ErrorKind::Unavailable,
                    format!("the store {} did not answer for every message", S::NAME),
                ),
                Err(error) => error,
            };
            let fault = S::classify(&error);
            let since = troubled_since.get_or_insert_with(Instant::now);
            if fault == Fault::Other || since.elapsed() >= self.inner.settings.patience {
                return Err(error);
            }
            tracing::debug!(error = chain(&error), "another try to accept");
            // The same key at the same time in another process is known by now.
            if fault != Fault::Transient || troubles > 0 {
                tokio::time::sleep(backoff(troubles, spread())).await;
            }
            troubles += 1;
        }
    }
}
