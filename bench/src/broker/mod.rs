//! Brokers: consuming a queue into an inbox, and publishing an outbox, beside programs that are written by hand. On PostgreSQL.

mod consume;
mod naive;
mod rabbit;
mod relay;

use anyhow::Result;

use crate::options::{Asked, BrokerName, BrokerScenario};
use crate::results::Comparison;
use crate::stored::arena::StoredArena;
use rabbit::Rabbit;
use sqlx::Postgres;

/// The unit of all figures.
const RATE: &str = "messages/s";
/// The number of connections of a consumer that is written by hand.
const NAIVE_CONNECTIONS: u32 = 16;

pub(crate) async fn run(asked: &Asked<BrokerScenario>, broker: BrokerName) -> Result<Vec<Comparison>> {
    let BrokerName::Rabbitmq = broker;
    let arena = StoredArena::<Postgres>::open(&asked.options).await?;
    let mut rabbit = Rabbit::start().await?;
    let mut all = Vec::new();
    if asked.wants(BrokerScenario::Inline) {
        all.push(consume::run(&arena, &rabbit, &consume::INLINE).await?);
    }
    if asked.wants(BrokerScenario::Stored) {
        all.push(consume::run(&arena, &rabbit, &consume::STORED).await?);
    }
    if asked.wants(BrokerScenario::Relay) {
        all.push(relay::run(&arena, &rabbit).await?);
    }
    // Takes minutes: only if it is asked for.
    if asked.names(BrokerScenario::Outage) {
        all.push(relay::after_outage(&arena, &mut rabbit).await?);
    }
    rabbit.stop()?;
    Ok(all)
}
