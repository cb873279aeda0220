//! Group commit: calls that wait share a transaction.
//!
//! Each call makes a [`promise`], queues one end of it with what it wants done, and waits at the other. A runner takes what waits
//! into one transaction and keeps the promises. Runners are tasks of their own: a caller that goes away takes nobody along.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use tokio::sync::oneshot;

use crate::Error;

/// A promise, and the answer to wait for.
pub(crate) fn promise<R>() -> (Promise<R>, Answer<R>) {
    let (sender, receiver) = oneshot::channel();
    (Promise(sender), Answer(receiver))
}

/// The runner's end of a call.
#[derive(Debug)]
pub(crate) struct Promise<R>(oneshot::Sender<Result<R, Error>>);

impl<R> Promise<R> {
    /// Answers the caller, if it still waits.
    pub(crate) fn keep(self, answer: Result<R, Error>) {
        let _ = self.0.send(answer);
    }

    /// Whether the caller has gone away: nothing is to be done for it.
    pub(crate) fn is_abandoned(&self) -> bool {
        self.0.is_closed()
    }

    /// Ready when the caller has gone away.
    pub(crate) fn poll_abandoned(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.0.poll_closed(cx)
    }

    /// Returns when the caller has gone away.
    pub(crate) async fn abandoned(&mut self) {
        self.0.closed().await;
    }
}

/// The caller's end of a call.
#[derive(Debug)]
pub(crate) struct Answer<R>(oneshot::Receiver<Result<R, Error>>);

impl<R> Answer<R> {
    pub(crate) async fn wait(self) -> Result<R, Error> {
        self.0.await.unwrap_or_else(|gone| Err(Error::unavailable("the runtime is shutting down", gone)))
    }
}

/// Calls that wait for the one runner.
#[derive(Debug)]
pub(crate) struct Combiner<T, R>(Mutex<Calls<T, R>>);

#[derive(Debug)]
struct Calls<T, R> {
    queue: Vec<(T, Promise<R>)>,
    has_runner: bool,
}

impl<T, R> Combiner<T, R> {
    pub(crate) fn new() -> Self {
        Self(Mutex::new(Calls { queue: Vec::new(), has_runner: false }))
    }

    fn calls(&self) -> MutexGuard<'_, Calls<T, R>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues a call; whether a runner must be started for it.
    pub(crate) fn push(&self, item: T, promise: Promise<R>) -> bool {
        let mut calls = self.calls();
        calls.queue.push((item, promise));
        !std::mem::replace(&mut calls.has_runner, true)
    }

    /// The calls of the runner's next transaction. Without any the runner ends, under the lock under which calls queue: no call is
    /// left behind.
    pub(crate) fn next(&self, max: usize) -> Option<Vec<(T, Promise<R>)>> {
        let mut calls = self.calls();
        if calls.queue.is_empty() {
            calls.has_runner = false;
            return None;
        }
        let count = calls.queue.len().min(max);
        Some(calls.queue.drain(..count).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn one_runner_takes_all_calls_in_order() {
        let combiner = Combiner::new();
        let mut answers = Vec::new();
        for n in 0..5 {
            let (promise, answer) = promise();
            assert_eq!(combiner.push(n, promise), n == 0, "one runner is enough");
            answers.push(answer);
        }
        let mut batches = Vec::new();
        while let Some(batch) = combiner.next(2) {
            batches.push(batch.len());
            batch.into_iter().for_each(|(n, promise)| promise.keep(Ok(n * 10)));
        }
        assert_eq!(batches, [2, 2, 1]);
        for (n, answer) in answers.into_iter().enumerate() {
            assert_eq!(answer.wait().await.unwrap(), n * 10);
        }
        let (promise, _answer) = promise::<usize>();
        assert!(combiner.push(5, promise), "the runner has ended");
    }

    #[tokio::test]
    async fn a_promise_that_is_dropped_is_an_error() {
        let (promise, answer) = promise::<()>();
        drop(promise);
        assert!(answer.wait().await.is_err());
        let (promise, answer) = super::promise::<()>();
        assert!(!promise.is_abandoned());
        drop(answer);
        assert!(promise.is_abandoned());
    }
}
