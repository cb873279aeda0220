//! Claims: the marker decides which transaction runs a unit.

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
    /// The body's fingerprint; `None` if there is no body to compare.
    pub fingerprint: Option<Fingerprint>,
    /// The time since the message arrived, by this process's steady clock.
    pub waited: Duration,
}

impl Unit {
    /// The number of the unit's lock, for locks that have numbers. If two units share one, one of them is busy for a while.
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

/// The result of a claim.
#[derive(Clone, Debug)]
pub enum Claimed {
    /// The marker is new: run the handler.
    Fresh,
    /// The marker existed before.
    Known(Marker),
    /// Another transaction holds the marker, and the batch does not wait for it.
    Busy,
}

impl Claimed {
    /// Whether the handler is to run.
    pub fn is_fresh(&self) -> bool {
        matches!(self, Self::Fresh)
    }
}

/// Decides which transaction runs a unit.
pub trait Claims: Store {
    /// Inserts the markers of all units, in one statement where the store can. The results are in the order of the units.
    ///
    /// The units are distinct, and sorted by handler, kind and key, so that two batches never wait for each other. A single
    /// unit waits for a concurrent transaction that holds the same marker. If that one commits, the result is
    /// [`Claimed::Known`]; if it rolls back, this claim takes over. Among several units, one that would have to wait may be
    /// [`Claimed::Busy`] instead, so that it does not delay the others.
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

    /// Sets the point to which [`undo`](Claims::undo) returns: a savepoint.
    // Not for every batch: a savepoint per unit costs one more round trip each.
    fn isolate(&self, tx: &mut Self::Tx) -> impl Future<Output = Result<(), Error>> + Send;

    /// Keeps the writes of a handler since that point, and checks as far as possible that they can be committed. With `next`, it
    /// sets the point for the next handler.
    fn keep(&self, tx: &mut Self::Tx, next: bool) -> impl Future<Output = Result<(), Error>> + Send;

    /// Undoes the writes of a handler since that point, and deletes the marker of its unit, if it has one. With `next`, it sets
    /// the point for the next handler.
    fn undo(
        &self,
        tx: &mut Self::Tx,
        unit: Option<&Unit>,
        next: bool,
    ) -> impl Future<Output = Result<(), Error>> + Send;

    /// Stores handlers' results with their markers, in the same transaction.
    fn record_results(
        &self,
        tx: &mut Self::Tx,
        results: &[(&Unit, &[u8])],
    ) -> impl Future<Output = Result<(), Error>> + Send;

    /// Inserts markers for units that were handled elsewhere, and returns the number of new ones.
    fn import_processed(
        &self,
        handler: &str,
        kind: &str,
        keys: &[StoredKey],
    ) -> impl Future<Output = Result<u64, Error>> + Send;
}
