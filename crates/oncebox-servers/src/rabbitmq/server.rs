//! A running server.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use tokio::time::sleep;

use super::node::{Node, Ports, account};
use super::vhost::{TestVhost, address};
use super::{RabbitOptions, find};
use crate::folder::PrivateFolder;
use crate::process::{OwnedProcess, Signal, describe};

// A busy machine with two cores needs 15 s.
const START_LIMIT: Duration = Duration::from_secs(180);
const POLL_INTERVAL: Duration = Duration::from_millis(50);
const STOP_GRACE: Duration = Duration::from_secs(30);
const PORT_ATTEMPTS: usize = 5;

/// A private RabbitMQ server: loopback only, user and password `guest`, data removed when dropped.
///
/// Data survives [`kill`](Self::kill), [`stop`](Self::stop) and [`restart`](Self::restart).
#[derive(Debug)]
pub struct RabbitServer {
    // Before the folder, so that no process writes there while it is removed.
    processes: Option<Processes>,
    node: Node,
    _folder: PrivateFolder,
}

/// The processes of a running server.
#[derive(Debug)]
struct Processes {
    server: OwnedProcess,
    epmd: OwnedProcess,
}

enum StartResult {
    Ready(Processes),
    PortTaken,
}

impl RabbitServer {
    /// Starts a server and waits until it accepts clients.
    pub async fn start(options: RabbitOptions) -> Result<RabbitServer> {
        let bin = match options.bin {
            Some(bin) => bin,
            None => {
                find()?.context("RabbitMQ's server programs are not installed: install `rabbitmq-server`")?
            }
        };
        let mut log = String::new();
        for _ in 0..PORT_ATTEMPTS {
            let account = account()?;
            let folder = PrivateFolder::create("rabbitmq", account)?;
            let node = Node::create(bin.clone(), folder.path(), account, Ports::free()?, &options.settings)?;
            if let StartResult::Ready(processes) = start(&node).await? {
                return Ok(RabbitServer { processes: Some(processes), node, _folder: folder });
            }
            log = node.log_tail();
        }
        bail!("{PORT_ATTEMPTS} times another process took one of RabbitMQ's free ports:\n{log}")
    }

    /// The address as the user `guest`, of the virtual host `/`.
    #[must_use]
    pub fn url(&self) -> String {
        self.url_of("/")
    }

    /// The address as the user `guest`, of another virtual host.
    #[must_use]
    pub fn url_of(&self, vhost: &str) -> String {
        address(self.port(), vhost)
    }

    /// The address with which another process makes virtual hosts: see [`test_vhost`](super::test_vhost).
    #[must_use]
    pub fn test_url(&self) -> String {
        format!("{}?epmd={}&folder={}", self.url(), self.node.ports.epmd, self.folder().display())
    }

    /// The port, which is the same after a restart.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.node.ports.amqp
    }

    /// The process id of the server, unless it was stopped or killed.
    #[must_use]
    pub fn pid(&self) -> Option<i32> {
        self.processes.as_ref().map(|processes| processes.server.pid().as_raw_nonzero().get())
    }

    /// The folder that holds data and log.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.node.folder()
    }

    /// Runs `rabbitmqctl` with these arguments, and returns what it prints.
    pub async fn ctl(&self, arguments: &[&str]) -> Result<String> {
        self.node.ctl(arguments).await
    }

    /// Creates a virtual host.
    pub async fn fresh_vhost(&self) -> Result<TestVhost> {
        TestVhost::create_on(self.node.clone()).await
    }

    /// Stops all processes of the server where they are, as a machine that hangs: connections stay open, nothing responds.
    pub fn pause(&self) -> Result<()> {
        self.signal(Signal::STOP)
    }

    /// Continues after [`pause`](Self::pause).
    pub fn resume(&self) -> Result<()> {
        self.signal(Signal::CONT)
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        self.processes.as_ref().context("RabbitMQ does not run")?.server.signal(signal)
    }

    /// Shuts the server down in order, or kills it when that takes too long. Blocks meanwhile.
    pub fn stop(&mut self) -> Result<()> {
        if let Some(mut processes) = self.processes.take() {
            processes.server.stop(STOP_GRACE).context("stopping RabbitMQ")?;
            processes.epmd.kill().context("stopping epmd")?;
        }
        Ok(())
    }

    /// Kills all processes of the server at once, as a power cut would. Blocks until all are gone.
    pub fn kill(&mut self) -> Result<()> {
        if let Some(mut processes) = self.processes.take() {
            processes.server.kill().context("killing RabbitMQ")?;
            processes.epmd.kill().context("killing epmd")?;
        }
        Ok(())
    }

    /// Stops the server if it still runs, and starts it again with the same data and ports.
    pub async fn restart(&mut self) -> Result<()> {
        self.stop()?;
        match start(&self.node).await? {
            StartResult::Ready(processes) => self.processes = Some(processes),
            StartResult::PortTaken => {
                bail!("another process took a port of RabbitMQ while it was down:\n{}", self.node.log_tail())
            }
        }
        Ok(())
    }
}

impl Drop for RabbitServer {
    fn drop(&mut self) {
        // Its data goes away with it.
        let _ = self.kill();
    }
}

async fn start(node: &Node) -> Result<StartResult> {
    let logged = node.log_length();
    let mut epmd = OwnedProcess::spawn(&mut node.epmd()?, Signal::TERM, None)?;
    let deadline = Instant::now() + START_LIMIT;
    // A server that finds no epmd starts one of its own.
    while !accepts(node.ports.epmd).await {
        if epmd.ended()?.is_some() || Instant::now() > deadline {
            return Ok(StartResult::PortTaken);
        }
        sleep(POLL_INTERVAL).await;
    }
    let mut server = OwnedProcess::spawn(&mut node.server()?, Signal::TERM, Some(node.folder()))?;
    while Instant::now() < deadline {
        let log = node.log_since(logged);
        // An open port is not enough: it may belong to another server that was faster.
        if log.contains("Server startup complete") {
            return Ok(StartResult::Ready(Processes { server, epmd }));
        }
        if let Some(status) = server.ended()? {
            if log.contains("eaddrinuse") || log.contains("port_not_available") {
                return Ok(StartResult::PortTaken);
            }
            bail!("RabbitMQ did not start, it {}:\n{}", describe(status), node.log_tail());
        }
        sleep(POLL_INTERVAL).await;
    }
    bail!("RabbitMQ did not start within {START_LIMIT:?}:\n{}", node.log_tail())
}

async fn accepts(port: u16) -> bool {
    tokio::net::TcpStream::connect(("127.0.0.1", port)).await.is_ok()
}
