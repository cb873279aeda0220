//! The program and RabbitMQ: relays publish to exchanges, and sources consume queues.

use std::collections::HashSet;

use oncebox_servers::rabbitmq::test_vhost;
use reqwest::StatusCode;
use serde_json::json;

use crate::gateway::{TestGateway, json as output, run};
use crate::receiver::Receiver;
use crate::relays::{Service, by_customer};

/// A gateway that consumes a queue, and delivers its messages to an endpoint.
fn consuming(url: &str, address: &str) -> String {
    format!(
        "[brokers.main]\nurl = \"{url}\"\n\
         [sources.orders]\ntype = \"rabbitmq\"\nbroker = \"main\"\nqueue = \"orders\"\ndeclare = \"create\"\n\
         [handlers.billing]\nkinds = [\"order.placed\"]\nurl = \"http://{address}/\"\nallow_private = true\nordered = true\n"
    )
}

/// A gateway that publishes to a queue.
fn publishing(url: &str) -> String {
    format!(
        "[brokers.main]\nurl = \"{url}\"\n\
         [relays.events]\nbroker = \"main\"\nexchange = \"\"\nrouting_key = \"orders\"\nkinds = [\"order.*\"]\n\
         retry = {{ first_delay = \"10ms\", max_delay = \"100ms\", max_attempts = 1000 }}\n"
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn published_messages_reach_the_handler_of_another_gateway_in_order() {
    let Some(vhost) = test_vhost("published_messages_reach_the_handler_of_another_gateway").await else {
        return;
    };
    let receiver = Receiver::start([]).await;
    let mut billing = TestGateway::start(&consuming(&vhost.url(), &receiver.address));
    assert_eq!(billing.line("  source ").await.trim(), "source        orders: queue orders of main");
    let shop = TestGateway::start(&publishing(&vhost.url()));
    let service = Service::of(shop.path()).await;
    let publish = async |numbers: std::ops::Range<u32>| {
        for number in numbers {
            service.publish("order.placed", &format!("customer-{}", number % 3), number).await;
        }
    };
    publish(0..30).await;
    receiver.wait_for(10).await;
    billing.kill_and_restart();
    publish(30..60).await;
    let all = async {
        loop {
            let requests = receiver.requests();
            let keys: HashSet<String> =
                requests.iter().map(|request| request.header("idempotency-key").to_owned()).collect();
            if keys.len() == 60 {
                return requests;
            }
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    };
    let requests = all.await;
    for (customer, mut orders) in by_customer(&requests) {
        // A request without a response is repeated under the same key.
        orders.dedup();
        assert!(orders.is_sorted() && orders.len() == 20, "{customer}: {orders:?}");
    }
    billing.health(StatusCode::OK).await;
    shop.health(StatusCode::OK).await;
    let gateway = billing.address.clone();
    let sources = || output(billing.path(), &["sources", "--gateway", &gateway]).remove(0);
    while sources()["in_flight"] != 0 {
        tokio::task::yield_now().await;
    }
    let source = sources();
    assert_eq!(
        (&source["name"], &source["state"], &source["error"]),
        (&"orders".into(), &"running".into(), &json!(null))
    );
    assert!(source["acknowledged"].as_u64().unwrap() > 0 && source["rejected"] == 0, "{source}");
    let printed = run(billing.path(), &["sources", "--gateway", &gateway]);
    let printed = String::from_utf8(printed.stdout).unwrap();
    assert!(printed.contains("orders") && printed.contains("running"), "{printed}");
    let metrics = billing.get("/metrics").await.text().await.unwrap();
    assert!(metrics.contains("oncebox_source_connected{source=\"orders\"} 1"), "{metrics}");
    assert_eq!(output(shop.path(), &["outbox", "parked"]).len(), 0);

    let doctor = |gateway: &TestGateway| {
        let checks = output(gateway.path(), &["doctor"]).remove(0);
        let of_brokers = |check: &&serde_json::Value| check["id"] == "source" || check["id"] == "relay";
        let found: Vec<_> = checks["checks"].as_array().unwrap().iter().filter(of_brokers).cloned().collect();
        found
    };
    assert_eq!(doctor(&billing)[0]["message"], "orders can consume the queue orders");
    assert_eq!(doctor(&billing)[0]["level"], "ok");
    assert_eq!(doctor(&shop)[0]["message"], "events can publish to the exchange \"\" of main");
    let (code, _folder) = billing.stop().await;
    assert_eq!(code, Some(0));
}

#[tokio::test]
async fn a_broker_that_is_away_shows_in_health_sources_and_doctor() {
    // Closed again at once: nothing listens there.
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let config = consuming(&format!("amqp://ann:secret@127.0.0.1:{port}/%2f"), "127.0.0.1:1");
    let gateway = TestGateway::start(&config);
    let problem = gateway.health(StatusCode::SERVICE_UNAVAILABLE).await;
    assert!(problem.contains("the source \"orders\" cannot be reached"), "{problem}");
    assert!(problem.contains("check that it runs") && !problem.contains("secret"), "{problem}");
    let source = output(gateway.path(), &["sources", "--gateway", &gateway.address]).remove(0);
    assert_eq!((&source["state"], &source["received"]), (&"connecting".into(), &0.into()));
    assert!(source["error"].as_str().unwrap().contains("check that it runs"), "{source}");
    let doctor = run(gateway.path(), &["doctor"]);
    let printed = String::from_utf8(doctor.stdout).unwrap();
    assert_eq!(doctor.status.code(), Some(1), "{printed}");
    assert!(printed.contains("orders: cannot connect to RabbitMQ at 127.0.0.1"), "{printed}");
    assert!(!printed.contains("secret"), "{printed}");
    let (code, _folder) = gateway.stop().await;
    assert_eq!(code, Some(0), "it stops although it waits");
}

#[test]
fn sources_need_a_running_gateway() {
    let folder = tempfile::tempdir().unwrap();
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let asked = run(folder.path(), &["sources", "--gateway", &format!("127.0.0.1:{port}")]);
    let error = String::from_utf8(asked.stderr).unwrap();
    assert_eq!(asked.status.code(), Some(2), "{error}");
    assert!(error.contains("start `oncebox serve`") && error.contains("--gateway"), "{error}");
}
