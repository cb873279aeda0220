//! Relays of the program: services publish in SQL, and other services receive each message.

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::time::Duration;

use reqwest::StatusCode;
use serde_json::Value;
use sqlx::SqlitePool;

use crate::gateway::{TestGateway, json as output, run};
use crate::receiver::{ClosedReceiver, ReceivedRequest, Receiver, status};

/// A relay with short delays between attempts, and without handlers.
fn relay_to(address: &str, more: &str) -> String {
    format!(
        "[relays.billing]\nurl = \"http://{address}/orders\"\nallow_private = true\n\
         retry = {{ max_attempts = 4, first_delay = \"10ms\", max_delay = \"50ms\" }}\n{more}"
    )
}

/// A service with tables of its own in the database of a gateway.
pub(crate) struct Service(SqlitePool);

impl Service {
    pub(crate) async fn of(folder: &Path) -> Self {
        let url = format!("sqlite://{}", folder.join("oncebox.db").display());
        Self(SqlitePool::connect(&url).await.unwrap())
    }

    /// Publishes a message of a customer in a transaction. The number is the key.
    pub(crate) async fn publish(&self, kind: &str, customer: &str, number: u32) {
        let mut tx = self.0.begin_with("begin immediate").await.unwrap();
        let publish =
            "insert into oncebox_publish (kind, body, key, order_by, headers) values (?, ?, ?, ?, ?)";
        sqlx::query(publish)
            .bind(kind)
            .bind(format!("{{\"customer\":\"{customer}\",\"order\":{number}}}"))
            .bind(format!("order-{number}"))
            .bind(customer)
            .bind("{\"content-type\":\"application/json\"}")
            .execute(&mut *tx)
            .await
            .unwrap();
        tx.commit().await.unwrap();
    }
}

/// The numbers of the orders by customer, as they arrived.
pub(crate) fn by_customer(requests: &[ReceivedRequest]) -> HashMap<String, Vec<u64>> {
    let mut orders: HashMap<String, Vec<u64>> = HashMap::new();
    for request in requests {
        let body: Value = serde_json::from_str(&request.body).unwrap();
        let customer = body["customer"].as_str().unwrap().to_owned();
        orders.entry(customer).or_default().push(body["order"].as_u64().unwrap());
    }
    orders
}

