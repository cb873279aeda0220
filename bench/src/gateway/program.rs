//! The program as its users start it.

use std::path::PathBuf;
use std::process::Stdio;

use anyhow::{Context, Result, bail};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::process::{Child, Command};

pub(super) struct Program {
    child: Child,
    address: String,
    // Only kept: dropping it would delete the folder in which the program runs.
    _folder: TempDir,
}

/// The program, which is built into the folder of this one.
pub(super) fn executable() -> Result<PathBuf> {
    let beside = std::env::current_exe()?.with_file_name("oncebox");
    if !beside.exists() {
        bail!("{} is not there: `cargo xtask bench gateway` builds it", beside.display());
    }
    Ok(beside)
}

impl Program {
    /// Starts the program with this configuration.
    pub(super) async fn start(store: &str, config: &str) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        std::fs::write(folder.path().join("oncebox.toml"), config)?;
        let mut command = Command::new(executable()?);
        command.args(["serve", "--listen", "127.0.0.1:0", "--store", store]).current_dir(folder.path());
        command.stdout(Stdio::piped()).stderr(Stdio::null()).kill_on_drop(true);
        let mut child = command.spawn().context("starting the program")?;
        let mut lines = BufReader::new(child.stdout.take().context("its output")?).lines();
        let address = loop {
            let line = lines.next_line().await?.context("the program did not start")?;
            if let Some((_, rest)) = line.split_once("http://")
                && let Some((address, _)) = rest.split_once("/in/")
            {
                break address.to_owned();
            }
        };
        // Reads on, because the program would block on a full pipe.
        tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
        Ok(Self { child, address, _folder: folder })
    }

    pub(super) fn url(&self) -> String {
        format!("http://{}/in/shop", self.address)
    }

    /// The value of one of its metrics, summed over all labels.
    pub(super) async fn metric(&self, name: &str) -> Result<f64> {
        let mut stream = TcpStream::connect(&self.address).await?;
        // With `Connection: close`, because the response is read to the end of the connection.
        let request = format!("GET /metrics HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", self.address);
        stream.write_all(request.as_bytes()).await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        let values = answer.lines().filter(|line| line.starts_with(name));
        Ok(values.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum())
    }

    /// The number of messages that it has accepted.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a count")]
    pub(super) async fn accepted(&self) -> Result<u64> {
        Ok(self.metric("oncebox_accepted_total").await? as u64)
    }

    /// Its resident memory, in KiB.
    pub(super) fn memory_kib(&self) -> Result<u64> {
        let id = self.child.id().context("the program has ended")?;
        let status = std::fs::read_to_string(format!("/proc/{id}/status"))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS")?;
        Ok(line.trim().trim_end_matches(" kB").parse()?)
    }

    pub(super) async fn stop(mut self) -> Result<()> {
        Ok(self.child.kill().await?)
    }
}
