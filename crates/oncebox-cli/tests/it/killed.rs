//! A receiver in Python: it and the gateway are killed at random, and each message takes effect once.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use oncebox_servers::skip::skip_or_fail;
use sqlx::SqlitePool;

use crate::gateway::{TestGateway, json};

/// `examples/gateway/receiver.py`, which fails about every third time.
struct PythonReceiver {
    child: Child,
    folder: PathBuf,
    port: String,
}

impl PythonReceiver {
    fn start(folder: &Path, port: &str) -> Self {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/gateway/receiver.py");
        let mut command = Command::new("python3");
        command
            .arg(script)
            .args(["--flaky", "--port", port, "--database", "receipts.db"])
            .current_dir(folder);
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(lines.next().unwrap().unwrap().starts_with("receiving"));
        std::thread::spawn(move || lines.for_each(drop));
        Self { child, folder: folder.to_owned(), port: port.to_owned() }
    }

    fn kill_and_restart(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        let again = Self::start(&self.folder, &self.port);
        let _before = std::mem::replace(self, again);
    }
}

impl Drop for PythonReceiver {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Sends until it is acknowledged, as sources do, and sometimes once more.
async fn deliver(client: reqwest::Client, address: std::sync::Arc<std::sync::Mutex<String>>, n: usize) {
    let mut acknowledged = 0;
    while acknowledged < 1 + n % 2 {
        let url = format!("http://{}/in/shop", address.lock().unwrap());
        let body = format!("{{\"type\":\"order.paid\",\"order\":{n},\"cents\":{n}}}");
        let sent = client.post(url).header("Idempotency-Key", n.to_string()).body(body).send().await;
        match sent {
            Ok(answer) if answer.status().is_success() => acknowledged += 1,
            _ => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
}

#[tokio::test]
async fn each_message_takes_effect_once_although_both_sides_are_killed() {
    const MESSAGES: usize = 300;
    const KILLS: usize = 6;
    if Command::new("python3").arg("--version").output().is_err() {
        return skip_or_fail(
            "each_message_takes_effect_once_although_both_sides_are_killed",
            "python3 is not installed",
        );
    }
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port().to_string();
    let folder = tempfile::tempdir().unwrap();
    let mut receiver = PythonReceiver::start(folder.path(), &free);
    let config = format!(
        "[sources.shop]\nkind_pointer = \"/type\"\n[handlers.receipts]\nkinds = [\"order.paid\"]\n\
         url = \"http://127.0.0.1:{free}/\"\nallow_private = true\ntimeout = \"5s\"\n\
         retry = {{ max_attempts = 1000, first_delay = \"20ms\", max_delay = \"200ms\" }}\n"
    );
    let mut gateway = TestGateway::start(&config);
    let address = std::sync::Arc::new(std::sync::Mutex::new(gateway.address.clone()));
    let senders: Vec<_> = (0..MESSAGES)
        .map(|n| {
            let (client, address) = (gateway.client.clone(), address.clone());
            tokio::spawn(async move {
                // Spread over the time of the kills.
                tokio::time::sleep(Duration::from_millis(20 * n as u64)).await;
                deliver(client, address, n).await;
            })
        })
        .collect();
    for kill in 0..KILLS {
        tokio::time::sleep(Duration::from_millis(900)).await;
        if kill % 2 == 0 {
            gateway.kill_and_restart();
            address.lock().unwrap().clone_from(&gateway.address);
        } else {
            receiver.kill_and_restart();
        }
    }
    for sender in senders {
        sender.await.unwrap();
    }
    let receipts = SqlitePool::connect(&format!("sqlite://{}", folder.path().join("receipts.db").display()))
        .await
        .unwrap();
    let count =
        async |sql: &'static str| -> i64 { sqlx::query_scalar(sql).fetch_one(&receipts).await.unwrap() };
    // Without a limit: in-flight work of a killed gateway is delivered after its lease has expired.
    while count("select count(distinct message) from receipt").await < MESSAGES as i64 {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let (code, _folder) = gateway.stop().await;
    assert_eq!(code, Some(0));
    assert_eq!(count("select count(*) from receipt").await, MESSAGES as i64);
}

/// The example's receiver accepts the message that `serve` prints.
#[tokio::test]
async fn the_printed_request_fits_the_example() {
    if Command::new("python3").arg("--version").output().is_err() {
        return skip_or_fail("the_printed_request_fits_the_example", "python3 is not installed");
    }
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port().to_string();
    let folder = tempfile::tempdir().unwrap();
    let _receiver = PythonReceiver::start(folder.path(), &free);
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/gateway/oncebox.toml");
    let config = std::fs::read_to_string(example).unwrap().replace(":9000", &format!(":{free}"));
    let gateway = TestGateway::start(&config);
    let printed = r#"{"customer":"customer-1","order":1,"type":"order.paid"}"#;
    gateway.accept("shop", "order-1", printed).await;
    loop {
        let status = json(gateway.path(), &["handlers", "list"]);
        let receipts = status.iter().find(|status| status["name"] == "receipts").unwrap();
        assert_eq!(receipts["dead"], 0);
        if (&receipts["lag"], &receipts["tasks"]) == (&0.into(), &0.into()) {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
