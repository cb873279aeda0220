//! Who may run.

use oncebox_core::store::{Claimed, Claims, Unit};
use oncebox_core::{Error, ErrorKind, Fingerprint, Key, StoredKey};
use sqlx::{PgConnection, Row};

use crate::fault::failed;
use crate::inspect::find_marker;
use crate::store::PostgresStore;
use crate::transaction::PostgresTx;

/// A claim that finds its marker swept away between two statements asks again this often.
const CLAIM_TRIES: u32 = 10;

impl Claims for PostgresStore {
    async fn claim(&self, tx: &mut PostgresTx, units: &[Unit]) -> Result<Vec<Claimed>, Error> {
        let column = |read: fn(&Unit) -> &str| units.iter().map(read).collect::<Vec<_>>();
        let (lock, statement, idle) = tx.limits_as_settings();
        let row = sqlx::query(self.statements.claim.clone())
            .bind(column(|unit| &unit.handler))
            .bind(column(|unit| &unit.kind))
            .bind(units.iter().map(|unit| unit.key.as_bytes()).collect::<Vec<_>>())
            .bind(units.iter().map(|unit| unit.key.original().map(Key::as_bytes)).collect::<Vec<_>>())
            .bind(units.iter().map(|unit| unit.fingerprint.map(Fingerprint::to_i64)).collect::<Vec<_>>())
            .bind(units.iter().map(waited_ms).collect::<Vec<_>>())
            .bind(self.clock_offset_ms())
            .bind(lock)
            .bind(statement)
            .bind(idle)
            .bind(units.iter().map(Unit::lock_id).collect::<Vec<_>>())
            .bind(units.len() > 1)
            .bind(tx.body_lock_timeout_as_setting())
            .fetch_one(tx.connection())
            .await
            .map_err(failed("claim keys"))?;
        tx.armed_by(&row).map_err(failed("claim keys"))?;
        let fresh: Vec<i64> = row.try_get("fresh").map_err(failed("claim keys"))?;
        let busy: Vec<i64> = row.try_get("busy").map_err(failed("claim keys"))?;
        let mut claimed = Vec::with_capacity(units.len());
        for (ordinal, unit) in (1..).zip(units) {
            claimed.push(if fresh.contains(&ordinal) {
                Claimed::Fresh
            } else if busy.contains(&ordinal) {
                Claimed::Busy
            } else {
                self.known_or_claim(tx.connection(), unit).await?
            });
        }
        Ok(claimed)
    }

    async fn claim_in(&self, conn: &mut PgConnection, unit: &Unit) -> Result<Claimed, Error> {
        if self.insert_marker(conn, unit).await? {
            return Ok(Claimed::Fresh);
        }
        self.known_or_claim(conn, unit).await
    }

    async fn record_result(&self, tx: &mut PostgresTx, unit: &Unit, result: &[u8]) -> Result<(), Error> {
        sqlx::query(self.statements.record_result.clone())
            .bind(&unit.handler)
            .bind(&unit.kind)
            .bind(unit.key.as_bytes())
            .bind(result)
            .execute(tx.connection())
            .await
            .map_err(failed("keep a result"))?;
        Ok(())
    }

    async fn mark_processed(&self, handler: &str, kind: &str, keys: &[StoredKey]) -> Result<u64, Error> {
        let inserted = sqlx::query(self.statements.mark_processed.clone())
            .bind(handler)
            .bind(kind)
            .bind(keys.iter().map(StoredKey::as_bytes).collect::<Vec<_>>())
            .bind(keys.iter().map(|key| key.original().map(Key::as_bytes)).collect::<Vec<_>>())
            .bind(self.clock_offset_ms())
            .execute(&self.pool)
            .await
            .map_err(failed("mark messages as processed"))?;
        Ok(inserted.rows_affected())
    }
}

impl PostgresStore {
    /// The marker that a claim ran into, read by a later statement; a claim again where a sweep took it meanwhile.
    async fn known_or_claim(&self, conn: &mut PgConnection, unit: &Unit) -> Result<Claimed, Error> {
        for _ in 0..CLAIM_TRIES {
            if let Some(marker) = find_marker(&self.statements, conn, unit).await? {
                return Ok(Claimed::Known(marker));
            }
            if self.insert_marker(conn, unit).await? {
                return Ok(Claimed::Fresh);
            }
        }
        let message = "a marker appears and disappears: is something else deleting them?";
        Err(Error::new(ErrorKind::Unavailable, message))
    }

    async fn insert_marker(&self, conn: &mut PgConnection, unit: &Unit) -> Result<bool, Error> {
        let inserted = sqlx::query(self.statements.claim_in.clone())
            .bind(&unit.handler)
            .bind(&unit.kind)
            .bind(unit.key.as_bytes())
            .bind(unit.key.original().map(Key::as_bytes))
            .bind(unit.fingerprint.map(Fingerprint::to_i64))
            .bind(waited_ms(unit))
            .bind(self.clock_offset_ms())
            .execute(conn)
            .await
            .map_err(failed("claim a key"))?;
        Ok(inserted.rows_affected() == 1)
    }
}

fn waited_ms(unit: &Unit) -> i64 {
    i64::try_from(unit.waited.as_millis()).unwrap_or(i64::MAX)
}
