//! The gateway: requests, responses and deliveries.

use std::collections::HashSet;
use std::time::Duration;

use reqwest::StatusCode;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::gateway::{TestGateway, body_of, json as output, run};
use crate::receiver::{Receiver, ServiceResponse, status};

fn keys(value: &Value) -> Vec<&str> {
    value.as_object().unwrap().keys().map(String::as_str).collect()
}

/// A handler that posts to a receiver, with short delays between attempts.
fn posting_to(receiver: &Receiver, more: &str) -> String {
    format!(
        "[handlers.receipts]\nkinds = [\"paid\"]\nurl = \"http://{}/receipts\"\nallow_private = true\n\
         retry = {{ max_attempts = 4, first_delay = \"10ms\", max_delay = \"50ms\" }}\n{more}",
        receiver.address
    )
}

#[tokio::test]
async fn with_no_configuration_messages_are_accepted_once() {
    let gateway = TestGateway::start("");
    let first = gateway.post("shop", "o-1", "{\"order\":1}").await;
    assert_eq!(first.status(), StatusCode::ACCEPTED);
    let first: Value = body_of(first).await;
    let again = gateway.post("shop", "o-1", "{\"order\":1}").await;
    assert_eq!(again.status(), StatusCode::OK);
    let again: Value = body_of(again).await;
    assert_eq!(keys(&first), keys(&again));
    assert_eq!((&first["status"], &again["status"]), (&json!("accepted"), &json!("duplicate")));
    for same in ["source", "kind", "key", "lane", "position"] {
        assert_eq!(first[same], again[same], "{same}");
    }
    // The same key from another source is another message.
    assert_eq!(gateway.post("bank", "o-1", "{\"order\":1}").await.status(), StatusCode::ACCEPTED);

    let other_body = gateway.post("shop", "o-1", "{\"order\":2}").await;
    assert_eq!(other_body.status(), StatusCode::CONFLICT);
    let other_body: Value = body_of(other_body).await;
    assert_eq!(other_body["error"], "key_reuse");
    assert!(other_body["message"].as_str().unwrap().contains("\"o-1\""), "{other_body}");
    let without_key =
        gateway.client.post(format!("http://{}/in/shop", gateway.address)).body("x").send().await.unwrap();
    assert_eq!(without_key.status(), StatusCode::BAD_REQUEST);
    let without_key: Value = body_of(without_key).await;
    assert_eq!(without_key["error"], "missing_key");
    let large = "x".repeat(1 << 20) + "x";
    assert_eq!(gateway.post("shop", "large", &large).await.status(), StatusCode::PAYLOAD_TOO_LARGE);
    assert_eq!(gateway.post("shop", "as large as can be", &large[1..]).await.status(), StatusCode::ACCEPTED);
    assert_eq!(gateway.post("a%20b", "1", "x").await.status(), StatusCode::NOT_FOUND);
    let not_utf8 = gateway.post("%ff", "1", "x").await;
    assert_eq!(not_utf8.status(), StatusCode::NOT_FOUND);
    assert_eq!(body_of(not_utf8).await["error"], "unknown_source");
    for (path, status, error) in [
        ("/in/shop", StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed"),
        ("/shop", StatusCode::NOT_FOUND, "not_found"),
    ] {
        let refused = gateway.get(path).await;
        assert_eq!(refused.status(), status);
        let body: Value = body_of(refused).await;
        assert_eq!(body["error"], error);
        assert!(body["message"].as_str().unwrap().contains(path), "{body}");
    }
    let url = format!("http://{}/in/shop", gateway.address);
    let from_a_page =
        gateway.client.post(&url).header("Origin", "https://elsewhere.example").header("webhook-id", "1");
    let from_a_page = from_a_page.send().await.unwrap();
    assert_eq!(from_a_page.status(), StatusCode::FORBIDDEN);
    let from_a_page: Value = body_of(from_a_page).await;
    assert_eq!(from_a_page["error"], "forbidden_origin");
    assert!(from_a_page["message"].as_str().unwrap().contains("https://elsewhere.example"), "{from_a_page}");
    let odd = reqwest::header::HeaderValue::from_bytes(b"caf\xe9").unwrap();
    let odd = gateway
        .client
        .post(&url)
        .header("x-other", odd.clone())
        .header("webhook-id", "odd")
        .send()
        .await
        .unwrap();
    assert_eq!(odd.status(), StatusCode::ACCEPTED, "a header that no rule needs may be unreadable");
    assert_eq!(gateway.get("/healthz").await.status(), StatusCode::OK);
    let metrics = gateway.get("/metrics").await.text().await.unwrap();
    assert!(metrics.contains("oncebox_accepted_total{kind=\"shop\"} 3"), "{metrics}");

    let (code, folder) = gateway.stop().await;
    assert_eq!(code, Some(0));
    // Accepted messages survive a restart.
    let gateway = TestGateway::start_in(folder);
    assert_eq!(gateway.post("shop", "o-1", "{\"order\":1}").await.status(), StatusCode::OK);
}

#[tokio::test]
async fn a_request_without_the_token_is_refused() {
    let gateway = TestGateway::start("[http]\ntoken = \"0123456789abcdef\"");
    let request = |token: Option<&str>| {
        let request =
            gateway.client.post(format!("http://{}/in/shop", gateway.address)).header("webhook-id", "1");
        token
            .map_or_else(
                || request.try_clone().unwrap(),
                |token| request.try_clone().unwrap().bearer_auth(token),
            )
            .send()
    };
    for (token, problem) in [(None, "no token"), (Some("0123456789abcdeX"), "wrong token")] {
        let refused = request(token).await.unwrap();
        assert_eq!(refused.status(), StatusCode::UNAUTHORIZED);
        let body: Value = body_of(refused).await;
        assert_eq!(body["error"], "unauthorized");
        assert!(body["message"].as_str().unwrap().contains(problem), "{body}");
    }
    assert_eq!(request(Some("0123456789abcdef")).await.unwrap().status(), StatusCode::ACCEPTED);
    let lower = gateway.client.post(format!("http://{}/in/shop", gateway.address)).header("webhook-id", "2");
    let lower = lower.header("authorization", "bearer 0123456789abcdef").send().await.unwrap();
    assert_eq!(lower.status(), StatusCode::ACCEPTED, "the scheme is case-insensitive");
    assert_eq!(gateway.get("/metrics").await.status(), StatusCode::UNAUTHORIZED);
    assert_eq!(gateway.get("/healthz").await.status(), StatusCode::OK);
}

/// A fallback to another key would merge two messages, or split one.
#[tokio::test]
async fn an_unreadable_key_has_no_fallback() {
    let gateway = TestGateway::start("");
    let odd = reqwest::header::HeaderValue::from_bytes(b"caf\xe9").unwrap();
    let post =
        || gateway.client.post(format!("http://{}/in/shop", gateway.address)).header("webhook-id", "1");
    let unreadable = post().header("Idempotency-Key", odd.clone()).send().await.unwrap();
    let several = post().header("Idempotency-Key", "a").header("Idempotency-Key", "b").send().await.unwrap();
    for refused in [unreadable, several] {
        assert_eq!(refused.status(), StatusCode::BAD_REQUEST);
        let text = refused.text().await.unwrap();
        assert!(text.starts_with("{\"status\":\"refused\",\"error\":\"bad_key\",\"message\":"), "{text}");
        assert!(text.contains("Idempotency-Key"), "{text}");
    }
    let kind = post().header("ce-type", odd).send().await.unwrap();
    assert_eq!(body_of(kind).await["error"], "malformed");
    assert_eq!(post().send().await.unwrap().status(), StatusCode::ACCEPTED);
}

/// A client that sends nothing, or half of a head, cannot hold a connection.
#[tokio::test]
async fn a_connection_without_a_complete_head_is_closed() {
    let gateway = TestGateway::start_with(tempfile::tempdir().unwrap(), &["--head-timeout", "300ms"]);
    let request = "POST /in/shop HTTP/1.1\r\nHost: x\r\nwebhook-id: 1\r\nContent-Length: 1\r\n\r\nx";
    let (head, body) = request.split_at(request.len() - 1);
    let slow = [&head.replace(": 1\r", ": 2\r"), &*body.repeat(2)];
    for (parts, response) in [
        (["", ""], ""),
        ([&request[..40], ""], ""),
        ([request, ""], "HTTP/1.1 20"),
        // A body has its own time.
        (slow, "HTTP/1.1 20"),
    ] {
        // On a busy machine the time limit may be over before anything is sent.
        let mut received = Vec::new();
        while received.last().is_none_or(|last: &Option<String>| {
            last.as_ref().is_none_or(|last| last.is_empty() != response.is_empty())
        }) {
            assert!(received.len() < 50, "{parts:?}: {received:?}");
            received.push(exchange(&gateway, parts).await);
        }
        let received = received.pop().flatten().unwrap();
        assert!(received.starts_with(response), "{received}");
    }
    let (code, _folder) = gateway.stop().await;
    assert_eq!(code, Some(0));
}

/// Sends the first part and, after three times the time limit for a head, the second one. Returns everything that the gateway
/// sends until it closes the connection, or `None` after an error.
async fn exchange(gateway: &TestGateway, [first, second]: [&str; 2]) -> Option<String> {
    let mut connection = TcpStream::connect(&gateway.address).await.unwrap();
    connection.write_all(first.as_bytes()).await.ok()?;
    if !second.is_empty() {
        tokio::time::sleep(Duration::from_millis(900)).await;
        connection.write_all(second.as_bytes()).await.ok()?;
    }
    let mut received = String::new();
    let read = timeout(Duration::from_secs(300), connection.read_to_string(&mut received)).await;
    read.expect("the connection is still open").ok()?;
    Some(received)
}

/// A sender that waits for `100 Continue` sends no body that is too large.
#[tokio::test]
async fn an_announced_body_that_is_too_large_is_refused_before_it_is_sent() {
    let gateway = TestGateway::start("[http]\nmax_body_bytes = 4");
    for (length, first) in [(5, "HTTP/1.1 413"), (4, "HTTP/1.1 100")] {
        let mut connection = TcpStream::connect(&gateway.address).await.unwrap();
        let head = format!(
            "POST /in/shop HTTP/1.1\r\nHost: x\r\nwebhook-id: 1\r\nExpect: 100-continue\r\nContent-Length: {length}\r\n\r\n"
        );
        connection.write_all(head.as_bytes()).await.unwrap();
        let mut response = [0; 12];
        connection.read_exact(&mut response).await.unwrap();
        assert_eq!(String::from_utf8_lossy(&response), first);
    }
}

/// Its messages would end with the program.
#[test]
fn a_database_in_memory_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let config = "[handlers.h]\nkinds = [\"k\"]\ncommand = [\"cat\"]\n";
    std::fs::write(folder.path().join("oncebox.toml"), config).unwrap();
    for url in ["sqlite::memory:", "sqlite://:memory:", "sqlite://x.db?mode=memory"] {
        for command in [&["serve", "--listen", "127.0.0.1:0"][..], &["accept", "--source", "s"], &["work"]] {
            let refused = run(folder.path(), &[command, &["--store", url]].concat());
            assert_eq!(refused.status.code(), Some(2), "{refused:?}");
            let error_text = String::from_utf8_lossy(&refused.stderr);
            assert!(
                error_text.contains("in memory loses") && error_text.contains("sqlite://oncebox.db"),
                "{error_text}"
            );
        }
    }
}

