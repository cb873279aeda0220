//! Who may run: the marker is the referee.

use std::time::Duration;

use sha2::{Digest, Sha256};

use crate::store::{Marker, Store};
use crate::{Error, Fingerprint, StoredKey};

/// One handler's work on one message, as a store sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unit {
    /// The handler's name.
    pub handler: String,
    /// The message's kind.
    pub kind: String,
    /// The message's key.
    pub key: StoredKey,
    /// The body's fingerprint; `None` where there is no body to compare.
    pub fingerprint: Option<Fingerprint>,
    /// How long ago the message arrived, by this process's steady clock.
    pub waited: Duration,
}

impl Unit {
    /// A number for locks that are named by numbers. Two units may share one: then one of them is only busy for a while.
    pub fn lock_id(&self) -> i64 {
        let mut hash = Sha256::new();
        for part in [self.handler.as_bytes(), self.kind.as_bytes(), self.key.as_bytes()] {
            // The length first: otherwise "ab" and "c" would share a number with "a" and "bc".
            hash.update((part.len() as u64).to_le_bytes());
            hash.update(part);
        }
        // Eight bytes: an advisory lock of PostgreSQL is named by a `bigint`.
        let mut first = [0; 8];
        first.copy_from_slice(&hash.finalize()[..8]);
        i64::from_be_bytes(first)
    }
}

/// The answer to a claim.
#[derive(Clone, Debug)]
pub enum Claimed {
    /// The marker was not there and is now: run the handler.
    Fresh,
    /// The marker was there.
    Known(Marker),
    /// Another transaction holds the marker, and the others of the batch did not wait for it.
    Busy,
}

impl Claimed {
    /// Whether the handler is to run.
    pub fn is_fresh(&self) -> bool {
        matches!(self, Self::Fresh)
    }
}

/// Decides who may run.
pub trait Claims: Store {
    /// Inserts the markers of all units, sorted by handler, kind and key, in one statement where the store can;
    /// equal units are not passed. One unit waits for a concurrent transaction that holds the same marker: if that one
    /// commits the answer is [`Claimed::Known`], if it rolls back this claim takes over. The answers are in the
    /// order of the units. Among several units, one that would have to wait may be [`Claimed::Busy`] instead, so that it does
    /// not keep the others waiting.
    fn claim(
        &self,
        tx: &mut Self::Tx,
        units: &[Unit],
    ) -> impl Future<Output = Result<Vec<Claimed>, Error>> + Send;

    /// The same for one unit in a transaction that the caller owns and ends.
    fn claim_in(
        &self,
        conn: &mut Self::Conn,
        unit: &Unit,
    ) -> impl Future<Output = Result<Claimed, Error>> + Send;

    /// Sets the point to which [`undo`](Claims::undo) goes back.
    fn isolate(&self, tx: &mut Self::Tx) -> impl Future<Output = Result<(), Error>> + Send;

    /// Keeps what a handler wrote since that point, and proves as far as it can that it may be committed. With `next`, sets
    /// the point for the next one.
    fn keep(&self, tx: &mut Self::Tx, next: bool) -> impl Future<Output = Result<(), Error>> + Send;

    /// Takes back what a handler wrote since that point, and the marker of its unit, where it has one. With `next`, sets the
    /// point for the next one.
    fn undo(
        &self,
        tx: &mut Self::Tx,
        unit: Option<&Unit>,
        next: bool,
    ) -> impl Future<Output = Result<(), Error>> + Send;

    /// Keeps handlers' results beside their markers, in the same transaction.
    fn record_results(
        &self,
        tx: &mut Self::Tx,
        results: &[(&Unit, &[u8])],
    ) -> impl Future<Output = Result<(), Error>> + Send;

    /// Inserts markers for units that were handled elsewhere; how many of them were new.
    fn import_processed(
        &self,
        handler: &str,
        kind: &str,
        keys: &[StoredKey],
    ) -> impl Future<Output = Result<u64, Error>> + Send;
}
