//! A visit: one transaction of one handler in one lane.
//!
//! A visit locks the lane's progress, reads a batch, runs the handlers on the same connection, and commits the progress with their
//! writes. If a handler fails, a part of the batch is rolled back and runs again with a savepoint for each message. For handlers of
//! sets the batch is halved. A message that fails alone is scheduled for retry.

use std::time::Duration;

use crate::Error;
use crate::backoff::Retries;
use crate::inbox::faults::{Judgement, Meaning};
use crate::inbox::registered::Registered;
use crate::inbox::sessions::StaleSessions;
use crate::inbox::stored::lessons::{POSITIONS_MAX, POSITIONS_MIN};
use crate::inbox::stored::work::{MessageEnd, VisitFailure, own_statement_failure};
use crate::inbox::stored::worker::WorkReport;
use crate::inbox::stored::{LaneVisitor, LogStore};
use crate::store::{Batch, Limits, Place, Progress, StoredMessage, TakeLimits, Taker, TaskLimits};

/// The maximum number of tasks in one visit.
pub(super) const TASKS_MAX: u32 = 25;
/// The maximum size of all bodies in one visit.
const BYTES_MAX: u64 = 8 * 1024 * 1024;

/// What to visit: a handler, a lane, and messages or tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct VisitTarget {
    /// The index of the handler in the inbox.
    pub(super) handler: usize,
    pub(super) lane: u16,
    pub(super) what: WorkKind,
    /// Whether care is needed, because processes crashed in this lane.
    pub(super) careful: bool,
}

impl VisitTarget {
    /// The handler and lane, which only one visit uses at a time.
    pub(crate) fn lock(self) -> (usize, u16) {
        (self.handler, self.lane)
    }
}

/// The kind of work in a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum WorkKind {
    Messages,
    Tasks,
}

/// The result of a visit.
#[derive(Clone, Copy, Debug)]
pub(crate) enum VisitResult {
    /// Another worker or process uses the lane.
    Busy,
    /// There was nothing to do.
    Idle,
    Worked {
        report: WorkReport,
        more: bool,
    },
}

/// The settings of a visit.
pub(crate) struct VisitPlan {
    /// Whether these are tasks, which do not wait for each other as the messages of a lane do.
    pub(crate) tasks: bool,
    /// Whether each message has a savepoint.
    pub(crate) isolated: bool,
    /// Whether the handler failed recently. Then the batch starts with savepoints.
    pub(crate) recently_failed: bool,
    pub(crate) time: Duration,
    pub(crate) limits: Limits,
    /// The only message to run, with a note about it, where care is needed.
    pub(super) noted: Option<Place>,
}

impl<S: LogStore> LaneVisitor<S> {
    /// Visits a lane once, for a handler that runs in transactions.
    pub(crate) async fn visit(&self, target: VisitTarget) -> Result<VisitResult, Error> {
        let handler = &self.engine.handlers[target.handler];
        let taker = self.taker(handler, target.lane);
        if target.careful {
            return self.visit_carefully(handler, taker, target).await;
        }
        let plan = self.plan(handler, target);
        self.visit_with(handler, taker, target, &plan).await
    }

