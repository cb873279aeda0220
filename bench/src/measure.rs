//! Callers that drive a contender, and the figures that are read meanwhile.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use tokio::task::JoinSet;

use crate::contenders::{Contender, Tally};
use crate::feed::Feed;

/// The durations of a measurement.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    /// Before it begins: connections prepare their statements, batches find their size.
    pub(crate) warm_up: Duration,
    pub(crate) slice: Duration,
    /// The maximum time for callers to settle their last message. Then they are stopped.
    pub(crate) ending: Duration,
}

impl Pace {
    /// The given number of milliseconds each, and callers that all end.
    pub(crate) fn of(warm_up: u64, slice: u64) -> Pace {
        let (warm_up, slice) = (Duration::from_millis(warm_up), Duration::from_millis(slice));
        Pace { warm_up, slice, ending: Duration::MAX }
    }
}

/// The pause before a measurement without a settled message looks again.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// A measurement of callers that each send the next message when the last one is settled.
#[derive(Clone, Debug)]
pub(crate) struct Throughput {
    /// Settled messages per second.
    pub(crate) rate: f64,
    /// All settled messages, including the warm-up.
    pub(crate) tally: Tally,
    /// The time of each of them, in milliseconds.
    pub(crate) waits: Vec<f64>,
    /// Whether callers were stopped: then the tally lacks their messages.
    pub(crate) stopped: bool,
}

/// Lets callers send as fast as messages are settled, for a time or until there are no more. A contender that settles nothing in
/// that time is measured until its first message.
pub(crate) async fn throughput(
    contender: &Arc<dyn Contender>,
    feed: Feed,
    callers: usize,
    pace: Pace,
) -> Result<Throughput> {
    let shared = Arc::new(CallerProgress {
        feed,
        settled: AtomicU64::new(0),
        waits: Mutex::default(),
        stop: AtomicBool::new(false),
    });
    let mut running = JoinSet::new();
    for _ in 0..callers {
        running.spawn(call(contender.clone(), shared.clone()));
    }
    let mut tally = Tally::default();
    let (mut begin, mut before) = (Instant::now(), 0);
    wait(pace.warm_up, &mut running, &mut tally).await?;
    // A contender that has finished all messages by now was measured from the start.
    if !running.is_empty() {
        (begin, before) = (Instant::now(), shared.settled.load(Ordering::Relaxed));
    }
    wait(pace.slice, &mut running, &mut tally).await?;
    while shared.settled.load(Ordering::Relaxed) == before && !running.is_empty() {
        wait(LOOK_AGAIN, &mut running, &mut tally).await?;
    }
    // Before the callers stop: while they end one by one, the rate falls.
    let (took, after) = (begin.elapsed(), shared.settled.load(Ordering::Relaxed));
    shared.stop.store(true, Ordering::Relaxed);
    wait(pace.ending, &mut running, &mut tally).await?;
    let stopped = !running.is_empty();
    running.shutdown().await;
    #[allow(clippy::cast_precision_loss, reason = "counts of messages are far below 2^52")]
    let rate = (after - before) as f64 / took.as_secs_f64();
    let waits = std::mem::take(&mut *shared.waits());
    Ok(Throughput { rate, tally, waits, stopped })
}

/// Lets callers settle all messages of a feed that ends.
pub(crate) async fn exhaust(contender: &Arc<dyn Contender>, feed: Feed, callers: usize) -> Result<Tally> {
    let pace = Pace { warm_up: Duration::ZERO, slice: Duration::MAX, ending: Duration::MAX };
    Ok(throughput(contender, feed, callers, pace).await?.tally)
}

struct CallerProgress {
    feed: Feed,
    settled: AtomicU64,
    waits: Mutex<Vec<f64>>,
    stop: AtomicBool,
}

impl CallerProgress {
    fn waits(&self) -> MutexGuard<'_, Vec<f64>> {
        self.waits.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn call(contender: Arc<dyn Contender>, shared: Arc<CallerProgress>) -> Result<Tally> {
    let mut tally = Tally::default();
    while !shared.stop.load(Ordering::Relaxed) {
        let arrived = Instant::now();
        let Some(settled) = contender.deliver(&shared.feed).await? else { break };
        shared.waits().push(milliseconds(arrived.elapsed()));
        shared.settled.fetch_add(settled.settled(), Ordering::Relaxed);
        tally += settled;
    }
    Ok(tally)
}

// Until the time is over or every caller has ended.
async fn wait(time: Duration, running: &mut JoinSet<Result<Tally>>, tally: &mut Tally) -> Result<()> {
    let deadline = tokio::time::sleep(time);
    tokio::pin!(deadline);
    loop {
        tokio::select! {
            () = &mut deadline => return Ok(()),
            ended = running.join_next() => match ended {
                Some(ended) => *tally += ended.context("a caller panicked")??,
                None => return Ok(()),
            },
        }
    }
}

/// Lets messages arrive at a steady rate, even if earlier ones are not settled. Returns the time of each from its
/// arrival, in milliseconds.
pub(crate) async fn latencies(
    contender: &Arc<dyn Contender>,
    feed: Feed,
    callers: usize,
    rate: f64,
    pace: Pace,
) -> Result<Vec<f64>> {
    let arrivals = Arc::new(Arrivals { feed, begin: Instant::now(), rate, next: AtomicU64::new(0), pace });
    let mut running = JoinSet::new();
    for _ in 0..callers {
        running.spawn(answer(contender.clone(), arrivals.clone()));
    }
    let mut all = Vec::new();
    while let Some(ended) = running.join_next().await {
        all.extend(ended.context("a caller panicked")??);
    }
    ensure!(!all.is_empty(), "nothing arrived within {:?}", pace.slice);
    Ok(all)
}

struct Arrivals {
    feed: Feed,
    begin: Instant,
    rate: f64,
    next: AtomicU64,
    pace: Pace,
}

async fn answer(contender: Arc<dyn Contender>, arrivals: Arc<Arrivals>) -> Result<Vec<f64>> {
    let Arrivals { feed, begin, rate, next, pace } = &*arrivals;
    let mut took = Vec::new();
    loop {
        #[allow(clippy::cast_precision_loss, reason = "counts of messages are far below 2^52")]
        let since = Duration::from_secs_f64(next.fetch_add(1, Ordering::Relaxed) as f64 / rate);
        if since > pace.warm_up + pace.slice {
            return Ok(took);
        }
        let due = *begin + since;
        let arrived = if Instant::now() < due {
            tokio::time::sleep_until(due.into()).await;
            // The timer ticks once a millisecond: its lateness is not the contender's.
            Instant::now()
        } else {
            // All callers were busy when it arrived, and that counts.
            due
        };
        contender.deliver(feed).await?;
        if since >= pace.warm_up {
            took.push(milliseconds(arrived.elapsed()));
        }
    }
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}