#[test]
fn a_removed_handler_is_refused_and_can_be_revived() {
    let folder = tempfile::tempdir().unwrap();
    let config = "[handlers.archive]\nkinds = [\"k\"]\ncommand = [\"cat\"]\n";
    std::fs::write(folder.path().join("oncebox.toml"), config).unwrap();
    for command in [&["migrate", "up"][..], &["work", "--once"], &["handlers", "remove", "archive", "--yes"]]
    {
        assert!(run(folder.path(), command).status.success(), "{command:?}");
    }
    let refused = run(folder.path(), &["work", "--once"]);
    assert_eq!(refused.status.code(), Some(2));
    let error_text = String::from_utf8_lossy(&refused.stderr);
    assert!(
        error_text.contains("[handlers.archive]") && error_text.contains("revive = true"),
        "{error_text}"
    );
    std::fs::write(folder.path().join("oncebox.toml"), format!("{config}revive = true\n")).unwrap();
    assert!(run(folder.path(), &["work", "--once"]).status.success());
}

#[test]
fn a_wrong_configuration_is_refused_before_anything_is_created() {
    let folder = tempfile::tempdir().unwrap();
    let nowhere = run(folder.path(), &["serve", "--listen", "foo"]);
    assert_eq!(nowhere.status.code(), Some(2));
    assert!(
        String::from_utf8_lossy(&nowhere.stderr)
            .contains("invalid listen address \"foo\": write IP:PORT, for example 127.0.0.1:8080"),
        "{nowhere:?}"
    );
    std::fs::write(folder.path().join("oncebox.toml"), "[http]\nlisten = \"0.0.0.0:0\"\n").unwrap();
    let exposed = run(folder.path(), &["serve"]);
    assert_eq!(exposed.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&exposed.stderr).contains("oncebox.toml:2: 0.0.0.0:0"), "{exposed:?}");
    std::fs::write(folder.path().join("oncebox.toml"), "").unwrap();
    let open = run(folder.path(), &["serve", "--listen", "0.0.0.0:0"]);
    assert_eq!(open.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&open.stderr).contains("ONCEBOX_TOKEN"), "{open:?}");
    std::fs::write(folder.path().join("oncebox.toml"), "[handlers.h]\nkinds = [\"k\"]\nurl = 7\n").unwrap();
    let wrong = run(folder.path(), &["serve"]);
    assert_eq!(wrong.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&wrong.stderr).contains("oncebox.toml:3"), "{wrong:?}");
    std::fs::write(folder.path().join("oncebox.toml"), "[store]\nmigrate = false\n").unwrap();
    let no_tables = run(folder.path(), &["serve", "--listen", "127.0.0.1:0"]);
    assert_eq!(no_tables.status.code(), Some(4));
    assert!(String::from_utf8_lossy(&no_tables.stderr).contains("run `oncebox migrate up`"), "{no_tables:?}");
    let missing = run(folder.path(), &["serve", "--config", "other.toml"]);
    assert_eq!(missing.status.code(), Some(2));
    assert!(!folder.path().join("oncebox.db").exists());
    let no_store = run(
        folder.path(),
        &["--config", "/dev/null", "serve", "--store", "mysql://x/y", "--listen", "127.0.0.1:0"],
    );
    assert_eq!(no_store.status.code(), Some(2));
}

