//! One seed: a database, workers, a source, faults, and what came of it.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use oncebox_servers::process::Signal;
use oncebox_torture::chance::Chance;
use oncebox_torture::plan::{Mode, Plan};
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};

use crate::checker::{Found, Verdict, check};
use crate::clock::FakeClock;
use crate::database::{Database, StoreName};
use crate::deliverer::Deliverer;
use crate::disk::Disk;
use crate::fault::{Fault, Schedule};
use crate::history::{Answer, Event, History, read};
use crate::inflict::Ongoing;
use crate::keep;
use crate::recovery::Recovery;
use crate::workers::{Heard, Start, Worker};

/// One of them has a clock of its own.
pub(crate) const WITH_CLOCK: usize = 0;
/// One of them has two connections only.
pub(crate) const WITH_SMALL_POOL: usize = 1;
const WORKERS: usize = 4;
const CONNECTIONS: u32 = 8;
/// Without any answer for so long, something is stuck.
const PATIENCE: Duration = Duration::from_secs(90);
const TICK: Duration = Duration::from_millis(10);
/// A worker that cannot start while the database is away is started again.
const RESTART_PAUSE: Duration = Duration::from_millis(100);
/// In a row; the database is never away for so long.
const FAILED_STARTS_MAX: u32 = 100;
const MEBIBYTE: u64 = 1 << 20;

/// What a seed is run with.
#[derive(Clone, Debug)]
pub(crate) struct Part {
    pub(crate) store: StoreName,
    pub(crate) mode: Mode,
    pub(crate) seed: u64,
    pub(crate) faults: usize,
    pub(crate) messages: u64,
    /// Only these faults, if there are any here.
    pub(crate) only: Vec<Fault>,
    pub(crate) keep: Option<PathBuf>,
    /// Tells of every fault as it happens.
    pub(crate) verbose: bool,
    /// Whether what is missing may be installed.
    pub(crate) may_install: bool,
}

/// What came of it, and what is wrong, in words.
#[derive(Debug)]
pub(crate) struct Done {
    pub(crate) verdict: Verdict,
    pub(crate) complaints: Vec<String>,
    /// Faults that cannot happen on this machine, and why.
    pub(crate) left_out: Vec<String>,
}

/// Whether a worker can take deliveries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Station {
    /// It has not said that it is ready.
    Starting,
    Open,
    /// It was asked to end.
    Leaving,
    /// It will kill itself, and works until then.
    Doomed,
    /// It was killed.
    Killed,
}

impl Station {
    fn is_open(self) -> bool {
        matches!(self, Self::Open | Self::Doomed)
    }
}

/// A place for a worker, and who has it.
#[derive(Debug)]
pub(crate) struct Post {
    pub(crate) worker: Worker,
    pub(crate) station: Station,
}

/// Everything that a run consists of.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) plan: Plan,
    pub(crate) database: Database,
    pub(crate) posts: Vec<Post>,
    pub(crate) source: Deliverer,
    pub(crate) chance: Chance,
    pub(crate) clock: Option<FakeClock>,
    pub(crate) history: History,
    log: PathBuf,
    /// What was heard last: clocks, and how far the log is worked off.
    pub(crate) clock_read: Option<i64>,
    pub(crate) cancelled: u64,
    pub(crate) deallocated: u64,
    /// Bodies that handlers have run through, at all workers together.
    pub(crate) bodies: u64,
    pub(crate) starters: usize,
    /// Columns that were added to the table of effects.
    pub(crate) columns: usize,
    unknown: u64,
    failed_starts: u32,
    status: Option<[u64; 3]>,
    hear: mpsc::UnboundedSender<Heard>,
    heard: mpsc::UnboundedReceiver<Heard>,
    schedule: Schedule,
    ongoing: Option<Ongoing>,
    recovery: Recovery,
    last_answer: Instant,
    verbose: bool,
}