    /// The handler's data that the store needs to take its messages.
    pub(super) fn taker<'a>(&self, handler: &'a Registered<S>, lane: u16) -> Taker<'a> {
        Taker {
            handler: self.log.ids[handler.index],
            kinds: &handler.kinds,
            mode: handler.mode(self.engine.mode),
            ordered: handler.settings.ordered,
            lane,
        }
    }

    /// Begins the transaction of a visit; `None` if other transactions use the store's one writer.
    pub(super) async fn begin_visit(&self, plan: &VisitPlan) -> Result<Option<S::Tx>, Error> {
        match self.engine.store.begin(plan.limits).await {
            Ok(tx) => Ok(Some(tx)),
            Err(error) if Judgement::of::<S>(&error).is_locked() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Visits a lane in one transaction.
    pub(super) async fn visit_with(
        &self,
        handler: &Registered<S>,
        taker: Taker<'_>,
        target: VisitTarget,
        plan: &VisitPlan,
    ) -> Result<VisitResult, Error> {
        let _turn = self.engine.worker_turn(handler).await;
        let Some(mut tx) = self.begin_visit(plan).await? else { return Ok(VisitResult::Busy) };
        let taken = match (plan.noted, target.what) {
            (Some(_), what) => self.take_one(&mut tx, taker, what).await,
            (None, WorkKind::Messages) => self.take_messages(handler, &mut tx, taker).await,
            (None, WorkKind::Tasks) => self.take_tasks(handler, &mut tx, taker).await,
        };
        let mut taken = match taken {
            // Another worker was faster: the next message is not the noted one.
            Ok(Some(taken)) if plan.noted.is_some_and(|place| taken.first_place() != Some(place)) => {
                self.engine.store.rollback(tx).await;
                return Ok(VisitResult::Idle);
            }
            Ok(Some(taken)) => taken,
            Ok(None) => {
                self.engine.store.rollback(tx).await;
                return Ok(VisitResult::Busy);
            }
            Err(error) => {
                self.engine.store.rollback(tx).await;
                return Err(error);
            }
        };
        if taken.is_empty() {
            self.engine.store.rollback(tx).await;
            return Ok(VisitResult::Idle);
        }
        if let Err(error) = self.claim_taken(handler, &mut tx, &mut taken).await {
            self.engine.store.rollback(tx).await;
            // Another copy may have run for longer than a claim waits.
            let judgement = Judgement::of::<S>(&error);
            return match judgement.is_locked() || judgement.is_conflict() {
                true => Ok(VisitResult::Busy),
                false => Err(error),
            };
        }
        self.work_on(handler, taker, tx, taken, plan).await
    }

    pub(super) fn plan(&self, handler: &Registered<S>, target: VisitTarget) -> VisitPlan {
        let tasks = target.what == WorkKind::Tasks;
        let time = self.log.settings.batch_time.unwrap_or(match self.engine.store.capacity() {
            // All handlers share the one writer, so batches are short.
            1 => Duration::from_millis(50),
            _ => Duration::from_millis(500),
        });
        VisitPlan {
            tasks,
            // Most tasks have failed before, so each one starts with a savepoint.
            isolated: tasks,
            recently_failed: handler.lessons().lane(target.lane).recently_failed,
            time,
            limits: Limits {
                lock_timeout: self.engine.settings.lock_timeout,
                body_lock_timeout: None,
                handler_timeout: self.engine.handler_timeout(handler),
            },
            noted: None,
        }
    }

    async fn take_messages(
        &self,
        handler: &Registered<S>,
        tx: &mut S::Tx,
        taker: Taker<'_>,
    ) -> Result<Option<TakenBatch>, Error> {
        let limits = {
            let mut lessons = handler.lessons();
            let size = lessons.size.next();
            let lane = lessons.lane(taker.lane);
            let messages = if handler.settings.isolated { 1 } else { size.min(lane.sets) };
            TakeLimits {
                messages: u32::try_from(messages).unwrap_or(u32::MAX),
                positions: lane.positions,
                bytes: BYTES_MAX,
                open_tasks: None,
            }
        };
        let Some(batch) = self.engine.store.take(tx, taker, limits).await? else { return Ok(None) };
        self.resolve_unknown_commit(handler, taker, batch.epoch, batch.from);
        // Long searches skip messages of other kinds quickly; the first message found ends them.
        let positions = match batch.messages.is_empty() {
            true => limits.positions.saturating_mul(2).min(POSITIONS_MAX),
            false => POSITIONS_MIN,
        };
        handler.lessons().lane(taker.lane).positions = positions;
        Ok(Some(TakenBatch::messages(taker, batch)))
    }

    async fn take_tasks(
        &self,
        handler: &Registered<S>,
        tx: &mut S::Tx,
        taker: Taker<'_>,
    ) -> Result<Option<TakenBatch>, Error> {
        let most = if handler.settings.isolated { 1 } else { TASKS_MAX };
        let messages =
            self.engine.store.take_tasks(tx, taker, TaskLimits { tasks: most, heads_only: false }).await?;
        Ok(messages.map(|messages| TakenBatch::tasks(messages, most)))
    }

    pub(super) async fn work_on(
        &self,
        handler: &Registered<S>,
        taker: Taker<'_>,
        mut tx: S::Tx,
        mut taken: TakenBatch,
        plan: &VisitPlan,
    ) -> Result<VisitResult, Error> {
        let store = &self.engine.store;
        let ran = self.run_messages(handler, &mut tx, &taken.messages, plan).await;
        let ran = match ran {
            Ok(ran) => ran,
            Err(problem) => {
                match problem {
                    VisitFailure::TimedOut(_) => store.abandon(tx).await,
                    _ => store.rollback(tx).await,
                }
                return self.recover_from(handler, taker, taken, problem, plan).await;
            }
        };
        // Messages that did not run stay for the next visit, so the progress must stop before them.
        if let Some(progress) = &mut taken.progress
            && ran.ended.len() < taken.messages.len()
        {
            let Some(last) = ran.ended.len().checked_sub(1) else {
                store.rollback(tx).await;
                // The first message must run again and blocks its lane. Without a pause this would be a tight loop.
                Retries::unlimited().pause().await;
                return Ok(VisitResult::Worked { report: WorkReport::default(), more: true });
            };
            if !mutant!("progress_past_the_unreached") {
                progress.pos = taken.messages[last].place.pos;
            }
        }
        let (account, report) = self.account(handler, &taken, &ran, plan);
        if let Err(error) = self.settle(&mut tx, taker, &account).await {
            store.rollback(tx).await;
            let problem = match S::is_about_data(&error) {
                true => {
                    let error_text = crate::error::chain(&error);
                    tracing::error!(
                        handler = &*handler.name,
                        error = error_text,
                        "the outcome of a message cannot be stored"
                    );
                    VisitFailure::Unstorable(error)
                }
                // A handler may have left the transaction broken.
                false => own_statement_failure::<S>(error).unwrap_or_else(|problem| problem),
            };
            return self.recover_from(handler, taker, taken, problem, plan).await;
        }
        if let Err(error) = store.finish(tx, taken.progress).await {
            let problem = match Meaning::of::<S>(&error) {
                Meaning::Broken => VisitFailure::Broken(error),
                Meaning::Lost if !mutant!("unknown_commit_is_a_failure_in_lanes") => {
                    self.note_unknown_commit(handler, taker, &taken, ran.ended.len());
                    VisitFailure::Store(error)
                }
                Meaning::Session => VisitFailure::Session(error.into()),
                Meaning::Outage => VisitFailure::Store(error),
                Meaning::Contended => {
                    self.engine.met_contention(handler);
                    VisitFailure::Contended(error.into())
                }
                Meaning::Lost | Meaning::Failed => VisitFailure::Failed(error.into()),
            };
            return self.recover_from(handler, taker, taken, problem, plan).await;
        }
        handler.batches.state().contention.committed();
        self.engine.committed();
        self.observe_visit(handler, &taken, &ran, &report);
        self.report_dead_letters(handler, &taken, &account);
        let mut lessons = handler.lessons();
        if ran.bodies > 0 {
            lessons.size.took(ran.bodies, ran.took);
            lessons.size.clean(ran.bodies);
        }
        if !plan.tasks && ran.bodies > 0 {
            let lane = lessons.lane(taker.lane);
            lane.sessions = StaleSessions::default();
            lane.grow_sets();
            lane.recently_failed = !ran.is_clean();
        }
        for (message, ended) in taken.messages.iter().zip(&ran.ended) {
            // The message runs again soon, so its errors still count.
            if !matches!(ended, MessageEnd::Again) {
                lessons.transients.remove(&message.place);
            }
        }
        Ok(VisitResult::Worked { report, more: taken.has_more() })
    }

    /// Takes the next message of a lane, or the next task, alone.
    pub(super) async fn take_one(
        &self,
        tx: &mut S::Tx,
        taker: Taker<'_>,
        what: WorkKind,
    ) -> Result<Option<TakenBatch>, Error> {
        let store = &self.engine.store;
        if what == WorkKind::Tasks {
            let messages = store.take_tasks(tx, taker, TaskLimits { tasks: 1, heads_only: false }).await?;
            return Ok(messages.map(|messages| TakenBatch::tasks(messages, 1)));
        }
        let one = TakeLimits { messages: 1, positions: POSITIONS_MAX, bytes: BYTES_MAX, open_tasks: None };
        let batch = store.take(tx, taker, one).await?;
        Ok(batch.map(|batch| TakenBatch::messages(taker, batch)))
    }
}

/// The messages that a visit has taken.
pub(crate) struct TakenBatch {
    pub(super) messages: Vec<StoredMessage>,
    /// Messages with another copy that runs inline.
    pub(super) busy: Vec<StoredMessage>,
    /// The progress of the handler after this batch; `None` for tasks.
    pub(super) progress: Option<Progress>,
    behind: Behind,
}

/// The work that remains after the taken messages.
enum Behind {
    /// Messages up to this newest position of the lane.
    Head(i64),
    /// Whether there may be other tasks.
    Tasks(bool),
}

impl TakenBatch {
    /// Messages of a lane.
    pub(super) fn messages(taker: Taker<'_>, batch: Batch) -> Self {
        let Batch { epoch, from, reached: pos, head, messages } = batch;
        let progress = Progress { handler: taker.handler, lane: taker.lane, epoch, pos };
        let progress = (pos > from).then_some(progress);
        Self { messages, busy: Vec::new(), progress, behind: Behind::Head(head) }
    }

    /// Tasks. If the maximum number was taken, there may be more.
    pub(super) fn tasks(messages: Vec<StoredMessage>, most: u32) -> Self {
        let behind = Behind::Tasks(messages.len() >= most as usize);
        Self { messages, busy: Vec::new(), progress: None, behind }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.messages.is_empty() && self.busy.is_empty() && self.progress.is_none()
    }

    pub(super) fn first_place(&self) -> Option<Place> {
        self.messages.first().map(|message| message.place)
    }

    /// Whether another visit may find work after this one.
    pub(super) fn has_more(&self) -> bool {
        match self.behind {
            Behind::Head(head) => self.progress.is_some_and(|progress| progress.pos < head),
            Behind::Tasks(more) => more,
        }
    }
}
