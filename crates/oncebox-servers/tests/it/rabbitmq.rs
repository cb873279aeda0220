//! The life of a private RabbitMQ server.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use oncebox_servers::rabbitmq::{self, RabbitOptions, RabbitServer, TestVhost};
use oncebox_servers::skip::skip_or_fail;

use crate::running::runs;

async fn server(test: &str) -> Option<RabbitServer> {
    if rabbitmq::find().expect("the environment names a complete folder or none").is_none() {
        skip_or_fail(test, "RabbitMQ's server programs are not installed");
        return None;
    }
    Some(RabbitServer::start(RabbitOptions::default()).await.expect("RabbitMQ starts"))
}

/// Whether the server greets a client.
fn greets(server: &RabbitServer, limit: Duration) -> bool {
    let Ok(mut client) = TcpStream::connect(("127.0.0.1", server.port())) else { return false };
    client.set_read_timeout(Some(limit)).expect("a limit above 0");
    client.write_all(b"AMQP\0\0\x09\x01").expect("the socket takes eight bytes");
    let mut first = [0];
    client.read_exact(&mut first).is_ok()
}

const LONG: Duration = Duration::from_secs(60);

// One test, because a start takes seconds.
#[tokio::test]
async fn a_server_is_paused_killed_and_restarted_with_its_data() {
    let Some(mut server) = server("a_server_is_paused_killed_and_restarted_with_its_data").await else {
        return;
    };
    assert!(greets(&server, LONG));
    let here = server.fresh_vhost().await.unwrap();
    let there = TestVhost::create_at(&server.test_url()).await.unwrap();
    assert_ne!(here.url(), there.url());
    assert!(there.ctl(&["list_permissions"]).await.unwrap().contains("guest"));

    server.pause().unwrap();
    assert!(!greets(&server, Duration::from_millis(300)));
    server.resume().unwrap();
    assert!(greets(&server, LONG));

    let (url, first) = (server.url(), server.pid().unwrap());
    server.kill().unwrap();
    assert!(!runs(first) && !greets(&server, LONG));
    // It must not leave a port mapper behind that takes the server's port.
    server.ctl(&["list_vhosts"]).await.unwrap_err();
    server.restart().await.unwrap();
    assert_eq!(server.url(), url);
    assert!(server.ctl(&["list_vhosts", "name"]).await.unwrap().contains(here.name()));

    let (second, folder) = (server.pid().unwrap(), server.folder().to_owned());
    server.stop().unwrap();
    assert!(!runs(second));
    drop(server);
    assert!(!folder.exists());
}

#[tokio::test]
async fn a_start_that_fails_shows_the_server_s_log() {
    if rabbitmq::find().unwrap().is_none() {
        return skip_or_fail("a_start_that_fails_shows_the_server_s_log", "RabbitMQ is not installed");
    }
    let options = RabbitOptions::default().setting("heartbeat", "often");
    let error = RabbitServer::start(options).await.unwrap_err().to_string();
    assert!(error.contains("heartbeat"), "{error}");
}