/// Runs a seed.
pub(crate) async fn run(part: &Part) -> Result<Done> {
    let plan = Plan { mode: part.mode, seed: part.seed };
    let scratch = tempfile::Builder::new().prefix("oncebox-torture-").tempdir()?;
    // Room for twice the messages: more are sent while faults are still to come.
    let (disk, no_small_disk) = Disk::create(1024 * MEBIBYTE + part.messages * 8 * 1024)?;
    let clock = FakeClock::create(scratch.path(), part.may_install);
    let mut possible = Fault::of(part.store);
    possible.retain(|fault| part.only.is_empty() || part.only.contains(fault));
    let mut left_out = Vec::new();
    if let Some(why) = no_small_disk.filter(|_| possible.contains(&Fault::DiskFull)) {
        possible.retain(|fault| *fault != Fault::DiskFull);
        left_out.push(format!("{}: {why}", Fault::DiskFull.id()));
    }
    if let Err(error) = &clock
        && possible.contains(&Fault::ClockJump)
    {
        possible.retain(|fault| *fault != Fault::ClockJump);
        left_out.push(format!("{}: {error:#}", Fault::ClockJump.id()));
    }
    let database = Database::start(part.store, disk).await?;
    let (hear, heard) = mpsc::unbounded_channel();
    let mut run = Run {
        plan,
        database,
        posts: Vec::new(),
        source: Deliverer::new(plan, WORKERS, part.messages),
        chance: Chance::new(part.seed ^ 0xfa),
        clock: clock.ok(),
        history: History::create(scratch.path().join("history"))?,
        log: scratch.path().join("workers.log"),
        clock_read: None,
        cancelled: 0,
        deallocated: 0,
        bodies: 0,
        starters: 0,
        columns: 0,
        unknown: 0,
        failed_starts: 0,
        status: None,
        hear,
        heard,
        schedule: Schedule::new(part.seed, part.faults, part.messages, &possible),
        ongoing: None,
        recovery: Recovery::complete(),
        last_answer: Instant::now(),
        verbose: part.verbose,
    };
    for number in 0..WORKERS {
        let post = run.start_worker(number)?;
        run.posts.push(post);
    }
    run.deliver_all().await?;
    run.drain().await?;
    run.dismiss().await?;

    let Run { mut database, history, log, .. } = run;
    let history = history.finish()?;
    let (effects, markers) = database.effects().await?;
    let found = Found { effects, markers };
    let (verdict, complaints) = check(plan, read(&history)?, &found)?;
    if let Some(folder) = &part.keep {
        database.stop()?;
        let kept = keep::Kept { history: &history, log: &log, database: database.disk().path() };
        keep::keep(&folder.join(part.name()), part, kept, &found, &verdict)?;
    }
    Ok(Done { verdict, complaints, left_out })
}

impl Part {
    /// What it is called in reports and folders.
    pub(crate) fn name(&self) -> String {
        format!("{}-{}-{}", self.store.name(), self.mode.name(), self.seed)
    }

    /// What runs this seed alone.
    pub(crate) fn command(&self) -> String {
        let Self { store, mode, seed, faults, messages, only, .. } = self;
        let only: Vec<&str> = only.iter().map(|fault| fault.id()).collect();
        let only = if only.is_empty() { String::new() } else { format!(" --only {}", only.join(",")) };
        format!(
            "cargo xtask torture --store {} --mode {} --seed {seed} --faults {faults} --messages {messages}{only} --keep torture-{}",
            store.name(),
            mode.name(),
            self.name()
        )
    }
}

impl Run {
    fn start_worker(&self, number: usize) -> Result<Post> {
        let environment = match &self.clock {
            Some(clock) if number == WITH_CLOCK => clock.environment().to_vec(),
            _ => Vec::new(),
        };
        let start = Start {
            url: self.database.url(),
            schema: self.database.schema().into(),
            plan: self.plan,
            connections: if number == WITH_SMALL_POOL { self.small_pool() } else { CONNECTIONS },
            environment,
            log: self.log.clone(),
        };
        let worker = Worker::start(number, &start, self.hear.clone())?;
        Ok(Post { worker, station: Station::Starting })
    }

    /// Two connections; or what an inbox with a log asks for on PostgreSQL, and is refused without.
    fn small_pool(&self) -> u32 {
        if self.database.proxy().is_some() && self.plan.mode != Mode::Inline { 4 } else { 2 }
    }

    /// Where complaints of processes go.
    pub(crate) fn log(&self) -> &Path {
        &self.log
    }

    /// The workers that take deliveries.
    pub(crate) fn open(&self) -> Vec<usize> {
        let is_open = |number: &usize| self.posts[*number].station.is_open();
        (0..self.posts.len()).filter(is_open).collect()
    }

    /// One of the workers that take deliveries, by chance.
    pub(crate) fn somebody(&mut self) -> Option<usize> {
        let open = self.open();
        (!open.is_empty()).then(|| open[self.chance.below(open.len())])
    }

    /// Kills a worker at once.
    pub(crate) fn kill(&mut self, worker: usize) {
        self.posts[worker].station = Station::Killed;
        self.posts[worker].worker.signal(Signal::KILL);
    }

