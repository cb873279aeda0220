//! How each fault is injected, and when it is over.

use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result};
use oncebox_servers::process::Signal;
use oncebox_torture::protocol::WorkerCommand;
use oncebox_torture::scenario::{LEASE, TortureMode};
use tokio::task::JoinHandle;

use crate::broker::BrokerFault;
use crate::database::{HeldConnection, Side};
use crate::fault::TortureFault;
use crate::run::{Run, WITH_CLOCK, WITH_SMALL_POOL, WorkerState};
use crate::starters;

/// The number of copies of one message at once.
const COPIES: usize = 64;
/// The minimum jump of a clock, too large to be a delay, and the maximum that is added to it.
const JUMP_SECONDS: (u64, usize) = (600, 6 * 60 * 60);
/// The maximum difference between the clock that was set and the clock that is read.
const CLOCK_TOLERANCE_SECONDS: u64 = 60;
/// The time between two reads of a clock. The library that fakes it reads its setting once a second.
const CLOCK_PAUSE: Duration = Duration::from_millis(200);
/// A fault that has not happened by then is injected again.
const RETRY_AFTER: Duration = Duration::from_secs(5);
/// The disk stays full until no message was acknowledged for this time.
const FULL: Duration = Duration::from_millis(600);
/// The maximum time that a lock is held.
const LOCKED_MS: usize = 800;
/// The maximum time that a server is down.
const DOWN_MS: usize = 400;
/// The number of messages that are acknowledged while a snapshot is held.
const SNAPSHOT_MESSAGES: u64 = 1_000;
/// The number of calls that are cancelled.
const CANCELLED_CALLS: u64 = 20;
/// The number of handler calls of all workers after which a lasting change has had its effect.
const AFFECTED_CALLS: u64 = 500;
/// The maximum time to wait for them: the next fault comes even if no handler makes progress.
const AFFECTED_LIMIT: Duration = Duration::from_secs(10);
/// The maximum number of commits of a mover and a relay whose results are lost. More than one, because many commits of an idle
/// mover change nothing.
const LOST_OUTBOX_RESULTS: usize = 20;
/// The maximum number of handler calls that drop the prepared statements of their session.
const DEALLOCATIONS: usize = 8;
/// The maximum time before a killed broker is started again.
const BROKER_DOWN_MS: usize = 2_000;
/// The time for which a broker does not respond or accepts no messages: the minimum, and the maximum that is added to it.
const BROKER_AWAY_MS: (u64, usize) = (1_000, 3_000);
/// The maximum time for which a queue does not exist.
const QUEUE_GONE_MS: usize = 500;
/// Messages that were published this long before their queue was deleted have left it. More would be sent again for nothing.
const REPLAYED: Duration = Duration::from_secs(60);

/// A fault that has begun.
#[derive(Debug)]
pub(crate) struct ActiveFault {
    fault: TortureFault,
    since: Instant,
    state: InjectionState,
}

#[derive(Debug)]
enum InjectionState {
    /// It is over.
    Over,
    /// It could not begin; it is injected again.
    NotYet,
    /// A worker is killed, or will kill itself.
    Killing { worker: usize },
    /// A lock is held until that time.
    Locked { until: Instant, held: HeldConnection },
    /// The disk is full until all workers are affected.
    Full { _held: Vec<HeldConnection> },
    /// A worker is stopped until that time.
    Stopped { worker: usize, until: Instant },
    /// A snapshot is held until that many messages are acknowledged.
    Snapshot { until: u64, held: HeldConnection },
    /// A connection will be cut after a commit; that many were before.
    Cutting { before: u32 },
    /// Connections will be silent; that many were before.
    Silencing { before: u32 },
    /// Results of commits will be lost; that many were before.
    LosingResults { before: u64 },
    /// Results of commits of movers and relays will be lost; that many were before.
    LosingOutboxResults { before: u64 },
    /// Calls will be cancelled; that many were before.
    Cancelling { before: u64 },
    /// Sessions will lose their prepared statements; that many had lost them before.
    Deallocating { before: u64 },
    /// A clock was set to be that far off.
    Jumping { seconds: i64, queried: Instant },
    /// A lasting change affects handlers until they were called that often.
    Changed { until: u64 },
    /// Workers are restarted one after the other.
    Rolling { worker: usize },
    /// The broker has a fault until the task ends.
    Broker { task: JoinHandle<Result<()>> },
    /// A relay is to send again what it has sent since that time, in milliseconds since 1970.
    Replaying { since_ms: u64, asked: Option<Instant> },
}

