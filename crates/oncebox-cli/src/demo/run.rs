//! One run of the demo: deliver and kill until everything is acknowledged and handled.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use oncebox::store::{HandlerStatus, Select};
use oncebox::{Operator, Operators};
use oncebox_workload::deliverer::{Deliverer, DeliveryResult, SentCopy};
use oncebox_workload::plan::Plan;
use tokio::time::sleep;

use crate::demo::database::DemoDatabase;
use crate::demo::history::{DemoEvent, DemoHistory, Event};
use crate::demo::kills::KillSchedule;
use crate::demo::plan::MessageMode;
use crate::demo::progress::DemoProgress;
use crate::demo::protocol::{DeliveryRequest, WorkerReport};
use crate::demo::worker::STORED;
use crate::demo::workers::{WorkerOutput, WorkerProcesses};

const TICK: Duration = Duration::from_millis(2);
/// The time between two queries of the backlog.
const BACKLOG_EVERY: Duration = Duration::from_millis(50);
/// No new messages are sent while the backlog is larger.
const BACKLOG_MAX: u64 = 500;
/// The demo fails if there is no progress for this time.
const STALL_LIMIT: Duration = Duration::from_secs(120);
/// The operator's name when the demo retries dead letters.
const OPERATOR: &str = "oncebox demo";

/// Everything that takes part in a run.
#[derive(Debug)]
pub(super) struct DemoRun {
    pub(super) workers: WorkerProcesses,
    pub(super) history: DemoHistory,
    pub(super) progress: DemoProgress,
    pub(super) plan: Plan,
    pub(super) deliverer: Deliverer,
    pub(super) kills: KillSchedule,
    pub(super) last_progress: Instant,
}

impl DemoRun {
    /// Delivers all messages, kills workers on schedule, and waits until the log is worked off.
    pub(super) async fn run(&mut self, database: &DemoDatabase) -> Result<()> {
        let operators = database.opened.operators().await?;
        self.deliver_all(&operators).await?;
        self.work_off(&operators).await
    }

    async fn deliver_all(&mut self, operators: &Operators) -> Result<()> {
        let (mut backlog, mut queried) = (0, Instant::now());
        while !(self.deliverer.is_done() && self.kills.left() == 0) {
            if queried.elapsed() >= BACKLOG_EVERY {
                backlog = status(operators).await?.map_or(0, |status| status.lag + status.tasks);
                queried = Instant::now();
            }
            self.deliver(backlog)?;
            self.kill()?;
            self.receive(TICK).await?;
            self.progress.show(self.history.counts());
            self.check_progress()?;
        }
        Ok(())
    }

    /// Sends due deliveries. No new messages with a large backlog: the stored ones must be handled while workers are killed.
    fn deliver(&mut self, backlog: u64) -> Result<()> {
        let sent_max = if backlog > BACKLOG_MAX { 0 } else { self.kills.sent_max() };
        for delivery in self.deliverer.deliveries(&self.workers.open(), sent_max, Instant::now()) {
            self.history.add_all(Event::of_delivery(&delivery, self.plan))?;
            let SentCopy { number, worker, message, copy } = delivery;
            let (mode, entry) = (MessageMode::of(message), self.plan.entry(message));
            self.workers.send(worker, &DeliveryRequest { delivery: number, mode, entry, copy })?;
        }
        Ok(())
    }

    /// Kills a worker if a kill is due, preferably one with deliveries in flight.
    fn kill(&mut self) -> Result<()> {
        if !self.kills.is_due(self.deliverer.sent(), Instant::now()) {
            return Ok(());
        }
        let open = self.workers.open();
        let is_busy = |worker: &usize| self.deliverer.in_flight(*worker) > 0;
        // A kill shows more if it cuts off deliveries.
        let busy: Vec<usize> = open.iter().copied().filter(is_busy).collect();
        let Some(worker) = self.kills.choose(if busy.is_empty() { &open } else { &busy }) else {
            return Ok(());
        };
        let killed = self.killed(worker);
        self.workers.kill(worker)?;
        self.kills.complete_one();
        self.history.add(killed)
    }

