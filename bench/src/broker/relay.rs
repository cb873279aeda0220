//! `broker-relay`: a relay publishes messages of the log to an exchange. `broker-outage`: the same with a large backlog after an
//! outage of the broker, by tenths.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use futures_util::StreamExt;
use futures_util::stream::iter;
use oncebox::rabbitmq::RabbitSink;
use oncebox::{Message, Outbox, Outgoing, Relay, Sink, Verdict};
use sqlx::{Connection, PgPool, Postgres};

use super::RATE;
use super::rabbit::{QUEUE, Rabbit};
use crate::message::OrderPaid;
use crate::outbox::engine::OutboxDatabaseKind;
use crate::outbox::fill;
use crate::outbox::make_tables;
use crate::results::{Comparison, Tenths};
use crate::scenarios::rounds::interleave;
use crate::store::{DatabaseKind, Ground, Value};
use crate::stored::arena::{LONGEST, StoredArena};
use crate::stored::meter::Meter;
use crate::stored::per_second;

const BENCH: &str = "broker-relay";
const LABELS: [&str; 3] = ["oncebox", "memory", "polling"];
/// A poller is slow; its rate shows with fewer messages.
const POLLED_SHARE: u64 = 8;
/// Waves that the client publishes from memory at the same time.
const WAVES: usize = 4;
const MARK_SENT: &str = "UPDATE polled_outbox SET sent_at = CURRENT_TIMESTAMP WHERE id = $1";

pub(super) async fn run(arena: &StoredArena<'_, Postgres>, rabbit: &Rabbit) -> Result<Comparison> {
    let title = format!("rabbitmq: {BENCH}");
    let series = interleave(&title, arena.options.rounds(), &LABELS, async |n: usize| {
        measure(arena, rabbit, LABELS[n]).await.with_context(|| format!("measuring {}", LABELS[n]))
    });
    let (series, store) = (series.await?, Postgres::STORE);
    let baselines = LABELS[1..].to_vec();
    Ok(Comparison { bench: BENCH, store, callers: 1, unit: RATE, series, baselines })
}

async fn measure(arena: &StoredArena<'_, Postgres>, rabbit: &Rabbit, label: &str) -> Result<f64> {
    let url = rabbit.fresh().await?;
    let sink = sink(&url)?;
    let messages = arena.options.waiting_messages();
    let ground = arena.inline.fresh().await?;
    let pool = ground.pool(6).await?;
    make_tables(&pool).await?;
    let (messages, took) = match label {
        "memory" => (messages, from_memory(&sink, messages).await?),
        "polling" => {
            let messages = messages / POLLED_SHARE;
            (messages, polling(&pool, &sink, messages).await?)
        }
        _ => {
            let meter = Arc::new(Meter::new());
            let store = ground.store(pool.clone())?;
            let relay = Relay::new("events", Metered { sink, meter: meter.clone() });
            let publisher = Outbox::builder(store.clone()).build().await?;
            fill::<Postgres>(&publisher, &pool, messages, Postgres::publish).await?;
            // In the log already, as they are within milliseconds in a running service.
            publisher.flush().await?;
            let outbox = Outbox::builder(store).relay(relay).build().await?;
            meter.ask_for(messages, 10);
            let begin = Instant::now();
            let sent = tokio::time::timeout(LONGEST, outbox.run(meter.until_enough())).await;
            sent.context("the relay did not send everything")??;
            (messages, begin.elapsed())
        }
    };
    let waiting = Rabbit::waiting(&url).await?;
    ensure!(waiting >= messages, "{waiting} of {messages} messages are in the queue");
    pool.close().await;
    ground.discard().await?;
    Ok(per_second(messages, took))
}

/// The default exchange, straight into the queue.
fn sink(url: &str) -> Result<RabbitSink> {
    Ok(Rabbit::client(url)?.exchange("").routing_key(QUEUE)?)
}

fn outgoing(number: u64) -> Outgoing {
    Outgoing::new(OrderPaid::KIND, OrderPaid::body(number))
}

async fn from_memory(sink: &RabbitSink, messages: u64) -> Result<Duration> {
    let all: Vec<Outgoing> = (0..messages).map(outgoing).collect();
    // The connection is open, as that of a relay.
    confirmed(&sink.publish(&[outgoing(messages)]).await)?;
    let begin = Instant::now();
    let mut waves = iter(all.chunks(RabbitSink::WAVE)).map(|wave| sink.publish(wave)).buffer_unordered(WAVES);
    while let Some(verdicts) = waves.next().await {
        confirmed(&verdicts)?;
    }
    Ok(begin.elapsed())
}

