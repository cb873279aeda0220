//! `outbox-relay`: a relay sends a backlog to a sink in this process that confirms at once. `outbox-relay-held`: the same while
//! another transaction keeps an old snapshot.
//!
//! The messages are in the log already, as they are within milliseconds in a running service; `outbox-move` measures that step.
//! `oncebox-from-outbox` takes both steps at once.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use futures_util::future::BoxFuture;
use oncebox::{Outbox, Outgoing, Relay, Sink, Verdict};
use sqlx::{Connection, Database, Pool};
use tokio::sync::watch;

use super::RATE;
use super::engine::OutboxDatabaseKind;
use super::publishers::make_tables;
use crate::message::OrderPaid;
use crate::results::Comparison;
use crate::scenarios::rounds::interleave;
use crate::store::{DatabaseKind, Ground, Value};
use crate::stored::arena::{LONGEST, StoredArena};
use crate::stored::per_second;

/// What is compared.
pub(super) struct RelayComparison {
    bench: &'static str,
    labels: &'static [&'static str],
    baselines: &'static [&'static str],
    is_held: bool,
}

pub(super) const FREE: RelayComparison = RelayComparison {
    bench: "outbox-relay",
    labels: &["oncebox", "oncebox-in-order", "oncebox-from-outbox", "batch-queue", "polling"],
    baselines: &["batch-queue", "polling"],
    is_held: false,
};
pub(super) const HELD: RelayComparison = RelayComparison {
    bench: "outbox-relay-held",
    labels: &["oncebox", "oncebox-in-order", "oncebox-from-outbox", "batch-queue"],
    baselines: &["batch-queue"],
    is_held: true,
};

/// The number of messages that one transaction publishes.
const EACH: u64 = 5_000;
/// A poller commits a hundred messages at a time; its rate shows with fewer messages.
const POLLED_SHARE: u64 = 4;
const MARK_SENT: &str = "UPDATE polled_outbox SET sent_at = CURRENT_TIMESTAMP WHERE id = $1";

pub(super) async fn run<E: OutboxDatabaseKind>(
    arena: &StoredArena<'_, E>,
    comparison: &RelayComparison,
) -> Result<Comparison> {
    let RelayComparison { bench, labels, baselines, is_held } = *comparison;
    let title = format!("{}: {bench}", E::STORE);
    let series = interleave(&title, arena.options.rounds(), labels, async |n: usize| {
        measure(arena, labels[n], is_held).await
    });
    let (series, baselines) = (series.await?, baselines.to_vec());
    Ok(Comparison { bench, store: E::STORE, callers: 1, unit: RATE, series, baselines })
}

async fn measure<E: OutboxDatabaseKind>(
    arena: &StoredArena<'_, E>,
    label: &str,
    is_held: bool,
) -> Result<f64> {
    let ground = arena.inline.fresh().await?;
    let pool = ground.pool(6).await?;
    make_tables(&pool).await?;
    let holder = match is_held {
        true => {
            let mut holder = pool.begin_with(E::HOLD_SNAPSHOT).await?;
            // The snapshot is taken by the first statement that reads.
            E::exists(&mut holder, "SELECT 1 FROM ledger", &[]).await?;
            Some(holder)
        }
        false => None,
    };
    let backlog = 4 * arena.options.waiting_messages();
    let rate = match label {
        "polling" => polling(&pool, backlog / POLLED_SHARE, Polling::OneByOne).await,
        "batch-queue" => polling(&pool, backlog, Polling::Batches).await,
        _ => {
            let store = ground.store(pool.clone())?;
            oncebox::<E>(store, &pool, backlog, label).await
        }
    };
    let rate = rate.with_context(|| format!("measuring {label}"))?;
    if let Some(holder) = holder {
        holder.rollback().await?;
    }
    pool.close().await;
    ground.discard().await?;
    Ok(rate)
}

/// Counts what it confirms.
#[derive(Clone)]
struct CountingSink(Arc<watch::Sender<u64>>);

