//! A standby: a server that replicates the commits of another one.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use sqlx::ConnectOptions;
use tokio::time::{Instant, sleep};

use super::PostgresServer;
use super::server::superuser_on;

const LIMIT: Duration = Duration::from_secs(60);
const POLL_INTERVAL: Duration = Duration::from_millis(10);

impl PostgresServer {
    /// Copies this server and starts a standby of it, on `port` if that is given.
    pub async fn start_standby(&self, port: Option<u16>) -> Result<PostgresServer> {
        let data = self.data.copy(self.port()).await.context("copying the primary")?;
        match port {
            Some(port) => PostgresServer::on_port(data, port).await,
            None => PostgresServer::on_a_free_port(data).await,
        }
    }

    /// Makes a primary of this standby, and waits until it takes writes.
    pub async fn promote(&self) -> Result<()> {
        let mut connection = superuser_on(self.port()).connect().await.context("asking a standby")?;
        // PostgreSQL waits up to a minute itself; false means that it was not enough.
        let promoted: bool = sqlx::query_scalar("SELECT pg_promote()")
            .fetch_one(&mut connection)
            .await
            .context("promoting")?;
        if !promoted {
            bail!("the standby on port {} was not promoted in time", self.port());
        }
        Ok(())
    }

    /// Waits until this server confirms commits only when a standby has them on disk.
    pub(super) async fn wait_for_synchronous_standby(&self) -> Result<()> {
        let mut connection = superuser_on(self.port()).connect().await.context("asking the primary")?;
        // A standby that has not caught up can be synchronous too.
        let caught_up = "SELECT EXISTS (SELECT FROM pg_stat_replication WHERE sync_state = 'sync'
            AND state = 'streaming' AND flush_lsn >= pg_current_wal_flush_lsn())";
        let deadline = Instant::now() + LIMIT;
        while !sqlx::query_scalar::<_, bool>(caught_up).fetch_one(&mut connection).await? {
            if Instant::now() > deadline {
                bail!("no standby became synchronous within {LIMIT:?}");
            }
            sleep(POLL_INTERVAL).await;
        }
        Ok(())
    }
}
