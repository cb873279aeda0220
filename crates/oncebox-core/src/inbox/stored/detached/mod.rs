//! Detached handlers: messages are leased in a short transaction, and run outside of any.
//!
//! A task that runs belongs to its process, which says again and again that it is alive; how it ended is written under the fence
//! that it was leased with. If the process dies, somebody else leases the task under a newer fence, and what the first one
//! still has to say does not count.

mod company;
mod end;
mod lease;
mod run;

use std::sync::Arc;

use tokio::sync::Semaphore;

pub(crate) use run::Bodies;

use crate::handler::Detachment;

/// What a detached handler has beside the rest.
#[derive(Debug)]
pub(crate) struct Slots {
    settings: Detachment,
    free: Arc<Semaphore>,
}

impl Slots {
    pub(crate) fn new(settings: Detachment) -> Self {
        Self { settings, free: Arc::new(Semaphore::new(settings.concurrency.min(Semaphore::MAX_PERMITS))) }
    }
}
