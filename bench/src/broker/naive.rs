//! A consumer as it is written by hand: for each message a transaction with its marker and its row, then an acknowledgement.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context, Result};
use futures_util::StreamExt;
use lapin::options::{BasicAckOptions, BasicConsumeOptions, BasicQosOptions};
use lapin::types::FieldTable;
use lapin::{Connection, ConnectionProperties};
use sqlx::{PgPool, Postgres};
use tokio::task::JoinSet;

use super::NAIVE_CONNECTIONS;
use crate::business::HandlerWork;
use crate::contenders::decode;
use crate::store::{DatabaseKind, Value};

const TABLE: &str = "CREATE TABLE naive_marker (id uuid PRIMARY KEY)";
const MARK: &str = "INSERT INTO naive_marker (id) VALUES ($1) ON CONFLICT DO NOTHING";
/// Messages that wait at each consumer.
const PREFETCH: u16 = 50;

/// Consumes until this many messages are acknowledged.
pub(super) async fn consume(url: &str, queue: &str, pool: &PgPool, messages: u64) -> Result<()> {
    sqlx::query(TABLE).execute(pool).await?;
    let done = Arc::new(AtomicU64::new(0));
    let mut running = JoinSet::new();
    for _ in 0..NAIVE_CONNECTIONS {
        let consumer = one(url.to_owned(), queue.to_owned(), pool.clone(), messages, done.clone());
        running.spawn(consumer);
    }
    // The others wait for messages that do not come.
    running.join_next().await.context("no consumer")??
}

async fn one(url: String, queue: String, pool: PgPool, messages: u64, done: Arc<AtomicU64>) -> Result<()> {
    let connection = Connection::connect(&url, ConnectionProperties::default()).await?;
    let channel = connection.create_channel().await?;
    channel.basic_qos(PREFETCH, BasicQosOptions::default()).await?;
    let consuming =
        channel.basic_consume(queue.into(), "".into(), BasicConsumeOptions::default(), FieldTable::default());
    let mut deliveries = consuming.await?;
    while let Some(delivery) = deliveries.next().await {
        let delivery = delivery?;
        let paid = decode(&delivery.data)?;
        let mut tx = pool.begin_with(Postgres::BEGIN).await?;
        if Postgres::execute(&mut tx, MARK, &[Value::Uuid(paid.order_id)]).await? == 1 {
            HandlerWork::Insert
                .run::<Postgres>(&paid, &mut tx)
                .await
                .map_err(|error| anyhow::anyhow!("the handler failed: {error:?}"))?;
        }
        tx.commit().await?;
        delivery.ack(BasicAckOptions::default()).await?;
        if done.fetch_add(1, Ordering::Relaxed) + 1 >= messages {
            return Ok(());
        }
    }
    anyhow::bail!("the broker has ended the consumer")
}
