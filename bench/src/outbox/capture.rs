//! `outbox-capture`: a business transaction that publishes, and one that does not.

use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use oncebox::Outbox;

use super::engine::OutboxDatabaseKind;
use super::publishers::{Publisher, Publishes, make_tables};
use super::{CALLERS, CONNECTIONS, RATE};
use crate::contenders::Contender;
use crate::feed::{Feed, FeedKind};
use crate::measure::throughput;
use crate::results::Comparison;
use crate::scenarios::rounds::interleave;
use crate::store::Ground;
use crate::stored::arena::StoredArena;

const BENCH: &str = "outbox-capture";
const LABELS: [&str; 2] = ["oncebox", "bare"];

pub(super) async fn run<E: OutboxDatabaseKind>(arena: &StoredArena<'_, E>) -> Result<Comparison> {
    let title = format!("{}: {BENCH}", E::STORE);
    let measure = async |n: usize| measure(arena, LABELS[n]).await;
    let series = interleave(&title, arena.options.rounds(), &LABELS, measure).await?;
    let baselines = vec![LABELS[1]];
    Ok(Comparison { bench: BENCH, store: E::STORE, callers: CALLERS, unit: RATE, series, baselines })
}

async fn measure<E: OutboxDatabaseKind>(arena: &StoredArena<'_, E>, label: &str) -> Result<f64> {
    let ground = arena.inline.fresh().await?;
    let pool = ground.pool(if E::ONE_WRITER { 1 } else { CONNECTIONS }).await?;
    make_tables(&pool).await?;
    let outbox = Outbox::builder(ground.store(ground.pool(1).await?)?).build().await?;
    let publishes = match label {
        "bare" => Publishes::Nothing,
        _ => Publishes::ThroughOutbox(outbox.clone()),
    };
    let publisher: Arc<dyn Contender> = Arc::new(Publisher::<E> { pool: pool.clone(), publishes });
    let measured = throughput(&publisher, Feed::new(FeedKind::Fresh), CALLERS, arena.options.pace()).await;
    let measured = measured.with_context(|| format!("measuring {label}"))?;
    let rows = E::number(&mut *pool.acquire().await?, "SELECT count(*) FROM placed".into()).await?;
    let (rows, waiting) = (u64::try_from(rows)?, outbox.status().await?.waiting);
    let expected = if label == "bare" { 0 } else { rows };
    ensure!(rows == measured.tally.done, "{rows} rows of {} transactions", measured.tally.done);
    ensure!(waiting == expected, "{waiting} messages of {rows} transactions are in the outbox");
    drop(publisher);
    pool.close().await;
    ground.discard().await?;
    Ok(measured.rate)
}
