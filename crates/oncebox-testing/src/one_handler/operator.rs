//! Actions of operators on the handler and its dead letters.

use oncebox_core::store::{
    Acted, Action, AuditEntry, DeadLetters, HandlerId, Operate, Place, ReplayFrom, Replayed, Select,
};
use oncebox_core::{Error, LogStore};

use super::OneHandler;
use crate::Fixture;

/// The operator of all actions.
const OPERATOR: &str = "ann";

impl<F: Fixture<Store: LogStore>> OneHandler<F> {
    /// Does something with dead letters; how many.
    pub async fn act(&self, select: &Select, action: &Action, limit: u32) -> u64 {
        self.act_after(select, action, None, limit).await.letters
    }

    /// One step of an action on dead letters.
    pub async fn act_after(
        &self,
        select: &Select,
        action: &Action,
        after: Option<(HandlerId, Place)>,
        limit: u32,
    ) -> Acted {
        self.store.act(select, action, OPERATOR, after, limit).await.unwrap()
    }

    /// Pauses a handler, or resumes it; whether that was a change.
    pub async fn pause(&self, name: &str, paused: bool) -> Result<bool, Error> {
        self.store.pause_handler(name, paused, OPERATOR).await
    }

    /// Has a handler run on messages again.
    pub async fn try_replay(&self, name: &str, from: ReplayFrom) -> Result<Option<Replayed>, Error> {
        self.store.replay(name, from, OPERATOR).await
    }

    /// Has the handler run on messages again.
    pub async fn replay(&self, from: ReplayFrom) -> Replayed {
        self.try_replay(&self.registration.name, from).await.unwrap().unwrap()
    }

    /// Gives a handler another name; whether there is one.
    pub async fn rename(&self, name: &str, new_name: &str) -> Result<bool, Error> {
        self.store.rename_handler(name, new_name, OPERATOR).await
    }

    /// Removes a handler; whether there was one.
    pub async fn remove(&self, name: &str) -> bool {
        self.store.remove_handler(name, OPERATOR).await.unwrap()
    }

    /// The latest actions of operators, newest first.
    pub async fn audit(&self) -> Vec<AuditEntry> {
        self.store.audit(1000).await.unwrap()
    }

    /// The actions and their handlers, newest first.
    pub async fn actions(&self) -> Vec<(String, String)> {
        self.audit().await.into_iter().map(|entry| (entry.action, entry.handler)).collect()
    }
}
