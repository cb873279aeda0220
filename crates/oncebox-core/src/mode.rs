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

    /// Whether a message whose handler failed is stored, to be tried again from the log.
    pub(crate) const fn spills_failures(self) -> bool {
        matches!(self, Self::Inline { spill: true })
    }

    /// Whether a message can come inline and from the log, so that only its marker tells whether its handler has run.
    pub(crate) const fn relies_on_markers(self) -> bool {
        matches!(self, Self::Mixed)
    }

    /// Whether messages of one ordering key can run in their order: only the log has one.
    pub(crate) const fn keeps_order(self) -> bool {
        matches!(self, Self::Stored)
    }

    /// Whether handlers of this mode can be detached. In mixed mode the marker commits with the handler's own transaction, which a
    /// detached handler does not have.
    pub(crate) const fn allows_detached(self) -> bool {
        !matches!(self, Self::Mixed)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_mode_has_its_rules() {
        // Mode: reads the log, has tasks, is inline, spills failures, relies on markers, keeps order, allows detached handlers.
        for (mode, expected) in [
            (Mode::inline(), [false, false, true, false, false, false, true]),
            (Mode::inline().spill(), [false, true, true, true, false, false, true]),
            (Mode::stored(), [true, true, false, false, false, true, true]),
            (Mode::mixed(), [true, true, true, false, true, false, false]),
        ] {
            let rules = [
                mode.reads_log(),
                mode.has_tasks(),
                mode.is_inline(),
                mode.spills_failures(),
                mode.relies_on_markers(),
                mode.keeps_order(),
                mode.allows_detached(),
            ];
            assert_eq!(rules, expected, "{mode:?}");
            assert_eq!(Mode::from_name(mode.name()), Some(mode));
        }
    }
}
