//! One database, and keepers of messages that enter it one after the other.

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use futures_util::future::try_join_all;
use sqlx::Pool;

use super::engine::{Handlers, StoredDatabaseKind};
use super::keepers::{Accepting, Keeper, KeeperName, Milan, OnceboxKeeper, RowQueue};
use super::ledger::rows;
use super::meter::Meter;
use super::per_second;
use crate::arena::Arena;
use crate::contenders::Contender;
use crate::feed::{Feed, FeedKind};
use crate::measure::{Pace, throughput};
use crate::options::MeasureOptions;
use crate::report::figure;
use crate::store::Ground;

/// The number of tries for each size of pool and each number of workers.
const TRIES: u32 = 2;
const CHOOSING_CALLERS: usize = 64;
/// Tasks that fill a backlog.
const FILLERS: u64 = 4;
/// Connections of a baseline that is only filled and worked through.
const FILLING_POOL: u32 = 4;
/// A tenth of the messages is enough to warm up.
const MOST_TO_WARM_UP: u64 = 40_000;
/// No contender needs longer: one that does has lost messages.
pub(crate) const LONGEST: Duration = Duration::from_secs(900);

/// A keeper on its tables.
pub(crate) struct StoredEntrant<E: StoredDatabaseKind> {
    pub(crate) ground: E::Ground,
    pub(crate) keeper: Arc<dyn Keeper>,
    pub(crate) meter: Arc<Meter>,
    name: KeeperName,
    handlers: usize,
    pools: Vec<Pool<E>>,
    /// The number of messages filled in, and the number of handler runs committed so far.
    filled: u64,
    done: u64,
}

/// The result of working for a while.
#[derive(Clone, Debug)]
pub(crate) struct Worked {
    /// Handler runs per second.
    pub(crate) rate: f64,
    /// Whether all were done before the time was over.
    pub(crate) all: bool,
    /// The rate in each tenth.
    pub(crate) tenths: Vec<f64>,
}

/// Measures keepers on one database.
pub(crate) struct StoredArena<'a, E: StoredDatabaseKind> {
    pub(crate) options: &'a MeasureOptions,
    /// For contenders that keep nothing.
    pub(crate) inline: Arena<'a, E>,
    /// The best size of the callers' pool and the best number of workers, once known.
    pools: HashMap<KeeperName, u32>,
    workers: HashMap<KeeperName, usize>,
}

