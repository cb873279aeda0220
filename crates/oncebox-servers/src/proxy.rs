//! A proxy in front of PostgreSQL that loses messages on request.
//!
//! It reads the client's messages one by one, so that it knows when a whole `COMMIT` has been passed on. Then it can keep the
//! response to itself: the client cannot know whether the commit happened. It did. A connection that is *cut* is closed on both
//! sides, which both sides notice. One that is *silent* stays open and passes nothing any more in either direction, as a
//! connection does whose peer has lost its power, or behind a firewall that has forgotten it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, Result, bail};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};

/// Larger messages than tests send.
const MESSAGE_BYTES_MAX: usize = 64 * 1024 * 1024;
const STARTUP_VERSION_3: [u8; 4] = 196_608_u32.to_be_bytes();

/// Passes everything on until a fault is requested. Dropping it closes all connections.
#[derive(Debug)]
pub struct FaultyProxy {
    address: SocketAddr,
    state: Arc<ProxyState>,
    accepting: JoinHandle<()>,
}

#[derive(Debug, Default)]
struct ProxyState {
    cuts_left: AtomicU32,
    silent_commits_left: AtomicU32,
    silent_newcomers_left: AtomicU32,
    /// How many requests are passed on before one is not, plus one; 0 for all of them.
    requests_left: AtomicU32,
    /// Changes when all connections that are there are to be silent.
    all: watch::Sender<()>,
    cuts: AtomicU32,
    silences: AtomicU32,
}

/// The fate of a connection that is no longer passed on.
enum ConnectionFate {
    /// The client sent a commit and must not receive the response.
    Unanswered {
        commit: Vec<u8>,
        is_cut: bool,
    },
    Silent,
}

impl FaultyProxy {
    /// Starts a proxy in front of the server on this loopback port.
    pub async fn start(server_port: u16) -> Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.context("listening for the proxy")?;
        let address = listener.local_addr().context("the proxy's own address")?;
        let state = Arc::<ProxyState>::default();
        let accepting = tokio::spawn({
            let state = state.clone();
            async move {
                let mut connections = JoinSet::new();
                while let Ok((client, _)) = listener.accept().await {
                    let state = state.clone();
                    // Errors are ignored: broken connections are the purpose of this proxy.
                    connections.spawn(async move { pass(client, server_port, &state).await });
                    // The set keeps connections that have ended until they are fetched.
                    while connections.try_join_next().is_some() {}
                }
            }
        });
        Ok(Self { address, state, accepting })
    }

    /// The port to connect to instead of the server's.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.address.port()
    }

    /// Closes the connections of the next `n` commits, after the commit and before its response.
    pub fn cut_after_commits(&self, commits: u32) {
        self.state.cuts_left.store(commits, Ordering::SeqCst);
    }

    /// How many connections were cut so far.
    #[must_use]
    pub fn cuts(&self) -> u32 {
        self.state.cuts.load(Ordering::SeqCst)
    }

    /// Lets the next `n` commits through; their connections are silent from then on.
    pub fn silence_after_commits(&self, commits: u32) {
        self.state.silent_commits_left.store(commits, Ordering::SeqCst);
    }

    /// Passes `n` requests on; the connection that carries the one behind them is silent from then on, and the server
    /// never has that one.
    pub fn silence_after_requests(&self, requests: u32) {
        self.state.requests_left.store(requests.saturating_add(1), Ordering::SeqCst);
    }

    /// The next `n` connections are silent from their beginning.
    pub fn silence_newcomers(&self, connections: u32) {
        self.state.silent_newcomers_left.store(connections, Ordering::SeqCst);
    }

    /// All connections that are there now are silent from now on.
    pub fn silence_all(&self) {
        self.state.all.send_replace(());
    }

    /// How many connections are silent.
    #[must_use]
    pub fn silences(&self) -> u32 {
        self.state.silences.load(Ordering::SeqCst)
    }
}

