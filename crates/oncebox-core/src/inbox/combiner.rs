//! Group commit: waiting calls share a transaction.
//!
//! Each call makes a [`promise`], queues the sending end with its request, and waits at the receiving end. A [`Runner`] takes
//! calls into one transaction and keeps their promises. A [`Policy`] decides which calls share a transaction, how many runners
//! there are, and whether a small batch waits for more calls. There are three policies: for appending to lanes, for the units of
//! a handler, and for the ends of detached runs. Runners are tasks of their own, so a cancelled caller cancels no other call.

use std::collections::VecDeque;
use std::ops::{Deref, DerefMut};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::sync::{Notify, oneshot};
use tokio::time::timeout;

use crate::Error;

/// The maximum time for which a small batch waits to join the next larger one.
const HOLD_BACK: Duration = Duration::from_millis(5);

/// Creates a promise and the result to wait for.
pub(crate) fn promise<R>() -> (Promise<R>, PendingResult<R>) {
    let (sender, receiver) = oneshot::channel();
    (Promise(sender), PendingResult(receiver))
}

/// The runner's end of a call.
#[derive(Debug)]
pub(crate) struct Promise<R>(oneshot::Sender<Result<R, Error>>);

impl<R> Promise<R> {
    /// Sends the result to the caller, if it still waits.
    pub(crate) fn keep(self, result: Result<R, Error>) {
        // An error means that the caller was dropped, which is allowed.
        let _ = self.0.send(result);
    }

    /// Whether the caller was dropped, so that its call need not run.
    pub(crate) fn is_abandoned(&self) -> bool {
        self.0.is_closed()
    }

    /// Ready when the caller was dropped.
    pub(crate) fn poll_abandoned(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.0.poll_closed(cx)
    }

    /// Waits until the caller is dropped.
    pub(crate) async fn abandoned(&mut self) {
        self.0.closed().await;
    }
}

/// The caller's end of a call.
#[derive(Debug)]
pub(crate) struct PendingResult<R>(oneshot::Receiver<Result<R, Error>>);

impl<R> PendingResult<R> {
    pub(crate) async fn wait(self) -> Result<R, Error> {
        // A promise is dropped without a result only if the runner's task is dropped, as at the shutdown of the runtime.
        self.0.await.unwrap_or_else(|gone| Err(Error::unavailable("the runtime is shutting down", gone)))
    }
}

/// Decides which calls share the next transaction, and how many transactions run at the same time.
pub(crate) trait Policy {
    /// The request of a caller, with the promise to it.
    type Call;
    /// The calls of one transaction.
    type Batch;

    fn push(&mut self, call: Self::Call);

    /// Whether calls wait.
    fn has_waiting(&self) -> bool;

    /// The maximum number of runners that the waiting calls need.
    fn max_runners(&self) -> usize;

    /// Takes the calls of the next transaction; `None` if no call can run now.
    fn take(&mut self) -> Option<Self::Batch>;

    /// Whether the waiting calls are so few that they wait for more, which are expected soon.
    fn holds_back(&self) -> bool {
        false
    }

    /// Whether there are more runners than needed.
    fn is_surplus(&self, _runners: usize) -> bool {
        false
    }
}

/// Calls that wait for a runner, under a policy.
#[derive(Debug)]
pub(crate) struct Combiner<P> {
    state: Mutex<CombinerState<P>>,
    /// Notified when a runner that holds back can look again.
    look_again: Notify,
}

/// A policy, and the runners that it has now.
#[derive(Debug)]
pub(crate) struct CombinerState<P> {
    policy: P,
    runners: usize,
    /// Whether a runner holds back.
    is_holding: bool,
}

impl<P> Deref for CombinerState<P> {
    type Target = P;

    fn deref(&self) -> &P {
        &self.policy
    }
}

impl<P> DerefMut for CombinerState<P> {
    fn deref_mut(&mut self) -> &mut P {
        &mut self.policy
    }
}

impl<P: Policy> CombinerState<P> {
    /// Counts another runner, if there is room for one. If it returns `true`, the caller must start that runner.
    pub(crate) fn add_runner(&mut self) -> bool {
        let has_room = self.runners < self.policy.max_runners();
        self.runners += usize::from(has_room);
        has_room
    }
}

/// What a runner does next.
#[derive(Debug)]
pub(crate) enum Next<B> {
    Run(B),
    /// Wait for more calls, then look again.
    HoldBack,
    /// No call can run now: the runner has ended.
    Done,
}

impl<P: Policy> Combiner<P> {
    pub(crate) fn new(policy: P) -> Self {
        let state = CombinerState { policy, runners: 0, is_holding: false };
        Self { state: Mutex::new(state), look_again: Notify::new() }
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, CombinerState<P>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues a call. Returns whether the caller must start a runner.
    pub(crate) fn push(&self, call: P::Call) -> bool {
        self.change(|state| {
            state.policy.push(call);
            state.add_runner()
        })
    }

    /// Whether the caller must start a runner for waiting calls.
    pub(crate) fn needs_runner(&self) -> bool {
        let mut state = self.state();
        state.policy.has_waiting() && state.add_runner()
    }

    /// Changes the state of the policy. A runner that holds back looks again if the change removed its reason.
    pub(crate) fn change<R>(&self, change: impl FnOnce(&mut CombinerState<P>) -> R) -> R {
        let mut state = self.state();
        let changed = change(&mut state);
        // Only one runner holds back at a time, so waking one is enough.
        if state.is_holding && !state.policy.holds_back() {
            self.look_again.notify_one();
        }
        changed
    }

    /// Waits up to 5 ms until the reason to hold back is gone. Returns `false` on timeout.
    pub(crate) async fn hold_back(&self) -> bool {
        let _holding = Holding(self);
        timeout(HOLD_BACK, self.look_again.notified()).await.is_ok()
    }
}

/// A runner that holds back. When it ends, another one may hold back.
struct Holding<'a, P: Policy>(&'a Combiner<P>);