    /// Asks a worker to finish what is in hand and end.
    pub(crate) fn ask_to_leave(&mut self, worker: usize) {
        self.posts[worker].station = Station::Leaving;
        self.posts[worker].worker.signal(Signal::TERM);
    }

    /// Whether a commit's answer was lost since this was last forgotten.
    pub(crate) fn heard_of_unknown(&self) -> bool {
        self.unknown > 0
    }

    /// Begins to listen for lost answers anew.
    pub(crate) fn forget_unknown(&mut self) {
        self.unknown = 0;
    }

    /// For how long nothing new was acknowledged.
    pub(crate) fn silence(&self) -> Duration {
        self.last_answer.elapsed()
    }

    /// Until every message is acknowledged and every fault has happened.
    async fn deliver_all(&mut self) -> Result<()> {
        loop {
            self.deliver()?;
            self.bring_about().await?;
            let is_over = self.schedule.left() == 0 && self.ongoing.is_none() && self.recovery.is_complete();
            if self.source.is_exhausted() && !is_over {
                // Faults are to happen under load.
                self.source.extend(1_000);
            }
            if self.source.is_done() && is_over {
                return Ok(());
            }
            for worker in self.recovery.give_up(PATIENCE, Instant::now()) {
                self.history.write(&Event::Idle { worker })?;
            }
            if self.silence() > PATIENCE {
                // The checker finds what was never answered.
                return self.history.write(&Event::Silent { faults: self.schedule.left() });
            }
            self.listen().await?;
        }
    }

    fn deliver(&mut self) -> Result<()> {
        let open = self.open();
        let deliveries = self.source.deliveries(&open, Instant::now());
        self.hand_over(&deliveries)
    }

    /// Gives copies to workers.
    pub(crate) fn hand_over(&mut self, deliveries: &[crate::deliverer::Delivery]) -> Result<()> {
        for delivery in deliveries {
            if delivery.is_first {
                self.history.write(&Event::Sent { id: delivery.id })?;
            }
            self.history.write(&Event::Delivered { id: delivery.id, worker: delivery.worker })?;
            let line = format!("deliver {} {}", delivery.id, delivery.attempt);
            self.posts[delivery.worker].worker.tell(&line);
        }
        Ok(())
    }

    /// Lets the next fault happen when its time has come, one at a time.
    async fn bring_about(&mut self) -> Result<()> {
        if let Some(mut ongoing) = self.ongoing.take() {
            if ongoing.is_over(self).await? {
                self.tell("end", ongoing.fault());
                self.history.write(&Event::Fault { id: ongoing.fault().id().into() })?;
                self.recovery = Recovery::of(self.posts.len(), Instant::now());
            } else {
                self.ongoing = Some(ongoing);
            }
            return Ok(());
        }
        // Whoever died last is to be back first, or soon nobody is left; and everybody at work again, or nobody would notice
        // who is not.
        let all_open = self.posts.iter().all(|post| post.station == Station::Open);
        if all_open
            && self.recovery.is_complete()
            && let Some(fault) = self.schedule.due(self.source.acknowledged())
        {
            self.tell("begin", fault);
            self.ongoing = Some(Ongoing::begin(fault, self).await?);
        }
        Ok(())
    }

    fn tell(&self, what: &str, fault: Fault) {
        if self.verbose {
            eprintln!("{:>8} acknowledged: {what} {}", self.source.acknowledged(), fault.id());
        }
    }

    /// Hears what there is to hear, and waits a moment for it.
    async fn listen(&mut self) -> Result<()> {
        if let Ok(Some(heard)) = timeout(TICK, self.heard.recv()).await {
            self.hear_one(heard).await?;
            while let Ok(heard) = self.heard.try_recv() {
                self.hear_one(heard).await?;
            }
        }
        Ok(())
    }

