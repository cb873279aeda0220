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
    pub fn permanent(error: impl Into<BoxError> + 'static) -> Self {
        Self::Permanent(boxed(error))
    }

    /// Try again, but not before this time has passed.
    pub fn after(delay: Duration, error: impl Into<BoxError> + 'static) -> Self {
        Self::After(delay, boxed(error))
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

impl<E: Into<BoxError> + 'static> From<E> for Failure {
    fn from(error: E) -> Self {
        Self::Retry(boxed(error))
    }
}

/// Boxes an error so that its own type can be found again. `anyhow::Error` hides the type of what it holds when it is
/// boxed the usual way, and with it whether that was a deadlock.
fn boxed<E: Into<BoxError> + 'static>(error: E) -> BoxError {
    #[cfg(feature = "anyhow")]
    {
        let mut slot = Some(error);
        let any: &mut dyn std::any::Any = &mut slot;
        if let Some(error) = any.downcast_mut::<Option<anyhow::Error>>().and_then(Option::take) {
            return error.reallocate_into_boxed_dyn_error_without_backtrace();
        }
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
