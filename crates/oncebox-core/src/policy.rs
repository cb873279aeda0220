//! What to do where a delivery leaves a choice.

use std::time::Duration;

/// What to do with a message that has no key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum MissingKey {
    /// Reject it, so that it cannot slip past the guard unnoticed.
    #[default]
    Reject,
    /// Run the handler all the same, every time it is delivered.
    RunWithoutDedup,
}

/// What to do with a key that is known with another body. It is counted and logged either way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum KeyReuse {
    /// Skip it, as any other duplicate.
    #[default]
    Skip,
    /// Reject it.
    Reject,
}

/// What a copy does that arrives while the first one is still running.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum InFlight {
    /// Wait for the first one: a duplicate if it succeeds, its successor if it fails.
    Wait {
        /// The longest wait; then the copy is busy.
        max: Duration,
    },
    /// Be busy at once.
    Busy,
}

impl Default for InFlight {
    fn default() -> Self {
        Self::Wait { max: Duration::from_secs(30) }
    }
}