impl Drop for FaultyProxy {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

impl ProxyState {
    /// Never returns, so that the sockets of the caller stay open.
    async fn be_silent(&self) {
        self.silences.fetch_add(1, Ordering::SeqCst);
        std::future::pending::<()>().await;
    }
}

/// Decrements a counter. Returns its value before, or `None` if it was 0.
fn take(left: &AtomicU32) -> Option<u32> {
    left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).ok()
}

async fn pass(client: TcpStream, server_port: u16, state: &ProxyState) -> Result<()> {
    let mut silenced = state.all.subscribe();
    if take(&state.silent_newcomers_left).is_some() {
        state.be_silent().await;
    }
    // Only now: a connection that is silent from its beginning never reaches the server.
    let server = TcpStream::connect(("127.0.0.1", server_port)).await?;
    // Small messages go on at once, as they do without the proxy.
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let fate = tokio::select! {
        fate = pass_requests(&mut from_client, &mut to_server, state) => fate?,
        ended = tokio::io::copy(&mut from_server, &mut to_client) => {
            return ended.map(drop).context("passing answers on");
        }
        _ = silenced.changed() => ConnectionFate::Silent,
    };
    if let ConnectionFate::Unanswered { commit, is_cut } = fate {
        to_server.write_all(&commit).await?;
        // The server has committed once it responds; the client does not receive the response.
        let _ = from_server.read(&mut [0; 64]).await;
        if is_cut {
            state.cuts.fetch_add(1, Ordering::SeqCst);
            return Ok(());
        }
    }
    state.be_silent().await;
    Ok(())
}

/// Passes requests on until one must not get a response.
async fn pass_requests(
    client: &mut OwnedReadHalf,
    server: &mut OwnedWriteHalf,
    state: &ProxyState,
) -> Result<ConnectionFate> {
    let mut started = false;
    let mut request = Vec::new();
    loop {
        let message = read_message(client, started).await?;
        // The start-up of a connection is not a request that a test counts.
        let is_counted = started;
        let is_whole = !started || ends_request(&message);
        started = started || message.get(4..8) == Some(&STARTUP_VERSION_3[..]);
        request.extend_from_slice(&message);
        if !is_whole {
            continue;
        }
        if is_counted && take(&state.requests_left) == Some(1) {
            return Ok(ConnectionFate::Silent);
        }
        if is_commit(&request) {
            let is_cut = take(&state.cuts_left).is_some();
            if is_cut || take(&state.silent_commits_left).is_some() {
                return Ok(ConnectionFate::Unanswered { commit: request, is_cut });
            }
        }
        server.write_all(&request).await?;
        request.clear();
    }
}

/// Whether the server can answer now: `Query`, `Sync`, `Flush`, a password, `Terminate`. What comes before them in one request
/// goes along with them: no packet is cut in half.
fn ends_request(message: &[u8]) -> bool {
    matches!(message.first(), Some(b'Q' | b'S' | b'H' | b'p' | b'X'))
}

/// One message of the client. Until the start-up message there is no type byte before the length.
async fn read_message(client: &mut OwnedReadHalf, started: bool) -> Result<Vec<u8>> {
    let mut message = vec![0; if started { 5 } else { 4 }];
    client.read_exact(&mut message).await?;
    let head = message.len();
    let mut length = [0; 4];
    length.copy_from_slice(&message[head - 4..]);
    let length = usize::try_from(u32::from_be_bytes(length)).context("a length")?;
    if !(4..MESSAGE_BYTES_MAX).contains(&length) {
        bail!("a message of {length} bytes");
    }
    message.resize(head + length - 4, 0);
    client.read_exact(&mut message[head..]).await?;
    Ok(message)
}

/// Whether this is a simple query that commits what a handler did: the driver's own, or the engine's with its guard.
fn is_commit(message: &[u8]) -> bool {
    let contains = |part: &[u8]| message.windows(part.len()).any(|window| window == part);
    message.first() == Some(&b'Q') && (message.get(5..) == Some(b"COMMIT\0") || contains(b".guard("))
}
