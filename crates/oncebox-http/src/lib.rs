//! HTTP as a sink of [Oncebox](https://docs.rs/oncebox): a relay posts each published message to an endpoint.
//!
//! ```no_run
//! use oncebox_core::Relay;
//! use oncebox_http::HttpSink;
//!
//! # fn relay() -> Result<Relay, oncebox_core::Error> {
//! let sink = HttpSink::new("https://billing.example.com/messages")?.header("content-type", "application/json")?;
//! let relay = Relay::new("billing", sink).kinds(["order.*"]).in_flight(64);
//! # Ok(relay)
//! # }
//! ```
//!
//! Start to read at [`HttpSink`]. Applications use it through the feature `http` of the crate `oncebox`.

#![forbid(unsafe_code)]

pub mod delivery;
mod sink;

pub use sink::HttpSink;
