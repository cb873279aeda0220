//! Who may run.

use std::time::Duration;

use oncebox_core::store::{Claimed, Claims, Unit, doing, refusal, row};
use oncebox_core::{Error, Fingerprint, Key, StoredKey};
use sqlx::postgres::PgArguments;
use sqlx::query::Query;
use sqlx::{PgConnection, Postgres, Row, SqlStr};

use crate::connection::{AnyConnection, TimedConnection};
use crate::fault::failed;
use crate::inspect::find_marker;
use crate::statements::Statements;
use crate::store::PostgresStore;
use crate::transaction::PostgresTx;

impl Claims for PostgresStore {
    async fn claim(&self, tx: &mut PostgresTx, units: &[Unit]) -> Result<Vec<Claimed>, Error> {
        match units {
            [] => Ok(Vec::new()),
            [unit] => Ok(vec![self.claim_one(tx, unit).await?]),
            // One statement claims a batch of one handler. A mixture of handlers needs no speed.
            [first, rest @ ..] if rest.iter().all(|unit| unit.handler == first.handler) => {
                self.claim_batch(tx, units).await
            }
            _ => {
                let mut claimed = Vec::with_capacity(units.len());
                for unit in units {
                    claimed.push(self.claim_one(tx, unit).await?);
                }
                Ok(claimed)
            }
        }
    }

    async fn claim_in(&self, conn: &mut PgConnection, unit: &Unit) -> Result<Claimed, Error> {
        // The owner of the connection sets the time limit.
        let mut conn = TimedConnection::on(conn, Duration::MAX);
        if self.insert_marker(&mut conn, unit).await? {
            return Ok(Claimed::Fresh);
        }
        self.known_or_claim(&mut conn, unit).await
    }

    async fn isolate(&self, tx: &mut PostgresTx) -> Result<(), Error> {
        tx.run(self.statements.isolate.as_str()).await
    }

    async fn keep(&self, tx: &mut PostgresTx, next: bool) -> Result<(), Error> {
        // First: a handler may have left a transaction open inside, or put another connection in place of this one.
        tx.check_nested()?;
        let Statements { keep, isolate, .. } = &*self.statements;
        match next {
            true => tx.run(&format!("{};{}", keep.as_str(), isolate.as_str())).await,
            false => tx.run(keep.as_str()).await,
        }
    }

    async fn undo(&self, tx: &mut PostgresTx, unit: Option<&Unit>, next: bool) -> Result<(), Error> {
        tx.check_nested()?;
        tx.run(self.statements.undo.as_str()).await?;
        if let Some(unit) = unit {
            // The marker is older than the savepoint, so going back does not remove it.
            let unclaim = sqlx::query(self.statements.unclaim.clone())
                .bind(&unit.handler)
                .bind(&unit.kind)
                .bind(unit.key.as_bytes());
            tx.timed().execute(unclaim).await.map_err(failed(doing::UNCLAIM))?;
        }
        if next { self.isolate(tx).await } else { Ok(()) }
    }

    async fn record_results(&self, tx: &mut PostgresTx, results: &[(&Unit, &[u8])]) -> Result<(), Error> {
        let record = sqlx::query(self.statements.record_results.clone())
            .bind(results.iter().map(|(unit, _)| &*unit.handler).collect::<Vec<_>>())
            .bind(results.iter().map(|(unit, _)| &*unit.kind).collect::<Vec<_>>())
            .bind(results.iter().map(|(unit, _)| unit.key.as_bytes()).collect::<Vec<_>>())
            .bind(results.iter().map(|(_, result)| *result).collect::<Vec<_>>());
        tx.timed().execute(record).await.map_err(failed(doing::RECORD_RESULTS))?;
        Ok(())
    }

    async fn import_processed(&self, handler: &str, kind: &str, keys: &[StoredKey]) -> Result<u64, Error> {
        let doing = doing::IMPORT_PROCESSED;
        let mark = sqlx::query(self.statements.import_processed.clone())
            .bind(handler)
            .bind(kind)
            .bind(keys.iter().map(StoredKey::as_bytes).collect::<Vec<_>>())
            .bind(keys.iter().map(|key| key.original().map(Key::as_bytes)).collect::<Vec<_>>())
            .bind(self.clock_offset_ms());
        let inserted = self.connections.execute(doing, mark).await?;
        Ok(inserted.rows_affected())
    }
}

