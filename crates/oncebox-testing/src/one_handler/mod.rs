//! One handler on a log of four lanes, driven through the store's roles as the engine drives it.
//!
//! The conformance suite uses it for each role of a store on its own; a store's own tests use it for its special features.

#![allow(clippy::unwrap_used, clippy::missing_panics_doc, reason = "a test that cannot go on panics")]

mod input;
mod lanes;
mod operator;
mod processes;
mod reading;

use std::time::Duration;

use oncebox_core::store::{HandlerId, LaneCount, Layout, Registration, Registry, Taker};
use oncebox_core::{Error, LogStore, Mode};

pub use input::*;
pub use processes::LEASE;

use crate::Fixture;

/// The log of every [`OneHandler`].
pub const FOUR_LANES: Option<LaneCount> = Some(LaneCount(Some(4)));

/// A handler on a log of four lanes.
#[derive(Clone, Debug)]
pub struct OneHandler<F: Fixture<Store: LogStore>> {
    /// The store under test.
    pub fixture: F,
    /// The handler's number.
    pub handler: HandlerId,
    /// As it is registered.
    pub registration: Registration,
    store: F::Store,
}

impl<F: Fixture<Store: LogStore>> OneHandler<F> {
    /// A stored handler `ledger` of the kind `a`.
    pub async fn new(fixture: F) -> Self {
        Self::of(fixture, stored("ledger", &["a"])).await
    }

    /// The handler `ledger` of the kind `a`, in this mode.
    pub async fn in_mode(fixture: F, mode: Mode) -> Self {
        Self::of(fixture, Registration { mode, ..stored("ledger", &["a"]) }).await
    }

    /// This handler.
    pub async fn of(fixture: F, registration: Registration) -> Self {
        let store = fixture.store();
        let layout = store.register(FOUR_LANES, std::slice::from_ref(&registration)).await.unwrap();
        assert_eq!(layout.lanes, 4);
        Self { handler: layout.handlers[0], store, fixture, registration }
    }

    /// Another handler on the same log.
    pub async fn beside(&self, registration: Registration) -> Self {
        Self::of(self.fixture.clone(), registration).await
    }

    /// The same handler through another store on the same database.
    pub fn seen_by(&self, fixture: F) -> Self {
        Self { store: fixture.store(), fixture, ..self.clone() }
    }

    /// Registers handlers on the same log.
    pub async fn register(&self, handlers: &[Registration]) -> Result<Layout, Error> {
        self.store.register(FOUR_LANES, handlers).await
    }

    /// Registers the handler again, with these changes.
    pub async fn change(&mut self, change: impl FnOnce(&mut Registration)) -> Result<(), Error> {
        let mut wanted = self.registration.clone();
        change(&mut wanted);
        let layout = self.register(std::slice::from_ref(&wanted)).await?;
        assert_eq!(layout.handlers, [self.handler]);
        self.registration = wanted;
        Ok(())
    }

    /// Registers the handler again, in another mode.
    pub async fn change_mode(&mut self, mode: Mode) -> Result<(), Error> {
        self.change(|wanted| wanted.mode = mode).await
    }

    /// Moves the store's clock forward.
    pub fn travel(&self, time: Duration) {
        self.fixture.travel(time);
    }

    /// The handler in one lane, as it is registered.
    pub fn taker(&self, lane: u16) -> Taker<'_> {
        let Registration { kinds, mode, ordered, .. } = &self.registration;
        Taker { handler: self.handler, kinds, mode: *mode, ordered: *ordered, lane }
    }
}
