//! What became of one unit, and what that means for the delivery.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::error::chain;
use crate::{BoxError, Error, ErrorKind, Failure};

/// What became of one handler's work on one message.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Outcome {
    /// The handler ran; its writes and the marker are committed.
    Done,
    /// The handler had run before; nothing was done.
    Duplicate,
    /// The key is known with another body; nothing was done.
    KeyReuse,
    /// Another copy is running and did not end in time; deliver again later.
    Busy,
    /// The handler failed and was rolled back; deliver again.
    Retry {
        /// Not before this time has passed, if the handler asked for it.
        after: Option<Duration>,
        /// Why.
        cause: Cause,
    },
    /// Delivering again cannot help.
    Rejected(Rejection),
    /// The work was set apart and will run later.
    Queued,
}

impl Outcome {
    /// A short stable name, as in logs.
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

    /// What a handler's failure means for the delivery.
    pub(crate) fn failed(failure: Failure) -> Self {
        match failure {
            Failure::Retry(error) => Self::Retry { after: None, cause: cause(error) },
            Failure::After(delay, error) => Self::Retry { after: Some(delay), cause: cause(error) },
            Failure::Permanent(error) => Self::Rejected(Rejection::Permanent(cause(error))),
        }
    }

    /// What a failed guard means for the delivery: a swallowed error may not come again, a handler that ends its transaction
    /// will do so every time.
    pub(crate) fn broken(error: Error) -> Self {
        match std::error::Error::source(&error) {
            Some(_) => Self::Retry { after: None, cause: cause(error) },
            None => Self::Rejected(Rejection::EndedTransaction(cause(error))),
        }
    }
}

/// An error that reports can share.
pub type Cause = Arc<dyn std::error::Error + Send + Sync + 'static>;

pub(crate) fn cause(error: impl Into<BoxError>) -> Cause {
    Arc::from(error.into())
}

/// Why delivering again cannot help.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Rejection {
    /// Nothing says what identifies the message.
    MissingKey,
    /// The key cannot be one: too long, or it could not be made.
    BadKey(Cause),
    /// The ordering key, the headers or a time of the envelope are outside of their limits.
    BadEnvelope(Cause),
    /// The key is known with another body, and the policy is to reject that.
    KeyReuse,
    /// The body is larger than the inbox takes.
    TooLarge {
        /// Its size.
        bytes: usize,
        /// The inbox's limit.
        max_bytes: usize,
    },
    /// The body could not be decoded.
    Undecodable(Cause),
    /// The handler said so.
    Permanent(Cause),
    /// The handler ended the transaction that it was lent.
    EndedTransaction(Cause),
}

impl Rejection {
    /// The error behind it, if there is one.
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

    /// The same as an error of the caller, which can tell bad input from a refusal.
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
            Self::KeyReuse => f.write_str("the key was used before with another body"),
            Self::TooLarge { bytes, max_bytes } => {
                write!(
                    f,
                    "the body has {bytes} bytes, the limit is {max_bytes}: raise max_body_bytes or send less"
                )
            }
            Self::Undecodable(error) => write!(f, "cannot decode the body: {}", chain(&**error)),
            Self::Permanent(error) => write!(f, "the handler rejected the message: {}", chain(&**error)),
            Self::EndedTransaction(error) => {
                write!(f, "the handler ended its transaction: {}", chain(&**error))
            }
        }
    }
}

/// What to tell the source about a delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Settlement {
    /// Done with it: acknowledge.
    Ack,
    /// Deliver it again.
    Retry {
        /// Not before this time has passed.
        after: Option<Duration>,
    },
    /// Never deliver it again: dead-letter it.
    Reject,
}
