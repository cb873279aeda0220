//! How each fault is brought about, and when it is over.

use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result};
use oncebox_servers::process::Signal;
use oncebox_torture::plan::LEASE;

use crate::database::Held;
use crate::fault::Fault;
use crate::run::{Run, Station, WITH_CLOCK, WITH_SMALL_POOL};
use crate::starters;

/// Copies of one message at once.
const COPIES: usize = 64;
/// How far a clock jumps, at most.
const JUMP_SECONDS: usize = 6 * 60 * 60;
/// A clock is looked at this often; the library that bends it reads its setting once a second.
const CLOCK_PAUSE: Duration = Duration::from_millis(200);
/// What has not come about by then is tried again.
const TRY_AGAIN: Duration = Duration::from_secs(5);
/// The disk stays full until nobody could do anything for so long.
const FULL: Duration = Duration::from_millis(600);
/// A lock is held for so long, at most.
const LOCKED_MS: usize = 800;
/// A server is away for so long, at most.
const DOWN_MS: usize = 400;
/// So many messages pass while a snapshot is held.
const SNAPSHOT_MESSAGES: u64 = 1_000;
/// So many callers go away.
const CALLERS: u64 = 20;
/// Handlers meet a change when so many bodies have run since, at all workers together,
const FELT_BODIES: u64 = 500;
/// or when so much time has passed: the next fault comes even where no handler gets anything done.
const FELT_LIMIT: Duration = Duration::from_secs(10);
/// The maximum number of handler calls that drop the prepared statements of their session.
const DEALLOCATIONS: usize = 8;

/// A fault that has begun.
#[derive(Debug)]
pub(crate) struct Ongoing {
    fault: Fault,
    since: Instant,
    state: State,
}

#[derive(Debug)]
enum State {
    /// Nothing is left to wait for.
    Over,
    /// It could not begin; it is tried again.
    NotYet,
    /// A worker is to die at a point.
    Dying { worker: usize },
    /// Something is held until its time is up.
    Until { time: Instant, held: Held },
    /// There is no space until everybody has noticed.
    Full { _held: Option<Held> },
    /// A worker is stopped until its time is up.
    Stopped { worker: usize, until: Instant },
    /// A snapshot is held until so many messages were acknowledged.
    Snapshot { until: u64, held: Held },
    /// Commits are to be cut off; so many were before.
    Cutting { before: u32 },
    /// Connections are to be silent; so many were before.
    Silencing { before: u32 },
    /// Answers of commits in a worker are to get lost.
    Losing,
    /// Callers are to go away; so many did before.
    Cancelling { before: u64 },
    /// Sessions are to lose their prepared statements; so many had lost them before.
    Deallocating { before: u64 },
    /// A clock was set; it should be so far off.
    Jumping { seconds: i64, asked: Instant },
    /// Something has changed for good, and handlers are to meet it: so many bodies must have run.
    Changed { until: u64 },
    /// Workers are replaced one after the other.
    Rolling { worker: usize },
}

impl Ongoing {
    pub(crate) fn fault(&self) -> Fault {
        self.fault
    }

    /// Begins a fault.
    pub(crate) async fn begin(fault: Fault, run: &mut Run) -> Result<Self> {
        let state = begin(fault, run).await.with_context(|| format!("bringing about {}", fault.id()))?;
        Ok(Self { fault, since: Instant::now(), state })
    }

    /// Whether it has happened and is over.
    pub(crate) async fn is_over(&mut self, run: &mut Run) -> Result<bool> {
        let now = Instant::now();
        let is_over = match &mut self.state {
            State::Over => true,
            State::NotYet => false,
            State::Dying { worker } => {
                !matches!(run.posts[*worker].station, Station::Doomed | Station::Killed)
            }
            State::Until { time, .. } => *time <= now,
            State::Full { .. } => self.since.elapsed() > FULL && run.silence() > FULL,
            State::Stopped { until, .. } => *until <= now,
            State::Snapshot { until, .. } => run.source.acknowledged() >= *until,
            State::Cutting { before } => run.database.proxy().is_some_and(|proxy| proxy.cuts() > *before),
            State::Silencing { before } => {
                run.database.proxy().is_some_and(|proxy| proxy.silences() > *before)
            }
            State::Losing => run.heard_of_unknown(),
            State::Cancelling { before } => run.cancelled > *before,
            State::Deallocating { before } => {
                if run.deallocated > *before {
                    self.state = State::Changed { until: run.bodies + FELT_BODIES };
                    self.since = now;
                }
                false
            }
            State::Changed { until } => run.bodies >= *until || self.since.elapsed() > FELT_LIMIT,
            State::Jumping { seconds, asked } => {
                if now.duration_since(*asked) > CLOCK_PAUSE {
                    *asked = now;
                    run.posts[WITH_CLOCK].worker.tell("clock");
                }
                run.clock_read.is_some_and(|read| (read - seconds_now() - *seconds).abs() < 60)
            }
            State::Rolling { worker } => return Self::roll(worker, run),
        };
        if is_over {
            self.end(run).await?;
        } else if self.since.elapsed() > TRY_AGAIN && self.may_try_again() {
            *self = Self::begin(self.fault, run).await?;
        }
        Ok(is_over)
    }

