//! A process with a relay, whose receiver is a server on this machine.
//!
//! The relay opens a connection for each wave, and writes a line with the key of each message. For each the receiver responds with a
//! line: `confirmed`, `refused` or `unknown`.

use std::time::Duration;

use anyhow::Result;
use oncebox::{BoxError, Outbox, OutboxStore, Outgoing, Relay, Retry, Sink, Verdict};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::sync::oneshot;

use crate::effects::say;

/// The receiver, by its port.
struct LineReceiver(u16);

impl LineReceiver {
    async fn send(&self, wave: &[Outgoing]) -> Result<Vec<Verdict>, BoxError> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.0)).await?;
        let keys: String = wave.iter().map(|message| format!("{}\n", message.key)).collect();
        stream.write_all(keys.as_bytes()).await?;
        let mut lines = BufReader::new(stream).lines();
        let mut verdicts = Vec::new();
        while verdicts.len() < wave.len() {
            verdicts.push(match lines.next_line().await?.as_deref() {
                Some("confirmed") => Verdict::Confirmed,
                Some("refused") => Verdict::Refused("refused".into()),
                said => Verdict::Unknown(format!("the receiver said {said:?}").into()),
            });
        }
        Ok(verdicts)
    }
}

impl Sink for LineReceiver {
    const WAVE: usize = 20;

    async fn publish(&self, wave: &[Outgoing]) -> Vec<Verdict> {
        match self.send(wave).await {
            Ok(verdicts) => verdicts,
            Err(error) => {
                let text = error.to_string();
                wave.iter().map(|_| Verdict::Unknown(text.clone().into())).collect()
            }
        }
    }
}

/// Sends until the line `stop` comes, and reports as the other roles do.
pub(crate) async fn run<S: OutboxStore>(store: S, port: u16, lease: Duration) -> Result<()> {
    let retry = Retry::new().first_delay(Duration::ZERO).max_delay(Duration::ZERO);
    let relay = Relay::new("events", LineReceiver(port)).in_flight(100).retry(retry);
    let outbox = Outbox::builder(store).lanes(4).lease(lease).relay(relay).build().await?;
    let (stop, stopped) = oneshot::channel::<()>();
    let running = tokio::spawn({
        let outbox = outbox.clone();
        async move { outbox.run(async { drop(stopped.await) }).await }
    });
    say("ready");
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    while let Some(line) = lines.next_line().await? {
        if line == "stop" {
            break;
        }
    }
    drop(stop);
    let report = running.await??;
    say(&format!("report {} {} {} {}", report.done, report.failed, report.dead, report.lease_lost));
    Ok(())
}
