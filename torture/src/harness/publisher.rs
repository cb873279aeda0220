//! Publishes copies of messages to the queue of the workers, with confirms.

use std::time::Duration;

use anyhow::{Result, ensure};
use futures_util::future::join_all;
use lapin::options::{BasicPublishOptions, ConfirmSelectOptions};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, Channel, Confirmation, Connection};
use oncebox_torture::queues::{DELIVERY_HEADER, ID_HEADER, ORDER_HEADER, ORDERS_QUEUE};
use oncebox_torture::scenario::{MessageKind, Scenario};
use oncebox_workload::deliverer::SentCopy;
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};

use crate::broker::connect;

const BATCH: usize = 64;
/// The maximum time for the confirms of a batch. Then the copies count as lost.
const CONFIRM_LIMIT: Duration = Duration::from_secs(3);
/// The pause after a failure: the broker may be down, or the queue may not exist.
const PAUSE: Duration = Duration::from_millis(50);
const PERSISTENT: u8 = 2;

/// Publishes copies in a task of its own.
#[derive(Debug)]
pub(crate) struct Publisher {
    copies: mpsc::UnboundedSender<SentCopy>,
    lost: mpsc::UnboundedReceiver<SentCopy>,
}

impl Publisher {
    pub(crate) fn start(url: String, scenario: Scenario) -> Self {
        let (copies, to_publish) = mpsc::unbounded_channel();
        let (lose, lost) = mpsc::unbounded_channel();
        tokio::spawn(publish_all(url, scenario, to_publish, lose));
        Self { copies, lost }
    }

    /// Publishes a copy, as soon as the broker takes it.
    pub(crate) fn publish(&self, copy: SentCopy) {
        // Fails only when the harness ends.
        let _ = self.copies.send(copy);
    }

    /// A copy of which it is not known whether the broker has it.
    pub(crate) fn next_lost(&mut self) -> Option<SentCopy> {
        self.lost.try_recv().ok()
    }
}

async fn publish_all(
    url: String,
    scenario: Scenario,
    mut copies: mpsc::UnboundedReceiver<SentCopy>,
    lose: mpsc::UnboundedSender<SentCopy>,
) {
    let mut link = None;
    let mut batch = Vec::new();
    while copies.recv_many(&mut batch, BATCH).await > 0 {
        let open = match link.take() {
            Some(open) => open,
            None => until_connected(&url).await,
        };
        let published = timeout(CONFIRM_LIMIT, publish(&open.1, scenario, &batch)).await;
        if matches!(published, Ok(Ok(()))) {
            link = Some(open);
            batch.clear();
            continue;
        }
        // All of them: publishing a copy twice is harmless, and it is not known whose confirm is missing.
        for copy in batch.drain(..) {
            let _ = lose.send(copy);
        }
        sleep(PAUSE).await;
    }
}

async fn until_connected(url: &str) -> (Connection, Channel) {
    loop {
        // A stopped broker accepts connections and does not respond.
        if let Ok(Ok((connection, channel))) = timeout(CONFIRM_LIMIT, connect(url)).await
            && channel.confirm_select(ConfirmSelectOptions::default()).await.is_ok()
        {
            return (connection, channel);
        }
        sleep(PAUSE).await;
    }
}

async fn publish(channel: &Channel, scenario: Scenario, copies: &[SentCopy]) -> Result<()> {
    let publishing = copies.iter().map(|copy| async move {
        let options = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
        let (properties, body) = encoded(scenario, copy);
        channel.basic_publish("".into(), ORDERS_QUEUE.into(), options, &body, properties).await?.await
    });
    for confirm in join_all(publishing).await {
        ensure!(matches!(confirm?, Confirmation::Ack(None)), "the broker has refused or returned a copy");
    }
    Ok(())
}

fn encoded(scenario: Scenario, copy: &SentCopy) -> (BasicProperties, Vec<u8>) {
    let account = scenario.plan().account(copy.message);
    let (kind, body) = match scenario.kind(copy.message) {
        MessageKind::Order => ("order", serde_json::json!({ "id": copy.message, "account": account })),
        MessageKind::Letter => ("letter", serde_json::json!({ "id": copy.message })),
    };
    let mut headers = FieldTable::default();
    let text = |value: u64| AMQPValue::LongString(value.to_string().into());
    headers.insert(ID_HEADER.into(), text(copy.message));
    headers.insert(DELIVERY_HEADER.into(), text(copy.number));
    if kind == "order" {
        headers.insert(ORDER_HEADER.into(), text(account));
    }
    let properties = BasicProperties::default()
        .with_delivery_mode(PERSISTENT)
        .with_type(kind.into())
        .with_headers(headers);
    (properties, body.to_string().into_bytes())
}
