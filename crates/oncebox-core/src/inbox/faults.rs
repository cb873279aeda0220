//! What an error means for the work that met it: the one place where a store's faults are judged.

use crate::store::{Fault, Store};
use crate::{Error, ErrorKind, Failure};

/// What an error means that was met in a body, or behind one: by one of the inbox's own statements, or by the commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Meaning {
    /// The handler broke the transaction that it was lent.
    Broken,
    /// Other transactions were in the way.
    Contended,
    /// The session of the connection is out of date; another connection will do.
    Session,
    /// The connection is gone. The last statement may or may not have happened.
    Lost,
    /// The store has an outage. No message is to blame.
    Outage,
    /// The statement or its data is at fault; a deferred constraint, for example. Another try meets the same error.
    Failed,
}

impl Meaning {
    /// Of an error of the inbox's own statement or commit, behind a body.
    pub(crate) fn of<S: Store>(error: &Error) -> Self {
        match error.kind() {
            ErrorKind::Transaction => Self::Broken,
            _ => Self::of_fault(S::classify(error)),
        }
    }

    /// Of a body's failure. A handler that asks for a certain time, or rejects the message, has made up its mind.
    pub(crate) fn of_failure<S: Store>(failure: &Failure) -> Self {
        match failure {
            Failure::Retry(_) => Self::of_fault(S::classify(failure.error())),
            Failure::After(..) | Failure::Permanent(_) => Self::Failed,
        }
    }

    fn of_fault(fault: Fault) -> Self {
        match fault {
            Fault::Connection => Self::Lost,
            Fault::Session => Self::Session,
            Fault::Outage => Self::Outage,
            Fault::Transient | Fault::LockTimeout => Self::Contended,
            Fault::StatementTimeout | Fault::Other => Self::Failed,
        }
    }
}

/// What an error of the inbox's own statement means before any body has run.
#[derive(Debug)]
pub(crate) enum Obstacle {
    /// Another transaction holds the lock.
    Locked,
    /// The store does not answer now; nothing is decided.
    Infrastructure(Error),
    /// The store will answer the same next time: a missing permission, a missing table.
    Hopeless(Error),
}

impl Obstacle {
    pub(crate) fn of<S: Store>(error: Error) -> Self {
        match S::classify(&error) {
            Fault::LockTimeout => Self::Locked,
            Fault::Connection
            | Fault::Session
            | Fault::Outage
            | Fault::Transient
            | Fault::StatementTimeout => Self::Infrastructure(error),
            Fault::Other => Self::Hopeless(error),
        }
    }
}

/// An outage that a body has met, as an error of the store.
pub(crate) fn outage(failure: Failure) -> Error {
    Error::unavailable("the store has an outage", failure.into_error())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lease::MemoryStore;

    #[test]
    fn every_fault_has_one_meaning_behind_a_body() {
        for (fault, expected) in [
            (Fault::Connection, Meaning::Lost),
            (Fault::Session, Meaning::Session),
            (Fault::Outage, Meaning::Outage),
            (Fault::Transient, Meaning::Contended),
            (Fault::LockTimeout, Meaning::Contended),
            (Fault::StatementTimeout, Meaning::Failed),
            (Fault::Other, Meaning::Failed),
        ] {
            assert_eq!(Meaning::of_fault(fault), expected, "{fault:?}");
        }
    }

    #[test]
    fn a_broken_transaction_is_the_handler_s_whatever_the_cause() {
        let broken = Error::new(ErrorKind::Transaction, "the handler ran COMMIT");
        assert_eq!(Meaning::of::<MemoryStore>(&broken), Meaning::Broken);
    }
}
