//! One connection to the broker.

use std::fs;
use std::net::{Shutdown, TcpStream};
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use futures_util::FutureExt;
use lapin::tcp::{AsyncTcpStream, OwnedIdentity, OwnedTLSConfig};
use lapin::{Channel, Connection, ConnectionProperties};
use oncebox_core::Error;
use tokio::net::lookup_host;
use tokio::time::timeout;

use crate::broker::{Settings, TlsFiles};
use crate::errors::{cannot_connect, failed, no_response, plaintext};

/// A connection, which ends when it is dropped.
#[derive(Debug)]
pub(crate) struct Link {
    connection: Connection,
    socket: Socket,
    settings: Settings,
}

impl Link {
    /// Connects. The broker shows the purpose in its list of connections.
    pub(crate) async fn open(settings: &Settings, purpose: &str) -> Result<Link, Error> {
        let address = &settings.address;
        if !address.is_encrypted() && !address.is_loopback() && !settings.allow_plaintext {
            return Err(plaintext(settings));
        }
        let tls = tls_config(&settings.tls)?;
        let socket = Socket::default();
        // A broker that never responds would keep the client's thread and its socket for ever.
        let mut guard = ShutOnDrop(Some(socket.clone()));
        let limit = settings.timeout;
        let properties =
            ConnectionProperties::default().with_connection_name(format!("oncebox {purpose}").into());
        let runtime = lapin::runtime::default_runtime().map_err(|error| cannot_connect(settings, error))?;
        let (keep, is_encrypted) = (socket.clone(), address.is_encrypted());
        let connecting = Connection::connector(
            address.uri().clone(),
            runtime,
            async move |uri, runtime| {
                let connecting = async {
                    let (host, port) = (uri.authority.host.as_str(), uri.authority.port);
                    let addresses: Vec<_> = lookup_host((host, port)).await?.collect();
                    let stream = AsyncTcpStream::connect(&runtime, addresses).await?;
                    if let AsyncTcpStream::Plain(stream) = &stream {
                        keep.set(TcpStream::from(stream.get_ref().as_fd().try_clone_to_owned()?));
                    }
                    match is_encrypted {
                        true => stream.into_tls(host, tls.as_ref()).await,
                        false => Ok(stream),
                    }
                };
                // The future that waits for this thread may be gone.
                let connected = timeout(limit, connecting).await;
                connected
                    .unwrap_or_else(|_| Err(std::io::ErrorKind::TimedOut.into()))
                    .map_err(lapin::Error::from)
            },
            properties,
        );
        let connection = timeout(limit, connecting)
            .await
            .map_err(|_| no_response(settings, "connecting", limit))?
            .map_err(|error| cannot_connect(settings, error))?;
        guard.0 = None;
        Ok(Link { connection, socket, settings: settings.clone() })
    }

    /// Opens a channel.
    pub(crate) async fn channel(&self) -> Result<Channel, Error> {
        within(&self.settings, "opening a channel", self.connection.create_channel()).await
    }

    /// Whether the connection works, as far as is known.
    pub(crate) fn works(&self) -> bool {
        self.connection.status().connected()
    }

    /// Whether the broker has stopped the connection, because it runs out of memory or disk.
    pub(crate) fn is_blocked(&self) -> bool {
        self.connection.status().blocked()
    }

    /// Closes the connection in order, or at once if the broker does not respond.
    pub(crate) async fn close(&self) {
        if !matches!(
            timeout(self.settings.timeout, self.connection.close(200, "OK".into())).await,
            Ok(Ok(()))
        ) {
            self.socket.shut();
        }
    }

    /// Ends the connection at once.
    pub(crate) fn cut(&self) {
        self.socket.shut();
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        // The client closes a connection with its last channel. But a call that was dropped while it waited for a response may leave
        // a channel behind, and the broker would send messages to it for ever. The first poll hands the request to the client, after
        // everything that was sent before. An error means that the connection is closed already.
        let _ = self.connection.close(200, "OK".into()).now_or_never();
    }
}

/// Limits the time of a command.
pub(crate) async fn within<T>(
    settings: &Settings,
    doing: &str,
    command: impl Future<Output = lapin::Result<T>>,
) -> Result<T, Error> {
    match timeout(settings.timeout, command).await {
        Ok(result) => result.map_err(|error| failed(settings, doing, error)),
        Err(_) => Err(no_response(settings, doing, settings.timeout)),
    }
}

/// The socket of a connection, once there is one.
#[derive(Clone, Debug, Default)]
struct Socket(Arc<Mutex<Option<TcpStream>>>);

impl Socket {
    fn set(&self, stream: TcpStream) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(stream);
    }

    fn shut(&self) {
        if let Some(stream) = self.0.lock().unwrap_or_else(PoisonError::into_inner).as_ref() {
            // An error means that the socket is closed already.
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

struct ShutOnDrop(Option<Socket>);

impl Drop for ShutOnDrop {
    fn drop(&mut self) {
        if let Some(socket) = &self.0 {
            socket.shut();
        }
    }
}

fn tls_config(files: &TlsFiles) -> Result<OwnedTLSConfig, Error> {
    let identity = match &files.client {
        Some((certificate, key)) => Some(OwnedIdentity::PKCS8 {
            pem: read("client_certificate", certificate)?,
            key: read("client_certificate", key)?,
        }),
        None => None,
    };
    let cert_chain = match &files.ca {
        Some(ca) => Some(String::from_utf8_lossy(&read("ca", ca)?).into_owned()),
        None => None,
    };
    Ok(OwnedTLSConfig { identity, cert_chain })
}

fn read(setting: &str, file: &Path) -> Result<Vec<u8>, Error> {
    fs::read(file).map_err(|error| {
        let text =
            format!("cannot read the file {} of `{setting}`: correct its path or its rights", file.display());
        Error::configuration(text).with_source(error)
    })
}
