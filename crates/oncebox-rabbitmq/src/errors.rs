//! Errors of the broker in words: what is wrong, and what to do.

use std::time::Duration;

use lapin::ErrorKind as ClientError;
use oncebox_core::{Error, ErrorKind};

use crate::broker::Settings;

const ACCESS_REFUSED: u16 = 403;
const NOT_FOUND: u16 = 404;
const RESOURCE_LOCKED: u16 = 405;
const PRECONDITION_FAILED: u16 = 406;
const NOT_ALLOWED: u16 = 530;

/// The code and the text of an error that the broker has sent.
fn reply(error: &lapin::Error) -> Option<(u16, &str)> {
    match error.kind() {
        ClientError::ProtocolError(error) => Some((error.get_id(), error.get_message().as_str())),
        _ => None,
    }
}

/// Whether a queue or an exchange does not exist.
pub(crate) fn is_not_found(error: &lapin::Error) -> bool {
    reply(error).is_some_and(|(code, _)| code == NOT_FOUND)
}

/// Whether the user lacks a permission.
pub(crate) fn is_refused(error: &lapin::Error) -> bool {
    reply(error).is_some_and(|(code, _)| code == ACCESS_REFUSED)
}

/// The text of an error about arguments that differ from those of the existing queue.
pub(crate) fn mismatch(error: &lapin::Error) -> Option<&str> {
    reply(error).filter(|(code, _)| *code == PRECONDITION_FAILED).map(|(_, text)| text)
}

/// Whether the channel was gone before anything was sent on it.
pub(crate) fn nothing_was_sent(error: &lapin::Error) -> bool {
    matches!(
        error.kind(),
        ClientError::InvalidChannelState(..)
            | ClientError::InvalidConnectionState(_)
            | ClientError::InvalidChannel(_)
    )
}

/// An error and its causes on one line.
pub(crate) fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let cause_text = cause.to_string();
        // Many errors include their cause in their own text.
        if !text.contains(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        next = cause.source();
    }
    text
}

/// The error of a connection that could not be opened.
pub(crate) fn cannot_connect(settings: &Settings, error: lapin::Error) -> Error {
    let address = &settings.address;
    match reply(&error) {
        Some((ACCESS_REFUSED, _)) => Error::configuration(format!(
            "RabbitMQ at {address} refused the login of user {:?}: correct user and password in the broker's url",
            address.user()
        )),
        Some((NOT_ALLOWED, text)) => Error::configuration(format!(
            "RabbitMQ at {address} refused the virtual host {:?} ({text}): correct it in the broker's url, or run \
             `rabbitmqctl add_vhost` and `rabbitmqctl set_permissions` for user {:?}",
            address.vhost(),
            address.user()
        )),
        _ => {
            let hint = match address.is_encrypted() {
                true => "check that it runs, host and port in the url, and `ca` and `client_certificate`",
                false => "check that it runs, and host and port in the url",
            };
            Error::new(ErrorKind::Unavailable, format!("cannot connect to RabbitMQ at {address}: {hint}"))
        }
    }
    .with_source(error)
}

/// The error of a broker that is not reached over an encrypted connection.
pub(crate) fn plaintext(settings: &Settings) -> Error {
    Error::configuration(format!(
        "the url of RabbitMQ at {} is not encrypted: write amqps://, or allow plaintext with `allow_plaintext`",
        settings.address
    ))
}

/// The error of a response that did not arrive in time.
pub(crate) fn no_response(settings: &Settings, doing: &str, limit: Duration) -> Error {
    Error::new(
        ErrorKind::Unavailable,
        format!(
            "RabbitMQ at {} did not respond within {limit:?} while {doing}: check the network and `rabbitmqctl status` \
             for alarms, or raise `timeout`",
            settings.address
        ),
    )
}

/// The error of a failed command on a connection that worked.
pub(crate) fn failed(settings: &Settings, doing: &str, error: lapin::Error) -> Error {
    let (address, vhost) = (&settings.address, settings.address.vhost());
    match reply(&error) {
        Some((NOT_FOUND, text)) => Error::configuration(format!(
            "{doing} failed: {text}. Create it in the virtual host {vhost:?} of {address}; for a queue, `declare` can"
        )),
        Some((ACCESS_REFUSED, text)) => Error::configuration(format!(
            "{doing} failed: {text}. Grant the permission with `rabbitmqctl set_permissions -p {vhost} {} ...`",
            address.user()
        )),
        Some((RESOURCE_LOCKED, text)) => Error::configuration(format!(
            "{doing} failed: {text}. Another connection uses the queue exclusively: end it, or use another queue"
        )),
        Some((PRECONDITION_FAILED, text)) if text.contains("timeout") => Error::new(
            ErrorKind::Unavailable,
            format!(
                "{doing} failed: {text}. A handler ran longer than the broker's consumer_timeout: raise it, or lower the \
                 handler's time-out"
            ),
        ),
        Some((_, text)) => Error::new(ErrorKind::Unavailable, format!("{doing} failed: {text}")),
        None => match error.kind() {
            ClientError::ParsingError(_) => Error::new(
                ErrorKind::Unavailable,
                format!(
                    "{doing} failed: {address} sent a message that the client cannot read. A property or the name of a header \
                     is not UTF-8: remove the message at the head of the queue"
                ),
            ),
            _ => Error::new(ErrorKind::Unavailable, format!("{doing} failed: the connection to {address} is lost")),
        },
    }
    .with_source(error)
}
