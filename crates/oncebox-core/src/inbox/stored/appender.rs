//! The appender: messages that wait to be accepted share a transaction, tried again before the next one of its lane.

use std::collections::{HashMap, VecDeque};
use std::time::Instant;

use tokio::runtime::Handle;
use tokio::sync::oneshot;

use crate::backoff::{backoff, spread};
use crate::error::chain;
use crate::inbox::Inbox;
use crate::inbox::once::rejected;
use crate::inbox::stored::LogStore;
use crate::inbox::stored::queue::{InFlight, Next, Pending, Runner};
use crate::outcome::{Rejection, cause};
use crate::store::{Appended, Fault, LaneChoice, NewMessage, Place};
use crate::{Error, ErrorKind, StoredKey};

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
        if stored.queue.push(Pending { message, answer }, lane) {
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
        let runner = Runner::new(&stored.queue);
        let mut appending = S::Appending::default();
        let mut may_hold_back = true;
        loop {
            let (lane, batch) = match stored.queue.next(may_hold_back) {
                Next::Append(lane, batch) => (lane, batch),
                Next::HoldBack => {
                    may_hold_back = stored.queue.hold_back().await;
                    continue;
                }
                Next::Done => break,
            };
            may_hold_back = true;
            let in_flight = InFlight::new(&stored.queue, lane, &batch);
            self.append_batch(&mut appending, lane, Collapsed::of(batch)).await;
            drop(in_flight);
            stored.wake.notify_one();
            if stored.settings.notify {
                self.announce();
            }
            // Those who were told come back with their next message, and go along.
            tokio::task::yield_now().await;
        }
        runner.done();
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
                Err(error) if S::is_about_data(&error) => {
                    let refused = Rejection::BadEnvelope(cause(chain(&error)));
                    part.fail(&rejected(&refused));
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
