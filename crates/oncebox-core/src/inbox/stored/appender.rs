//! The appender: waiting messages share a transaction, which is retried before the next one of its lane.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use tokio::runtime::Handle;

use crate::backoff::Retries;
use crate::error::chain;
use crate::inbox::combiner::{Promise, Runner, promise};
use crate::inbox::faults::Judgement;
use crate::inbox::stored::LogStore;
use crate::inbox::stored::intake::Intake;
use crate::inbox::stored::queue::{LaneInFlight, Pending};
use crate::outcome::{Rejection, cause};
use crate::store::{Appended, LaneChoice, NewMessage, Place};
use crate::{Error, ErrorKind, StoredKey};

/// The messages of a batch, with equal keys merged: the store appends each key once, and all its callers get a result.
struct Collapsed {
    messages: Vec<NewMessage>,
    promises: Vec<Vec<Promise<Appended>>>,
}

impl Collapsed {
    fn of(batch: Vec<Pending>) -> Self {
        let mut collapsed = Self { messages: Vec::new(), promises: Vec::new() };
        let mut seen: HashMap<(String, StoredKey), usize> = HashMap::new();
        for Pending { message, promise, .. } in batch {
            let copy = message.key.as_ref().and_then(|key| {
                let next = collapsed.messages.len();
                let first = *seen.entry((message.kind.clone(), key.clone())).or_insert(next);
                (first < next).then_some(first)
            });
            match copy.filter(|_| !mutant!("equal_keys_not_collapsed")) {
                Some(first) => collapsed.promises[first].push(promise),
                None => {
                    collapsed.messages.push(message);
                    collapsed.promises.push(vec![promise]);
                }
            }
        }
        collapsed
    }

    /// Sends the results: the first copy gets the store's result, and the others learn that the message is known.
    fn send_results(self, appended: Vec<Appended>) {
        for ((message, promises), appended) in self.messages.iter().zip(self.promises).zip(appended) {
            let mut result = appended;
            for promise in promises {
                promise.keep(Ok(result));
                if let Appended::New(place) = appended {
                    result = Appended::Known { place: Some(place), fingerprint: Some(message.fingerprint) };
                }
            }
        }
    }

    fn fail(self, error: &Error) {
        for promise in self.promises.into_iter().flatten() {
            // An error cannot be cloned, so each caller gets one with the same kind and text.
            promise.keep(Err(Error::new(error.kind(), chain(error))));
        }
    }

    fn halves(mut self) -> [Self; 2] {
        let half = self.messages.len().div_ceil(2);
        let messages = self.messages.split_off(half);
        let promises = self.promises.split_off(half);
        [self, Self { messages, promises }]
    }
}

impl<S: LogStore> Intake<S> {
    /// Appends a message, together with other waiting messages.
    pub(super) async fn append(
        self: &Arc<Self>,
        message: NewMessage,
        lane: Option<u16>,
    ) -> Result<Appended, Error> {
        let (promise, answer) = promise();
        if self.queue.push(Pending { message, lane, promise }) {
            let intake = self.clone();
            // A task of its own, so that a cancelled caller does not cancel the others.
            Handle::current().spawn(async move { intake.run_appender().await });
        }
        answer.wait().await
    }

    /// Appends waiting messages until the queue is empty.
    async fn run_appender(self: &Arc<Self>) {
        let mut runner = Runner::new(&self.queue);
        while let Some(batch) = runner.next().await {
            let in_flight = LaneInFlight::new(&self.queue, &batch);
            self.append_batch(batch.lane, Collapsed::of(batch.messages)).await;
            drop(in_flight);
            self.log.wake.notify_one();
            if self.log.settings.notify {
                self.announce();
            }
            // The callers of this batch now send their next messages, which can join the next batch.
            tokio::task::yield_now().await;
        }
    }

    /// Appends a batch. If the store refuses it, halves find the refused message.
    async fn append_batch(&self, lane: LaneChoice, batch: Collapsed) {
        let mut parts = VecDeque::from([batch]);
        while let Some(part) = parts.pop_front() {
            match self.append_part(lane, &part.messages).await {
                Ok(appended) => part.send_results(appended),
                Err(_) if mutant!("whole_batch_ack") && part.messages.len() > 1 => {
                    let known = Appended::Known { place: None, fingerprint: None };
                    let known = vec![known; part.messages.len()];
                    part.send_results(known);
                }
                // The store refuses one of the messages: halving separates it from the others.
                Err(error) if part.messages.len() > 1 && Judgement::of::<S>(&error).is_refused() => {
                    for half in part.halves().into_iter().rev() {
                        parts.push_front(half);
                    }
                }
                Err(error) if S::is_about_data(&error) => {
                    let refused = Rejection::BadEnvelope(cause(chain(&error)));
                    part.fail(&refused.to_error());
                }
                Err(error) => part.fail(&error),
            }
        }
    }