impl PostgresStore {
    async fn claim_one(&self, tx: &mut PostgresTx, unit: &Unit) -> Result<Claimed, Error> {
        let doing = doing::CLAIM;
        let (lock, statement, idle) = tx.limits_as_settings();
        let claim = self
            .insert_of(&self.statements.claim_one, unit)
            .bind(lock)
            .bind(statement)
            .bind(idle)
            .bind(unit.lock_id())
            .bind(tx.body_lock_timeout_as_setting());
        let row = tx.timed().fetch_one(claim).await.map_err(failed(doing))?;
        tx.armed_by(&row).map_err(failed(doing))?;
        if row.try_get("fresh").map_err(failed(doing))? {
            return Ok(Claimed::Fresh);
        }
        self.known_or_claim(tx.timed(), unit).await
    }

    async fn claim_batch(&self, tx: &mut PostgresTx, units: &[Unit]) -> Result<Vec<Claimed>, Error> {
        let doing = doing::CLAIM;
        let (lock, statement, idle) = tx.limits_as_settings();
        let claim = sqlx::query(self.statements.claim.clone())
            .bind(&units[0].handler)
            .bind(units.iter().map(|unit| &*unit.kind).collect::<Vec<_>>())
            .bind(units.iter().map(|unit| unit.key.as_bytes()).collect::<Vec<_>>())
            .bind(units.iter().map(|unit| unit.key.original().map(Key::as_bytes)).collect::<Vec<_>>())
            .bind(units.iter().map(|unit| unit.fingerprint.map(Fingerprint::to_i64)).collect::<Vec<_>>())
            .bind(units.iter().map(|unit| row::duration_to_ms(unit.waited)).collect::<Vec<_>>())
            .bind(self.clock_offset_ms())
            .bind(lock)
            .bind(statement)
            .bind(idle)
            .bind(units.iter().map(Unit::lock_id).collect::<Vec<_>>())
            .bind(tx.body_lock_timeout_as_setting());
        let row = tx.timed().fetch_one(claim).await.map_err(failed(doing))?;
        tx.armed_by(&row).map_err(failed(doing))?;
        // No list means that all are fresh, which is the usual case.
        let Some(fresh) = row.try_get::<Option<Vec<i64>>, _>("fresh").map_err(failed(doing))? else {
            return Ok(vec![Claimed::Fresh; units.len()]);
        };
        // A key that another transaction holds must not stall the batch: its unit leaves and waits alone.
        let busy: Vec<i64> = row.try_get("busy").map_err(failed(doing))?;
        let mut claimed = Vec::with_capacity(units.len());
        for (ordinal, unit) in (1..).zip(units) {
            claimed.push(if fresh.contains(&ordinal) {
                Claimed::Fresh
            } else if busy.contains(&ordinal) {
                Claimed::Busy
            } else {
                self.known_or_claim(tx.timed(), unit).await?
            });
        }
        Ok(claimed)
    }

    /// The marker that a claim ran into, read by a later statement; a claim again where a sweep took it meanwhile.
    async fn known_or_claim(
        &self,
        conn: &mut TimedConnection<impl AnyConnection>,
        unit: &Unit,
    ) -> Result<Claimed, Error> {
        for _ in 0..refusal::CLAIM_ATTEMPTS {
            // A statement of its own has a newer snapshot, which shows the marker that the insert met.
            if let Some(marker) = find_marker(&self.statements, conn, unit).await? {
                return Ok(Claimed::Known(marker));
            }
            if self.insert_marker(conn, unit).await? {
                return Ok(Claimed::Fresh);
            }
        }
        // Each time, a sweep deleted the marker between the two statements.
        Err(refusal::unstable_marker())
    }

    async fn insert_marker(
        &self,
        conn: &mut TimedConnection<impl AnyConnection>,
        unit: &Unit,
    ) -> Result<bool, Error> {
        let insert = conn.execute(self.insert_of(&self.statements.claim_in, unit)).await;
        Ok(insert.map_err(failed(doing::CLAIM))?.rows_affected() == 1)
    }

    /// A statement that inserts the marker of a unit, with what both of them begin with.
    fn insert_of<'u>(&self, statement: &SqlStr, unit: &'u Unit) -> Query<'u, Postgres, PgArguments> {
        sqlx::query(statement.clone())
            .bind(&unit.handler)
            .bind(&unit.kind)
            .bind(unit.key.as_bytes())
            .bind(unit.key.original().map(Key::as_bytes))
            .bind(unit.fingerprint.map(Fingerprint::to_i64))
            .bind(row::duration_to_ms(unit.waited))
            .bind(self.clock_offset_ms())
    }
}
