//! The error type of all calls, with a kind to match on and a message that says what to do next.

use std::borrow::Cow;
use std::error::Error as StdError;
use std::fmt;
use std::time::Duration;

/// Any error in a box, as application code returns it.
pub type BoxError = Box<dyn StdError + Send + Sync + 'static>;

/// The kind of an [`Error`], to match on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The inbox is configured wrongly; `build()` reports it.
    Configuration,
    /// The database's schema is missing, too old or too new.
    Schema,
    /// The store cannot be reached or does not respond. The outcome is open: deliver the message again later.
    Unavailable,
    /// Another copy of the message is in flight and did not end within the waiting time.
    Busy,
    /// The key is missing or invalid.
    Key,
    /// The ordering key, the headers or a time of the message exceed a limit, or the database cannot store them.
    Envelope,
    /// The key was used before with another body.
    KeyReuse,
    /// A body or a stored result could not be encoded or decoded.
    Codec,
    /// The body exceeds the inbox's `max_body_bytes`.
    TooLarge,
    /// The handler failed; another attempt may succeed.
    Handler,
    /// The handler rejected the message: another attempt cannot succeed.
    Rejected,
    /// The handler ended or broke its transaction.
    Transaction,
    /// The lease expired before the work was done; another worker has the message now.
    LeaseLost,
    /// The inbox is closed; nothing was done.
    Closed,
    /// A handler called its own inbox from within its run.
    Nested,
    /// The message was handled, but no result was stored with it.
    NoResult,
}

/// The error of every call of Oncebox.
#[derive(Debug)]
pub struct Error {
    kind: ErrorKind,
    // Most messages are constants.
    message: Cow<'static, str>,
    source: Option<BoxError>,
    retry_after: Option<Duration>,
}

impl Error {
    /// Creates an error of a kind, with a message that says what is wrong and what to do.
    pub fn new(kind: ErrorKind, message: impl Into<Cow<'static, str>>) -> Self {
        Self { kind, message: message.into(), source: None, retry_after: None }
    }

    /// Adds the cause.
    #[must_use]
    pub fn with_source(mut self, source: impl Into<BoxError>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// The error's kind, to match on.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// The time to wait before the next attempt, if the handler asked for it.
    pub fn retry_after(&self) -> Option<Duration> {
        self.retry_after
    }

    /// Prints the error with its whole chain of causes, on one line.
    ///
    /// ```
    /// # use oncebox_core::{Error, ErrorKind};
    /// let refused = std::io::Error::other("connection refused");
    /// let error = Error::new(ErrorKind::Unavailable, "cannot read the markers").with_source(refused);
    /// assert_eq!(error.to_string(), "cannot read the markers");
    /// assert_eq!(error.report().to_string(), "cannot read the markers: connection refused");
    /// ```
    pub fn report(&self) -> impl fmt::Display + '_ {
        Chain(self)
    }

    pub(crate) fn with_retry_after(mut self, after: Option<Duration>) -> Self {
        self.retry_after = after;
        self
    }

    /// Creates an error of kind [`Unavailable`](ErrorKind::Unavailable): the store does not respond.
    pub fn unavailable(message: impl Into<Cow<'static, str>>, source: impl Into<BoxError>) -> Self {
        Self::new(ErrorKind::Unavailable, message).with_source(source)
    }

    /// Creates an error of kind [`Configuration`](ErrorKind::Configuration): a setting is wrong.
    pub fn configuration(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(ErrorKind::Configuration, message)
    }

    pub(crate) fn key(message: impl Into<Cow<'static, str>>, source: impl Into<BoxError>) -> Self {
        Self::new(ErrorKind::Key, message).with_source(source)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Without the cause: callers that print the chain of sources would print it twice. See `report`.
        f.write_str(&self.message)
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.source.as_ref().map(|source| &**source as &(dyn StdError + 'static))
    }
}

/// Prints an error and its causes.
struct Chain<'e>(&'e (dyn StdError + 'static));

impl fmt::Display for Chain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&chain(self.0))
    }
}

/// An error and its causes on one line, for logs and reports.
pub(crate) fn chain(error: &(dyn StdError + 'static)) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let cause_text = cause.to_string();
        // Many errors include their cause, or the whole chain, in their own text.
        if !text.ends_with(&cause_text) && !text.contains(&format!(": {cause_text}")) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        next = cause.source();
    }
    text
}
