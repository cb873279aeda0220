//! How a handler says that it failed, and what should happen next.

use std::error::Error as StdError;
use std::fmt;
use std::time::Duration;

use crate::BoxError;
use crate::error::chain;

/// Why a handler did not succeed. Its writes are rolled back, whichever it is.
///
/// `?` turns any error into [`Failure::Retry`]; that is why `Failure` itself is not an `Error`.
#[derive(Debug)]
pub enum Failure {
    /// Try again: the broker's next delivery runs the handler again.
    Retry(BoxError),
    /// Try again, but not before this time has passed.
    After(Duration, BoxError),
    /// Trying again cannot help: reject the message.
    Permanent(BoxError),
}

impl Failure {
    /// Trying again cannot help.
    pub fn permanent(error: impl Into<BoxError>) -> Self {
        Self::Permanent(error.into())
    }

    /// Try again, but not before this time has passed.
    pub fn after(delay: Duration, error: impl Into<BoxError>) -> Self {
        Self::After(delay, error.into())
    }

    /// The error behind it.
    pub fn error(&self) -> &(dyn StdError + Send + Sync + 'static) {
        match self {
            Self::Retry(error) | Self::After(_, error) | Self::Permanent(error) => &**error,
        }
    }

    /// Makes it permanent if an error of type `E` in the chain of causes says so.
    pub(crate) fn permanent_if<E: StdError + 'static>(self, is_permanent: impl Fn(&E) -> bool) -> Self {
        let mut next: Option<&(dyn StdError + 'static)> = Some(self.error());
        while let Some(error) = next {
            if error.downcast_ref::<E>().is_some_and(&is_permanent) {
                return Self::Permanent(self.into_error());
            }
            next = error.source();
        }
        self
    }

    pub(crate) fn into_error(self) -> BoxError {
        match self {
            Self::Retry(error) | Self::After(_, error) | Self::Permanent(error) => error,
        }
    }
}

impl<E: Into<BoxError>> From<E> for Failure {
    fn from(error: E) -> Self {
        Self::Retry(error.into())
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&chain(self.error()))
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    fn failing() -> Result<(), Failure> {
        Err(io::Error::new(io::ErrorKind::NotFound, "gone"))?;
        Ok(())
    }

    #[test]
    fn the_question_mark_makes_any_error_a_retry() {
        assert!(matches!(failing(), Err(Failure::Retry(_))));
    }

    #[test]
    fn permanent_if_looks_through_the_causes() {
        let outer = crate::Error::unavailable("outer", io::Error::new(io::ErrorKind::NotFound, "gone"));
        let failure = Failure::from(outer).permanent_if(|e: &io::Error| e.kind() == io::ErrorKind::NotFound);
        assert!(matches!(failure, Failure::Permanent(_)));
        let failure = Failure::from(io::Error::other("x")).permanent_if(|_: &fmt::Error| true);
        assert!(matches!(failure, Failure::Retry(_)));
    }
}