impl ActiveFault {
    pub(crate) fn fault(&self) -> TortureFault {
        self.fault
    }

    /// Begins a fault.
    pub(crate) async fn begin(fault: TortureFault, run: &mut Run) -> Result<Self> {
        let state = begin(fault, run).await.with_context(|| format!("injecting {}", fault.id()))?;
        Ok(Self { fault, since: Instant::now(), state })
    }

    /// Whether it has happened and is over.
    pub(crate) async fn is_over(&mut self, run: &mut Run) -> Result<bool> {
        let now = Instant::now();
        let is_over = match &mut self.state {
            InjectionState::Over => true,
            InjectionState::NotYet => false,
            InjectionState::Killing { worker } => {
                !matches!(run.slots[*worker].state, WorkerState::Doomed | WorkerState::Killed)
            }
            InjectionState::Locked { until, .. } | InjectionState::Stopped { until, .. } => *until <= now,
            InjectionState::Full { .. } => self.since.elapsed() > FULL && run.time_without_progress() > FULL,
            InjectionState::Snapshot { until, .. } => run.deliverer.acknowledged() >= *until,
            InjectionState::Cutting { before } => {
                run.database.proxy().is_some_and(|proxy| proxy.cuts() > *before)
            }
            InjectionState::Silencing { before } => {
                run.database.proxy().is_some_and(|proxy| proxy.silences() > *before)
            }
            InjectionState::LosingResults { before } => run.commits_unknown > *before,
            InjectionState::LosingOutboxResults { before } => run.outbox_results_lost > *before,
            InjectionState::Cancelling { before } => run.cancelled > *before,
            InjectionState::Deallocating { before } => {
                if run.deallocated > *before {
                    self.state = InjectionState::Changed { until: run.bodies + AFFECTED_CALLS };
                    self.since = now;
                }
                false
            }
            InjectionState::Changed { until } => {
                run.bodies >= *until || self.since.elapsed() > AFFECTED_LIMIT
            }
            InjectionState::Jumping { seconds, queried } => {
                if now.duration_since(*queried) > CLOCK_PAUSE {
                    *queried = now;
                    run.send(WITH_CLOCK, WorkerCommand::ReportClock)?;
                }
                let expected = seconds_now().saturating_add_signed(*seconds);
                run.clock_seconds.is_some_and(|read| read.abs_diff(expected) < CLOCK_TOLERANCE_SECONDS)
            }
            InjectionState::Rolling { worker } => return Ok(restart_next(worker, run)),
            InjectionState::Broker { task } if !task.is_finished() => false,
            InjectionState::Broker { task } => {
                task.await?.with_context(|| format!("injecting {}", self.fault.id()))?;
                match self.fault {
                    TortureFault::BrokerQueue if run.scenario.mode == TortureMode::Outbox => {
                        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?;
                        let since = now.saturating_sub(self.since.elapsed() + REPLAYED);
                        run.replayed = false;
                        self.state = InjectionState::Replaying {
                            since_ms: u64::try_from(since.as_millis())?,
                            asked: None,
                        };
                        false
                    }
                    TortureFault::BrokerQueue => {
                        run.repeat_in_flight();
                        true
                    }
                    _ => true,
                }
            }
            InjectionState::Replaying { since_ms, asked } => {
                if asked.is_none_or(|asked| asked.elapsed() > RETRY_AFTER)
                    && let Some(worker) = run.random_worker()
                {
                    *asked = Some(now);
                    run.send(worker, WorkerCommand::Replay { since_ms: *since_ms })?;
                }
                run.replayed
            }
        };
        if is_over {
            self.end(run).await?;
        } else if self.since.elapsed() > RETRY_AFTER && self.may_be_injected_again() {
            *self = Self::begin(self.fault, run).await?;
        }
        Ok(is_over)
    }

