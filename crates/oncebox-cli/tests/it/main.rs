//! The program as its users have it: a process, its answers, its exit codes.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

mod operate;
