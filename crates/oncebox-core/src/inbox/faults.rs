//! What an error means for the work that met it: the one place where a store's faults are judged.
//!
//! [`Judgement`] answers the questions that loops ask of any error. [`Obstacle`] is for statements before a body, [`Meaning`] for a
//! body and for statements behind it.

use std::error::Error as StdError;

use crate::store::{Fault, Store};
use crate::{Error, ErrorKind, Failure};

/// What a store says about an error, as answers to the questions that are asked of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Judgement(Fault);

impl Judgement {
    pub(crate) fn of<S: Store>(error: &(dyn StdError + 'static)) -> Self {
        Self(S::classify(error))
    }

    /// Whether a lock was not free in time: another transaction holds it.
    pub(crate) fn is_locked(self) -> bool {
        self.0 == Fault::LockTimeout
    }

    /// Whether the database chose this transaction to give way: a deadlock or a serialization failure.
    pub(crate) fn is_conflict(self) -> bool {
        self.0 == Fault::Transient
    }

    /// Whether the connection is gone: the last statement may or may not have happened.
    pub(crate) fn is_lost(self) -> bool {
        self.0 == Fault::Connection
    }

    /// Whether the session of the connection is out of date: another connection will do.
    pub(crate) fn is_session(self) -> bool {
        self.0 == Fault::Session
    }

    /// Whether the statement itself was refused: another attempt meets the same error.
    pub(crate) fn is_refused(self) -> bool {
        self.0 == Fault::Other
    }
}

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
            _ => Self::of_judgement(Judgement::of::<S>(error)),
        }
    }

    /// Of a body's failure. A handler that asks for a certain time, or rejects the message, has made up its mind.
    pub(crate) fn of_failure<S: Store>(failure: &Failure) -> Self {
        match failure {
            Failure::Retry(_) => Self::of_judgement(Judgement::of::<S>(failure.error())),
            Failure::After(..) | Failure::Permanent(_) => Self::Failed,
        }
    }

    fn of_judgement(judgement: Judgement) -> Self {
        match judgement.0 {
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
        match Judgement::of::<S>(&error).0 {
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
            assert_eq!(Meaning::of_judgement(Judgement(fault)), expected, "{fault:?}");
        }
    }

    #[test]
    fn every_question_has_its_fault() {
        // Fault: is locked, conflict, lost, session, refused.
        for (fault, expected) in [
            (Fault::Connection, [false, false, true, false, false]),
            (Fault::Session, [false, false, false, true, false]),
            (Fault::Outage, [false; 5]),
            (Fault::Transient, [false, true, false, false, false]),
            (Fault::LockTimeout, [true, false, false, false, false]),
            (Fault::StatementTimeout, [false; 5]),
            (Fault::Other, [false, false, false, false, true]),
        ] {
            let it = Judgement(fault);
            let judged = [it.is_locked(), it.is_conflict(), it.is_lost(), it.is_session(), it.is_refused()];
            assert_eq!(judged, expected, "{fault:?}");
        }
    }

    /// A second place would come to another judgement some day.
    #[test]
    fn only_this_file_asks_a_store_what_an_error_means() {
        let source = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
        let mut folders = vec![source.clone()];
        let mut asking = Vec::new();
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    folders.push(path);
                } else if path.extension().is_some_and(|extension| extension == "rs")
                    && std::fs::read_to_string(&path).unwrap().contains("::classify(")
                {
                    asking.push(path.strip_prefix(&source).unwrap().to_owned());
                }
            }
        }
        assert_eq!(asking, [std::path::Path::new("inbox/faults.rs")]);
    }

    #[test]
    fn a_broken_transaction_is_the_handler_s_whatever_the_cause() {
        let broken = Error::new(ErrorKind::Transaction, "the handler ran COMMIT");
        assert_eq!(Meaning::of::<MemoryStore>(&broken), Meaning::Broken);
    }
}
