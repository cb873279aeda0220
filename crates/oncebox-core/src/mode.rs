//! How messages reach their handlers.

/// How messages reach a handler. It is part of what the database knows of one, because a message that came in two ways would
/// run twice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// As they are delivered, by [`process`](crate::Inbox::process).
    #[default]
    Inline,
    /// Later, from the log to which [`accept`](crate::Inbox::accept) has appended them.
    Stored,
}

impl Mode {
    /// The mode's name in the database.
    pub fn name(self) -> &'static str {
        match self {
            Self::Inline => "inline",
            Self::Stored => "stored",
        }
    }

    /// The mode of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        [Self::Inline, Self::Stored].into_iter().find(|mode| mode.name() == name)
    }
}

/// Where a new handler begins in the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Start {
    /// With the oldest message that is still there.
    #[default]
    Beginning,
    /// With the messages that are accepted from now on.
    Now,
}
