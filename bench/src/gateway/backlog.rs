//! A slow receiver with a large backlog: the program's memory must not grow.

use std::io::{BufWriter, Write};
use std::time::Duration;

use anyhow::{Result, ensure};
use axum::Router;
use tokio::net::TcpListener;
use tokio::process::Command;
use tokio::time::sleep;

use crate::gateway::program::{Program, executable};
use crate::gateway::{GatewayGround, GatewayOptions};

const SLOW: Duration = Duration::from_millis(50);
const BODY_BYTES: usize = 500;
/// Seconds that do not count, because connections and caches grow first.
const WARM_UP: u32 = 10;

pub(super) async fn measure(
    store: &str,
    ground: &GatewayGround,
    messages: u64,
    options: &GatewayOptions,
) -> Result<()> {
    let url = ground.url("backlog");
    fill(&url, messages).await?;
    let receiver = slow_receiver().await?;
    let config = format!(
        "[handlers.slow]\nkinds = [\"shop\"]\nurl = \"http://{receiver}/\"\nallow_private = true\nconcurrency = 16\n"
    );
    let program = Program::start(&url, &config).await?;
    let mut samples = Vec::new();
    for second in 0..WARM_UP + options.seconds.max(30) {
        sleep(Duration::from_secs(1)).await;
        samples.push(program.memory_kib()?);
        eprintln!("{store}: {second} s, {} KiB", samples[samples.len() - 1]);
    }
    let delivered = program.metric("oncebox_processed_total").await?;
    program.stop().await?;
    let (warm, rest) = samples.split_at(WARM_UP as usize);
    let (before, after) = (warm.iter().max().copied().unwrap_or(0), rest.iter().max().copied().unwrap_or(0));
    let line = serde_json::json!({
        "scenario": "backlog", "store": store, "messages": messages, "delivered": delivered, "seconds": samples.len(),
        "first_10_s_max_kib": before, "then_max_kib": after,
    });
    match options.json {
        true => println!("{line}"),
        false => println!(
            "{store}, {messages} messages for a receiver that takes {} ms: {before} KiB at most in the first {WARM_UP} s, {after} KiB \
             in the {} s after that, {delivered} delivered",
            SLOW.as_millis(),
            rest.len()
        ),
    }
    Ok(())
}

/// Fills the backlog with the program's own `accept`.
async fn fill(url: &str, messages: u64) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("messages");
    let mut file = BufWriter::new(std::fs::File::create(&path)?);
    let padding = "x".repeat(BODY_BYTES);
    for n in 0..messages {
        writeln!(file, "{{\"id\":{n},\"padding\":\"{padding}\"}}")?;
    }
    file.flush()?;
    for arguments in
        [&["migrate", "up"][..], &["accept", "messages", "--source", "shop", "--key-pointer", "/id"]]
    {
        let mut command = Command::new(executable()?);
        command.args(arguments).args(["--store", url]).current_dir(folder.path());
        ensure!(command.status().await?.success(), "the messages could not be accepted");
    }
    Ok(())
}

async fn slow_receiver() -> Result<String> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?.to_string();
    let router = Router::new().fallback(async || {
        sleep(SLOW).await;
        "thank you"
    });
    tokio::spawn(async move {
        if let Err(error) = axum::serve(listener, router).await {
            eprintln!("the receiver broke down: {error}");
        }
    });
    Ok(address)
}
