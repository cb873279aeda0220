//! Who may run.

use std::sync::LazyLock;
use std::time::Duration;

use oncebox_core::store::{Claimed, Claims, Unit, doing, refusal, row};
use oncebox_core::{Error, Fingerprint, Key, StoredKey};
use sqlx::SqliteConnection;

use crate::fault::failed;
use crate::inspect::find_marker;
use crate::json::hex;
use crate::many::Many;
use crate::statements;
use crate::store::SqliteStore;
use crate::transaction::SqliteTx;

/// In one message to the driver's thread.
static KEEP_AND_ISOLATE: LazyLock<String> =
    LazyLock::new(|| format!("{};\n{}", statements::keep(), statements::isolate()));

static CLAIM: LazyLock<Many> = LazyLock::new(|| Many::new(statements::claim()));

impl Claims for SqliteStore {
    async fn claim(&self, tx: &mut SqliteTx, units: &[Unit]) -> Result<Vec<Claimed>, Error> {
        let fresh = insert_markers(tx.connection(), units, self.clock_offset_ms()).await;
        let mut claimed = Vec::with_capacity(units.len());
        for (unit, is_fresh) in units.iter().zip(fresh.map_err(failed(doing::CLAIM))?) {
            claimed.push(match is_fresh {
                true => Claimed::Fresh,
                // The insert reports only that a marker is there. A duplicate needs its state and its result.
                false => self.claim_in(tx.connection(), unit).await?,
            });
        }
        Ok(claimed)
    }

    async fn claim_in(&self, conn: &mut SqliteConnection, unit: &Unit) -> Result<Claimed, Error> {
        for _ in 0..refusal::CLAIM_ATTEMPTS {
            let units = std::slice::from_ref(unit);
            let fresh = insert_markers(conn, units, self.clock_offset_ms()).await;
            if fresh.map_err(failed(doing::CLAIM))? == [true] {
                return Ok(Claimed::Fresh);
            }
            if let Some(marker) = find_marker(conn, unit).await? {
                return Ok(Claimed::Known(marker));
            }
        }
        // Each time, a sweep deleted the marker between the two statements.
        Err(refusal::unstable_marker())
    }

    async fn isolate(&self, tx: &mut SqliteTx) -> Result<(), Error> {
        tx.run(statements::isolate()).await
    }

    async fn keep(&self, tx: &mut SqliteTx, next: bool) -> Result<(), Error> {
        // First: if the handler ended the transaction, its savepoint is gone, and the error must say why.
        tx.check_whole().await?;
        tx.run(match next {
            true => &KEEP_AND_ISOLATE,
            false => statements::keep(),
        })
        .await
    }

    async fn undo(&self, tx: &mut SqliteTx, unit: Option<&Unit>, next: bool) -> Result<(), Error> {
        tx.check_whole().await?;
        tx.run(statements::undo()).await?;
        // The marker is older than the savepoint, so going back does not remove it.
        unclaim(tx.connection(), unit.map(std::slice::from_ref).unwrap_or_default()).await?;
        if next { self.isolate(tx).await } else { Ok(()) }
    }

    async fn record_results(&self, tx: &mut SqliteTx, results: &[(&Unit, &[u8])]) -> Result<(), Error> {
        record_results(tx.connection(), results).await
    }

    async fn import_processed(&self, handler: &str, kind: &str, keys: &[StoredKey]) -> Result<u64, Error> {
        let offset_ms = self.clock_offset_ms();
        let units: Vec<Unit> = keys
            .iter()
            .map(|key| Unit {
                handler: handler.to_owned(),
                kind: kind.to_owned(),
                key: key.clone(),
                // The bodies of these messages are unknown, so copies cannot be compared with them.
                fingerprint: None,
                waited: Duration::ZERO,
            })
            .collect();
        self.write(doing::IMPORT_PROCESSED, async |conn| {
            let fresh = insert_markers(conn, &units, offset_ms).await?;
            Ok(fresh.into_iter().map(u64::from).sum())
        })
        .await
    }
}

/// Deletes markers that this transaction inserted.
pub(crate) async fn unclaim(conn: &mut SqliteConnection, units: &[Unit]) -> Result<(), Error> {
    for unit in units {
        sqlx::query(statements::unclaim())
            .bind(&unit.handler)
            .bind(&unit.kind)
            .bind(unit.key.as_bytes())
            .execute(&mut *conn)
            .await
            .map_err(failed(doing::UNCLAIM))?;
    }
    Ok(())
}

/// Stores results beside their markers.
pub(crate) async fn record_results(
    conn: &mut SqliteConnection,
    results: &[(&Unit, &[u8])],
) -> Result<(), Error> {
    for (unit, result) in results {
        sqlx::query(statements::record_results())
            .bind(&unit.handler)
            .bind(&unit.kind)
            .bind(unit.key.as_bytes())
            .bind(*result)
            .execute(&mut *conn)
            .await
            .map_err(failed(doing::RECORD_RESULTS))?;
    }
    Ok(())
}

/// Inserts the markers of units; whether each is new.
async fn insert_markers(
    conn: &mut SqliteConnection,
    units: &[Unit],
    offset_ms: i64,
) -> Result<Vec<bool>, sqlx::Error> {
    let insert = CLAIM.run(conn, units, |insert, unit| {
        insert
            .bind(&unit.handler)
            .bind(&unit.kind)
            .bind(unit.key.as_bytes())
            .bind(unit.key.original().map(Key::as_bytes))
            .bind(unit.fingerprint.map(Fingerprint::to_i64))
            .bind(row::duration_to_ms(unit.waited))
            .bind(offset_ms)
    });
    insert.await
}

/// Units as statements read several of them: an array of [handler, kind, key], keys in hex.
pub(crate) fn as_json(units: &[Unit]) -> Result<String, sqlx::Error> {
    let units: Vec<_> =
        units.iter().map(|unit| (&*unit.handler, &*unit.kind, hex(unit.key.as_bytes()))).collect();
    serde_json::to_string(&units).map_err(|error| sqlx::Error::Encode(error.into()))
}
