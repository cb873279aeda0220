//! The one error type, with a kind to match on and a message that says what to do next.

use std::borrow::Cow;
use std::error::Error as StdError;
use std::fmt;
use std::time::Duration;

/// Any error, boxed; what user code hands back.
pub type BoxError = Box<dyn StdError + Send + Sync + 'static>;

/// What went wrong, in a form to match on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The inbox was put together wrongly; found by `build()`.
    Configuration,
    /// The database's schema is missing, too old or too new.
    Schema,
    /// The store cannot be reached or does not answer now. Nothing is decided: deliver again later.
    Unavailable,
    /// Another copy of the same message is running and did not end within the waiting time.
    Busy,
    /// There is no key, or it cannot be one.
    Key,
    /// The ordering key, the headers or a time of a message are outside of their limits, or the database cannot store them.
    Envelope,
    /// The key is known with another body.
    KeyReuse,
    /// A body or a stored result could not be read or written.
    Codec,
    /// The body is larger than the inbox takes.
    TooLarge,
    /// The handler failed; another try may help.
    Handler,
    /// The handler said that no other try will help.
    Rejected,
    /// The handler ended or broke the transaction that it was lent.
    Transaction,
    /// A lease ran out before its work was done; another claimant has it now.
    LeaseLost,
    /// The inbox was closed; nothing was done.
    Closed,
    /// A handler called its own inbox from inside.
    Nested,
    /// The message was handled, but no result was stored with it.
    NoResult,
}

/// What any call of Oncebox can fail with.
#[derive(Debug)]
pub struct Error {
    kind: ErrorKind,
    message: Cow<'static, str>,
    source: Option<BoxError>,
    retry_after: Option<Duration>,
}

impl Error {
    /// An error of a kind, with a message that says what to do next.
    pub fn new(kind: ErrorKind, message: impl Into<Cow<'static, str>>) -> Self {
        Self { kind, message: message.into(), source: None, retry_after: None }
    }

    /// Keeps the cause.
    #[must_use]
    pub fn with_source(mut self, source: impl Into<BoxError>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// What went wrong, in a form to match on.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// How long to wait before the next try, if the handler said so.
    pub fn retry_after(&self) -> Option<Duration> {
        self.retry_after
    }

    /// The error with its whole chain of causes, on one line: for logs and for people.
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

    /// The store does not answer; the cause says why.
    pub fn unavailable(message: impl Into<Cow<'static, str>>, source: impl Into<BoxError>) -> Self {
        Self::new(ErrorKind::Unavailable, message).with_source(source)
    }

    /// Something is set as it cannot be; the message says what to do.
    pub fn configuration(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(ErrorKind::Configuration, message)
    }

    pub(crate) fn key(message: impl Into<Cow<'static, str>>, source: impl Into<BoxError>) -> Self {
        Self::new(ErrorKind::Key, message).with_source(source)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
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
        // Many errors print their cause, or the whole chain, as part of themselves.
        if !text.ends_with(&cause_text) && !text.contains(&format!(": {cause_text}")) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        next = cause.source();
    }
    text
}
