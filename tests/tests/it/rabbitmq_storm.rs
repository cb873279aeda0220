//! Two services with a database each: sales of the first one are published, relayed to RabbitMQ, and consumed and booked by the second
//! one. All processes, the broker and both databases are killed again and again. What is booked in the end is what was sold, once and
//! in order.

use oncebox_servers::rabbitmq::{self, RabbitOptions, RabbitServer};
use oncebox_servers::skip::skip_or_fail;

use crate::every_store::judged;
use crate::services::Services;

const TEST: &str = "sales_that_are_relayed_to_rabbitmq";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sales_that_are_relayed_to_rabbitmq_are_booked_once_and_in_order() {
    // The test that starts the common server knows whether there is one at all.
    if crate::postgres::as_owner(TEST).await.is_none() {
        return;
    }
    if rabbitmq::find().unwrap().is_none() {
        skip_or_fail(TEST, "RabbitMQ's server programs are not installed");
        return;
    }
    // Of its own, because it is killed.
    let mut broker = RabbitServer::start(RabbitOptions::default()).await.unwrap();
    let mut services = Services::start(broker.url(), broker.url()).await;
    let kills = judged(60);
    for kill in 0..kills {
        // One of six kills is one of the broker.
        if kill % 6 == 5 {
            broker.kill().unwrap();
            broker.restart().await.unwrap();
        } else {
            services.kill(kill - kill / 6).await;
        }
        services.until_booked(&format!("since kill {kill}")).await;
    }
    services.check(if kills == 60 { 100_000 } else { 3_000 }).await;
    let rejected = ["--no-table-headers", "list_queues", "name", "messages"];
    let queues = broker.ctl(&rejected).await.unwrap();
    let rejected = queues.lines().find(|line| line.starts_with("sales.dead")).unwrap();
    assert!(rejected.ends_with("\t0"), "{queues}");
}
