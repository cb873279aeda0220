//! The failure of a handler, and whether the message is tried again.

use std::error::Error as StdError;
use std::fmt;
use std::time::Duration;

use crate::BoxError;
use crate::error::chain;

/// A handler's failure, which also decides whether the message is tried again.
///
/// In each case the handler's writes are rolled back.
///
/// `?` turns any error into [`Failure::Retry`]; that is why `Failure` itself is not an `Error`.
#[derive(Debug)]
pub enum Failure {
    /// Try again: with the broker's next delivery, or with the next attempt from the log.
    Retry(BoxError),
    /// Try again after this time, not before.
    After(Duration, BoxError),
    /// Do not try again: reject the message, or make it a dead letter.
    Permanent(BoxError),
}

impl Failure {
    /// A failure that another attempt cannot mend.
    pub fn permanent(error: impl Into<BoxError> + 'static) -> Self {
        Self::Permanent(boxed(error))
    }

    /// A failure that is retried after this time, not before.
    pub fn after(delay: Duration, error: impl Into<BoxError> + 'static) -> Self {
        Self::After(delay, boxed(error))
    }

    /// The error of this failure.
    pub fn error(&self) -> &(dyn StdError + Send + Sync + 'static) {
        match self {
            Self::Retry(error) | Self::After(_, error) | Self::Permanent(error) => &**error,
        }
    }

    /// Makes the failure permanent if the check is true for an error of type `E` in the chain of causes.
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

impl<E: Into<BoxError> + 'static> From<E> for Failure {
    fn from(error: E) -> Self {
        Self::Retry(boxed(error))
    }
}

/// Boxes an error so that its own type can be found again.
///
/// The usual conversion of an `anyhow::Error` hides the type of the error inside, so that a deadlock could not be recognised.
fn boxed<E: Into<BoxError> + 'static>(error: E) -> BoxError {
    #[cfg(feature = "anyhow")]
    {
        // Stable Rust has no specialisation: only `Any` can tell at run time whether `E` is an `anyhow::Error`.
        let mut slot = Some(error);
        let any: &mut dyn std::any::Any = &mut slot;
        if let Some(error) = any.downcast_mut::<Option<anyhow::Error>>().and_then(Option::take) {
            return error.reallocate_into_boxed_dyn_error_without_backtrace();
        }
        // Never empty here: only the branch above takes the error, and it returns.
        slot.map_or_else(|| "no error".into(), Into::into)
    }
    #[cfg(not(feature = "anyhow"))]
    error.into()
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

    #[cfg(feature = "anyhow")]
    #[test]
    fn anyhow_s_errors_keep_their_type() {
        let not_found = || anyhow::Error::new(io::Error::new(io::ErrorKind::NotFound, "gone"));
        for error in [not_found(), not_found().context("reading"), not_found().context("a").context("b")] {
            let failure =
                Failure::from(error).permanent_if(|e: &io::Error| e.kind() == io::ErrorKind::NotFound);
            assert!(matches!(failure, Failure::Permanent(_)), "{failure}");
        }
        assert_eq!(Failure::from(anyhow::anyhow!("plain")).to_string(), "plain");
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
