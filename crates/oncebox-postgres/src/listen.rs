//! Notifications from other processes.

use sqlx::postgres::{PgListener, PgPoolOptions};
use sqlx::{Acquire, ConnectOptions, Connection};
use tokio::time::timeout;

use crate::connection::within;
use crate::connections::Connections;

impl Connections {
    /// Listens on a channel until the connection is lost or gives no response.
    pub(crate) async fn hear(&self, channel: &str, heard: impl Fn() + Send) -> Result<(), sqlx::Error> {
        // Beside the store's pool, which is for those who work: a listener gives its connection back only when it has said
        // farewell and was answered.
        let beside = PgPoolOptions::new()
            .max_connections(1)
            .acquire_timeout(self.answer_timeout)
            .max_lifetime(None)
            .idle_timeout(None)
            .connect_lazy_with(self.servers.pool().connect_options().as_ref().clone());
        let mut listener = PgListener::connect_with(&beside).await?;
        let hearing = self.hear_on(&mut listener, channel, heard);
        let ended = self.servers.pool().close_event().do_until(hearing).await.and_then(|ended| ended);
        self.part_from(listener).await;
        ended
    }

    async fn hear_on(
        &self,
        listener: &mut PgListener,
        channel: &str,
        heard: impl Fn() + Send,
    ) -> Result<(), sqlx::Error> {
        within(self.answer_timeout, listener.listen(channel)).await?;
        loop {
            match timeout(self.answer_timeout, listener.try_recv()).await {
                // Nothing means that the connection was lost and found again: something may have been missed.
                Ok(received) => {
                    received?;
                    heard();
                }
                // Is there nothing to hear, or nobody to hear it from?
                Err(_quiet) => {
                    let ping = async { listener.acquire().await?.ping().await };
                    within(self.answer_timeout, ping).await?;
                }
            }
        }
    }

    /// Gives a listener another connection to say farewell on: on one that is silent it would wait for ever.
    async fn part_from(&self, mut listener: PgListener) {
        let replace = async {
            let fresh = self.servers.pool().connect_options().connect().await?;
            *listener.acquire().await? = fresh;
            Ok(())
        };
        if let Err(error) = within(self.answer_timeout, replace).await {
            tracing::debug!(%error, "a listener is left to itself");
        }
    }
}
