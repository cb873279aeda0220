//! Runs the real program.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

mod demo;
