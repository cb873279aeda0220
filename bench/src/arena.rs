//! One database, and contenders that enter it one after the other.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use sqlx::Pool;

use crate::business::HandlerWork;
use crate::contenders::{Contender, ContenderName};
use crate::feed::{Feed, FeedKind};
use crate::measure::{Pace, Throughput, throughput};
use crate::options::MeasureOptions;
use crate::report::figure;
use crate::store::{DatabaseKind, Ground, Server};

/// The number of tries for each size of pool.
const TRIES: u32 = 2;
const CHOOSING_CALLERS: usize = 64;
/// Two handlers, two rows each.
const UPDATES_PER_CROSSING: u64 = 4;

/// The work and the load of one measurement.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Trial {
    pub(crate) work: HandlerWork,
    pub(crate) order: FeedKind,
    pub(crate) callers: usize,
}

impl Trial {
    pub(crate) fn fresh(callers: usize) -> Trial {
        Trial { work: HandlerWork::Insert, order: FeedKind::Fresh, callers }
    }

    fn pace<E: DatabaseKind>(self, options: &MeasureOptions) -> Pace {
        let pace = options.pace();
        match self.work {
            // PostgreSQL looks for deadlocks after a second; a shorter slice would catch one or miss it.
            HandlerWork::HotRow if !E::ONE_WRITER => {
                Pace { slice: pace.slice.max(Duration::from_millis(1_500)), ..pace }
            }
            // Handlers that wait for each other may take minutes to end.
            HandlerWork::Crossing { .. } => {
                let slice = pace.slice.max(Duration::from_millis(1_500));
                Pace { slice, ending: slice, ..pace }
            }
            _ => pace,
        }
    }
}

/// A contender on its tables.
pub(crate) struct Entrant<E: DatabaseKind> {
    pub(crate) contender: Arc<dyn Contender>,
    pub(crate) pool: Pool<E>,
}

impl<E: DatabaseKind> Entrant<E> {
    pub(crate) async fn leave(self) {
        // First, because `close` waits for all connections, and a contender may hold some.
        drop(self.contender);
        self.pool.close().await;
    }
}

/// Measures contenders on one database.
pub(crate) struct Arena<'a, E: DatabaseKind> {
    pub(crate) options: &'a MeasureOptions,
    server: E::Server,
    // The best size of pool, once known.
    pools: HashMap<(ContenderName, usize), u32>,
}

impl<'a, E: DatabaseKind> Arena<'a, E> {
    pub(crate) async fn open(options: &'a MeasureOptions) -> Result<Arena<'a, E>> {
        eprintln!("{}: starting", E::STORE);
        let server = E::Server::start().await.with_context(|| format!("starting {}", E::STORE))?;
        Ok(Arena { options, server, pools: HashMap::new() })
    }

    pub(crate) async fn fresh(&self) -> Result<E::Ground> {
        self.server.fresh().await
    }

    /// Starts a contender with its best size of pool.
    pub(crate) async fn enter(
        &mut self,
        name: ContenderName,
        ground: &E::Ground,
        task: Trial,
    ) -> Result<Entrant<E>> {
        let size = self.pool_size(name, task).await?;
        enter(name, ground, size, task.work).await
    }

    /// Measures one contender on fresh tables; messages per second.
    pub(crate) async fn rate(&mut self, name: ContenderName, task: Trial) -> Result<f64> {
        Ok(self.throughput(name, task).await?.rate)
    }

    /// Measures one contender on fresh tables: its rate, and the time of each message.
    pub(crate) async fn throughput(&mut self, name: ContenderName, task: Trial) -> Result<Throughput> {
        let size = self.pool_size(name, task).await?;
        self.throughput_with(name, task, size, task.pace::<E>(self.options)).await
    }

    async fn throughput_with(
        &self,
        name: ContenderName,
        task: Trial,
        size: u32,
        pace: Pace,
    ) -> Result<Throughput> {
        let ground = self.fresh().await?;
        let entrant = enter::<E>(name, &ground, size, task.work).await?;
        let feed = Feed::new(task.order);
        let measured = throughput(&entrant.contender, feed, task.callers, pace).await;
        entrant.leave().await;
        let measured = measured.with_context(|| format!("measuring {name}"))?;
        self.check(name, &ground, task, &measured).await?;
        ground.discard().await?;
        Ok(measured)
    }

    // Checks that the database has the effect of each message reported as done exactly once.
    async fn check(
        &self,
        name: ContenderName,
        ground: &E::Ground,
        task: Trial,
        measured: &Throughput,
    ) -> Result<()> {
        let tally = measured.tally;
        // Without an inbox or a transaction, the writes of a failed handler stay.
        let exact = task.work != HandlerWork::Failing || !name.chooses_its_pool();
        if task.work.fills_the_ledger() && exact {
            let rows = ground.ledger_rows().await?;
            ensure!(
                rows == tally.done,
                "{name} reports {} messages as done, the ledger has {rows}",
                tally.done
            );
        }
        if let HandlerWork::Crossing { .. } = task.work
            && !measured.stopped
        {
            let updates = ground.crossing_updates().await?;
            let expected = UPDATES_PER_CROSSING * tally.done;
            ensure!(updates == expected, "{name} made {updates} updates, its messages are {expected}");
        }
        Ok(())
    }

    async fn pool_size(&mut self, name: ContenderName, task: Trial) -> Result<u32> {
        if !name.chooses_its_pool() {
            return Ok(E::INBOX_POOL);
        }
        if let [only] = E::POOLS {
            return Ok(*only);
        }
        // A quick run determines the size once, for all numbers of callers.
        let callers = if self.options.quick { CHOOSING_CALLERS } else { task.callers };
        if let Some(&size) = self.pools.get(&(name, callers)) {
            return Ok(size);
        }
        let size = self.best_pool(name, callers).await?;
        self.pools.insert((name, callers), size);
        Ok(size)
    }

    // The size with the highest single rate, so that a short slowdown of the machine does not decide.
    async fn best_pool(&self, name: ContenderName, callers: usize) -> Result<u32> {
        let mut best = (0.0, E::POOLS[0]);
        for _ in 0..TRIES {
            for &size in E::POOLS {
                let pace = self.options.short_pace();
                let rate = self.throughput_with(name, Trial::fresh(callers), size, pace).await?.rate;
                if rate > best.0 {
                    best = (rate, size);
                }
            }
        }
        let (rate, size) = best;
        eprintln!("{}: {name} does best on a pool of {size}: {}/s", E::STORE, figure(rate));
        Ok(size)
    }
}

async fn enter<E: DatabaseKind>(
    name: ContenderName,
    ground: &E::Ground,
    size: u32,
    work: HandlerWork,
) -> Result<Entrant<E>> {
    let pool = ground.pool(size).await?;
    let contender = name.enter::<E>(ground, pool.clone(), work).await?;
    Ok(Entrant { contender, pool })
}
