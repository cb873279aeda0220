//! `held-snapshot`: half of a backlog is worked through while another transaction holds an old snapshot, so
//! that nothing can be cleaned up; then the other half is measured. Each is compared with itself on a fresh
//! backlog.

use anyhow::{Context, Result, ensure};

use super::super::arena::{LONGEST, StoredArena};
use super::super::engine::StoredDatabaseKind;
use super::super::keepers::KeeperName;
use super::RATE;
use crate::report::figure;
use crate::results::Comparison;
use crate::scenarios::rounds::interleave;
use crate::store::Ground;

const BENCH: &str = "held-snapshot";
const HOLD: &str = "BEGIN ISOLATION LEVEL REPEATABLE READ";
const CONTESTS: [(KeeperName, [&str; 2]); 3] = [
    (KeeperName::Oncebox, ["oncebox", "oncebox-fresh"]),
    (KeeperName::OnceboxSet, ["oncebox-set", "oncebox-set-fresh"]),
    (KeeperName::RowQueue, ["row-queue", "row-queue-fresh"]),
];

pub(super) async fn run<E: StoredDatabaseKind>(arena: &mut StoredArena<'_, E>) -> Result<Vec<Comparison>> {
    let mut all = Vec::new();
    for (name, labels) in CONTESTS {
        let title = format!("{}: {BENCH}", E::STORE);
        let (rounds, messages) = (arena.options.rounds(), arena.options.waiting_messages());
        let measure = async |n: usize| match n {
            0 => held(arena, name, messages).await,
            _ => Ok(arena.drains(name, 1, messages).await?.rate),
        };
        let series = interleave(&title, rounds, &labels, measure).await?;
        let (callers, baselines) = (E::INBOX_WORKERS, labels[1..].to_vec());
        all.push(Comparison { bench: BENCH, store: E::STORE, callers, unit: RATE, series, baselines });
    }
    Ok(all)
}

async fn held<E: StoredDatabaseKind>(
    arena: &mut StoredArena<'_, E>,
    name: KeeperName,
    half: u64,
) -> Result<f64> {
    let mut entrant = arena.enter(name, 1).await?;
    entrant.warm_up(half).await?;
    entrant.fill(2 * half).await?;
    let holders = entrant.ground.pool(1).await?;
    let mut holder = holders.begin_with(HOLD).await.context("holding a snapshot")?;
    // This statement takes the snapshot: `BEGIN` alone takes none.
    let seen = E::number(&mut holder, "SELECT count(*) FROM ledger".into()).await?;

    let before = entrant.work(half, LONGEST).await?;
    // Messages that were in flight at the half-way mark are done by now too.
    let left = entrant.keeper.waiting().await?;
    ensure!(left > half / 2, "{name} was to do {half} messages, and left {left} of as many more");
    let after = entrant.work(left, arena.options.work_limit()).await?;
    eprintln!(
        "{}: {BENCH}: {name} did the first half at {}/s{}",
        E::STORE,
        figure(before.rate),
        if after.all { "" } else { ", and was stopped in the second" }
    );
    let still = E::number(&mut holder, "SELECT count(*) FROM ledger".into()).await?;
    ensure!(seen == still, "the snapshot was not held");
    holder.rollback().await?;
    holders.close().await;
    entrant.leave().await?;
    Ok(after.rate)
}