    fn killed(&self, worker: usize) -> DemoEvent {
        let (pid, in_flight) = (self.workers.pid(worker), self.deliverer.in_flight(worker));
        DemoEvent::Killed { worker, pid, in_flight }
    }

    /// Handles all output of the workers, and waits that long for the first.
    async fn receive(&mut self, time: Duration) -> Result<()> {
        let mut next = self.workers.next_output(time).await;
        while let Some(WorkerOutput { worker, line }) = next {
            self.last_progress = Instant::now();
            match line {
                Some(line) => self.handle_report(worker, &line)?,
                None => self.replace(worker).await?,
            }
            next = self.workers.pending_output();
        }
        Ok(())
    }

    async fn replace(&mut self, worker: usize) -> Result<()> {
        // Before `worker_ended`, which clears the deliveries in flight that this event counts.
        let killed = self.killed(worker);
        self.deliverer.worker_ended(worker);
        let is_killed_from_outside = self.workers.replace(worker).await?;
        if is_killed_from_outside { self.history.add(killed) } else { Ok(()) }
    }

    fn handle_report(&mut self, worker: usize, line: &str) -> Result<()> {
        match self.workers.parse(worker, line)? {
            WorkerReport::Ready => {
                self.history.add(DemoEvent::Started { worker, pid: self.workers.pid(worker) })
            }
            WorkerReport::Settled { delivery, result, outcome } => {
                self.settle(worker, delivery, result, outcome)
            }
        }
    }

    fn settle(
        &mut self,
        worker: usize,
        delivery: u64,
        result: DeliveryResult,
        outcome: String,
    ) -> Result<()> {
        let settled = self.deliverer.settle(worker, delivery, result, Instant::now());
        let settled =
            settled.with_context(|| format!("worker {worker} does not have the delivery {delivery}"))?;
        self.history.add_all(Event::of_result(&settled, outcome))
    }

    /// Waits until the workers have handled all stored messages.
    ///
    /// A message becomes a dead letter if several workers are killed while they handle it: it could be the cause. Here it is not,
    /// so it is retried, as an operator would.
    async fn work_off(&mut self, operators: &Operators) -> Result<()> {
        let mut before = None;
        loop {
            let status = status(operators).await?.with_context(|| format!("there is no handler {STORED}"))?;
            let left = (status.lag, status.tasks, status.dead);
            if left == (0, 0, 0) {
                return self.history.add(DemoEvent::WorkedOff);
            }
            if status.dead > 0 {
                let dead_letters =
                    operators.retry_dead(Select::all().handler(STORED), &Operator::new(OPERATOR)?).await?;
                self.history.add(DemoEvent::Revived { dead_letters })?;
            }
            if before.replace(left) != Some(left) {
                self.last_progress = Instant::now();
            }
            self.progress.show_backlog(self.history.counts(), status.lag + status.tasks);
            // Users may still kill workers, and each killed worker must be replaced.
            self.receive(TICK).await?;
            self.check_progress()?;
            sleep(BACKLOG_EVERY).await;
        }
    }

    fn check_progress(&self) -> Result<()> {
        if self.last_progress.elapsed() < STALL_LIMIT {
            return Ok(());
        }
        let counts = self.history.counts();
        bail!(
            "no progress for {} s, with {} of {} messages acknowledged: check that the database responds and that its disk is \
             not full",
            STALL_LIMIT.as_secs(),
            counts.deliveries.acknowledged,
            counts.messages
        )
    }
}

/// The status of the handler of stored messages; `None` until a worker has registered it.
async fn status(operators: &Operators) -> Result<Option<HandlerStatus>> {
    let statuses = operators.handler_statuses().await.context("cannot query the backlog")?;
    Ok(statuses.into_iter().find(|status| status.handler.name == STORED))
}
