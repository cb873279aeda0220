//! What the harness and its workers agree on.

pub mod chance;
pub mod plan;
pub mod point;