impl<'a, E: StoredDatabaseKind> StoredArena<'a, E> {
    pub(crate) async fn open(options: &'a MeasureOptions) -> Result<StoredArena<'a, E>> {
        let inline = Arena::open(options).await?;
        Ok(StoredArena { options, inline, pools: HashMap::new(), workers: HashMap::new() })
    }

    /// Starts a keeper on fresh tables, for a backlog.
    pub(crate) async fn enter(&mut self, name: KeeperName, handlers: usize) -> Result<StoredEntrant<E>> {
        let workers = self.best_workers(name).await?;
        self.enter_with(name, handlers, FILLING_POOL, workers).await
    }

    /// Starts a keeper on fresh tables, for callers that bring messages.
    pub(crate) async fn enter_for_callers(&mut self, name: KeeperName) -> Result<StoredEntrant<E>> {
        let pool = self.best_pool(name).await?;
        let workers = self.best_workers(name).await?;
        self.enter_with(name, 1, pool, workers).await
    }

    /// The number of accepts per second.
    pub(crate) async fn accepts(&mut self, name: KeeperName, callers: usize) -> Result<f64> {
        let pool = self.best_pool(name).await?;
        self.accepts_with(name, pool, callers, self.options.pace()).await
    }

    /// Works through a backlog; returns the rate of handler runs.
    pub(crate) async fn drains(
        &mut self,
        name: KeeperName,
        handlers: usize,
        messages: u64,
    ) -> Result<Worked> {
        let mut entrant = self.enter(name, handlers).await?;
        entrant.warm_up(messages).await?;
        entrant.fill(messages).await?;
        let worked = entrant.work(messages * handlers as u64, LONGEST).await?;
        entrant.leave().await?;
        Ok(worked)
    }

    async fn enter_with(
        &self,
        name: KeeperName,
        handlers: usize,
        pool: u32,
        workers: usize,
    ) -> Result<StoredEntrant<E>> {
        let ground = self.inline.fresh().await?;
        let tables = ground.pool(1).await?;
        E::make_tables(&mut *tables.acquire().await?).await.context("creating tables")?;
        tables.close().await;
        let meter = Arc::new(Meter::new());
        let (keeper, pools): (Arc<dyn Keeper>, Vec<Pool<E>>) = match name.takes() {
            Some(takes) => {
                let pool = ground.pool(E::INBOX_POOL).await?;
                let handlers = Handlers { count: handlers, takes, moves: name.moves() };
                let inbox = E::inbox(ground.store(pool.clone())?, handlers, meter.clone()).await?;
                (Arc::new(OnceboxKeeper { inbox, meter: meter.clone() }), vec![pool])
            }
            None => {
                let pool = ground.pool(if E::ONE_WRITER { 1 } else { pool }).await?;
                // With one writer, all wait for it in the queue of one pool.
                // A Milan worker needs two connections, because its handlers have their own.
                let own = match (E::ONE_WRITER, name) {
                    (true, _) => pool.clone(),
                    (false, KeeperName::Milan) => ground.pool(u32::try_from(2 * workers)?).await?,
                    (false, _) => ground.pool(u32::try_from(workers)?).await?,
                };
                let pools = vec![pool.clone(), own.clone()];
                let meter = meter.clone();
                match name {
                    KeeperName::Milan | KeeperName::MilanInTx => {
                        let in_tx = name == KeeperName::MilanInTx;
                        (Arc::new(Milan { consumers: pool, processors: own, workers, in_tx, meter }), pools)
                    }
                    _ => {
                        let sets = name == KeeperName::RowQueueSet;
                        let queue =
                            RowQueue { callers: pool, consumers: own, workers, handlers, sets, meter };
                        (Arc::new(queue), pools)
                    }
                }
            }
        };
        Ok(StoredEntrant { ground, keeper, meter, name, handlers, pools, filled: 0, done: 0 })
    }

    async fn accepts_with(&self, name: KeeperName, pool: u32, callers: usize, pace: Pace) -> Result<f64> {
        let entrant = self.enter_with(name, 1, pool, 1).await?;
        let measured = throughput(&entrant.caller(), Feed::new(FeedKind::Fresh), callers, pace).await;
        let measured = measured.with_context(|| format!("measuring {name}"))?;
        let waiting = entrant.keeper.waiting().await?;
        let done = measured.tally.done;
        ensure!(waiting == done, "{name} reports {done} messages as accepted, and keeps {waiting}");
        entrant.leave().await?;
        Ok(measured.rate)
    }

    async fn best_pool(&mut self, name: KeeperName) -> Result<u32> {
        if name.takes().is_some() || E::ONE_WRITER {
            return Ok(E::INBOX_POOL);
        }
        if let Some(&size) = self.pools.get(&name) {
            return Ok(size);
        }
        let mut best = (0.0, E::POOLS[0]);
        for _ in 0..TRIES {
            for &size in E::POOLS {
                let rate = self.accepts_with(name, size, CHOOSING_CALLERS, self.options.short_pace()).await?;
                if rate > best.0 {
                    best = (rate, size);
                }
            }
        }
        let (rate, size) = best;
        eprintln!("{}: {name} accepts best on a pool of {size}: {}/s", E::STORE, figure(rate));
        self.pools.insert(name, size);
        Ok(size)
    }

    async fn best_workers(&mut self, name: KeeperName) -> Result<usize> {
        if name.takes().is_some() {
            return Ok(E::INBOX_WORKERS);
        }
        if let [only] = E::WORKERS {
            return Ok(*only);
        }
        if let Some(&workers) = self.workers.get(&name) {
            return Ok(workers);
        }
        let mut best = (0.0, E::WORKERS[0]);
        for _ in 0..TRIES {
            for &workers in E::WORKERS {
                let mut entrant = self.enter_with(name, 1, FILLING_POOL, workers).await?;
                let messages = self.options.choosing_messages();
                entrant.warm_up(messages).await?;
                entrant.fill(messages).await?;
                let rate = entrant.work(messages, LONGEST).await?.rate;
                entrant.leave().await?;
                if rate > best.0 {
                    best = (rate, workers);
                }
            }
        }
        let (rate, workers) = best;
        eprintln!("{}: {name} works best with {workers} workers: {}/s", E::STORE, figure(rate));
        self.workers.insert(name, workers);
        Ok(workers)
    }
}

impl<E: StoredDatabaseKind> StoredEntrant<E> {
    /// The keeper as a contender that accepts messages from callers.
    pub(crate) fn caller(&self) -> Arc<dyn Contender> {
        Arc::new(Accepting(self.keeper.clone()))
    }

