//! The parts of a delivery over HTTP, for programs that deliver messages by rules of their own.
//!
//! A relay needs none of them: use [`HttpSink`](crate::HttpSink).

mod address;
mod endpoint;
mod headers;
mod response;
mod tls;
mod trace;

pub use address::is_public;
pub use endpoint::{Endpoint, client};
pub(crate) use headers::reserved;
pub use headers::{header_problem, is_left_out};
pub use response::{PostError, beginning};
pub use trace::traceparent;
