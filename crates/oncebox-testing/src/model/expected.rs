//! The model: the log as a table in memory.

use std::sync::Arc;
use std::time::Duration;

use oncebox_core::DeadHead;
use oncebox_core::store::{Event, Fence, Place, Stage};

use super::StoreCases;
use super::operations::{HANDLERS, Step};

/// The maximum number of failures. Then the message is a dead letter.
pub(super) const ATTEMPTS: u32 = 3;
/// The maximum number of crashed processes. Then the message is a dead letter.
const CRASHES: u32 = 3;
/// The delay of a handler that asks for one.
pub(super) const LATER: Duration = Duration::from_secs(60 * 60);

/// A handler as the model sees it.
#[derive(Clone, Debug)]
pub(super) struct ExpectedHandler {
    pub(super) ordered: Option<DeadHead>,
    pub(super) is_there: bool,
    pub(super) is_paused: bool,
    /// Its progress and its replay in each lane.
    pub(super) progress: Vec<i64>,
    pub(super) replay: Vec<(i64, i64)>,
}

/// A message for one handler.
#[derive(Clone, Debug)]
pub(super) struct Life {
    pub(super) stage: Stage,
    pub(super) failures: u32,
    pub(super) crashes: u32,
    /// When its task is due, by the model's clock.
    due: Duration,
    is_scheduled: bool,
    pub(super) fence: Option<Fence>,
    pub(super) steps: Vec<Step>,
    /// Whether its marker says that it is done, whatever the log says.
    pub(super) is_marked: bool,
    pub(super) effects: u64,
}

/// A message.
#[derive(Clone, Debug)]
pub(super) struct ExpectedMessage {
    pub(super) key: String,
    pub(super) place: Place,
    pub(super) order: Option<u8>,
    /// The due time that its sender has set.
    pub(super) due: Duration,
    /// For this handler alone.
    pub(super) target: Option<usize>,
    pub(super) is_pruned: bool,
    pub(super) lives: Vec<Life>,
}

/// The expected state of the log and its handlers.
pub(super) struct Expected {
    pub(super) now: Duration,
    pub(super) handlers: Vec<ExpectedHandler>,
    pub(super) messages: Vec<ExpectedMessage>,
    pub(super) heads: Vec<i64>,
    shared: Arc<StoreCases>,
}

impl Life {
    fn new(steps: Vec<Step>) -> Self {
        Self {
            stage: Stage::Absent,
            failures: 0,
            crashes: 0,
            due: Duration::ZERO,
            is_scheduled: false,
            fence: None,
            steps,
            is_marked: false,
            effects: 0,
        }
    }

    fn is_task(&self) -> bool {
        matches!(self.stage, Stage::Scheduled | Stage::Parked | Stage::Turn | Stage::Running)
    }

    fn is_early(&self, now: Duration) -> bool {
        self.is_scheduled && self.due > now
    }
}

impl Expected {
    pub(super) fn new(
        ordered: [Option<DeadHead>; HANDLERS],
        heads: Vec<i64>,
        shared: Arc<StoreCases>,
    ) -> Self {
        let handler = |ordered| ExpectedHandler {
            ordered,
            is_there: true,
            is_paused: false,
            progress: heads.clone(),
            replay: vec![(0, 0); heads.len()],
        };
        Self {
            now: Duration::ZERO,
            handlers: ordered.map(handler).into(),
            messages: Vec::new(),
            heads,
            shared,
        }
    }

    /// Moves a message by the table.
    fn step(&mut self, handler: usize, message: usize, event: Event) {
        let life = &mut self.messages[message].lives[handler];
        let next = life.stage.after(event).unwrap_or_else(|| panic!("{} cannot {event}", life.stage));
        self.shared.seen.lock().unwrap().insert((life.stage, event));
        life.stage = next;
    }

    pub(super) fn accept(
        &mut self,
        key: String,
        place: Place,
        order: Option<u8>,
        due: Duration,
        steps: &[Vec<Step>; HANDLERS],
    ) {
        self.append(ExpectedMessage {
            key,
            place,
            order,
            due,
            target: None,
            is_pruned: false,
            lives: steps.iter().map(|steps| Life::new(steps.clone())).collect(),
        });
        let message = self.messages.len() - 1;
        for handler in (0..HANDLERS).filter(|&handler| self.handlers[handler].is_there).collect::<Vec<_>>() {
            self.step(handler, message, Event::Accept);
        }
    }

    pub(super) fn spill(&mut self, key: String, place: Place, handler: usize, is_dead: bool) {
        let lives = (0..HANDLERS).map(|_| Life::new(Vec::new())).collect();
        let (target, order, due) = (Some(handler), None, Duration::ZERO);
        self.append(ExpectedMessage { key, place, order, due, target, is_pruned: false, lives });
        let message = self.messages.len() - 1;
        self.step(handler, message, if is_dead { Event::SpillDead } else { Event::Spill });
        let life = &mut self.messages[message].lives[handler];
        (life.due, life.failures) = (self.now, 1);
    }

