//! A running server.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use sqlx::postgres::{PgConnectOptions, PgSslMode};
use sqlx::{ConnectOptions, Connection};
use tokio::time::{sleep, timeout};

use super::PostgresOptions;
use super::data::DataFolder;
use crate::port;
use crate::process::{OwnedProcess, describe};

const START_LIMIT: Duration = Duration::from_secs(60);
const ANSWER_LIMIT: Duration = Duration::from_secs(2);
const POLL_INTERVAL: Duration = Duration::from_millis(20);
const STOP_GRACE: Duration = Duration::from_secs(10);
const PORT_ATTEMPTS: usize = 5;

/// A private PostgreSQL server: loopback only, every connection trusted, data removed when dropped.
///
/// Data survives [`kill`](Self::kill), [`stop`](Self::stop) and [`restart`](Self::restart).
#[derive(Debug)]
pub struct PostgresServer {
    // Before the folder, so that no process writes there while it is removed.
    process: Option<OwnedProcess>,
    pub(super) data: DataFolder,
    port: u16,
}

enum StartResult {
    Ready(OwnedProcess),
    PortTaken,
}

impl PostgresServer {
    /// Initialises a data folder, starts a server on it and waits until it responds to queries.
    pub async fn start(options: PostgresOptions) -> Result<PostgresServer> {
        Self::on_a_free_port(DataFolder::initialise(options).await?).await
    }

    pub(super) async fn on_a_free_port(data: DataFolder) -> Result<PostgresServer> {
        for _ in 0..PORT_ATTEMPTS {
            let port = port::free()?;
            if let StartResult::Ready(process) = start_on(&data, port).await? {
                return Ok(PostgresServer { process: Some(process), data, port });
            }
        }
        let log = data.log_tail();
        bail!("each of {PORT_ATTEMPTS} free ports was taken before PostgreSQL could listen on it:\n{log}")
    }

    pub(super) async fn on_port(data: DataFolder, port: u16) -> Result<PostgresServer> {
        match start_on(&data, port).await? {
            StartResult::Ready(process) => Ok(PostgresServer { process: Some(process), data, port }),
            StartResult::PortTaken => bail!("another process listens on port {port}:\n{}", data.log_tail()),
        }
    }

    /// The address as the superuser, of the database `postgres`.
    #[must_use]
    pub fn url(&self) -> String {
        format!("postgres://postgres@127.0.0.1:{}/postgres", self.port)
    }

    /// The port, which is the same after a restart.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The process id of the postmaster, unless the server was stopped or killed.
    #[must_use]
    pub fn pid(&self) -> Option<i32> {
        self.process.as_ref().map(|process| process.pid().as_raw_nonzero().get())
    }

    /// The folder that holds data and log.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.data.root()
    }

    /// Shuts the server down in order, or kills it when that takes too long. Blocks meanwhile.
    pub fn stop(&mut self) -> Result<()> {
        if let Some(mut process) = self.process.take() {
            process.stop(STOP_GRACE).context("stopping PostgreSQL")?;
        }
        Ok(())
    }

    /// Kills the postmaster and every backend at once, as a power cut would. Blocks until all are gone, which
    /// takes some milliseconds.
    pub fn kill(&mut self) -> Result<()> {
        if let Some(mut process) = self.process.take() {
            process.kill().context("killing PostgreSQL")?;
        }
        Ok(())
    }

    /// Stops the server if it still runs, and starts it again with the same data and port.
    pub async fn restart(&mut self) -> Result<()> {
        self.stop()?;
        match start_on(&self.data, self.port).await? {
            StartResult::Ready(process) => self.process = Some(process),
            StartResult::PortTaken => {
                let log = self.data.log_tail();
                bail!("another process took port {} while PostgreSQL was down:\n{log}", self.port)
            }
        }
        Ok(())
    }
}

impl Drop for PostgresServer {
    fn drop(&mut self) {
        let _ = self.stop();
    }
}

async fn start_on(data: &DataFolder, port: u16) -> Result<StartResult> {
    let mut process = data.spawn_server(port)?;
    let deadline = Instant::now() + START_LIMIT;
    let mut last_error = None;
    while Instant::now() < deadline {
        if let Some(status) = process.ended()? {
            if data.lost_its_port() {
                return Ok(StartResult::PortTaken);
            }
            bail!("PostgreSQL did not start, it {}:\n{}", describe(status), data.log_tail());
        }
        // Another process on the port may accept a connection and stay silent.
        match timeout(ANSWER_LIMIT, answers(data, port)).await {
            Ok(Ok(())) => return Ok(StartResult::Ready(process)),
            Ok(Err(error)) => last_error = Some(error),
            Err(elapsed) => last_error = Some(elapsed.into()),
        }
        sleep(POLL_INTERVAL).await;
    }
    let error = last_error.map(|error| format!("{error:#}")).unwrap_or_default();
    bail!("PostgreSQL did not answer within {START_LIMIT:?}: {error}\n{}", data.log_tail())
}

// An open port is not enough. It may belong to another server that was faster, and a server that still
// recovers accepts connections only to refuse them.
async fn answers(data: &DataFolder, port: u16) -> Result<()> {
    let mut connection = superuser_on(port).connect().await?;
    let folder: String =
        sqlx::query_scalar("SELECT current_setting('data_directory')").fetch_one(&mut connection).await?;
    connection.close().await?;
    ensure!(Path::new(&folder) == data.path(), "port {port} belongs to another PostgreSQL server");
    Ok(())
}

/// The connection options of the superuser for the server on this port.
pub(super) fn superuser_on(port: u16) -> PgConnectOptions {
    PgConnectOptions::new_without_pgpass()
        .host("127.0.0.1")
        .port(port)
        .username("postgres")
        .database("postgres")
        .ssl_mode(PgSslMode::Disable)
}
