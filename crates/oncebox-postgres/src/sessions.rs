//! Sessions that are worth keeping.
//!
//! A connection carries state that no error names: a search path, a role, plans of tables that have changed. A body that fails
//! because of it would succeed elsewhere, and the next one fails as well. So a connection on which body after body fails is closed.

use std::collections::HashMap;
use std::error::Error as StdError;
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

use oncebox_core::store::{Fault, OpaqueError};

use crate::fault::{classify, is_about_data, is_from_server};

/// A connection is closed after this many bodies in a row have failed on it.
const FAILURES_MAX: u32 = 3;

/// The sessions on which a body has failed last, by their backends, with the number of failures in a row.
#[derive(Debug, Default)]
pub(crate) struct SessionHealth(Mutex<HashMap<i32, u32>>);

/// How the pool sets its sessions, as JSON: settings, role and authorization.
#[derive(Debug)]
pub(crate) struct SessionSettings {
    json: String,
    /// The same as it stands in a statement.
    digits: String,
}

impl SessionSettings {
    pub(crate) fn new(json: String) -> Self {
        let digits = json.bytes().map(|byte| format!("{byte:02x}")).collect();
        Self { json, digits }
    }

    pub(crate) fn json(&self) -> &str {
        &self.json
    }

    pub(crate) fn digits(&self) -> &str {
        &self.digits
    }
}

/// Before the store was checked nothing is known of them.
pub(crate) static UNKNOWN: LazyLock<SessionSettings> =
    LazyLock::new(|| SessionSettings::new("{}".to_owned()));

/// What a body's end says about its session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SessionVerdict {
    Good,
    /// Unknown: the driver prepares its statements there again.
    Unknown,
    /// The next attempt should have another one.
    Suspect,
    /// It is closed.
    Bad,
}

impl SessionHealth {
    fn failures(&self) -> MutexGuard<'_, HashMap<i32, u32>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn body_ended(
        &self,
        backend: i32,
        ended: Result<(), &(dyn StdError + 'static)>,
    ) -> SessionVerdict {
        let mut failures = self.failures();
        let verdict = match ended {
            Ok(()) => SessionVerdict::Good,
            Err(error) if error.is::<OpaqueError>() => SessionVerdict::Unknown,
            Err(error) if classify(error) == Fault::Session => SessionVerdict::Bad,
            // What a body does with its data, or meets elsewhere, is not the session's fault.
            Err(error)
                if classify(error) != Fault::Other || is_about_data(error) || !is_from_server(error) =>
            {
                return SessionVerdict::Good;
            }
            Err(_) => {
                let failed = failures.entry(backend).or_default();
                *failed += 1;
                if *failed < FAILURES_MAX { SessionVerdict::Suspect } else { SessionVerdict::Bad }
            }
        };
        if verdict != SessionVerdict::Suspect {
            // Also after `Bad`: the server may give this number to another backend.
            failures.remove(&backend);
        }
        verdict
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_happens_elsewhere_says_nothing_about_a_session() {
        let sessions = SessionHealth::default();
        let elsewhere = std::io::Error::other("the mail server does not answer");
        for _ in 0..10 {
            assert_eq!(sessions.body_ended(1, Err(&elsewhere)), SessionVerdict::Good);
        }
        assert_eq!(sessions.body_ended(1, Ok(())), SessionVerdict::Good);
    }
}