#[tokio::test]
async fn a_message_is_delivered_until_the_service_succeeds() {
    let later = ServiceResponse { headers: vec![("retry-after", "1".to_owned())], ..status(429) };
    let receiver = Receiver::start([status(500), later]).await;
    let gateway = TestGateway::start(&posting_to(&receiver, ""));
    let request = gateway.client.post(format!("http://{}/in/shop", gateway.address));
    let request = request.header("ce-id", "e-1").header("ce-source", "/orders").header("ce-type", "paid");
    let trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let request = request.header("traceparent", trace).header("content-type", "application/json");
    let request = request.header("authorization", "Bearer of the sender").body("{\"order\":1}");
    assert_eq!(request.send().await.unwrap().status(), StatusCode::ACCEPTED);
    let requests = receiver.wait_for(3).await;
    let waited = requests[2].at.duration_since(requests[1].at);
    assert!(waited >= Duration::from_millis(900), "Retry-After was 1 s: {waited:?}");
    let effects: HashSet<&str> = requests.iter().map(|request| request.header("idempotency-key")).collect();
    assert_eq!(effects.len(), 1);
    for (request, attempt) in requests.iter().zip(["1", "2", "3"]) {
        assert_eq!((&*request.body, &*request.path), ("{\"order\":1}", "/receipts"));
        assert_eq!(request.header("oncebox-attempt"), attempt);
        assert_eq!(request.header("oncebox-effect-id"), request.header("idempotency-key"));
        assert_eq!((request.header("oncebox-handler"), request.header("oncebox-kind")), ("receipts", "paid"));
        assert_eq!(
            (request.header("oncebox-source"), request.header("oncebox-key")),
            ("shop", "/orders e-1")
        );
        assert_eq!((request.header("content-type"), request.header("ce-id")), ("application/json", "e-1"));
        assert!(request.header("traceparent").starts_with("00-4bf92f3577b34da6a3ce929d0e0e4736-"));
        assert!(!request.headers.contains_key("authorization"));
    }
    let spans: HashSet<&str> = requests.iter().map(|request| request.header("traceparent")).collect();
    assert_eq!(spans.len(), 3);
    let (code, folder) = gateway.stop().await;
    assert_eq!(code, Some(0));
    assert_eq!(receiver.requests().len(), 3, "no further delivery");
    let status = output(folder.path(), &["handlers", "list"]).remove(0);
    assert_eq!((&status["lag"], &status["tasks"], &status["dead"]), (&0.into(), &0.into(), &0.into()));
}

