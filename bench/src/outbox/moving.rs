//! `outbox-move`: messages move to the log, also while another transaction keeps an old snapshot.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use oncebox::{Inbox, Outbox};

use super::RATE;
use super::engine::OutboxDatabaseKind;
use crate::message::OrderPaid;
use crate::results::Comparison;
use crate::scenarios::rounds::interleave;
use crate::store::Ground;
use crate::stored::arena::StoredArena;
use crate::stored::per_second;

const BENCH: &str = "outbox-move";
const LABELS: [&str; 2] = ["oncebox-held", "oncebox"];
/// The number of messages that one transaction publishes, and that move together.
const EACH: u64 = 5_000;

pub(super) async fn run<E: OutboxDatabaseKind>(arena: &StoredArena<'_, E>) -> Result<Comparison> {
    let title = format!("{}: {BENCH}", E::STORE);
    let measure = async |n: usize| measure(arena, LABELS[n] == "oncebox-held").await;
    let series = interleave(&title, arena.options.rounds(), &LABELS, measure).await?;
    let baselines = vec![LABELS[1]];
    Ok(Comparison { bench: BENCH, store: E::STORE, callers: 1, unit: RATE, series, baselines })
}

async fn measure<E: OutboxDatabaseKind>(arena: &StoredArena<'_, E>, is_held: bool) -> Result<f64> {
    let ground = arena.inline.fresh().await?;
    let pool = ground.pool(4).await?;
    let store = ground.store(pool.clone())?;
    let inbox = Inbox::builder(store.clone()).stored().build().await?;
    let outbox = Outbox::builder(store).build().await?;
    let holder = if is_held {
        let mut holder = pool.begin_with(E::HOLD_SNAPSHOT).await?;
        // The snapshot is taken by the first statement that reads.
        E::exists(&mut holder, "SELECT 1 FROM ledger", &[]).await?;
        Some(holder)
    } else {
        None
    };
    let messages = 4 * arena.options.waiting_messages();
    let mut took = Duration::ZERO;
    for batch in 0..messages / EACH {
        let orders: Vec<OrderPaid> = (batch * EACH..(batch + 1) * EACH).map(OrderPaid::numbered).collect();
        let mut tx = pool.begin_with(E::BEGIN).await?;
        E::publish(&outbox, &mut tx, &orders).await?;
        tx.commit().await?;
        let begin = Instant::now();
        let moved = outbox.flush().await?;
        took += begin.elapsed();
        ensure!(moved == EACH, "{moved} of {EACH} messages were moved");
    }
    if let Some(holder) = holder {
        holder.rollback().await?;
    }
    inbox.close().await;
    drop((inbox, outbox));
    pool.close().await;
    ground.discard().await?;
    Ok(per_second(messages / EACH * EACH, took))
}