    fn may_try_again(&self) -> bool {
        matches!(
            self.state,
            State::NotYet
                | State::Full { .. }
                | State::Cutting { .. }
                | State::Silencing { .. }
                | State::Losing
                | State::Cancelling { .. }
                | State::Deallocating { .. }
        )
    }

    /// Puts everything back as it was.
    async fn end(&mut self, run: &mut Run) -> Result<()> {
        match std::mem::replace(&mut self.state, State::Over) {
            State::Stopped { worker, .. } => run.posts[worker].worker.signal(Signal::CONT),
            State::Until { held, .. } | State::Snapshot { held, .. } => drop(held),
            _ => {}
        }
        if self.fault == Fault::DiskFull {
            run.database.disk().clear()?;
            run.database.recover().await?;
        }
        Ok(())
    }

    fn roll(worker: &mut usize, run: &mut Run) -> Result<bool> {
        if run.posts[*worker].station != Station::Open {
            return Ok(false);
        }
        *worker += 1;
        if *worker == run.posts.len() {
            return Ok(true);
        }
        run.ask_to_leave(*worker);
        Ok(false)
    }
}

async fn begin(fault: Fault, run: &mut Run) -> Result<State> {
    let now = Instant::now();
    let Some(worker) = run.somebody() else { return Ok(State::NotYet) };
    Ok(match fault {
        Fault::KillAt(point) => {
            run.posts[worker].station = Station::Doomed;
            run.posts[worker].worker.tell(&format!("die {}", point.name()));
            State::Dying { worker }
        }
        Fault::KillRandom => {
            run.kill(worker);
            State::Dying { worker }
        }
        Fault::KillDatabase => {
            if run.database.proxy().is_none() {
                for worker in 0..run.posts.len() {
                    run.kill(worker);
                }
            }
            let pause = Duration::from_millis(run.chance.below(DOWN_MS) as u64);
            run.database.kill_and_restart(pause).await?;
            State::Over
        }
        Fault::TerminateBackend => {
            let number = run.chance.below(1_000);
            if run.database.terminate_backend(number).await? { State::Over } else { State::NotYet }
        }
        Fault::HoldWriteLock => {
            let held = run.database.hold_write_lock().await?;
            let time = now + Duration::from_millis(run.chance.below(LOCKED_MS) as u64);
            State::Until { time, held }
        }
        Fault::StopBeyondLease => {
            run.posts[worker].worker.signal(Signal::STOP);
            let longer = Duration::from_millis(run.chance.below(1_000) as u64);
            State::Stopped { worker, until: now + LEASE * 3 / 2 + longer }
        }
        Fault::CutAfterCommit => match run.database.proxy() {
            Some(proxy) => {
                let before = proxy.cuts();
                proxy.cut_after_commits(1 + u32::try_from(run.chance.below(3))?);
                State::Cutting { before }
            }
            None => {
                run.posts[worker].worker.tell(&format!("lose {}", 1 + run.chance.below(3)));
                run.forget_unknown();
                State::Losing
            }
        },
        Fault::HalfOpen => {
            let proxy = run.database.proxy().context("there is no connection that could be half open")?;
            let before = proxy.silences();
            match run.chance.below(4) {
                0 => proxy.silence_all(),
                1 => proxy.silence_newcomers(1),
                2 => proxy.silence_after_commits(1),
                _ => proxy.silence_after_requests(u32::try_from(run.chance.below(20))?),
            }
            State::Silencing { before }
        }
        Fault::DiskFull => {
            let held = run.database.leave_no_room().await?;
            run.database.disk().fill()?;
            State::Full { _held: held }
        }
        Fault::PoolOfTwo => {
            let copies = run.source.burst(WITH_SMALL_POOL, COPIES);
            run.hand_over(&copies)?;
            if copies.is_empty() { State::NotYet } else { State::Over }
        }
        Fault::HeldSnapshot => {
            let held = run.database.hold_snapshot().await?;
            State::Snapshot { until: run.source.acknowledged() + SNAPSHOT_MESSAGES, held }
        }
        Fault::CancelCallers => {
            run.posts[worker].worker.tell(&format!("cancel {CALLERS}"));
            State::Cancelling { before: run.cancelled }
        }
        Fault::ClockJump => {
            let hours = i64::try_from(run.chance.below(JUMP_SECONDS))?;
            // At least so far that nobody takes it for a delay.
            let seconds = (600 + hours) * if run.chance.one_in(2) { -1 } else { 1 };
            run.clock.as_ref().context("there is no clock to set")?.set(seconds)?;
            run.clock_read = None;
            State::Jumping { seconds, asked: now }
        }
        Fault::TwentyStarters => {
            starters::start(run).await?;
            State::Over
        }
        Fault::RollingRestart => {
            run.ask_to_leave(0);
            State::Rolling { worker: 0 }
        }
        Fault::AlterTable => {
            run.columns += 1;
            match run.database.add_column(run.columns).await? {
                true => State::Changed { until: run.bodies + FELT_BODIES },
                false => State::NotYet,
            }
        }
        Fault::DeallocateAll => {
            run.posts[worker].worker.tell(&format!("deallocate {}", 1 + run.chance.below(DEALLOCATIONS)));
            State::Deallocating { before: run.deallocated }
        }
    })
}

fn seconds_now() -> i64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(now.as_secs()).unwrap_or(i64::MAX)
}
