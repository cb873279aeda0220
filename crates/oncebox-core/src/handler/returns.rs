//! Return values of handlers.

use serde::Serialize;

use crate::Failure;

/// A result that is stored with the marker, so that duplicates receive it too; see [`Inbox::call`](crate::Inbox::call).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reply<T>(pub T);

/// The result of a handler run, if it returned a [`Reply`].
#[derive(Debug, Default)]
pub struct Returned {
    pub(crate) result: Option<Vec<u8>>,
}

/// The return value of a handler: `()`, [`Reply<T>`], or a `Result` of either with any error.
#[diagnostic::on_unimplemented(
    message = "a handler cannot return `{Self}`",
    note = "return `()`, `Reply<T>`, or a `Result` of these whose error is a `Failure` or any `std::error::Error`"
)]
pub trait IntoReturned: Send {
    /// Converts the value into a success or a failure.
    fn into_returned(self) -> Result<Returned, Failure>;
}

impl IntoReturned for () {
    fn into_returned(self) -> Result<Returned, Failure> {
        Ok(Returned::default())
    }
}

impl<T: Serialize + Send> IntoReturned for Reply<T> {
    fn into_returned(self) -> Result<Returned, Failure> {
        // Permanent: a result without a JSON form has none at the next attempt either.
        let result = serde_json::to_vec(&self.0).map_err(Failure::permanent)?;
        Ok(Returned { result: Some(result) })
    }
}

impl<R: IntoReturned, E: Into<Failure> + Send> IntoReturned for Result<R, E> {
    fn into_returned(self) -> Result<Returned, Failure> {
        self.map_err(Into::into)?.into_returned()
    }
}
