//! A server with settings of its own: encrypted, and with a short consumer time-out.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use oncebox_rabbitmq::{Declare, RabbitMq};
use oncebox_servers::port;
use oncebox_servers::rabbitmq::{self, RabbitOptions, RabbitServer};
use oncebox_servers::skip::skip_or_fail;

use crate::client::{Client, next, open, open_error, session_error};

/// An authority, a server's certificate for `localhost`, and a client's certificate.
const CERTIFICATES: &str = r#"
set -e
new="-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes"
openssl req -x509 $new -keyout ca.key -out ca.pem -subj /CN=authority -days 2
for name in server client; do
  openssl req $new -keyout $name.key -out $name.csr -subj /CN=$name
  echo subjectAltName=DNS:localhost > $name.ext
  openssl x509 -req -in $name.csr -CA ca.pem -CAkey ca.key -CAcreateserial -out $name.pem -days 2 -extfile $name.ext
done
chmod 644 *
"#;

fn certificates(folder: &Path) {
    let output = Command::new("/bin/sh").args(["-c", CERTIFICATES]).current_dir(folder).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    // The server has another user.
    fs::set_permissions(folder, Permissions::from_mode(0o755)).unwrap();
}

/// One test, because each start of a server takes seconds.
#[tokio::test]
async fn connections_are_encrypted_and_a_consumer_timeout_is_explained() {
    let test = "connections_are_encrypted_and_a_consumer_timeout_is_explained";
    if rabbitmq::find().unwrap().is_none() || Command::new("openssl").arg("version").output().is_err() {
        return skip_or_fail(test, "RabbitMQ or openssl is not installed");
    }
    let folder = tempfile::tempdir().unwrap();
    certificates(folder.path());
    let file = |name: &str| folder.path().join(name);
    let text = |name: &str| file(name).display().to_string();
    let port = port::free().unwrap();
    let options = RabbitOptions::default()
        .setting("listeners.ssl.1", format!("127.0.0.1:{port}"))
        .setting("ssl_options.cacertfile", text("ca.pem"))
        .setting("ssl_options.certfile", text("server.pem"))
        .setting("ssl_options.keyfile", text("server.key"))
        .setting("ssl_options.verify", "verify_peer")
        .setting("ssl_options.fail_if_no_peer_cert", "true")
        .setting("consumer_timeout", "1000");
    let server = RabbitServer::start(options).await.unwrap();
    // It looks once a minute otherwise. There is no setting for this.
    server.ctl(&["eval", "application:set_env(rabbit, channel_tick_interval, 1000)."]).await.unwrap();
    let broker = || RabbitMq::new(format!("amqps://guest:guest@localhost:{port}/%2f")).unwrap();
    let trusting = || broker().ca(file("ca.pem"));
    let mut source = trusting()
        .client_certificate(file("client.pem"), file("client.key"))
        .queue("orders")
        .declare(Declare::Create);
    let mut session = open(&mut source).await;
    Client::connect(&server.url()).await.publish("orders", "1").await;

    for broker in [
        // An unknown authority, no certificate of the client, another name.
        broker().client_certificate(file("client.pem"), file("client.key")),
        trusting(),
        RabbitMq::new(format!("amqps://guest:guest@127.0.0.1:{port}/%2f"))
            .unwrap()
            .ca(file("ca.pem"))
            .client_certificate(file("client.pem"), file("client.key")),
    ] {
        let error = open_error(&mut broker.queue("orders")).await;
        assert!(error.contains("`ca` and `client_certificate`"), "{error}");
    }

    next(&mut session).await;
    let error = session_error(&mut session).await.report().to_string();
    assert!(error.contains("consumer_timeout"), "{error}");
}
