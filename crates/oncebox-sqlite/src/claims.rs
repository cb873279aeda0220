//! Who may run.

use oncebox_core::store::{Claimed, Claims, Unit};
use oncebox_core::{Error, Key, StoredKey};
use sqlx::SqliteConnection;

use crate::fault::failed;
use crate::store::SqliteStore;
use crate::transaction::SqliteTx;

/// A claim that finds its marker swept away between two statements asks again this often.
const CLAIM_TRIES: u32 = 10;

impl Claims for SqliteStore {
    async fn claim(&self, tx: &mut SqliteTx, units: &[Unit]) -> Result<Vec<Claimed>, Error> {
        let mut claimed = Vec::with_capacity(units.len());
        for unit in units {
            claimed.push(self.claim_in(tx.connection(), unit).await?);
        }
        Ok(claimed)
    }

    async fn claim_in(&self, conn: &mut SqliteConnection, unit: &Unit) -> Result<Claimed, Error> {
        for _ in 0..CLAIM_TRIES {
            if insert_marker(conn, unit, self.clock_offset_ms()).await.map_err(failed("claim a key"))? {
                return Ok(Claimed::Fresh);
            }
            if let Some(marker) = crate::inspect::find_marker(conn, unit).await? {
                return Ok(Claimed::Known(marker));
            }
        }
        Err(Error::new(
            oncebox_core::ErrorKind::Unavailable,
            "a marker appears and disappears: is something else deleting them?",
        ))
    }

    async fn record_results(&self, tx: &mut SqliteTx, results: &[(&Unit, &[u8])]) -> Result<(), Error> {
        for (unit, result) in results {
            sqlx::query(include_str!("sql/record_result.sql"))
                .bind(&unit.handler)
                .bind(&unit.kind)
                .bind(unit.key.as_bytes())
                .bind(*result)
                .execute(tx.connection())
                .await
                .map_err(failed("keep a result"))?;
        }
        Ok(())
    }

    async fn mark_processed(&self, handler: &str, kind: &str, keys: &[StoredKey]) -> Result<u64, Error> {
        let offset_ms = self.clock_offset_ms();
        self.write("mark messages as processed", async |conn| {
            let mut new = 0;
            for key in keys {
                let unit = Unit {
                    handler: handler.to_owned(),
                    kind: kind.to_owned(),
                    key: key.clone(),
                    fingerprint: None,
                    waited: std::time::Duration::ZERO,
                };
                new += u64::from(insert_marker(conn, &unit, offset_ms).await?);
            }
            Ok(new)
        })
        .await
    }
}

/// Whether the marker is new.
async fn insert_marker(
    conn: &mut SqliteConnection,
    unit: &Unit,
    offset_ms: i64,
) -> Result<bool, sqlx::Error> {
    let inserted = sqlx::query(include_str!("sql/claim.sql"))
        .bind(&unit.handler)
        .bind(&unit.kind)
        .bind(unit.key.as_bytes())
        .bind(unit.key.original().map(Key::as_bytes))
        .bind(unit.fingerprint.map(oncebox_core::Fingerprint::to_i64))
        .bind(i64::try_from(unit.waited.as_millis()).unwrap_or(i64::MAX))
        .bind(offset_ms)
        .execute(conn)
        .await?;
    Ok(inserted.rows_affected() == 1)
}
