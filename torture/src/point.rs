//! Named points at which a worker can be killed.

/// A point in the work on a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KillPoint {
    /// The transaction is open; nothing is claimed or taken.
    BeforeClaim,
    /// The handler has written; nothing is committed.
    InBody,
    /// Everything is written; the commit has not been sent.
    BeforeCommit,
    /// The commit has happened; nobody has been told.
    AfterCommit,
    /// The inbox has answered; the source has not been told.
    BeforeAnswer,
}

impl KillPoint {
    /// Every one.
    pub const ALL: [Self; 5] =
        [Self::BeforeClaim, Self::InBody, Self::BeforeCommit, Self::AfterCommit, Self::BeforeAnswer];

    /// How it is written.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::BeforeClaim => "before_claim",
            Self::InBody => "in_body",
            Self::BeforeCommit => "before_commit",
            Self::AfterCommit => "after_commit",
            Self::BeforeAnswer => "before_answer",
        }
    }

    /// The point of that name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|point| point.name() == name)
    }
}
