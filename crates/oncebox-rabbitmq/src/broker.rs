//! A broker: its address, its settings, and what is made of them.

use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use oncebox_core::Error;

use crate::address::Address;
use crate::publisher::Publisher;
use crate::redrive;
use crate::sink::RabbitSink;
use crate::source::RabbitSource;

/// The default time limit of each response of the broker.
const TIMEOUT: Duration = Duration::from_secs(10);

/// A RabbitMQ broker.
///
/// It connects when a source or a sink needs it. All sinks and sources made of one value share a connection for publishing; each
/// source has another one for consuming, because a broker that runs out of memory stops connections that publish.
///
/// ```no_run
/// # fn broker(password: &str) -> Result<oncebox_rabbitmq::RabbitMq, oncebox_core::Error> {
/// use oncebox_rabbitmq::RabbitMq;
///
/// let rabbit = RabbitMq::new(format!("amqps://svc:{password}@mq.example.com/%2f"))?
///     .ca("/etc/ssl/mq-ca.pem")
///     .client_certificate("/etc/ssl/svc.pem", "/etc/ssl/svc.key");
/// # Ok(rabbit)
/// # }
/// ```
#[derive(Clone)]
#[must_use]
pub struct RabbitMq {
    settings: Settings,
    publisher: Arc<OnceLock<Arc<Publisher>>>,
}

/// How to reach a broker.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) address: Address,
    pub(crate) tls: TlsFiles,
    pub(crate) allow_plaintext: bool,
    pub(crate) timeout: Duration,
}

/// The files of an encrypted connection.
#[derive(Clone, Debug, Default)]
pub(crate) struct TlsFiles {
    pub(crate) ca: Option<PathBuf>,
    /// A certificate and its key.
    pub(crate) client: Option<(PathBuf, PathBuf)>,
}

impl RabbitMq {
    /// A broker at this URL: `amqps://user:password@host:5671/vhost`. Special characters are percent-encoded, and `%2f` is the
    /// virtual host `/`.
    pub fn new(url: impl AsRef<str>) -> Result<Self, Error> {
        let address = Address::parse(url.as_ref())?;
        let settings =
            Settings { address, tls: TlsFiles::default(), allow_plaintext: false, timeout: TIMEOUT };
        Ok(Self { settings, publisher: Arc::default() })
    }

    /// Trusts the certificates in this PEM file too, besides those that the machine trusts.
    pub fn ca(mut self, file: impl Into<PathBuf>) -> Self {
        self.settings.tls.ca = Some(file.into());
        self.changed()
    }

    /// Authenticates the connection with this certificate and its key, PEM files.
    pub fn client_certificate(mut self, certificate: impl Into<PathBuf>, key: impl Into<PathBuf>) -> Self {
        self.settings.tls.client = Some((certificate.into(), key.into()));
        self.changed()
    }

    /// Allows `amqp://` to another machine: passwords and messages travel unencrypted.
    pub fn allow_plaintext(mut self) -> Self {
        self.settings.allow_plaintext = true;
        self.changed()
    }

    /// The time limit of each response of the broker: of a connection, a declaration, a confirm. Default: 10 s.
    pub fn timeout(mut self, limit: Duration) -> Self {
        self.settings.timeout = limit;
        self.changed()
    }

    /// A queue as a source.
    pub fn queue(&self, name: impl Into<String>) -> RabbitSource {
        RabbitSource::new(self.settings.clone(), self.publisher(), name.into())
    }

    /// An exchange as a sink. The default exchange has an empty name: there the routing key is the name of a queue.
    pub fn exchange(&self, name: impl Into<String>) -> RabbitSink {
        RabbitSink::new(self.publisher(), name.into())
    }

    /// Moves at most `limit` messages from the dead queue of a queue back to it, the oldest first, and returns their number.
    ///
    /// Each message gets its attempts back, and keeps its id and what is known of its original exchange and routing key. It leaves the
    /// dead queue after the broker has confirmed its copy.
    pub async fn redrive(&self, queue: &str, limit: u64) -> Result<u64, Error> {
        redrive::redrive(&self.settings, &self.publisher(), queue, limit).await
    }

    fn publisher(&self) -> Arc<Publisher> {
        self.publisher.get_or_init(|| Arc::new(Publisher::new(self.settings.clone()))).clone()
    }

    // A connection with earlier settings is not shared.
    fn changed(mut self) -> Self {
        self.publisher = Arc::default();
        self
    }
}

impl fmt::Debug for RabbitMq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.settings.fmt(f)
    }
}