impl Sink for CountingSink {
    async fn publish(&self, wave: &[Outgoing]) -> Vec<Verdict> {
        self.0.send_modify(|confirmed| *confirmed += wave.len() as u64);
        wave.iter().map(|_| Verdict::Confirmed).collect()
    }
}

async fn oncebox<E: OutboxDatabaseKind>(
    store: E::Store,
    pool: &Pool<E>,
    messages: u64,
    label: &str,
) -> Result<f64> {
    let (counter, mut confirmed) = watch::channel(0);
    let sink = CountingSink(Arc::new(counter));
    let outbox = Outbox::builder(store.clone()).relay(Relay::new("events", sink)).build().await?;
    let publish = if label == "oncebox-in-order" { E::publish_in_order } else { E::publish };
    fill::<E>(&outbox, pool, messages, publish).await?;
    if label != "oncebox-from-outbox" {
        // Without relays it only moves.
        Outbox::builder(store).build().await?.flush().await?;
    }
    let begin = Instant::now();
    let all = async {
        let _ = confirmed.wait_for(|confirmed| *confirmed >= messages).await;
    };
    tokio::time::timeout(LONGEST, outbox.run(all)).await.context("the relay did not send everything")??;
    let took = begin.elapsed();
    ensure!(*confirmed.borrow() == messages, "{} of {messages} messages were sent", *confirmed.borrow());
    Ok(per_second(messages, took))
}

/// Publishes messages in one transaction.
pub(crate) type Publish<E> = for<'a> fn(
    &'a Outbox<<E as DatabaseKind>::Store>,
    &'a mut <E as Database>::Connection,
    &'a [OrderPaid],
) -> BoxFuture<'a, Result<()>>;

/// Fills an outbox, in transactions of many messages.
pub(crate) async fn fill<E: OutboxDatabaseKind>(
    outbox: &Outbox<E::Store>,
    pool: &Pool<E>,
    messages: u64,
    publish: Publish<E>,
) -> Result<()> {
    for first in (0..messages).step_by(usize::try_from(EACH)?) {
        let orders: Vec<OrderPaid> = (first..messages.min(first + EACH)).map(OrderPaid::numbered).collect();
        let mut tx = pool.begin_with(E::BEGIN).await?;
        publish(outbox, &mut tx, &orders).await?;
        tx.commit().await?;
    }
    Ok(())
}

/// How an outbox is polled.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Polling {
    /// Reads a hundred rows, sends them one by one, and marks each as sent.
    OneByOne,
    /// Takes 500 rows out of the table and sends them together.
    Batches,
}

async fn polling<E: OutboxDatabaseKind>(pool: &Pool<E>, messages: u64, polling: Polling) -> Result<f64> {
    let mut conn = pool.acquire().await?;
    for first in (0..messages).step_by(usize::try_from(EACH)?) {
        let mut tx = conn.begin().await?;
        for number in first..messages.min(first + EACH) {
            let body = OrderPaid::body(number);
            let content = Value::Text(std::str::from_utf8(&body)?);
            E::execute(&mut tx, "INSERT INTO polled_outbox (content) VALUES ($1)", &[content]).await?;
        }
        tx.commit().await?;
    }
    let (mut sent, begin) = (0, Instant::now());
    while sent < messages {
        ensure!(begin.elapsed() < LONGEST, "{sent} of {messages} messages were sent");
        let mut tx = conn.begin().await?;
        let rows = match polling {
            Polling::OneByOne => E::poll(&mut tx).await?,
            Polling::Batches => E::take_batch(&mut tx).await?,
        };
        for (id, _content) in &rows {
            // The sink confirms at once.
            sent += 1;
            if polling == Polling::OneByOne {
                E::execute(&mut tx, MARK_SENT, &[Value::Int(*id)]).await?;
            }
        }
        tx.commit().await?;
    }
    let took: Duration = begin.elapsed();
    Ok(per_second(messages, took))
}
