//! The demo itself: deliver, kill, listen, until everything is acknowledged and worked off.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use oncebox::store::{HandlerStatus, Select};
use oncebox::{Inbox, LogStore};
use tokio::time::sleep;

use crate::demo::crew::{Crew, Heard};
use crate::demo::deliverer::{Deliverer, Handed};
use crate::demo::history::{Event, History};
use crate::demo::kills::Kills;
use crate::demo::place::Place;
use crate::demo::progress::Progress;
use crate::demo::wire::{Answer, Said};
use crate::demo::worker::STORED;
use crate::store::{operators_inbox, with_store};

const TICK: Duration = Duration::from_millis(2);
/// Between two looks at what is left in the log.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// So many messages may wait in the log while others are sent.
const BACKLOG_MAX: u64 = 500;
/// If nothing has moved for so long, nothing will.
const PATIENCE: Duration = Duration::from_secs(120);
/// Under which the demo acts on dead letters.
const OPERATOR: &str = "oncebox demo";

/// Everything that takes part.
#[derive(Debug)]
pub(super) struct Show {
    pub(super) crew: Crew,
    pub(super) history: History,
    pub(super) progress: Progress,
    pub(super) source: Deliverer,
    pub(super) kills: Kills,
    pub(super) moved: Instant,
}

impl Show {
    /// Delivers everything, kills as planned, and waits until the log is worked off.
    pub(super) async fn perform(&mut self, place: &Place) -> Result<()> {
        with_store!(&place.opened, store => {
            let inbox = operators_inbox(store.clone()).await?;
            self.deliver_all(&inbox).await?;
            self.work_off(&inbox).await
        })
    }

    async fn deliver_all<S: LogStore>(&mut self, inbox: &Inbox<S>) -> Result<()> {
        let (mut backlog, mut looked) = (0, Instant::now());
        while !(self.source.is_done() && self.kills.left() == 0) {
            if looked.elapsed() >= LOOK_EVERY {
                backlog = status(inbox).await?.map_or(0, |status| status.lag + status.tasks);
                looked = Instant::now();
            }
            self.deliver(backlog)?;
            self.kill()?;
            self.listen(TICK).await?;
            self.progress.show(self.history.counts());
            self.check_that_it_moves()?;
        }
        Ok(())
    }

    /// Delivers what is to be delivered. Nothing new while much waits in the log: its handler is to run while workers are killed.
    fn deliver(&mut self, backlog: u64) -> Result<()> {
        let sent_max = if backlog > BACKLOG_MAX { 0 } else { self.kills.sent_max() };
        for Handed { worker, delivery } in self.source.deliveries(&self.crew.open(), sent_max, Instant::now())
        {
            let (entry, way) = (delivery.entry, delivery.way);
            if delivery.copy == 1 {
                self.history.note(Event::Sent { entry, way })?;
            }
            let delivered = Event::Delivered { delivery: delivery.delivery, message: entry.message, worker };
            self.history.note(delivered)?;
            self.crew.tell(worker, &delivery)?;
        }
        Ok(())
    }

    /// Kills somebody if the moment has come: whoever has something in hand, if anybody has.
    fn kill(&mut self) -> Result<()> {
        if !self.kills.is_due(self.source.sent(), Instant::now()) {
            return Ok(());
        }
        let open = self.crew.open();
        let busy: Vec<usize> =
            open.iter().copied().filter(|worker| self.source.in_hand(*worker) > 0).collect();
        let Some(worker) = self.kills.choose(if busy.is_empty() { &open } else { &busy }) else {
            return Ok(());
        };
        let (pid, in_hand) = (self.crew.pid(worker), self.source.in_hand(worker));
        self.crew.kill(worker)?;
        self.kills.happened();
        self.history.note(Event::Killed { worker, pid, in_hand })
    }

    /// Hears what there is to hear, and waits a moment for it.
    async fn listen(&mut self, time: Duration) -> Result<()> {
        let mut next = self.crew.hear(time).await;
        while let Some(Heard { worker, line }) = next {
            self.moved = Instant::now();
            match line {
                Some(line) => self.hear(worker, &line)?,
                None => self.replace(worker).await?,
            }
            next = self.crew.hear_more();
        }
        Ok(())
    }

    /// A worker is gone, and what it had in hand is delivered again.
    async fn replace(&mut self, worker: usize) -> Result<()> {
        let (pid, in_hand) = (self.crew.pid(worker), self.source.in_hand(worker));
        self.source.gone(worker);
        if self.crew.replace(worker).await? {
            self.history.note(Event::Killed { worker, pid, in_hand })?;
        }
        Ok(())
    }

    fn hear(&mut self, worker: usize, line: &str) -> Result<()> {
        match self.crew.understand(worker, line)? {
            Said::Ready => self.history.note(Event::Started { worker, pid: self.crew.pid(worker) }),
            Said::Answered { delivery, answer, outcome } => {
                self.hear_answer(worker, delivery, answer, outcome)
            }
        }
    }

    fn hear_answer(&mut self, worker: usize, delivery: u64, answer: Answer, outcome: String) -> Result<()> {
        let Some(message) = self.source.message_of(worker, delivery) else {
            bail!("worker {worker} answered the delivery {delivery}, which it was never given")
        };
        let is_lost = self.source.answered(worker, delivery, answer, Instant::now()) == Some(true);
        self.history.note(Event::Answered { delivery, message, worker, answer, outcome })?;
        if is_lost {
            self.history.note(Event::AckDropped { delivery, message })?;
        }
        Ok(())
    }

    /// Waits until the workers have handled all that is stored.
    ///
    /// A message in whose run three workers were killed one after the other is taken for deadly, and set aside as a dead letter. It did
    /// nothing wrong here: it is tried again, as an operator would.
    async fn work_off<S: LogStore>(&mut self, inbox: &Inbox<S>) -> Result<()> {
        let mut before = None;
        loop {
            let status = status(inbox).await?.with_context(|| format!("there is no handler {STORED}"))?;
            let left = (status.lag, status.tasks, status.dead);
            if left == (0, 0, 0) {
                return self.history.note(Event::WorkedOff);
            }
            if status.dead > 0 {
                let dead_letters =
                    inbox.operators().retry_dead(Select::all().handler(STORED), OPERATOR).await?;
                self.history.note(Event::Revived { dead_letters })?;
            }
            if before.replace(left) != Some(left) {
                self.moved = Instant::now();
            }
            self.progress.work_off(self.history.counts(), status.lag + status.tasks);
            self.listen(TICK).await?;
            self.check_that_it_moves()?;
            sleep(LOOK_EVERY).await;
        }
    }

    fn check_that_it_moves(&self) -> Result<()> {
        if self.moved.elapsed() < PATIENCE {
            return Ok(());
        }
        let counts = self.history.counts();
        bail!(
            "nothing has moved for {} s, with {} of {} messages acknowledged: does the database answer, and is there room on \
             its disk?",
            PATIENCE.as_secs(),
            counts.acknowledged,
            counts.messages
        )
    }
}

/// How the handler of what is stored is doing; nothing before a worker has registered it.
async fn status<S: LogStore>(inbox: &Inbox<S>) -> Result<Option<HandlerStatus>> {
    let statuses =
        inbox.operators().handler_statuses().await.context("asking how much is left in the log")?;
    Ok(statuses.into_iter().find(|status| status.handler.name == STORED))
}
