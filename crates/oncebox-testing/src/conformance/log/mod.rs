//! The log, role by role: what the engine may rely on, without the engine.

mod append;
mod care;
mod dead_letters;
mod handlers;
mod leases;
mod modes;
mod order;
mod order_next;
mod processes;
mod prune;
mod ranges;
mod registry;
mod replay;
mod spill;
mod survey;
mod take;
mod tasks;

use std::fmt::Debug;

use oncebox_core::{Error, ErrorKind};

pub use append::*;
pub use care::*;
pub use dead_letters::*;
pub use handlers::*;
pub(super) use leases::three_passed;
pub use leases::*;
pub use modes::*;
pub use order::*;
pub use order_next::*;
pub use processes::*;
pub use prune::*;
pub use ranges::*;
pub use registry::*;
pub use replay::*;
pub use spill::*;
pub use survey::*;
pub use take::*;
pub use tasks::*;

/// The error, which must be of the kind `Configuration`.
fn refused<T: Debug>(result: Result<T, Error>) -> Error {
    let error = result.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Configuration, "{error}");
    error
}
