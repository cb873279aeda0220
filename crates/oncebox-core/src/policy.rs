//! Policies for messages without a key, for reused keys and for copies in flight.

use std::time::Duration;

/// The policy for messages without a key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum MissingKey {
    /// Reject the message, so that no message runs without dedup unnoticed.
    #[default]
    Reject,
    /// Run the handler on every delivery, without dedup.
    RunWithoutDedup,
}

/// The policy for a key that was used before with another body.
///
/// The reuse is counted and logged in both cases.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum KeyReuse {
    /// Skip the message, like any other duplicate.
    #[default]
    Skip,
    /// Reject the message.
    Reject,
}

/// The policy for a copy that arrives while the first copy is in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum InFlight {
    /// Wait for the first copy. If it succeeds, this one is a duplicate; if it fails, this one runs.
    Wait {
        /// The maximum wait; after it the outcome is [`Busy`](crate::Outcome::Busy).
        max: Duration,
    },
    /// Do not wait: the outcome is [`Busy`](crate::Outcome::Busy) at once.
    Busy,
}

impl Default for InFlight {
    fn default() -> Self {
        Self::Wait { max: Duration::from_secs(30) }
    }
}
