//! The outcome of one unit, and the settlement of its delivery.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::error::chain;
use crate::{BoxError, Error, ErrorKind, Failure};

/// The outcome of one handler for one message.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Outcome {
    /// The handler ran; its writes and the marker are committed.
    Done,
    /// The handler had already run on this message; nothing was done.
    Duplicate,
    /// The key was used before with another body; nothing was done.
    KeyReuse,
    /// Another copy is in flight and did not end in time; deliver the message again later.
    Busy,
    /// The handler failed and was rolled back; deliver the message again.
    Retry {
        /// The time to wait before the next delivery, if the handler asked for it.
        after: Option<Duration>,
        /// The handler's error.
        cause: Cause,
    },
    /// The message is rejected: another delivery cannot succeed.
    Rejected(Rejection),
    /// The message is stored in the log, and a worker runs it later.
    Queued,
}

impl Outcome {
    /// The outcome's stable short name, as in logs.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Duplicate => "duplicate",
            Self::KeyReuse => "key_reuse",
            Self::Busy => "busy",
            Self::Retry { .. } => "retry",
            Self::Rejected(_) => "rejected",
            Self::Queued => "queued",
        }
    }

    /// The outcome of a handler's failure.
    pub(crate) fn failed(failure: Failure) -> Self {
        match failure {
            Failure::Retry(error) => Self::Retry { after: None, cause: cause(error) },
            Failure::After(delay, error) => Self::Retry { after: Some(delay), cause: cause(error) },
            Failure::Permanent(error) => Self::Rejected(Rejection::Permanent(cause(error))),
        }
    }

    /// The outcome of a failed guard.
    ///
    /// A database error that the handler ignored may not occur again: retry. A handler that ends its transaction does so every
    /// time: reject.
    pub(crate) fn broken(error: Error) -> Self {
        // Stores attach a source only if the database reported an error or rolled back by itself.
        match std::error::Error::source(&error) {
            Some(_) => Self::Retry { after: None, cause: cause(error) },
            None => Self::Rejected(Rejection::EndedTransaction(cause(error))),
        }
    }
}

/// An error that several reports share.
// `Arc`: the callers of one batch share its error, and a boxed error cannot be cloned.
pub type Cause = Arc<dyn std::error::Error + Send + Sync + 'static>;

pub(crate) fn cause(error: impl Into<BoxError>) -> Cause {
    Arc::from(error.into())
}

/// The reason why a message is rejected.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Rejection {
    /// The message has no key.
    MissingKey,
    /// The key is invalid: too long, or it could not be computed.
    BadKey(Cause),
    /// The ordering key, the headers or a time of the envelope exceed a limit.
    BadEnvelope(Cause),
    /// The key was used before with another body, and the policy is [`KeyReuse::Reject`](crate::KeyReuse::Reject).
    KeyReuse,
    /// The body exceeds the inbox's `max_body_bytes`.
    TooLarge {
        /// The size of the body.
        bytes: usize,
        /// The limit of the inbox.
        max_bytes: usize,
    },
    /// The body could not be decoded.
    Undecodable(Cause),
    /// The handler rejected the message.
    Permanent(Cause),
    /// The handler ended its transaction.
    EndedTransaction(Cause),
}

impl Rejection {
    /// The error behind the rejection, if there is one.
    pub fn cause(&self) -> Option<Cause> {
        match self {
            Self::BadKey(cause)
            | Self::BadEnvelope(cause)
            | Self::Undecodable(cause)
            | Self::Permanent(cause)
            | Self::EndedTransaction(cause) => Some(cause.clone()),
            Self::MissingKey | Self::KeyReuse | Self::TooLarge { .. } => None,
        }
    }

    /// The rejection as an error, whose kind separates invalid input from a handler's rejection.
    pub(crate) fn to_error(&self) -> Error {
        let kind = match self {
            Self::MissingKey | Self::BadKey(_) => ErrorKind::Key,
            Self::BadEnvelope(_) => ErrorKind::Envelope,
            Self::KeyReuse => ErrorKind::KeyReuse,
            Self::TooLarge { .. } => ErrorKind::TooLarge,
            Self::Undecodable(_) => ErrorKind::Codec,
            Self::Permanent(_) => ErrorKind::Rejected,
            Self::EndedTransaction(_) => ErrorKind::Transaction,
        };
        let error = Error::new(kind, self.to_string());
        match self.cause() {
            Some(cause) => error.with_source(cause),
            None => error,
        }
    }
}

impl fmt::Display for Rejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::MissingKey => f.write_str(
                "the message has no key: set `key` in #[message(...)], Envelope::with_key, a key selector or \
                 delivered_by, or run such messages without dedup (MissingKey::RunWithoutDedup)",
            ),
            Self::BadKey(error) => write!(f, "invalid key: {}", chain(&**error)),
            Self::BadEnvelope(error) => write!(f, "invalid envelope: {}", chain(&**error)),
            Self::KeyReuse => {
                f.write_str("the key was used before with another body: send new messages with new keys")
            }
            Self::TooLarge { bytes, max_bytes } => {
                write!(
                    f,
                    "the body has {bytes} bytes, the limit is {max_bytes}: raise max_body_bytes or send a smaller body"
                )
            }
            // Without the causes: a decoder quotes the body in them, and bodies are not logged.
            Self::Undecodable(error) => write!(f, "cannot decode the body: {error}"),
            Self::Permanent(error) => write!(f, "the handler rejected the message: {}", chain(&**error)),
            Self::EndedTransaction(error) => {
                write!(f, "the handler ended its transaction: {}", chain(&**error))
            }
        }
    }
}

/// The response to the source of a delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Settlement {
    /// Acknowledge the delivery.
    Ack,
    /// Deliver the message again.
    Retry {
        /// The time to wait before the next delivery, if there is one.
        after: Option<Duration>,
    },
    /// Do not deliver the message again: dead-letter it at the source.
    Reject,
}
