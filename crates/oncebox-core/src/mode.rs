//! Modes: how messages reach their handlers.

/// How messages reach a handler: inline, from the log, or both.
///
/// The database stores the mode with the handler. A message that reached a handler inline and from the log would run twice;
/// only [`Mode::mixed`] allows both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Mode {
    /// Handlers run when [`process`](crate::Inbox::process) delivers a message.
    Inline {
        /// Whether failed messages, and messages for detached handlers, are moved to the log.
        spill: bool,
    },
    /// [`accept`](crate::Inbox::accept) appends messages to the log, and workers run handlers from there.
    Stored,
    /// Messages arrive in both ways, while a handler changes from one mode to the other.
    Mixed,
    /// A relay of an outbox sends published messages from the log. No handler of an inbox has this mode.
    Relay,
}

impl Mode {
    /// Handlers run on delivery; a failed message is delivered again by its source.
    pub const fn inline() -> Self {
        Self::Inline { spill: false }
    }

    /// Workers run handlers from the log.
    pub const fn stored() -> Self {
        Self::Stored
    }

    /// Handlers run on delivery and from the log: once for each key, whichever way it arrives.
    pub const fn mixed() -> Self {
        Self::Mixed
    }

    /// Moves failed inline messages to the log, where workers retry them; the source acknowledges them at once.
    pub const fn spill(self) -> Self {
        match self {
            Self::Inline { .. } => Self::Inline { spill: true },
            // Messages of these modes are in the log already.
            Self::Stored | Self::Mixed | Self::Relay => self,
        }
    }

    /// The mode's name in the database.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Inline { spill: false } => "inline",
            Self::Inline { spill: true } => "spill",
            Self::Stored => "stored",
            Self::Mixed => "mixed",
            Self::Relay => "relay",
        }
    }

    /// The mode with this name in the database.
    pub fn from_name(name: &str) -> Option<Self> {
        [Self::inline(), Self::inline().spill(), Self::Stored, Self::Mixed, Self::Relay]
            .into_iter()
            .find(|mode| mode.name() == name)
    }

    /// `relay` or `handler`, for texts.
    pub(crate) const fn role(self) -> &'static str {
        if matches!(self, Self::Relay) { "relay" } else { "handler" }
    }

    /// Whether handlers of this mode read the log lane by lane.
    pub const fn reads_log(self) -> bool {
        matches!(self, Self::Stored | Self::Mixed | Self::Relay)
    }

    /// Whether handlers of this mode can have tasks.
    pub const fn has_tasks(self) -> bool {
        !matches!(self, Self::Inline { spill: false })
    }

    /// Whether [`process`](crate::Inbox::process) runs handlers of this mode.
    pub const fn is_inline(self) -> bool {
        !matches!(self, Self::Stored | Self::Relay)
    }

    /// Whether a message whose handler failed is moved to the log and retried there.
    pub(crate) const fn spills_failures(self) -> bool {
        matches!(self, Self::Inline { spill: true })
    }

    /// Whether a message can arrive inline and from the log, so that only its marker shows whether its handler has run.
    pub(crate) const fn relies_on_markers(self) -> bool {
        matches!(self, Self::Mixed)
    }

    /// Whether messages of one ordering key can run in order, which only the log defines.
    pub(crate) const fn keeps_order(self) -> bool {
        matches!(self, Self::Stored | Self::Relay)
    }

    /// Whether handlers of this mode can be detached.
    ///
    /// In mixed mode the marker commits with the handler's transaction, which a detached handler does not have.
    pub(crate) const fn allows_detached(self) -> bool {
        !matches!(self, Self::Mixed)
    }
}

impl Default for Mode {
    fn default() -> Self {
        Self::inline()
    }
}

/// The position in the log where a new handler begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Start {
    /// The oldest message in the log.
    #[default]
    Beginning,
    /// The first message that is accepted from now on.
    Now,
}

/// Whether a dead letter of an ordered handler holds back later messages of its ordering key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum DeadHead {
    /// Later messages wait until an operator has retried, resolved or discarded the dead letter.
    #[default]
    Hold,
    /// Later messages run without it.
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

    /// The policy with this name in the database.
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
