//! How messages reach their handlers.

/// How messages reach a handler. It is part of what the database knows of one, because a message that came in two ways would
/// run twice; only [`Mode::mixed`] takes both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Mode {
    /// As they are delivered, by [`process`](crate::Inbox::process).
    Inline {
        /// Whether what fails, and what is for detached handlers, is set apart in the log.
        spill: bool,
    },
    /// Later, from the log to which [`accept`](crate::Inbox::accept) has appended them.
    Stored,
    /// Either way: what a handler goes through when its mode changes.
    Mixed,
}

impl Mode {
    /// As messages are delivered; who delivered a message that fails is told to deliver it again.
    pub const fn inline() -> Self {
        Self::Inline { spill: false }
    }

    /// From the log.
    pub const fn stored() -> Self {
        Self::Stored
    }

    /// As they are delivered and from the log: each key once, whichever way it comes.
    pub const fn mixed() -> Self {
        Self::Mixed
    }

    /// Inline, and what fails is set apart in the log, from where it is tried again: the source is done with it.
    pub const fn spill(self) -> Self {
        match self {
            Self::Inline { .. } => Self::Inline { spill: true },
            // The log is where it is already.
            Self::Stored | Self::Mixed => self,
        }
    }

    /// The mode's name in the database.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Inline { spill: false } => "inline",
            Self::Inline { spill: true } => "spill",
            Self::Stored => "stored",
            Self::Mixed => "mixed",
        }
    }

    /// The mode of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        [Self::inline(), Self::inline().spill(), Self::Stored, Self::Mixed]
            .into_iter()
            .find(|mode| mode.name() == name)
    }

    /// Whether handlers of this mode read the log lane by lane.
    pub const fn reads_log(self) -> bool {
        matches!(self, Self::Stored | Self::Mixed)
    }

    /// Whether handlers of this mode can have tasks.
    pub const fn has_tasks(self) -> bool {
        !matches!(self, Self::Inline { spill: false })
    }

    /// Whether [`process`](crate::Inbox::process) is for handlers of this mode.
    pub const fn is_inline(self) -> bool {
        !matches!(self, Self::Stored)
    }
}

impl Default for Mode {
    fn default() -> Self {
        Self::inline()
    }
}

/// Where a new handler begins in the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Start {
    /// With the oldest message that is still there.
    #[default]
    Beginning,
    /// With the messages that are accepted from now on.
    Now,
}

/// What a dead letter means for the messages behind it, of the same ordering key, where a handler is ordered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum DeadHead {
    /// They wait until an operator has dealt with it.
    #[default]
    Hold,
    /// They go on without it.
    Skip,
}

impl DeadHead {
    /// The policy's name in the database.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Hold => "hold",
            Self::Skip => "skip",
        }
    }

    /// The policy of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        [Self::Hold, Self::Skip].into_iter().find(|policy| policy.name() == name)
    }
}