    fn may_be_injected_again(&self) -> bool {
        // The worker or the connection may have ended before the fault happened.
        matches!(
            self.state,
            InjectionState::NotYet
                | InjectionState::Full { .. }
                | InjectionState::Cutting { .. }
                | InjectionState::Silencing { .. }
                | InjectionState::LosingResults { .. }
                | InjectionState::LosingOutboxResults { .. }
                | InjectionState::Cancelling { .. }
                | InjectionState::Deallocating { .. }
        )
    }

    /// Restores the state before the fault.
    async fn end(&mut self, run: &mut Run) -> Result<()> {
        match std::mem::replace(&mut self.state, InjectionState::Over) {
            InjectionState::Stopped { worker, .. } => run.slots[worker].worker.signal(Signal::CONT),
            InjectionState::Locked { held, .. } | InjectionState::Snapshot { held, .. } => drop(held),
            _ => {}
        }
        if self.fault == TortureFault::DiskFull {
            // Before the recovery, because a server cannot start on a full disk.
            run.database.disk().clear()?;
            // PostgreSQL stops if it cannot write its log.
            run.database.recover().await?;
        }
        Ok(())
    }
}

async fn begin(fault: TortureFault, run: &mut Run) -> Result<InjectionState> {
    let now = Instant::now();
    let Some(worker) = run.random_worker() else { return Ok(InjectionState::NotYet) };
    Ok(match fault {
        TortureFault::KillAt(point) => {
            // Before the command, because the worker may end at once.
            run.slots[worker].state = WorkerState::Doomed;
            run.send(worker, WorkerCommand::KillAt(point))?;
            InjectionState::Killing { worker }
        }
        TortureFault::KillRandom => {
            run.kill(worker);
            InjectionState::Killing { worker }
        }
        TortureFault::KillDatabase => {
            // SQLite has no server: its sessions end with the workers.
            if run.database.proxy().is_none() {
                for worker in 0..run.slots.len() {
                    run.kill(worker);
                }
            }
            let pause = random_ms(run, DOWN_MS);
            run.database.kill_and_restart(pause).await?;
            InjectionState::Over
        }
        TortureFault::TerminateBackend => {
            let number = run.random.below(1_000);
            if run.database.terminate_backend(number).await? {
                InjectionState::Over
            } else {
                InjectionState::NotYet
            }
        }
        TortureFault::HoldWriteLock => {
            let side = random_side(run);
            let held = run.database.hold_write_lock(side).await?;
            InjectionState::Locked { until: now + random_ms(run, LOCKED_MS), held }
        }
        TortureFault::StopBeyondLease => {
            run.slots[worker].worker.signal(Signal::STOP);
            // Long enough for others to declare it crashed. Then it continues, with leases that are lost.
            InjectionState::Stopped { worker, until: now + LEASE * 3 / 2 + random_ms(run, 1_000) }
        }
        TortureFault::CutAfterCommit => match run.database.proxy() {
            Some(proxy) => {
                let before = proxy.cuts();
                proxy.cut_after_commits(1 + u32::try_from(run.random.below(3))?);
                InjectionState::Cutting { before }
            }
            None => {
                // SQLite has no connection that could be cut, so the worker loses the result itself.
                let commits = 1 + u32::try_from(run.random.below(3))?;
                run.send(worker, WorkerCommand::LoseCommitResults(commits))?;
                InjectionState::LosingResults { before: run.commits_unknown }
            }
        },
        TortureFault::HalfOpen => {
            let proxy = run.database.proxy().context("no proxy for half-open connections")?;
            let before = proxy.silences();
            // Each variant makes connections half-open at another step.
            match run.random.below(4) {
                0 => proxy.silence_all(),
                1 => proxy.silence_newcomers(1),
                2 => proxy.silence_after_commits(1),
                _ => proxy.silence_after_requests(u32::try_from(run.random.below(20))?),
            }
            InjectionState::Silencing { before }
        }
        TortureFault::DiskFull => {
            let held = run.database.use_up_log().await?;
            run.database.disk().fill()?;
            InjectionState::Full { _held: held }
        }
        TortureFault::PoolOfTwo => {
            let copies = run.deliverer.burst(WITH_SMALL_POOL, COPIES);
            run.send_deliveries(&copies)?;
            if copies.is_empty() { InjectionState::NotYet } else { InjectionState::Over }
        }
        TortureFault::HeldSnapshot => {
            let side = random_side(run);
            let held = run.database.hold_snapshot(side).await?;
            InjectionState::Snapshot { until: run.deliverer.acknowledged() + SNAPSHOT_MESSAGES, held }
        }
        TortureFault::CancelCallers => {
            run.send(worker, WorkerCommand::CancelCalls(CANCELLED_CALLS))?;
            InjectionState::Cancelling { before: run.cancelled }
        }
        TortureFault::ClockJump => {
            let jump = i64::try_from(JUMP_SECONDS.0 + run.random.below(JUMP_SECONDS.1) as u64)?;
            let seconds = if run.random.one_in(2) { -jump } else { jump };
            run.clock.as_ref().context("no clock that can be set")?.set(seconds)?;
            // A report from before the jump must not count.
            run.clock_seconds = None;
            InjectionState::Jumping { seconds, queried: now }
        }
        TortureFault::TwentyStarters => {
            starters::start(run).await?;
            InjectionState::Over
        }
        TortureFault::RollingRestart => {
            run.terminate(0);
            InjectionState::Rolling { worker: 0 }
        }
        TortureFault::AlterTable => {
            run.columns += 1;
            let side = random_side(run);
            match run.database.add_column(side, run.columns).await? {
                true => InjectionState::Changed { until: run.bodies + AFFECTED_CALLS },
                false => InjectionState::NotYet,
            }
        }
        TortureFault::DeallocateAll => {
            let calls = 1 + u32::try_from(run.random.below(DEALLOCATIONS))?;
            run.send(worker, WorkerCommand::Deallocate(calls))?;
            InjectionState::Deallocating { before: run.deallocated }
        }
        TortureFault::BrokerKill
        | TortureFault::BrokerStop
        | TortureFault::BrokerClose
        | TortureFault::BrokerChannel
        | TortureFault::BrokerAlarm
        | TortureFault::BrokerQueue => {
            let away =
                |run: &mut Run| Duration::from_millis(BROKER_AWAY_MS.0) + random_ms(run, BROKER_AWAY_MS.1);
            let fault = match fault {
                TortureFault::BrokerKill => BrokerFault::Kill(random_ms(run, BROKER_DOWN_MS)),
                TortureFault::BrokerStop => BrokerFault::Stop(away(run)),
                TortureFault::BrokerClose => BrokerFault::Close,
                TortureFault::BrokerChannel => BrokerFault::Channel(run.random.below(1_000)),
                TortureFault::BrokerAlarm => BrokerFault::Alarm(away(run)),
                _ => BrokerFault::Queue(random_ms(run, QUEUE_GONE_MS)),
            };
            let broker = run.broker.as_ref().context("no broker for its fault")?;
            InjectionState::Broker { task: broker.begin(fault) }
        }
        TortureFault::LoseOutboxResults => {
            let commits = 1 + u32::try_from(run.random.below(LOST_OUTBOX_RESULTS))?;
            run.send(worker, WorkerCommand::LoseOutboxResults(commits))?;
            InjectionState::LosingOutboxResults { before: run.outbox_results_lost }
        }
    })
}

/// Restarts the next worker when the one before is open again. Returns whether all were restarted.
fn restart_next(worker: &mut usize, run: &mut Run) -> bool {
    if run.slots[*worker].state != WorkerState::Open {
        return false;
    }
    *worker += 1;
    let is_over = *worker == run.slots.len();
    if !is_over {
        run.terminate(*worker);
    }
    is_over
}

/// One of the databases. Nothing is drawn if there is only one.
fn random_side(run: &mut Run) -> Side {
    match run.database.sides() {
        [only] => *only,
        sides => run.random.choose(sides).unwrap_or(Side::Sender),
    }
}

fn random_ms(run: &mut Run, limit: usize) -> Duration {
    Duration::from_millis(run.random.below(limit) as u64)
}

fn seconds_now() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs()
}