#[tokio::test]
async fn headers_of_a_connection_are_not_forwarded_and_a_replay_is_marked() {
    let receiver = Receiver::start([]).await;
    let gateway = TestGateway::start(&posting_to(&receiver, ""));
    let request = gateway.client.post(format!("http://{}/in/shop", gateway.address));
    let request = request.header("webhook-id", "1").header("ce-type", "paid");
    let request = request.header("connection", "keep-alive, X-Hop").header("x-hop", "1").header("x-end", "2");
    assert_eq!(request.send().await.unwrap().status(), StatusCode::ACCEPTED);
    let first = receiver.wait_for(1).await.remove(0);
    assert_eq!((first.header("content-length"), first.header("x-end")), ("0", "2"));
    assert!(!first.headers.contains_key("x-hop") && !first.headers.contains_key("oncebox-replay"));

    output(gateway.path(), &["handlers", "replay", "receipts", "--all"]);
    let again = receiver.wait_for(2).await.remove(1);
    assert_eq!(again.header("oncebox-replay"), "true");
    assert_eq!(again.header("idempotency-key"), first.header("idempotency-key"));
}

/// A fixed key would make all messages duplicates of one, and a fixed length would cut them.
#[test]
fn headers_that_the_gateway_sets_cannot_be_configured() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["Idempotency-Key", "Oncebox-Effect-Id", "traceparent", "content-length", "Transfer-Encoding"]
    {
        let config = format!(
            "[handlers.h]\nkinds = [\"shop\"]\nurl = \"https://example.com/\"\nheaders = {{ x-tenant = \"a\", {name} = \"1\" }}\n"
        );
        std::fs::write(folder.path().join("oncebox.toml"), config).unwrap();
        let refused = run(folder.path(), &["serve", "--listen", "127.0.0.1:0"]);
        assert_eq!(refused.status.code(), Some(2), "{name}");
        let error_text = String::from_utf8_lossy(&refused.stderr);
        assert!(error_text.contains("oncebox.toml:4") || error_text.contains("line 4"), "{error_text}");
    }
}

