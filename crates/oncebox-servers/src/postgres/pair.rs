//! A primary with a synchronous standby, and the failover to it.

use anyhow::{Context, Result};

use super::{PostgresOptions, PostgresServer};

/// A primary that confirms a commit only when its standby has it on disk too.
///
/// Both are private servers on fixed ports: the next standby listens where the last primary did.
#[derive(Debug)]
pub struct PostgresPair {
    primary: PostgresServer,
    /// `None` after a promotion.
    standby: Option<PostgresServer>,
    ports: [u16; 2],
}

impl PostgresPair {
    /// Starts both, and waits until the standby is synchronous.
    pub async fn start(options: PostgresOptions) -> Result<PostgresPair> {
        // From the start and for both, so that every commit waits for a standby. A promoted server confirms no commit
        // until it has one.
        let options = options.setting("synchronous_standby_names", "*").setting("synchronous_commit", "on");
        let primary = PostgresServer::start(options).await.context("starting the primary")?;
        let standby = primary.start_standby(None).await.context("starting the standby")?;
        primary.wait_for_synchronous_standby().await?;
        let ports = [primary.port(), standby.port()];
        Ok(PostgresPair { primary, standby: Some(standby), ports })
    }

    /// The address of both as the superuser, of the database `postgres`.
    #[must_use]
    pub fn url(&self) -> String {
        let [one, other] = self.ports;
        format!("postgres://postgres@127.0.0.1:{one},127.0.0.1:{other}/postgres")
    }

    /// The server that takes writes, unless it was killed.
    #[must_use]
    pub fn primary(&mut self) -> &mut PostgresServer {
        &mut self.primary
    }

    /// The standby, if there is one.
    #[must_use]
    pub fn standby(&mut self) -> Option<&mut PostgresServer> {
        self.standby.as_mut()
    }

    /// Kills the primary with everything that descends from it, and promotes the standby. Returns what is left of the old
    /// primary: dropping it removes its data.
    pub async fn fail_over(&mut self) -> Result<PostgresServer> {
        let standby = self.standby.take().context("there is no standby to promote")?;
        // Blocks for some milliseconds.
        self.primary.kill()?;
        standby.promote().await?;
        Ok(std::mem::replace(&mut self.primary, standby))
    }

    /// Starts a new standby on the port that is free now, and waits until it is synchronous.
    pub async fn add_standby(&mut self) -> Result<()> {
        let port = self.ports.into_iter().find(|&port| port != self.primary.port());
        self.standby = Some(self.primary.start_standby(port).await.context("starting a new standby")?);
        self.primary.wait_for_synchronous_standby().await
    }
}