    /// Works through a few messages: connections prepare their statements, batches find their size.
    pub(crate) async fn warm_up(&mut self, messages: u64) -> Result<()> {
        let few = messages.min(MOST_TO_WARM_UP) / 10;
        self.fill(few).await?;
        self.work(few * self.handlers as u64, LONGEST).await.map(drop)
    }

    /// Fills a backlog.
    pub(crate) async fn fill(&mut self, messages: u64) -> Result<()> {
        let (part, first) = (messages.div_ceil(FILLERS), self.filled);
        let parts = (0..FILLERS).map(|n| {
            let (keeper, begin) = (self.keeper.clone(), (n * part).min(messages));
            let end = (begin + part).min(messages);
            async move { tokio::spawn(async move { keeper.fill(first + begin..first + end).await }).await? }
        });
        try_join_all(parts).await.with_context(|| format!("filling {}", self.name))?;
        self.filled += messages;
        let waiting = self.keeper.waiting().await?;
        ensure!(waiting == messages, "{} keeps {waiting} of {messages} messages", self.name);
        Ok(())
    }

    /// Works until this many more handler runs have finished, or the time is over.
    pub(crate) async fn work(&mut self, runs: u64, limit: Duration) -> Result<Worked> {
        self.meter.ask_for(runs, 10);
        let begin = Instant::now();
        let done = self.work_until_enough(limit).await?;
        let took = begin.elapsed();
        let all = done >= runs;
        // Only a shorter limit may end the work early; after the longest one, messages are missing.
        ensure!(all || limit < LONGEST, "{} did {done} of {runs} runs", self.name);
        Ok(Worked { rate: per_second(done, took), all, tenths: self.meter.slices() })
    }

    /// Works until the meter's goal is reached or the time is over; returns the number of committed runs.
    pub(crate) async fn work_until_enough(&mut self, limit: Duration) -> Result<u64> {
        let watch = async {
            tokio::time::sleep(limit).await;
            self.meter.give_up();
            // Workers end by themselves: stopping them here would lose the number of committed runs.
            std::future::pending::<Infallible>().await
        };
        let done = tokio::select! {
            done = self.keeper.work() => done.with_context(|| format!("{} at work", self.name))?,
            never = watch => match never {},
        };
        self.done += done;
        Ok(done)
    }

    /// Ends the keeper, and checks that each message was handled once.
    pub(crate) async fn leave(self) -> Result<()> {
        let StoredEntrant { ground, keeper, name, handlers, pools, done, .. } = self;
        drop(keeper);
        for pool in pools {
            pool.close().await;
        }
        // Its handlers write nothing that could be counted.
        if name != KeeperName::OnceboxIdle {
            let pool = ground.pool(1).await?;
            let rows = rows::<E>(&pool, handlers).await;
            pool.close().await;
            let rows = rows.with_context(|| format!("checking {name}"))?;
            ensure!(rows == done, "{name} reports {done} handler runs, the ledgers have {rows}");
        }
        ground.discard().await
    }
}
