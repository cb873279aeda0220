//! A mailer that is down at first, and knows an address when it sees one.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use oncebox::Failure;

#[derive(Clone)]
pub(crate) struct Mailer {
    failures_left: Arc<AtomicU32>,
}

impl Mailer {
    pub(crate) fn that_is_down_at_first(times: u32) -> Self {
        Self { failures_left: Arc::new(AtomicU32::new(times)) }
    }

    pub(crate) fn check(&self, address: &str) -> Result<(), Failure> {
        let down =
            self.failures_left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
        if down.is_ok() {
            return Err("the mailer is down".into());
        }
        if !address.contains('@') {
            return Err(format!("{address:?} is no address").into());
        }
        Ok(())
    }
}