    fn append(&mut self, message: ExpectedMessage) {
        let head = &mut self.heads[usize::from(message.place.lane)];
        // A reader that has passed a gap would miss what commits there later (S4).
        assert_eq!(message.place.pos, *head + 1, "positions have no gaps");
        *head += 1;
        self.messages.push(message);
    }

    /// Messages of a lane and handler, in their order.
    fn along(&self) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.messages.len()).collect();
        order.sort_by_key(|&n| self.messages[n].place);
        order
    }

    /// Whether an earlier message of the same ordering key holds a message back.
    fn is_held(&self, handler: usize, message: usize) -> bool {
        let (Some(policy), Some(_)) = (self.handlers[handler].ordered, self.messages[message].order) else {
            return false;
        };
        let this = &self.messages[message];
        self.messages.iter().any(|other| {
            let life = &other.lives[handler];
            other.order == this.order
                && other.place.lane == this.place.lane
                && other.place.pos < this.place.pos
                && ((life.is_task() && !life.is_early(self.now))
                    || (life.stage == Stage::Dead && policy == DeadHead::Hold))
        })
    }

    /// Updates the states that follow from time and from other messages.
    pub(super) fn follow(&mut self) {
        for handler in 0..HANDLERS {
            for message in self.along() {
                self.follow_one(handler, message);
            }
        }
    }

    fn follow_one(&mut self, handler: usize, message: usize) {
        let life = &self.messages[message].lives[handler];
        let held = self.is_held(handler, message);
        match life.stage {
            Stage::Scheduled if !life.is_early(self.now) => {
                self.step(handler, message, Event::FallDue);
                // A task that falls due may have to be parked at once.
                self.follow_one(handler, message);
            }
            Stage::Turn if held => self.step(handler, message, Event::Park),
            Stage::Parked if !held => self.step(handler, message, Event::Unpark),
            _ => {}
        }
    }

    /// Runs all messages that can run.
    pub(super) fn work(&mut self) {
        for handler in 0..HANDLERS {
            if !self.handlers[handler].is_there || self.handlers[handler].is_paused {
                continue;
            }
            for message in self.along() {
                self.run(handler, message);
            }
            self.handlers[handler].progress.clone_from(&self.heads);
        }
        self.follow();
    }

    fn run(&mut self, handler: usize, message: usize) {
        loop {
            self.follow_one(handler, message);
            let due = self.messages[message].due;
            let held = self.is_held(handler, message);
            let now = self.now;
            let life = &mut self.messages[message].lives[handler];
            match life.stage {
                Stage::Waiting if due > now => {
                    (life.due, life.is_scheduled) = (due, true);
                    return self.step(handler, message, Event::Schedule);
                }
                Stage::Waiting if held => {
                    life.due = now;
                    return self.step(handler, message, Event::Park);
                }
                Stage::Waiting => {}
                Stage::Turn if life.due <= now => {}
                _ => return,
            }
            if life.crashes >= CRASHES {
                return self.die(handler, message);
            }
            self.end(handler, message, None);
        }
    }

    /// Whether the handler replays a message.
    fn is_replay(&self, handler: usize, message: usize) -> bool {
        let place = self.messages[message].place;
        let (after, until) = self.handlers[handler].replay[usize::from(place.lane)];
        after < place.pos && place.pos <= until
    }

    /// Ends the run of a message by its planned step, or by the given one.
    pub(super) fn end(&mut self, handler: usize, message: usize, said: Option<Step>) {
        let is_replay = self.is_replay(handler, message);
        let now = self.now;
        let life = &mut self.messages[message].lives[handler];
        let step = said.unwrap_or_else(|| match is_replay {
            true => Step::Succeed,
            false => life.steps.get(life.failures as usize).copied().unwrap_or(Step::Succeed),
        });
        life.is_scheduled = false;
        life.fence = None;
        match step {
            Step::Succeed => {
                // With a given step no handler runs: a lease ends without an effect.
                life.effects += u64::from(said.is_none());
                (life.failures, life.crashes) = (0, 0);
                self.step(handler, message, Event::Succeed);
            }
            Step::Fail | Step::FailUntilLater if life.failures + 1 < ATTEMPTS => {
                life.failures += 1;
                life.due = if step == Step::Fail { now } else { now + LATER };
                self.step(handler, message, Event::Fail);
            }
            Step::Fail | Step::FailUntilLater | Step::FailForGood => self.die(handler, message),
        }
    }

    fn die(&mut self, handler: usize, message: usize) {
        self.step(handler, message, Event::DeadLetter);
    }

    pub(super) fn retry(&mut self, handler: usize) {
        for message in self.dead(handler) {
            if self.messages[message].lives[handler].is_marked {
                // Its marker says that it is done.
                self.step(handler, message, Event::Resolve);
                continue;
            }
            let life = &mut self.messages[message].lives[handler];
            (life.failures, life.crashes, life.due, life.is_scheduled) = (0, 0, self.now, false);
            self.step(handler, message, Event::Retry);
        }
        self.follow();
    }

    pub(super) fn settle(&mut self, handler: usize, is_discarded: bool) {
        for message in self.dead(handler) {
            self.messages[message].lives[handler].is_marked |= !is_discarded;
            self.step(handler, message, Event::Resolve);
        }
        self.follow();
    }

    fn dead(&self, handler: usize) -> Vec<usize> {
        let is_dead = |&n: &usize| self.messages[n].lives[handler].stage == Stage::Dead;
        (0..self.messages.len()).filter(is_dead).collect()
    }

    /// From a place on, or from the beginning.
    pub(super) fn replay(&mut self, handler: usize, from: Option<Place>, first: &[Option<i64>]) {
        for lane in 0..self.heads.len() {
            let first = match from {
                Some(place) if usize::from(place.lane) != lane => continue,
                Some(place) => Some(place.pos),
                None => first[lane],
            };
            let Some(target) = first.map(|pos| pos - 1) else { continue };
            let it = &mut self.handlers[handler];
            let (pos, (after, until)) = (it.progress[lane], it.replay[lane]);
            if pos <= target {
                continue;
            }
            let is_over = pos >= until;
            it.replay[lane] = if is_over { (target, pos) } else { (target.min(after), pos.max(until)) };
            it.progress[lane] = target;
            for message in 0..self.messages.len() {
                let this = &mut self.messages[message];
                // A spilled message belongs to one handler and is not part of its progress, so no replay moves it.
                let is_meant = usize::from(this.place.lane) == lane
                    && this.place.pos > target
                    && this.target.is_none()
                    && !this.is_pruned;
                let life = &mut this.lives[handler];
                if is_meant && !matches!(life.stage, Stage::Waiting | Stage::Absent) {
                    (life.failures, life.crashes, life.is_scheduled, life.fence) = (0, 0, false, None);
                    self.step(handler, message, Event::Replay);
                }
            }
        }
        self.follow();
    }

    pub(super) fn remove(&mut self, handler: usize) {
        self.handlers[handler].is_there = false;
        for message in 0..self.messages.len() {
            let life = &mut self.messages[message].lives[handler];
            (life.failures, life.crashes, life.is_scheduled, life.fence) = (0, 0, false, None);
            if life.stage != Stage::Absent {
                self.step(handler, message, Event::Remove);
            }
        }
    }

    pub(super) fn revive(&mut self, handler: usize) {
        let it = &mut self.handlers[handler];
        (it.is_there, it.is_paused) = (true, false);
        it.progress.fill(0);
        it.replay.fill((0, 0));
        for message in 0..self.messages.len() {
            if self.messages[message].target.is_none() && !self.messages[message].is_pruned {
                self.step(handler, message, Event::Accept);
            }
        }
    }

    /// Whether a message may leave the log.
    pub(super) fn may_go(&self, message: usize) -> bool {
        let this = &self.messages[message];
        let is_done = |n: usize| matches!(this.lives[n].stage, Stage::Done | Stage::Absent);
        let mut there = (0..HANDLERS).filter(|&n| self.handlers[n].is_there);
        let has_handler = this.target.is_some() || there.clone().next().is_some();
        // The newest message stays: without it, positions would begin again, below the handlers' progress.
        has_handler && there.all(is_done) && this.place.pos < self.heads[usize::from(this.place.lane)]
    }

    pub(super) fn prune(&mut self, message: usize) {
        for handler in 0..HANDLERS {
            if self.messages[message].lives[handler].stage != Stage::Absent {
                self.step(handler, message, Event::Prune);
            }
        }
        self.messages[message].is_pruned = true;
    }

    pub(super) fn lease(&mut self, handler: usize, place: Place, fence: Fence) {
        let message = self.messages.iter().position(|message| message.place == place).unwrap();
        self.step(handler, message, Event::Lease);
        let life = &mut self.messages[message].lives[handler];
        (life.fence, life.is_scheduled) = (Some(fence), false);
        let lane = usize::from(place.lane);
        let it = &mut self.handlers[handler];
        it.progress[lane] = it.progress[lane].max(place.pos);
        self.follow();
    }

    pub(super) fn lose_leases(&mut self, handler: usize) {
        for message in 0..self.messages.len() {
            let now = self.now;
            let life = &mut self.messages[message].lives[handler];
            if life.stage == Stage::Running {
                life.crashes += 1;
                (life.fence, life.due) = (None, now);
                self.step(handler, message, Event::LoseLease);
            }
        }
        self.follow();
    }

    /// The message that still runs under a fence.
    pub(super) fn under(&self, handler: usize, place: Place, fence: Fence) -> Option<usize> {
        self.messages.iter().position(|message| {
            let life = &message.lives[handler];
            message.place == place && life.stage == Stage::Running && life.fence == Some(fence)
        })
    }

    /// The message that is next for a lane's worker, and whether its sender's time has come.
    pub(super) fn next_waiting(&self, handler: usize, lane: u16) -> Option<(Place, bool)> {
        let waiting = |message: &&ExpectedMessage| {
            message.place.lane == lane && message.lives[handler].stage == Stage::Waiting
        };
        let next = self.messages.iter().filter(waiting).min_by_key(|message| message.place)?;
        Some((next.place, next.due <= self.now))
    }
}
