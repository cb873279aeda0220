//! `broker-inline`: from a queue to the commit of a handler and the acknowledgement. `broker-stored`: from a queue into the log.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use oncebox::rabbitmq::Declare;
use oncebox::{ConsumerWatch, Inbox, PostgresStore};
use sqlx::Postgres;

use super::rabbit::{QUEUE, Rabbit};
use super::{NAIVE_CONNECTIONS, RATE, naive};
use crate::business::HandlerWork;
use crate::results::Comparison;
use crate::scenarios::rounds::interleave;
use crate::store::{DatabaseKind, Ground, HandlerCalls};
use crate::stored::arena::{LONGEST, StoredArena};
use crate::stored::per_second;

/// What is compared.
pub(super) struct ConsumeComparison {
    bench: &'static str,
    labels: &'static [&'static str],
    is_stored: bool,
}

const NAIVE: &str = "naive";
pub(super) const INLINE: ConsumeComparison = ConsumeComparison {
    bench: "broker-inline",
    labels: &["oncebox", "oncebox-set", NAIVE],
    is_stored: false,
};
pub(super) const STORED: ConsumeComparison =
    ConsumeComparison { bench: "broker-stored", labels: &["oncebox", NAIVE], is_stored: true };

pub(super) async fn run(
    arena: &StoredArena<'_, Postgres>,
    rabbit: &Rabbit,
    comparison: &ConsumeComparison,
) -> Result<Comparison> {
    let ConsumeComparison { bench, labels, is_stored } = *comparison;
    let title = format!("rabbitmq: {bench}");
    let series = interleave(&title, arena.options.rounds(), labels, async |n: usize| {
        let measured = measure(arena, rabbit, labels[n], is_stored).await;
        measured.with_context(|| format!("measuring {}", labels[n]))
    });
    let (store, baselines) = (Postgres::STORE, vec![NAIVE]);
    Ok(Comparison { bench, store, callers: 1, unit: RATE, series: series.await?, baselines })
}

async fn measure(
    arena: &StoredArena<'_, Postgres>,
    rabbit: &Rabbit,
    label: &str,
    is_stored: bool,
) -> Result<f64> {
    let messages = arena.options.waiting_messages();
    let url = rabbit.fresh().await?;
    Rabbit::fill(&url, messages).await?;
    let ground = arena.inline.fresh().await?;
    let connections = if label == NAIVE { NAIVE_CONNECTIONS } else { Postgres::INBOX_POOL };
    let pool = ground.pool(connections).await?;
    let took = match label {
        NAIVE => {
            let begin = Instant::now();
            let consuming = naive::consume(&url, QUEUE, &pool, messages);
            tokio::time::timeout(LONGEST, consuming).await.context("messages are missing")??;
            begin.elapsed()
        }
        _ if is_stored => {
            let store = ground.store(pool.clone())?;
            let inbox = Inbox::builder(store.clone()).stored().build().await?;
            let took = consume(&inbox, &url, messages).await?;
            let stored = sqlx::query_scalar::<_, i64>("SELECT count(*) FROM oncebox.message");
            let stored = stored.fetch_one(store.pool()).await?;
            ensure!(u64::try_from(stored)? == messages, "{stored} of {messages} messages are in the log");
            took
        }
        _ => {
            let calls = if label == "oncebox-set" { HandlerCalls::Sets } else { HandlerCalls::Singles };
            let inbox = ground.inbox(pool.clone(), calls, HandlerWork::Insert).await?;
            consume(&inbox, &url, messages).await?
        }
    };
    if !is_stored || label == NAIVE {
        let rows = ground.ledger_rows().await?;
        ensure!(rows == messages, "the ledger has {rows} rows for {messages} messages");
    }
    pool.close().await;
    ground.discard().await?;
    Ok(per_second(messages, took))
}

/// Consumes until all messages are acknowledged.
async fn consume(inbox: &Inbox<PostgresStore>, url: &str, messages: u64) -> Result<Duration> {
    let source = Rabbit::client(url)?.queue(QUEUE).declare(Declare::Nothing);
    let consumer = inbox.consume(source);
    let watch = consumer.watch();
    let begin = Instant::now();
    let (report, took) = tokio::time::timeout(LONGEST, async {
        let mut took = Duration::ZERO;
        let report = consumer.run(async { took = acknowledged(&watch, messages, begin).await }).await;
        (report, took)
    })
    .await
    .context("messages are missing")?;
    let report = report?;
    ensure!(report.acknowledged == messages, "{report:?} for {messages} messages");
    inbox.close().await;
    Ok(took)
}

/// Waits until this many messages are acknowledged. Returns the time since the beginning.
async fn acknowledged(watch: &ConsumerWatch, messages: u64, begin: Instant) -> Duration {
    while watch.status().acknowledged < messages {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    begin.elapsed()
}
