//! Judges what a store's error means for the work that met it. No other file does.
//!
//! [`Judgement`] answers questions about any error. [`Obstacle`] is for statements before a body; [`Meaning`] is for a body and
//! for statements after it.

use std::error::Error as StdError;

use crate::store::{Fault, Store};
use crate::{Error, ErrorKind, Failure};

/// The store's classification of an error, as answers to questions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Judgement(Fault);

impl Judgement {
    pub(crate) fn of<S: Store>(error: &(dyn StdError + 'static)) -> Self {
        Self(S::classify(error))
    }

    /// Whether a lock timed out: another transaction holds it.
    pub(crate) fn is_locked(self) -> bool {
        self.0 == Fault::LockTimeout
    }

    /// Whether the database aborted this transaction in favour of another: a deadlock or a serialization failure.
    pub(crate) fn is_conflict(self) -> bool {
        self.0 == Fault::Transient
    }

    /// Whether the connection is lost. The last statement may or may not have happened.
    pub(crate) fn is_lost(self) -> bool {
        self.0 == Fault::Connection
    }

    /// Whether the session of the connection is out of date. Another connection works.
    pub(crate) fn is_session(self) -> bool {
        self.0 == Fault::Session
    }

    /// Whether the store refused the statement itself. Another attempt meets the same error.
    pub(crate) fn is_refused(self) -> bool {
        self.0 == Fault::Other
    }
}

/// The meaning of an error in a body, or after it: in one of the inbox's own statements or in the commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Meaning {
    /// The handler broke the transaction that it received.
    Broken,
    /// The transaction conflicted with others.
    Contended,
    /// The session of the connection is out of date. Another connection works.
    Session,
    /// The connection is lost. The last statement may or may not have happened.
    Lost,
    /// The store has an outage. No message caused it.
    Outage,
    /// The statement or its data caused the error, a deferred constraint for example. Another attempt meets the same error.
    Failed,
}

impl Meaning {
    /// The meaning of an error of the inbox's own statement or commit, after a body.
    pub(crate) fn of<S: Store>(error: &Error) -> Self {
        match error.kind() {
            // The inbox found this itself, so the store's classification of the cause does not matter.
            ErrorKind::Transaction => Self::Broken,
            _ => Self::of_judgement(Judgement::of::<S>(error)),
        }
    }

    /// The meaning of a body's failure. If the handler asks for a certain time or rejects the message, the store's
    /// classification does not matter.
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
            // After a body has started, a statement timeout means that the handler is too slow.
            Fault::StatementTimeout | Fault::Other => Self::Failed,
        }
    }
}

/// The meaning of an error of the inbox's own statement before any body has run.
#[derive(Debug)]
pub(crate) enum Obstacle {
    /// Another transaction holds the lock.
    Locked,
    /// The store does not respond now. The outcome is open.
    Infrastructure(Error),
    /// The store would fail in the same way next time: a missing permission, a missing table.
    Hopeless(Error),
}

impl Obstacle {
    pub(crate) fn of<S: Store>(error: Error) -> Self {
        match Judgement::of::<S>(&error).0 {
            Fault::LockTimeout => Self::Locked,
            // No body has run, so even a statement timeout can only be the store's.
            Fault::Connection
            | Fault::Session
            | Fault::Outage
            | Fault::Transient
            | Fault::StatementTimeout => Self::Infrastructure(error),
            Fault::Other => Self::Hopeless(error),
        }
    }
}

/// Turns an outage that a body met into an error of the store.
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
    fn every_question_is_true_for_its_fault_only() {
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

    /// A second place could judge the same error differently.
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
