//! facade
pub use oncebox_core::*;
#[cfg(feature = "derive")]
pub use oncebox_derive::Message;
