//! Connections of senders, and their time limits.

use std::time::Duration;

use axum::Router;
use axum::serve::Listener;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpListener;

/// The time limit for the head of a request, and for an idle connection between two requests.
pub(super) const HEAD_TIMEOUT: &str = "30s";

/// Serves until `stop` resolves, then finishes all requests in flight.
///
/// A connection without a complete head in time is closed. Otherwise a client could hold many connections and send nothing.
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
            // `Listener::accept` waits by itself when the process has no free file descriptor.
            (stream, _) = Listener::accept(&mut listener) => stream,
            () = &mut stop => break,
        };
        let service = TowerToHyperService::new(router.clone());
        let connection = open.watch(http.serve_connection(TokioIo::new(stream), service));
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                // Only for debugging: senders may cut a connection at any time.
                tracing::debug!(%error, "connection closed");
            }
        });
    }
    // First, so that new senders are refused at once and try another gateway.
    drop(listener);
    open.shutdown().await;
}