/// The state of the relay, when it is as expected.
async fn relay_when(folder: &Path, is_expected: impl Fn(&Value) -> bool) -> Value {
    loop {
        let status = output(folder, &["handlers", "list"]).remove(0);
        if is_expected(&status) {
            return status;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn dead_letters_when(folder: &Path, count: usize) -> Vec<Value> {
    loop {
        let letters = output(folder, &["dead", "list"]);
        if letters.len() == count {
            return letters;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn published_messages_reach_the_receiver_in_order() {
    let receiver = Receiver::start([]).await;
    let gateway = TestGateway::start(&relay_to(&receiver.address, "kinds = [\"order.*\"]\n"));
    let service = Service::of(gateway.path()).await;
    for number in 0..60 {
        let customer = format!("customer-{}", number % 3);
        service.publish("order.placed", &customer, number).await;
        service.publish("stock.low", &customer, 1_000 + number).await;
    }
    let requests = receiver.wait_for(60).await;
    for (customer, orders) in by_customer(&requests) {
        assert!(orders.is_sorted() && orders.len() == 20, "{customer}: {orders:?}");
    }
    let ids: HashSet<&str> = requests.iter().map(|request| request.header("idempotency-key")).collect();
    assert_eq!(ids.len(), 60);
    let first = requests.iter().find(|request| request.header("oncebox-key") == "order-0").unwrap();
    assert_eq!((&*first.path, first.header("content-type")), ("/orders", "application/json"));
    assert_eq!((first.header("oncebox-kind"), first.header("ce-type")), ("order.placed", "order.placed"));
    assert_eq!(first.header("oncebox-order-by"), "customer-0");
    assert_eq!((first.header("oncebox-relay"), first.header("ce-source")), ("billing", "/relays/billing"));

    assert_eq!(
        gateway.line("  relay ").await.trim(),
        format!("relay         billing: order.* → http://{}", receiver.address)
    );
    gateway.health(StatusCode::OK).await;
    let relay = relay_when(gateway.path(), |relay| relay["lag"] == 0).await;
    assert_eq!((&relay["name"], &relay["tasks"], &relay["dead"]), (&"billing".into(), &0.into(), &0.into()));
    let (code, _folder) = gateway.stop().await;
    assert_eq!(code, Some(0));
    assert_eq!(receiver.requests().len(), 60, "nothing is sent twice, and no other kind");
}

#[tokio::test]
async fn an_outage_of_the_receiver_loses_nothing_and_shows_in_the_health_check() {
    let receiver = ClosedReceiver::new();
    let gateway = TestGateway::start(&relay_to(&receiver.address, ""));
    gateway.health(StatusCode::OK).await;
    let service = Service::of(gateway.path()).await;
    for number in 0..5 {
        service.publish("order.placed", "customer-1", number).await;
    }
    let problem = gateway.health(StatusCode::SERVICE_UNAVAILABLE).await;
    assert!(problem.contains("the relay \"billing\" waits") && problem.contains("refused"), "{problem}");
    assert!(!problem.contains("/orders"), "the path may have a secret: {problem}");
    let waiting = relay_when(gateway.path(), |relay| relay["lag"] == 5).await;
    assert_eq!((&waiting["tasks"], &waiting["dead"]), (&0.into(), &0.into()), "no attempt is counted");
    let receiver = receiver.open([status(503)]);
    let requests = receiver.wait_for(6).await;
    gateway.health(StatusCode::OK).await;
    assert_eq!(by_customer(&requests)["customer-1"], [0, 0, 1, 2, 3, 4]);
    assert_eq!(requests[0].header("idempotency-key"), requests[1].header("idempotency-key"));
    let (code, _folder) = gateway.stop().await;
    assert_eq!(code, Some(0));
    assert_eq!(receiver.requests().len(), 6);
}

/// A receiver that refuses is not down, even if it was before.
#[tokio::test]
async fn a_refused_message_is_parked_and_other_messages_go_on() {
    let receiver = Receiver::start([status(503), status(422)]).await;
    let gateway = TestGateway::start(&relay_to(&receiver.address, "in_flight = 1\n"));
    let service = Service::of(gateway.path()).await;
    service.publish("order.placed", "customer-1", 1).await;
    let letter = dead_letters_when(gateway.path(), 1).await.remove(0);
    assert_eq!((&letter["handler"], &letter["key"]), (&"billing".into(), &"order-1".into()));
    assert!(letter["error"].as_str().unwrap().starts_with("422"), "{letter}");
    gateway.health(StatusCode::OK).await;
    service.publish("order.placed", "customer-1", 2).await;
    service.publish("order.placed", "customer-2", 3).await;
    let others = &receiver.wait_for(3).await[2..];
    assert_eq!(by_customer(others)["customer-2"], [3]);
    relay_when(gateway.path(), |relay| relay["lag"] == 0 && relay["tasks"] == 1).await;
    let metrics = loop {
        let metrics = gateway.get("/metrics").await.text().await.unwrap();
        // The lag is measured every few seconds.
        if metrics.contains("oncebox_lag_messages{handler=\"billing\"} 1") {
            break metrics;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    };
    for line in [
        "oncebox_processed_total{handler=\"billing\"} 1",
        "oncebox_dead_total{handler=\"billing\"} 1",
        "oncebox_moved_total 3",
    ] {
        assert!(metrics.contains(line), "{line}\n{metrics}");
    }

    output(gateway.path(), &["dead", "retry", "--handler", "billing", "--error", "422"]);
    let requests = receiver.wait_for(5).await;
    assert_eq!(
        by_customer(&requests)["customer-1"],
        [1, 1, 1, 2],
        "the held message follows the repaired one"
    );
    relay_when(gateway.path(), |relay| relay["tasks"] == 0 && relay["dead"] == 0).await;
}

#[tokio::test]
async fn a_failed_message_is_tried_again_and_counted() {
    let receiver = Receiver::start([status(500), status(409)]).await;
    let gateway = TestGateway::start(&relay_to(&receiver.address, ""));
    Service::of(gateway.path()).await.publish("order.placed", "customer-1", 1).await;
    let requests = receiver.wait_for(3).await;
    assert_eq!(by_customer(&requests)["customer-1"], [1, 1, 1]);
    loop {
        let metrics = gateway.get("/metrics").await.text().await.unwrap();
        if metrics.contains("oncebox_failed_total{handler=\"billing\"} 2")
            && metrics.contains("oncebox_processed_total{handler=\"billing\"} 1")
        {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(output(gateway.path(), &["dead", "list"]).len(), 0);
}

/// For cron: it sends what can be sent, and ends also if the receiver is down.
// Several threads: the receiver responds while the test waits for the command.
#[tokio::test(flavor = "multi_thread")]
async fn work_once_sends_and_ends() {
    let receiver = ClosedReceiver::new();
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("oncebox.toml"), relay_to(&receiver.address, "")).unwrap();
    assert!(run(folder.path(), &["migrate", "up"]).status.success());
    let service = Service::of(folder.path()).await;
    for number in 0..3 {
        service.publish("order.placed", "customer-1", number).await;
    }
    let work = || output(folder.path(), &["work", "--once"]).remove(0);
    assert_eq!(work()["done"], 0);
    let receiver = receiver.open([]);
    assert_eq!(work()["done"], 3);
    assert_eq!(by_customer(&receiver.requests())["customer-1"], [0, 1, 2]);
    assert_eq!(work()["done"], 0);
    assert_eq!(receiver.requests().len(), 3);
}

/// What a handler publishes goes on to the relay, also in `work --once`.
// Several threads: the receiver responds while the test waits for the command.
#[tokio::test(flavor = "multi_thread")]
async fn handlers_and_relays_receive_the_same_message() {
    let receiver = Receiver::start([]).await;
    let handler = format!(
        "[handlers.ledger]\nkinds = [\"order.placed\"]\nurl = \"http://{}/ledger\"\nallow_private = true\n",
        receiver.address
    );
    let folder = tempfile::tempdir().unwrap();
    let config = relay_to(&receiver.address, &handler);
    std::fs::write(folder.path().join("oncebox.toml"), config).unwrap();
    assert!(run(folder.path(), &["migrate", "up"]).status.success());
    Service::of(folder.path()).await.publish("order.placed", "customer-1", 1).await;
    assert_eq!(output(folder.path(), &["work", "--once"]).remove(0)["done"], 2);
    let requests = receiver.requests();
    let paths: HashSet<&str> = requests.iter().map(|request| &*request.path).collect();
    assert_eq!(paths, HashSet::from(["/ledger", "/orders"]));
    // A service that takes both can tell them apart, because each has an id of its own.
    assert_ne!(requests[0].header("idempotency-key"), requests[1].header("idempotency-key"));
}

// Several threads: the receiver responds while the test waits for the command.
#[tokio::test(flavor = "multi_thread")]
async fn with_accept_only_other_processes_send() {
    let receiver = Receiver::start([]).await;
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("oncebox.toml"), relay_to(&receiver.address, "")).unwrap();
    let gateway = TestGateway::start_with(folder, &["--accept-only"]);
    gateway.line("relays        run in other processes").await;
    Service::of(gateway.path()).await.publish("order.placed", "customer-1", 1).await;
    assert_eq!(output(gateway.path(), &["work", "--once"]).remove(0)["done"], 1);
    assert_eq!(receiver.requests().len(), 1);
}

#[tokio::test]
async fn a_removed_relay_is_refused_and_can_be_revived() {
    let receiver = Receiver::start([]).await;
    let folder = tempfile::tempdir().unwrap();
    let config = relay_to(&receiver.address, "");
    std::fs::write(folder.path().join("oncebox.toml"), &config).unwrap();
    for command in [&["migrate", "up"][..], &["work", "--once"], &["handlers", "remove", "billing", "--yes"]]
    {
        assert!(run(folder.path(), command).status.success(), "{command:?}");
    }
    for command in [&["work", "--once"][..], &["serve", "--listen", "127.0.0.1:0"]] {
        let refused = run(folder.path(), command);
        assert_eq!(refused.status.code(), Some(2));
        let error = String::from_utf8_lossy(&refused.stderr);
        assert!(error.contains("removed the relay billing: rename [relays.billing]"), "{error}");
        assert!(error.contains("revive = true"), "{error}");
    }
    std::fs::write(folder.path().join("oncebox.toml"), format!("{config}revive = true\n")).unwrap();
    assert!(run(folder.path(), &["work", "--once"]).status.success());
}

/// The pair: one gateway relays to another one, and is killed meanwhile.
#[tokio::test]
async fn a_message_relayed_from_gateway_to_gateway_is_handled_once() {
    const MESSAGES: u32 = 200;
    let ledger = Receiver::start([]).await;
    let to = TestGateway::start(&format!(
        "[http]\ntoken = \"0123456789abcdef\"\n[sources.orders]\norder_header = \"Oncebox-Order-By\"\n\
         [handlers.ledger]\nkinds = [\"order.placed\"]\nurl = \"http://{}/\"\nallow_private = true\nordered = true\n",
        ledger.address
    ));
    let mut from = TestGateway::start(&format!(
        "[relays.billing]\nurl = \"http://{}/in/orders\"\nallow_private = true\n\
         headers = {{ authorization = \"Bearer 0123456789abcdef\" }}\n",
        to.address
    ));
    let service = Service::of(from.path()).await;
    for number in 0..MESSAGES {
        service.publish("order.placed", &format!("customer-{}", number % 5), number).await;
    }
    for received in [20, 100] {
        // Requests are in flight now.
        ledger.wait_for(received).await;
        from.kill_and_restart();
    }
    // Without a limit: the lanes of a killed gateway are free when its lease has expired.
    ledger.wait_for(MESSAGES as usize).await;
    relay_when(from.path(), |relay| relay["lag"] == 0 && relay["tasks"] == 0).await;
    relay_when(to.path(), |handler| handler["lag"] == 0 && handler["tasks"] == 0).await;
    from.health(StatusCode::OK).await;
    let requests = ledger.requests();
    assert_eq!(requests.len(), MESSAGES as usize);
    for (customer, orders) in by_customer(&requests) {
        assert!(orders.is_sorted() && orders.len() == MESSAGES as usize / 5, "{customer}: {orders:?}");
    }
    // The key at the other end is the message's id.
    let ids: HashSet<&str> = requests.iter().map(|request| request.header("oncebox-key")).collect();
    assert_eq!(ids.len(), MESSAGES as usize);
    assert!(ids.iter().all(|id| uuid::Uuid::try_parse(id).is_ok()), "{ids:?}");
    assert!(requests.iter().all(|request| request.header("oncebox-source") == "orders"));
}