impl<P: Policy> Drop for Holding<'_, P> {
    fn drop(&mut self) {
        self.0.state().is_holding = false;
    }
}

/// Runs one transaction after the other. Dropping it makes room for another runner.
#[derive(Debug)]
pub(crate) struct Runner<'a, P: Policy> {
    combiner: &'a Combiner<P>,
    /// Whether it counts towards the maximum number of runners.
    is_counted: bool,
}

impl<'a, P: Policy> Runner<'a, P> {
    /// Creates a runner that [`CombinerState::add_runner`] has counted.
    pub(crate) fn new(combiner: &'a Combiner<P>) -> Self {
        Self { combiner, is_counted: true }
    }

    /// Takes the calls of its next transaction; `None` if the runner has ended.
    pub(crate) async fn next(&mut self) -> Option<P::Batch> {
        // At most one timeout for each batch: after it, even a small batch runs.
        let mut may_hold_back = true;
        loop {
            match self.look(may_hold_back) {
                Next::Run(batch) => return Some(batch),
                Next::HoldBack => may_hold_back = self.combiner.hold_back().await,
                Next::Done => return None,
            }
        }
    }

    /// Looks for the next transaction once. If there is none, the runner ends under the same lock that queues calls, so that no
    /// call is left without a runner.
    pub(crate) fn look(&mut self, may_hold_back: bool) -> Next<P::Batch> {
        let mut state = self.combiner.state();
        if may_hold_back && !state.is_holding && state.policy.holds_back() {
            state.is_holding = true;
            return Next::HoldBack;
        }
        let batch = state.policy.take();
        if batch.is_none() {
            // `take` makes the subtraction happen once, although `drop` follows.
            state.runners -= usize::from(std::mem::take(&mut self.is_counted));
        }
        batch.map_or(Next::Done, Next::Run)
    }

    /// Whether it looks for calls again; otherwise it has ended.
    pub(crate) fn goes_on(&mut self) -> bool {
        let mut state = self.combiner.state();
        let goes_on =
            self.is_counted && state.policy.has_waiting() && !state.policy.is_surplus(state.runners);
        if !goes_on && std::mem::take(&mut self.is_counted) {
            state.runners -= 1;
        }
        goes_on
    }

    /// Makes room for another runner, because the transaction takes long.
    pub(crate) fn step_aside(&mut self) {
        if std::mem::take(&mut self.is_counted) {
            self.combiner.state().runners -= 1;
        }
    }
}

impl<P: Policy> Drop for Runner<'_, P> {
    fn drop(&mut self) {
        self.step_aside();
    }
}

/// A policy with one runner that takes calls in their order.
#[derive(Debug)]
pub(crate) struct InOrder<C> {
    queue: VecDeque<C>,
    /// The maximum number of calls in one transaction.
    max: usize,
}

impl<C> InOrder<C> {
    pub(crate) fn new(max: usize) -> Self {
        Self { queue: VecDeque::new(), max }
    }
}

impl<C> Policy for InOrder<C> {
    type Call = C;
    type Batch = Vec<C>;

    fn push(&mut self, call: C) {
        self.queue.push_back(call);
    }

    fn has_waiting(&self) -> bool {
        !self.queue.is_empty()
    }

    fn max_runners(&self) -> usize {
        1
    }

    fn take(&mut self) -> Option<Vec<C>> {
        let count = self.queue.len().min(self.max);
        (count > 0).then(|| self.queue.drain(..count).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn one_runner_takes_all_calls_in_order() {
        let combiner = Combiner::new(InOrder::new(2));
        let mut answers = Vec::new();
        for n in 0..5 {
            let (promise, answer) = promise();
            assert_eq!(combiner.push((n, promise)), n == 0, "one runner is enough");
            answers.push(answer);
        }
        let mut runner = Runner::new(&combiner);
        let mut batches = Vec::new();
        while let Some(batch) = runner.next().await {
            batches.push(batch.len());
            batch.into_iter().for_each(|(n, promise)| promise.keep(Ok(n * 10)));
        }
        assert_eq!(batches, [2, 2, 1]);
        for (n, answer) in answers.into_iter().enumerate() {
            assert_eq!(answer.wait().await.unwrap(), n * 10);
        }
        drop(runner);
        let (promise, _answer) = promise::<usize>();
        assert!(combiner.push((5, promise)), "the runner has ended, and is subtracted once");
    }

    #[test]
    fn a_dropped_runner_makes_room_for_another_one() {
        let combiner = Combiner::new(InOrder::new(2));
        assert!(combiner.push(1));
        drop(Runner::new(&combiner));
        assert!(combiner.needs_runner());
        assert!(!combiner.needs_runner(), "there is one");
        let mut slow = Runner::new(&combiner);
        slow.step_aside();
        assert!(combiner.push(2), "calls do not wait for a runner that takes long");
        drop(slow);
        assert!(!combiner.push(3), "it is subtracted once");
    }

    #[test]
    fn a_runner_goes_on_while_calls_wait() {
        let combiner = Combiner::new(InOrder::new(2));
        assert!(combiner.push(1));
        let mut runner = Runner::new(&combiner);
        assert!(runner.goes_on());
        assert!(matches!(runner.look(true), Next::Run(batch) if batch == [1]));
        assert!(!runner.goes_on());
        assert!(combiner.push(2), "it has ended");
        assert!(!runner.goes_on());
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
