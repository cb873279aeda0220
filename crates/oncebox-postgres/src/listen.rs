//! Notifications from other processes.

use sqlx::postgres::{PgListener, PgPoolOptions};
use sqlx::{Acquire, ConnectOptions, Connection};
use tokio::time::timeout;

use crate::connection::within;
use crate::connections::Connections;

impl Connections {
    /// Listens on a channel until the connection is lost or gives no response.
    pub(crate) async fn listen(&self, channel: &str, heard: impl Fn() + Send) -> Result<(), sqlx::Error> {
        // Not from the store's pool: a listener returns its connection only after a last statement and its response, which may
        // never come.
        let beside = PgPoolOptions::new()
            .max_connections(1)
            .acquire_timeout(self.answer_timeout)
            .max_lifetime(None)
            .idle_timeout(None)
            .connect_lazy_with(self.servers.pool().connect_options().as_ref().clone());
        let mut listener = PgListener::connect_with(&beside).await?;
        let listening = self.listen_on(&mut listener, channel, heard);
        // Outside of the pool, so it has to watch for the pool's end itself.
        let ended = self.servers.pool().close_event().do_until(listening).await.and_then(|ended| ended);
        self.drop_listener(listener).await;
        ended
    }

    async fn listen_on(
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
                // No message for a while, or a dead connection? A ping tells.
                Err(_quiet) => {
                    let ping = async { listener.acquire().await?.ping().await };
                    within(self.answer_timeout, ping).await?;
                }
            }
        }
    }

    /// Gives a listener a fresh connection for its last statement: on a dead one it would wait for ever.
    async fn drop_listener(&self, mut listener: PgListener) {
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
