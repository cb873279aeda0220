//! A proxy in front of PostgreSQL that can lose the answer to a commit.
//!
//! It reads the client's messages one by one, so that it knows when a whole `COMMIT` has been passed on; then it can
//! cut both sides before the answer comes back. The client cannot know whether the commit happened. It did.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, Result, bail};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::task::JoinHandle;

/// Larger messages than tests send.
const MESSAGE_BYTES_MAX: usize = 64 * 1024 * 1024;
const STARTUP_VERSION_3: [u8; 4] = 196_608_u32.to_be_bytes();

/// Passes everything on, and cuts connections when told to.
#[derive(Debug)]
pub struct CommitCutter {
    address: SocketAddr,
    state: Arc<State>,
    accepting: JoinHandle<()>,
}

#[derive(Debug, Default)]
struct State {
    cuts_left: AtomicU32,
    cuts: AtomicU32,
}

impl CommitCutter {
    /// Starts a proxy in front of the server on this loopback port.
    pub async fn start(server_port: u16) -> Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.context("listening for the proxy")?;
        let address = listener.local_addr().context("the proxy's own address")?;
        let state = Arc::<State>::default();
        let accepting = tokio::spawn({
            let state = state.clone();
            async move {
                while let Ok((client, _)) = listener.accept().await {
                    let state = state.clone();
                    // A connection that breaks is what this is for.
                    tokio::spawn(async move { pass(client, server_port, &state).await });
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

    /// Loses the answers to the next so many commits.
    pub fn cut_after_commits(&self, commits: u32) {
        self.state.cuts_left.store(commits, Ordering::SeqCst);
    }

    /// How many answers were lost so far.
    #[must_use]
    pub fn cuts(&self) -> u32 {
        self.state.cuts.load(Ordering::SeqCst)
    }
}

impl Drop for CommitCutter {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn pass(client: TcpStream, server_port: u16, state: &State) -> Result<()> {
    let server = TcpStream::connect(("127.0.0.1", server_port)).await?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let (from_client, mut to_client) = client.into_split();
    let (mut from_server, to_server) = server.into_split();
    let cut = Notify::new();
    let answers = async {
        tokio::select! {
            biased;
            () = cut.notified() => {
                // The server has done it once it answers; nobody is told.
                let _ = from_server.read(&mut [0; 64]).await;
                state.cuts.fetch_add(1, Ordering::SeqCst);
                Ok(())
            }
            copied = tokio::io::copy(&mut from_server, &mut to_client) => copied.map(drop),
        }
    };
    tokio::select! {
        ended = pass_requests(from_client, to_server, state, &cut) => ended,
        ended = answers => ended.context("passing answers on"),
    }
}

async fn pass_requests(
    mut client: OwnedReadHalf,
    mut server: OwnedWriteHalf,
    state: &State,
    cut: &Notify,
) -> Result<()> {
    let mut started = false;
    loop {
        let message = read_message(&mut client, started).await?;
        started = started || message.get(4..8) == Some(&STARTUP_VERSION_3[..]);
        let take = |left: u32| left.checked_sub(1);
        let is_cut = is_commit(&message)
            && state.cuts_left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, take).is_ok();
        if is_cut {
            // Before the server has the commit, so that its answer cannot slip through.
            cut.notify_one();
        }
        server.write_all(&message).await?;
        if is_cut {
            std::future::pending::<()>().await;
        }
    }
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