fn confirmed(verdicts: &[Verdict]) -> Result<()> {
    ensure!(verdicts.iter().all(|verdict| matches!(verdict, Verdict::Confirmed)), "{verdicts:?}");
    Ok(())
}

/// Reads a hundred rows, publishes them one by one, and marks each as sent.
async fn polling(pool: &PgPool, sink: &RabbitSink, messages: u64) -> Result<Duration> {
    let mut conn = pool.acquire().await?;
    let mut tx = conn.begin().await?;
    for number in 0..messages {
        let body = OrderPaid::body(number);
        let content = Value::Text(std::str::from_utf8(&body)?);
        Postgres::execute(&mut tx, "INSERT INTO polled_outbox (content) VALUES ($1)", &[content]).await?;
    }
    tx.commit().await?;
    confirmed(&sink.publish(&[outgoing(messages)]).await)?;
    let (mut sent, begin) = (0, Instant::now());
    while sent < messages {
        let mut tx = conn.begin().await?;
        let rows = Postgres::poll(&mut tx).await?;
        ensure!(!rows.is_empty(), "{sent} of {messages} messages were sent");
        for (id, content) in rows {
            confirmed(&sink.publish(&[Outgoing::new(OrderPaid::KIND, content)]).await)?;
            Postgres::execute(&mut tx, MARK_SENT, &[Value::Int(id)]).await?;
            sent += 1;
        }
        tx.commit().await?;
    }
    Ok(begin.elapsed())
}

/// Counts what the broker confirms.
struct Metered {
    sink: RabbitSink,
    meter: Arc<Meter>,
}

impl Sink for Metered {
    const KEEPS_ORDER: bool = RabbitSink::KEEPS_ORDER;
    const WAVE: usize = RabbitSink::WAVE;

    async fn publish(&self, wave: &[Outgoing]) -> Vec<Verdict> {
        let verdicts = self.sink.publish(wave).await;
        let confirmed = verdicts.iter().filter(|verdict| matches!(verdict, Verdict::Confirmed)).count();
        self.meter.add(confirmed as u64);
        verdicts
    }
}

/// A relay begins while the broker is away, with a million messages to send; then the broker comes back.
pub(super) async fn after_outage(
    arena: &StoredArena<'_, Postgres>,
    rabbit: &mut Rabbit,
) -> Result<Comparison> {
    let messages = arena.options.large_backlog();
    let url = rabbit.fresh().await?;
    let ground = arena.inline.fresh().await?;
    let pool = ground.pool(6).await?;
    let store = ground.store(pool.clone())?;
    let meter = Arc::new(Meter::new());
    let relay = Relay::new("events", Metered { sink: sink(&url)?, meter: meter.clone() });
    let outbox = Outbox::builder(store).relay(relay).build().await?;
    fill::<Postgres>(&outbox, &pool, messages, Postgres::publish).await?;
    rabbit.server.kill()?;
    meter.ask_for(messages, 10);
    let (before, most) = (resident_kib()?, Arc::new(std::sync::atomic::AtomicU64::new(0)));
    let watching = tokio::spawn(watch_memory(most.clone()));
    let running = tokio::time::timeout(2 * LONGEST, outbox.run(meter.until_enough()));
    let back = async {
        tokio::time::sleep(Duration::from_secs(5)).await;
        rabbit.server.restart().await
    };
    let (ran, restarted) = tokio::join!(running, back);
    restarted?;
    ran.context("the relay did not send everything")??;
    watching.abort();
    let most = most.load(std::sync::atomic::Ordering::Relaxed);
    eprintln!("rabbitmq: broker-outage: memory {} MiB before, {} MiB at most", before / 1024, most / 1024);
    let mut tenths = Tenths::new();
    tenths.add(&meter.slices());
    pool.close().await;
    ground.discard().await?;
    Ok(tenths.compare("broker-outage-tenths", Postgres::STORE, 1, RATE))
}

async fn watch_memory(most: Arc<std::sync::atomic::AtomicU64>) {
    loop {
        if let Ok(now) = resident_kib() {
            most.fetch_max(now, std::sync::atomic::Ordering::Relaxed);
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

/// The memory of this process.
fn resident_kib() -> Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS")?;
    Ok(line.trim().trim_end_matches("kB").trim().parse()?)
}
