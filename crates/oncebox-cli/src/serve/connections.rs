//! Connections of senders, and how long each may take.

use std::time::Duration;

use axum::Router;
use axum::serve::Listener;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpListener;

/// A sender has so long to send the head of a request, and a connection may be idle for so long between two.
pub(super) const HEAD_TIMEOUT: &str = "30s";

/// Serves until it is told to stop, and then until every request in hand is answered.
///
/// A connection on which no whole head comes in time is closed: whoever opens many and says nothing keeps none of them.
pub(super) async fn serve(
    mut listener: TcpListener,
    router: Router,
    head_timeout: Duration,
    stop: impl Future<Output = ()>,
) {
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(head_timeout);
    let open = GracefulShutdown::new();
    let mut stop = std::pin::pin!(stop);
    loop {
        let stream = tokio::select! {
            // It waits by itself where no connection can be accepted.
            (stream, _) = Listener::accept(&mut listener) => stream,
            () = &mut stop => break,
        };
        let service = TowerToHyperService::new(router.clone());
        let connection = open.watch(http.serve_connection(TokioIo::new(stream), service));
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "a connection has ended");
            }
        });
    }
    drop(listener);
    open.shutdown().await;
}