#[tokio::test]
async fn a_refused_message_is_a_dead_letter_until_an_operator_retries_it() {
    let receiver = Receiver::start([status(422), status(500), status(500), status(500), status(302)]).await;
    let gateway = TestGateway::start(&posting_to(&receiver, ""));
    let folder = gateway.path().to_owned();
    let dead = |id: &str| {
        let (folder, id) = (folder.clone(), id.to_owned());
        async move {
            loop {
                let letters = output(&folder, &["dead", "list"]);
                let found = letters
                    .iter()
                    .find(|letter| letter["key"].as_str().is_some_and(|key| key.ends_with(&id)));
                if let Some(letter) = found {
                    return letter.clone();
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    };
    send(&gateway, "refused").await;
    let letter = dead("refused").await;
    assert!(letter["error"].as_str().unwrap().starts_with("422"), "{letter}");
    assert_eq!(receiver.requests().len(), 1, "another attempt would get the same response");
    // A redirect, which is not followed, is the response to the last of four attempts.
    send(&gateway, "flaky").await;
    let letter = dead("flaky").await;
    assert!(letter["error"].as_str().unwrap().starts_with("302"), "{letter}");
    assert_eq!(receiver.requests().len(), 5);

    let retried = output(&folder, &["dead", "retry", "--handler", "receipts", "--error", "422"]);
    assert_eq!(retried.len(), 1);
    let requests = receiver.wait_for(6).await;
    assert_eq!(requests[5].header("idempotency-key"), requests[0].header("idempotency-key"));
    assert_eq!(requests[5].header("oncebox-attempt"), "1", "all attempts are available again");
}

async fn send(gateway: &TestGateway, key: &str) {
    let request = gateway.client.post(format!("http://{}/in/shop", gateway.address));
    let sent = request.header("webhook-id", key).header("ce-type", "paid").body("{}").send().await.unwrap();
    assert_eq!(sent.status(), StatusCode::ACCEPTED);
}

/// Later messages of a customer wait for the retries of the first.
#[tokio::test]
async fn an_ordered_handler_gets_messages_in_order() {
    let receiver = Receiver::start([status(503), status(503)]).await;
    let source = "[sources.shop]\nkind = \"paid\"\norder_pointer = \"/customer\"\n";
    let gateway = TestGateway::start(&format!(
        "{source}{}",
        posting_to(&receiver, "ordered = true\nconcurrency = 1\n")
    ));
    for (key, body) in
        [("1", "{\"customer\":1}"), ("2", "{\"customer\":1,\"n\":2}"), ("3", "{\"customer\":1,\"n\":3}")]
    {
        gateway.accept("shop", key, body).await;
    }
    let requests = receiver.wait_for(5).await;
    let keys: Vec<&str> = requests.iter().map(|request| request.header("oncebox-key")).collect();
    assert_eq!(keys, ["1", "1", "1", "2", "3"]);
}

/// A delivery in flight at a SIGTERM is finished, and not repeated.
#[tokio::test]
async fn a_graceful_shutdown_finishes_deliveries() {
    let slow = ServiceResponse { delay: Duration::from_secs(1), ..status(200) };
    let receiver = Receiver::start([slow]).await;
    let gateway = TestGateway::start(&posting_to(&receiver, ""));
    send(&gateway, "slow").await;
    receiver.wait_for(1).await;
    let (code, folder) = gateway.stop().await;
    assert_eq!(code, Some(0));
    let gateway = TestGateway::start_in(folder);
    send(&gateway, "next").await;
    let requests = receiver.wait_for(2).await;
    assert_eq!(requests[1].header("oncebox-key"), "next");
    assert_eq!(requests.len(), 2);
}

/// The database is locked: the sender gets 503 and sends again, and nothing is lost or doubled.
#[tokio::test]
async fn a_store_that_does_not_respond_is_no_acknowledgement() {
    let gateway = TestGateway::start("");
    gateway.accept("shop", "before", "x").await;
    let url = format!("sqlite://{}", gateway.path().join("oncebox.db").display());
    let other = sqlx::SqlitePool::connect(&url).await.unwrap();
    let mut held = other.acquire().await.unwrap();
    sqlx::query("begin immediate").execute(&mut *held).await.unwrap();
    let refused = gateway.post("shop", "during", "x").await;
    assert_eq!(refused.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert!(refused.headers().contains_key("retry-after"));
    // Reading still works, but the health check fails too.
    assert_eq!(gateway.get("/healthz").await.status(), StatusCode::SERVICE_UNAVAILABLE);
    sqlx::query("rollback").execute(&mut *held).await.unwrap();
    drop(held);
    loop {
        match gateway.post("shop", "during", "x").await.status() {
            StatusCode::ACCEPTED | StatusCode::OK => break,
            status => assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE),
        }
    }
    let kept: i64 =
        sqlx::query_scalar("select count(*) from oncebox_message").fetch_one(&other).await.unwrap();
    assert_eq!(kept, 2);
}

/// The tables are missing.
#[tokio::test]
async fn health_fails_with_the_store() {
    let gateway = TestGateway::start("");
    assert_eq!(gateway.get("/healthz").await.status(), StatusCode::OK);
    let url = format!("sqlite://{}", gateway.path().join("oncebox.db").display());
    let other = sqlx::SqlitePool::connect(&url).await.unwrap();
    sqlx::query("alter table oncebox_live rename to elsewhere").execute(&other).await.unwrap();
    let failing = gateway.get("/healthz").await;
    assert_eq!(failing.status(), StatusCode::SERVICE_UNAVAILABLE);
    let failing = body_of(failing).await;
    assert_eq!(failing["status"], "failing");
    assert!(failing["message"].as_str().is_some_and(|message| !message.is_empty()), "{failing}");
    sqlx::query("alter table elsewhere rename to oncebox_live").execute(&other).await.unwrap();
    assert_eq!(gateway.get("/healthz").await.status(), StatusCode::OK);
}
