//! `outbox-local`: from a business transaction to the handler of another module, until all is handled.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use oncebox::Outbox;
use sqlx::{Connection, Pool};

use super::engine::OutboxDatabaseKind;
use super::publishers::{Publisher, Publishes, make_tables};
use super::{CALLERS, CONNECTIONS, RATE};
use crate::contenders::Contender;
use crate::feed::{Feed, FeedKind};
use crate::measure::exhaust;
use crate::results::Comparison;
use crate::scenarios::rounds::interleave;
use crate::store::{Ground, Value};
use crate::stored::arena::{LONGEST, StoredArena};
use crate::stored::keepers::{Keeper, KeeperName};
use crate::stored::per_second;

const BENCH: &str = "outbox-local";
const LABELS: [&str; 3] = ["oncebox", "oncebox-set", "polling"];
/// The pause of a poller that finds nothing.
const POLL_PAUSE: Duration = Duration::from_millis(5);
const MARK_SENT: &str = "UPDATE polled_outbox SET sent_at = CURRENT_TIMESTAMP WHERE id = $1";

pub(super) async fn run<E: OutboxDatabaseKind>(arena: &mut StoredArena<'_, E>) -> Result<Comparison> {
    let title = format!("{}: {BENCH}", E::STORE);
    let rounds = arena.options.rounds();
    let series = interleave(&title, rounds, &LABELS, async |n: usize| match LABELS[n] {
        "polling" => polling(arena).await,
        "oncebox-set" => oncebox(arena, KeeperName::OnceboxMovingSet).await,
        _ => oncebox(arena, KeeperName::OnceboxMoving).await,
    });
    let (series, baselines) = (series.await?, vec![LABELS[2]]);
    Ok(Comparison { bench: BENCH, store: E::STORE, callers: CALLERS, unit: RATE, series, baselines })
}

/// With one writer, a baseline is slow: it commits several times for each message.
fn messages<E: OutboxDatabaseKind>(arena: &StoredArena<'_, E>) -> u64 {
    arena.options.waiting_messages() / if E::ONE_WRITER { 8 } else { 2 }
}

async fn oncebox<E: OutboxDatabaseKind>(arena: &mut StoredArena<'_, E>, name: KeeperName) -> Result<f64> {
    let messages = messages(arena);
    let mut entrant = arena.enter_for_callers(name).await?;
    let pool = entrant.ground.pool(if E::ONE_WRITER { 1 } else { CONNECTIONS }).await?;
    make_tables(&pool).await?;
    // Publishes only. The mover is part of the inbox, which knows when to wake its workers.
    let publishing = entrant.ground.pool(1).await?;
    let outbox = Outbox::builder(entrant.ground.store(publishing.clone())?).build().await?;
    let publishes = Publishes::ThroughOutbox(outbox.clone());
    let publisher: Arc<dyn Contender> = Arc::new(Publisher::<E> { pool: pool.clone(), publishes });
    entrant.meter.ask_for(messages, 10);
    let begin = Instant::now();
    let publish = exhaust(&publisher, Feed::new(FeedKind::Known { count: messages }), CALLERS);
    let both = tokio::try_join!(entrant.work_until_enough(LONGEST), publish);
    let (done, published) = both.context("measuring oncebox")?;
    let took = begin.elapsed();
    ensure!(done == messages && published.done == messages, "{done} of {messages} messages were handled");
    drop((publisher, outbox));
    pool.close().await;
    publishing.close().await;
    entrant.leave().await?;
    Ok(per_second(messages, took))
}

async fn polling<E: OutboxDatabaseKind>(arena: &mut StoredArena<'_, E>) -> Result<f64> {
    let messages = messages(arena);
    let mut entrant = arena.enter_for_callers(KeeperName::Milan).await?;
    let pool = entrant.ground.pool(if E::ONE_WRITER { 1 } else { CONNECTIONS }).await?;
    make_tables(&pool).await?;
    let publisher: Arc<dyn Contender> =
        Arc::new(Publisher::<E> { pool: pool.clone(), publishes: Publishes::IntoTable });
    let poller = entrant.ground.pool(1).await?;
    entrant.meter.ask_for(messages, 10);
    let (inbox, is_over) = (entrant.keeper.clone(), Arc::new(AtomicBool::new(false)));
    let polling = tokio::spawn(poll_all::<E>(poller.clone(), inbox, is_over.clone()));
    let begin = Instant::now();
    let publish = exhaust(&publisher, Feed::new(FeedKind::Known { count: messages }), CALLERS);
    let both = tokio::try_join!(entrant.work_until_enough(LONGEST), publish);
    let took = begin.elapsed();
    is_over.store(true, Ordering::Relaxed);
    polling.await??;
    let (done, published) = both.context("measuring polling")?;
    ensure!(done == messages && published.done == messages, "{done} of {messages} messages were handled");
    drop(publisher);
    pool.close().await;
    poller.close().await;
    entrant.leave().await?;
    Ok(per_second(messages, took))
}

/// Reads a hundred rows, sends them one by one, and marks each as sent.
async fn poll_all<E: OutboxDatabaseKind>(
    pool: Pool<E>,
    inbox: Arc<dyn Keeper>,
    is_over: Arc<AtomicBool>,
) -> Result<()> {
    let mut conn = pool.acquire().await?;
    while !is_over.load(Ordering::Relaxed) {
        let sent = if E::LOCKS_ROWS {
            let mut tx = conn.begin().await?;
            let sent = send::<E>(&mut tx, &*inbox).await?;
            tx.commit().await?;
            sent
        } else {
            send::<E>(&mut conn, &*inbox).await?
        };
        if sent == 0 {
            tokio::time::sleep(POLL_PAUSE).await;
        }
    }
    Ok(())
}

async fn send<E: OutboxDatabaseKind>(conn: &mut E::Connection, inbox: &dyn Keeper) -> Result<usize> {
    let rows = E::poll(conn).await?;
    for (id, content) in &rows {
        inbox.accept(content.as_bytes().to_vec()).await?;
        E::execute(conn, MARK_SENT, &[Value::Int(*id)]).await?;
    }
    Ok(rows.len())
}
