//! How often each handler's code has run: state that the modules share.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Counts runs, also those that were rolled back. All clones count together.
#[derive(Clone, Debug, Default)]
pub(crate) struct RunCounts(Arc<Mutex<BTreeMap<&'static str, u32>>>);

impl RunCounts {
    pub(crate) fn count(&self, handler: &'static str) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner).entry(handler).or_default() += 1;
    }

    pub(crate) fn of(&self, handler: &str) -> u32 {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(handler).copied().unwrap_or_default()
    }
}
