//! `outbox-backlog`: business transactions that publish beside a large outbox that no process moves; then the rate at which the mover
//! and a relay send that backlog.

use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use oncebox::{Outbox, Outgoing, Relay, Sink, Verdict};

use super::engine::OutboxDatabaseKind;
use super::publishers::{Publisher, Publishes, make_tables};
use super::relaying::fill;
use super::{CALLERS, CONNECTIONS, RATE};
use crate::contenders::Contender;
use crate::feed::{Feed, FeedKind};
use crate::measure::throughput;
use crate::report::figure;
use crate::results::{Comparison, Tenths};
use crate::scenarios::rounds::interleave;
use crate::store::Ground;
use crate::stored::arena::{LONGEST, StoredArena};
use crate::stored::meter::Meter;

const BENCH: &str = "outbox-backlog";
const BENCH_OF_TENTHS: &str = "outbox-backlog-tenths";
const LABELS: [&str; 2] = ["oncebox-behind-backlog", "oncebox"];

pub(super) async fn run<E: OutboxDatabaseKind>(arena: &StoredArena<'_, E>) -> Result<Vec<Comparison>> {
    let backlog = arena.options.large_backlog();
    let title = format!("{}: {BENCH} of {backlog}", E::STORE);
    let mut tenths = Tenths::new();
    let series = interleave(&title, arena.options.large_rounds(), &LABELS, async |n: usize| {
        let measured = measure(arena, if n == 0 { backlog } else { 0 }).await;
        let (rate, rates) = measured.with_context(|| format!("measuring {}", LABELS[n]))?;
        tenths.add(&rates);
        Ok(rate)
    });
    let (store, callers, baselines) = (E::STORE, CALLERS, vec![LABELS[1]]);
    let published = Comparison { bench: BENCH, store, callers, unit: RATE, series: series.await?, baselines };
    Ok(vec![published, tenths.compare(BENCH_OF_TENTHS, store, 1, RATE)])
}

/// Publishes beside a backlog, and then sends it. Returns the rate of publishing, and that of sending in each tenth.
async fn measure<E: OutboxDatabaseKind>(arena: &StoredArena<'_, E>, backlog: u64) -> Result<(f64, Vec<f64>)> {
    let ground = arena.inline.fresh().await?;
    let pool = ground.pool(if E::ONE_WRITER { 1 } else { CONNECTIONS }).await?;
    make_tables(&pool).await?;
    let store = ground.store(ground.pool(6).await?)?;
    let outbox = Outbox::builder(store.clone()).build().await?;
    fill::<E>(&outbox, &pool, backlog, E::publish).await?;
    let publishes = Publishes::ThroughOutbox(outbox.clone());
    let publisher: Arc<dyn Contender> = Arc::new(Publisher::<E> { pool: pool.clone(), publishes });
    let measured = throughput(&publisher, Feed::new(FeedKind::Fresh), CALLERS, arena.options.pace()).await?;
    drop(publisher);
    let waiting = backlog + measured.tally.done;
    ensure!(outbox.status().await?.waiting == waiting, "not all of {waiting} messages are in the outbox");
    let rates = match backlog {
        0 => Vec::new(),
        // Both number their messages from 0, and copies are not delivered.
        _ => send::<E>(store, backlog.max(measured.tally.done)).await?,
    };
    drop(outbox);
    pool.close().await;
    ground.discard().await?;
    Ok((measured.rate, rates))
}

/// Moves and sends all messages. Returns the rate in each tenth.
async fn send<E: OutboxDatabaseKind>(store: E::Store, messages: u64) -> Result<Vec<f64>> {
    let meter = Arc::new(Meter::new());
    let relay = Relay::new("events", MeteredSink(meter.clone()));
    let outbox = Outbox::builder(store).relay(relay).build().await?;
    meter.ask_for(messages, 10);
    let sent = tokio::time::timeout(LONGEST, outbox.run(meter.until_enough())).await;
    sent.context("the relay did not send everything")??;
    ensure!(meter.done() == messages, "{} of {messages} messages were sent", meter.done());
    let rates = meter.slices();
    let figures: Vec<String> = rates.iter().map(|rate| figure(*rate)).collect();
    eprintln!("{}: {BENCH}: sent by tenths: {}", E::STORE, figures.join(" "));
    Ok(rates)
}

/// Counts what it confirms.
struct MeteredSink(Arc<Meter>);

impl Sink for MeteredSink {
    async fn publish(&self, wave: &[Outgoing]) -> Vec<Verdict> {
        self.0.add(wave.len() as u64);
        wave.iter().map(|_| Verdict::Confirmed).collect()
    }
}