    async fn append_part(&self, lane: LaneChoice, messages: &[NewMessage]) -> Result<Vec<Appended>, Error> {
        if mutant!("accept_before_commit") {
            let (store, later) = (self.engine.store.clone(), messages.to_vec());
            drop(tokio::spawn(async move { store.append(lane, &later).await }));
            return Ok(vec![Appended::New(Place { lane: lane.lane(), pos: 0 }); messages.len()]);
        }
        let mut retries = Retries::within(self.engine.settings.store_timeout);
        loop {
            let error = match self.engine.store.append(lane, messages).await {
                Ok(appended) if appended.len() == messages.len() => return Ok(appended),
                Ok(_) => Error::new(
                    ErrorKind::Unavailable,
                    format!("the store {} did not return a result for every message", S::NAME),
                ),
                Err(error) => error,
            };
            // Another process may have appended the same key concurrently. The next attempt finds it as known.
            retries.after::<S>(error).await?;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inbox::combiner::PendingResult;
    use crate::{Envelope, Headers, Key};

    fn pending(key: Option<&str>, body: &str) -> (Pending, PendingResult<Appended>) {
        let (promise, answer) = promise();
        let message = NewMessage {
            kind: "k".to_owned(),
            key: key.map(|key| Key::from(key).stored()),
            fingerprint: Envelope::new("k", body).fingerprint(),
            order_by: None,
            headers: Headers::new(),
            body: body.as_bytes().to_vec(),
            occurred_at: None,
            due_at: None,
            waited: std::time::Duration::ZERO,
            message_id: None,
        };
        (Pending { message, lane: None, promise }, answer)
    }

    fn collapsed(messages: &[(Option<&str>, &str)]) -> (Collapsed, Vec<PendingResult<Appended>>) {
        let (batch, answers) = messages.iter().map(|(key, body)| pending(*key, body)).unzip();
        (Collapsed::of(batch), answers)
    }

    fn bodies(collapsed: &Collapsed) -> Vec<String> {
        collapsed.messages.iter().map(|one| String::from_utf8_lossy(&one.body).into_owned()).collect()
    }

    #[test]
    fn equal_keys_are_one_message_and_messages_without_keys_are_not() {
        let (collapsed, _answers) =
            collapsed(&[(Some("a"), "1"), (None, "2"), (Some("a"), "3"), (None, "2"), (Some("b"), "4")]);
        assert_eq!(bodies(&collapsed), ["1", "2", "2", "4"]);
        assert_eq!(collapsed.promises.iter().map(Vec::len).collect::<Vec<_>>(), [2, 1, 1, 1]);
    }

    #[tokio::test]
    async fn the_first_copy_is_new_and_the_others_are_known_by_its_body() {
        let (collapsed, answers) = collapsed(&[(Some("a"), "1"), (Some("a"), "2"), (Some("b"), "3")]);
        let first = collapsed.messages[0].fingerprint;
        let place = Place { lane: 0, pos: 7 };
        let stored = Appended::Known { place: None, fingerprint: None };
        collapsed.send_results(vec![Appended::New(place), stored]);
        let mut results = Vec::new();
        for answer in answers {
            results.push(answer.wait().await.unwrap());
        }
        let known = Appended::Known { place: Some(place), fingerprint: Some(first) };
        assert_eq!(results, [Appended::New(place), known, stored]);
    }

    #[tokio::test]
    async fn halves_keep_their_callers() {
        let (collapsed, answers) = collapsed(&[(None, "1"), (None, "2"), (None, "3")]);
        let [front, back] = collapsed.halves();
        assert_eq!((bodies(&front), bodies(&back)), (vec!["1".into(), "2".into()], vec!["3".into()]));
        back.fail(&Error::new(ErrorKind::Envelope, "refused"));
        front.send_results(vec![Appended::Known { place: None, fingerprint: None }; 2]);
        let mut ends = Vec::new();
        for answer in answers {
            ends.push(answer.wait().await.map(drop).map_err(|error| error.kind()));
        }
        assert_eq!(ends, [Ok(()), Ok(()), Err(ErrorKind::Envelope)]);
    }
}
