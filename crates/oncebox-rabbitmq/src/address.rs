//! The address of a broker, as its URL has it.

use std::fmt;
use std::net::IpAddr;

use lapin::uri::{AMQPScheme, AMQPUri};
use oncebox_core::Error;

/// The interval of heartbeats in seconds, unless the URL has another. RabbitMQ recommends 5 to 20.
const HEARTBEAT_SECONDS: u16 = 10;

/// The parts of a URL. It prints without the password.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Address {
    uri: AMQPUri,
}

impl Address {
    /// Reads a URL.
    pub(crate) fn parse(url: &str) -> Result<Self, Error> {
        if !["amqps://", "amqp://"].iter().any(|scheme| url.starts_with(scheme)) {
            return Err(invalid("it does not begin with amqps:// or amqp://"));
        }
        let mut uri: AMQPUri = url.parse().map_err(|problem: String| invalid(&problem))?;
        if uri.vhost.is_empty() {
            return Err(invalid(
                "the virtual host after the last '/' is empty: leave out that '/', or write /%2f",
            ));
        }
        // lapin would connect to localhost instead.
        if let Some(host) = ipv6_host(url) {
            uri.authority.host = host.to_owned();
        }
        uri.query.heartbeat = uri.query.heartbeat.filter(|seconds| *seconds > 0).or(Some(HEARTBEAT_SECONDS));
        Ok(Self { uri })
    }

    /// The form in which the client takes it, with the password.
    pub(crate) fn uri(&self) -> &AMQPUri {
        &self.uri
    }

    pub(crate) fn host(&self) -> &str {
        &self.uri.authority.host
    }

    pub(crate) fn port(&self) -> u16 {
        self.uri.authority.port
    }

    pub(crate) fn vhost(&self) -> &str {
        &self.uri.vhost
    }

    pub(crate) fn user(&self) -> &str {
        &self.uri.authority.userinfo.username
    }

    pub(crate) fn is_encrypted(&self) -> bool {
        self.uri.scheme == AMQPScheme::AMQPS
    }

    /// Whether the broker is on this machine, as far as the URL tells.
    pub(crate) fn is_loopback(&self) -> bool {
        let host = self.host();
        host.eq_ignore_ascii_case("localhost") || host.parse::<IpAddr>().is_ok_and(|host| host.is_loopback())
    }
}

/// Host and port, for error texts and logs.
impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host().contains(':') {
            true => write!(f, "[{}]:{}", self.host(), self.port()),
            false => write!(f, "{}:{}", self.host(), self.port()),
        }
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Address")
            .field("server", &self.to_string())
            .field("vhost", &self.vhost())
            .field("user", &self.user())
            .finish_non_exhaustive()
    }
}

// Without the URL, which may have a password in it.
fn invalid(problem: &str) -> Error {
    let problem = if problem.contains(['\'', '"']) { "its parts cannot be read" } else { problem };
    Error::configuration(format!(
        "invalid url of RabbitMQ: {problem}. Write it as amqps://user:password@host:5671/vhost, with %2f for the virtual host '/'"
    ))
}

fn ipv6_host(url: &str) -> Option<&str> {
    let authority = url.split_once("://")?.1.split(['/', '?', '#']).next()?;
    let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    Some(host.strip_prefix('[')?.split_once(']')?.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_has_its_parts() {
        for (url, host, port, vhost, is_loopback) in [
            ("amqp://localhost", "localhost", 5672, "/", true),
            ("amqps://mq.example.com", "mq.example.com", 5671, "/", false),
            ("amqp://127.0.0.1:1234/%2f", "127.0.0.1", 1234, "/", true),
            ("amqp://u:p@[::1]:1/v", "::1", 1, "v", true),
            ("amqp://u:p%40@[2001:db8::1]/v?heartbeat=5", "2001:db8::1", 5672, "v", false),
            ("amqp://10.0.0.1?heartbeat=5", "10.0.0.1", 5672, "/", false),
        ] {
            let address = Address::parse(url).unwrap();
            assert_eq!(
                (address.host(), address.port(), address.vhost(), address.is_loopback()),
                (host, port, vhost, is_loopback),
                "{url}"
            );
        }
    }

    #[test]
    fn an_invalid_url_is_explained_without_its_password() {
        for url in
            ["amqp:", "http://u:s3cret@h/", "u:s3cret@h", "amqp://u:s3cret@h:port/", "amqp://u:s3cret@h/"]
        {
            let error = Address::parse(url).unwrap_err().report().to_string();
            assert!(error.contains("amqps://user:password@host"), "{error}");
            assert!(!error.contains("s3cret"), "{error}");
        }
        let address = Address::parse("amqp://u:s3cret@h/v").unwrap();
        assert!(!format!("{address:?} {address}").contains("s3cret"));
    }

    #[test]
    fn heartbeats_cannot_be_switched_off() {
        for (url, seconds) in [("amqp://h", 10), ("amqp://h?heartbeat=0", 10), ("amqp://h?heartbeat=3", 3)] {
            assert_eq!(Address::parse(url).unwrap().uri().query.heartbeat, Some(seconds));
        }
    }
}