    async fn hear_one(&mut self, heard: Heard) -> Result<()> {
        let Heard { worker, line } = heard;
        let Some(line) = line else { return self.replace(worker).await };
        let words: Vec<&str> = line.split(' ').collect();
        match words[..] {
            ["settled", id, answer, word] => {
                let id = id.parse()?;
                let answer = Answer::named(answer).with_context(|| format!("not understood: {line}"))?;
                self.cancelled += u64::from(word == "cancelled");
                if answer == Answer::Ack {
                    self.recovery.acknowledged(worker, word);
                }
                self.history.write(&Event::Settled { id, worker, answer, word: word.into() })?;
                if self.source.settled(worker, id, answer, Instant::now()) {
                    self.last_answer = Instant::now();
                }
            }
            ["body" | "unknown" | "recovered" | "dead", ..] => {
                self.unknown += u64::from(words[0] == "unknown");
                self.bodies += u64::from(words[0] == "body");
                let event = Event::parse(&line).with_context(|| format!("not understood: {line}"))?;
                self.history.write(&event)?;
            }
            ["ready"] => {
                if self.posts[worker].station == Station::Starting {
                    self.posts[worker].station = Station::Open;
                }
            }
            ["status", waiting, tasks, dead] => {
                self.status = Some([waiting.parse()?, tasks.parse()?, dead.parse()?]);
            }
            ["clock", seconds] => self.clock_read = Some(seconds.parse()?),
            ["deallocated"] => self.deallocated += 1,
            ["revived", _] => {}
            _ => bail!("worker {worker} said what nobody understands: {line}"),
        }
        Ok(())
    }

    /// A worker is gone: another one takes its place.
    async fn replace(&mut self, number: usize) -> Result<()> {
        let station = self.posts[number].station;
        self.failed_starts = if station == Station::Starting { self.failed_starts + 1 } else { 0 };
        if self.failed_starts > FAILED_STARTS_MAX {
            let log = std::fs::read_to_string(&self.log).unwrap_or_default();
            bail!("workers cannot start: {}", log.lines().last().unwrap_or("they do not say why"));
        }
        if station == Station::Starting {
            sleep(RESTART_PAUSE).await;
        }
        let post = self.start_worker(number)?;
        let gone = std::mem::replace(&mut self.posts[number], post);
        let how = gone.worker.ended().await?;
        let how = match station {
            Station::Open => how,
            // There was no database to start on.
            Station::Starting => format!("as asked: {how} before it was ready"),
            Station::Leaving if how == "ended with exit code 0" => format!("as asked: {how}"),
            Station::Leaving => how,
            Station::Doomed | Station::Killed => format!("as asked: {how}"),
        };
        self.history.write(&Event::Gone { worker: number, how })?;
        self.source.gone(number);
        Ok(())
    }

    /// Waits until the log is worked off. What failed for good is healed and tried again.
    async fn drain(&mut self) -> Result<()> {
        if self.plan.mode == Mode::Inline {
            return Ok(());
        }
        let mut last = (Instant::now(), None);
        while last.0.elapsed() < PATIENCE {
            for post in &self.posts {
                post.worker.tell("heal");
            }
            self.status = None;
            let asked = self.somebody();
            if let Some(worker) = asked {
                self.posts[worker].worker.tell("revive");
                self.posts[worker].worker.tell("status");
            }
            let until = Instant::now() + Duration::from_secs(5);
            while self.status.is_none() && Instant::now() < until {
                self.listen().await?;
            }
            if self.verbose {
                eprintln!("waiting, tasks, dead: {:?}", self.status);
            }
            match self.status {
                Some([0, 0, 0]) => return Ok(()),
                status if status != last.1 => last = (Instant::now(), status),
                _ => {}
            }
            sleep(TICK * 10).await;
        }
        let [waiting, tasks, dead] = last.1.unwrap_or_default();
        self.history.write(&Event::Left { waiting, tasks, dead })
    }

    /// Asks all workers to end, and waits for it.
    async fn dismiss(&mut self) -> Result<()> {
        for post in &mut self.posts {
            post.station = Station::Leaving;
            post.worker.signal(Signal::TERM);
        }
        let mut left: BTreeSet<usize> = (0..self.posts.len()).collect();
        let deadline = Instant::now() + PATIENCE;
        while !left.is_empty() {
            let heard = timeout(deadline.saturating_duration_since(Instant::now()), self.heard.recv()).await;
            match heard {
                Ok(Some(Heard { worker, line: None })) => _ = left.remove(&worker),
                Ok(Some(heard)) => self.hear_one(heard).await?,
                Ok(None) => break,
                Err(_elapsed) => {
                    for &worker in &left {
                        let how = "did not end when it was asked to".to_owned();
                        self.history.write(&Event::Gone { worker, how })?;
                    }
                    break;
                }
            }
        }
        for (worker, post) in self.posts.drain(..).enumerate() {
            post.worker.signal(Signal::KILL);
            let how = post.worker.ended().await?;
            let is_clean = how == "ended with exit code 0" || left.contains(&worker);
            let how = if is_clean { format!("as asked: {how}") } else { how };
            self.history.write(&Event::Gone { worker, how })?;
        }
        Ok(())
    }
}
