//! Orders: places them, and publishes each in its own transaction. A relay sends the messages to billing.

use std::time::Duration;

use oncebox::rabbitmq::RabbitMq;
use oncebox::{HttpSink, Message, Outbox, Relay, SqliteStore};
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;

use crate::billing::QUEUE;
use crate::is_broker;

pub(crate) const DATABASE: &str = "orders.db";
pub(crate) const ORDERS: &str = "select count(*) from orders";

const PLACED: u32 = 500;
const ONE_IN_ROLLS_BACK: u32 = 5;

/// The number of orders that are committed.
pub(crate) const fn committed() -> u32 {
    PLACED - PLACED / ONE_IN_ROLLS_BACK
}

#[derive(Message, Serialize, Deserialize)]
#[message(kind = "order.placed", key = "number", order_by = "customer")]
pub(crate) struct OrderPlaced {
    pub(crate) number: u32,
    pub(crate) customer: String,
    pub(crate) cents: i64,
}

/// Places all orders, and returns when their messages are confirmed: by billing, or by the broker.
pub(crate) async fn run(url: &str) -> anyhow::Result<()> {
    let store = SqliteStore::connect(DATABASE).await?;
    store.migrate().await?;
    let table = "create table if not exists orders (number integer primary key, customer text not null)";
    sqlx::query(table).execute(store.pool()).await?;

    let relay = match is_broker(url) {
        // The default exchange: the routing key is the name of the queue.
        true => Relay::new("billing", RabbitMq::new(url)?.exchange("").routing_key(QUEUE)?),
        // On this machine, which is refused unless it is allowed.
        false => {
            Relay::new("billing", HttpSink::new(format!("{url}/messages"))?.allow_private()).in_flight(16)
        }
    };
    let outbox = Outbox::builder(store.clone()).relay(relay.kinds(["order.*"])).build().await?;
    // A service runs this until it is stopped. It needs no inbox.
    let (stop, stopped) = oneshot::channel::<()>();
    let running = tokio::spawn({
        let outbox = outbox.clone();
        async move { outbox.run(async { drop(stopped.await) }).await }
    });

    for number in 0..PLACED {
        place(&outbox, number).await?;
    }
    while !is_sent(&outbox).await? {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    drop(stop);
    running.await??;
    Ok(())
}

/// Writes an order and publishes it: both commit, or neither does.
async fn place(outbox: &Outbox<SqliteStore>, number: u32) -> anyhow::Result<()> {
    let order = OrderPlaced { number, customer: format!("customer-{}", number % 7), cents: 4200 };
    let mut tx = outbox.store().pool().begin().await?;
    let insert = sqlx::query("insert into orders (number, customer) values (?, ?)");
    insert.bind(order.number).bind(&order.customer).execute(&mut *tx).await?;
    outbox.publish(&mut *tx, &order).await?;
    if number.is_multiple_of(ONE_IN_ROLLS_BACK) {
        tx.rollback().await?;
    } else {
        tx.commit().await?;
        outbox.wake();
    }
    Ok(())
}

/// Whether billing has confirmed every message.
async fn is_sent(outbox: &Outbox<SqliteStore>) -> anyhow::Result<bool> {
    let relays = outbox.operators().handler_statuses().await?;
    let is_idle = relays.iter().all(|relay| relay.lag == 0 && relay.tasks == 0);
    Ok(is_idle && outbox.status().await?.waiting == 0)
}
