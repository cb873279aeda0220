//! Dead letters, and what operators do.

use oncebox_core::Error;
use oncebox_core::store::{Action, AuditEntry, DeadLetter, DeadLetters, PastAttempt, Place, Select};
use sqlx::postgres::{PgArguments, PgRow};
use sqlx::query::Query;
use sqlx::{Postgres, Row, SqlStr};

use crate::fault::failed;
use crate::inspect::from_ms;
use crate::store::PostgresStore;
use crate::work::{lane, read_key};

impl DeadLetters for PostgresStore {
    async fn dead_letters(&self, select: &Select, limit: u32) -> Result<Vec<DeadLetter>, Error> {
        let doing = "read dead letters";
        let rows = select_by(&self.statements.dead_letters, select)
            .bind(i64::from(limit))
            .fetch_all(&self.pool)
            .await
            .map_err(failed(doing))?;
        rows.iter().map(read_dead_letter).collect::<Result<_, _>>().map_err(failed(doing))
    }

    async fn act(&self, select: &Select, action: &Action, operator: &str, limit: u32) -> Result<u64, Error> {
        let doing = "act on dead letters";
        let body = match action {
            Action::Edit(body) => Some(&body[..]),
            Action::Retry | Action::Discard | Action::MarkProcessed => None,
        };
        let acted: i64 = select_by(&self.statements.act, select)
            .bind(action.name())
            .bind(operator)
            .bind(body)
            .bind(self.clock_offset_ms())
            .bind(i64::from(limit))
            .bind(action.note())
            .fetch_one(&self.pool)
            .await
            .and_then(|row| row.try_get(0))
            .map_err(failed(doing))?;
        Ok(u64::try_from(acted).unwrap_or(0))
    }

    async fn remove_handler(&self, name: &str, operator: &str) -> Result<bool, Error> {
        let (store, name, operator) = (self.clone(), name.to_owned(), operator.to_owned());
        // In a task of its own: a caller that goes away must not leave a transaction half begun.
        let removed = tokio::spawn(async move {
            let statements = &store.statements;
            let mut tx = store.pool.begin_with(statements.begin_shared.clone()).await?;
            sqlx::query(statements.lock_upkeep.clone()).execute(&mut *tx).await?;
            sqlx::query(statements.lock_lanes_of.clone()).bind(&name).execute(&mut *tx).await?;
            let removed = sqlx::query(statements.remove_handler.clone())
                .bind(&name)
                .bind(&operator)
                .bind(store.clock_offset_ms())
                .execute(&mut *tx)
                .await?;
            tx.commit().await?;
            Ok(removed.rows_affected() == 1)
        });
        match removed.await {
            Ok(removed) => removed.map_err(failed("remove a handler")),
            Err(stopped) => Err(Error::unavailable("the runtime is shutting down", stopped)),
        }
    }

    async fn audit(&self, limit: u32) -> Result<Vec<AuditEntry>, Error> {
        let doing = "read the audit";
        let rows = sqlx::query(self.statements.audit.clone())
            .bind(i64::from(limit))
            .fetch_all(&self.pool)
            .await
            .map_err(failed(doing))?;
        rows.iter().map(read_entry).collect::<Result<_, _>>().map_err(failed(doing))
    }
}

/// A statement on selected dead letters, with what all of them begin with.
fn select_by<'s>(statement: &SqlStr, select: &'s Select) -> Query<'s, Postgres, PgArguments> {
    let (after, before) = select.died_between_ms();
    sqlx::query(statement.clone())
        // Planned anew each time: which conditions there are makes all the difference.
        .persistent(false)
        .bind(select.handler_name())
        .bind(select.kind_name())
        .bind(select.place().map(|place| i32::from(place.lane)))
        .bind(select.place().map(|place| place.pos))
        .bind(select.error_text())
        .bind(after)
        .bind(before)
}

fn read_dead_letter(row: &PgRow) -> Result<DeadLetter, sqlx::Error> {
    Ok(DeadLetter {
        handler: row.try_get("handler")?,
        place: Place { lane: lane(row)?, pos: row.try_get("pos")? },
        kind: row.try_get("kind")?,
        key: read_key(row)?,
        body: row.try_get("body")?,
        received_at: from_ms(row.try_get("received_ms")?),
        died_at: from_ms(row.try_get("died_ms")?),
        error: row.try_get("error")?,
        attempts: PastAttempt::read(row.try_get("attempts")?),
    })
}

fn read_entry(row: &PgRow) -> Result<AuditEntry, sqlx::Error> {
    let lane: Option<i32> = row.try_get("lane")?;
    let pos: Option<i64> = row.try_get("pos")?;
    Ok(AuditEntry {
        at: from_ms(row.try_get("at_ms")?),
        operator: row.try_get("operator")?,
        action: row.try_get("action")?,
        handler: row.try_get("handler")?,
        place: lane.zip(pos).map(|(lane, pos)| Place { lane: u16::try_from(lane).unwrap_or(u16::MAX), pos }),
        detail: row.try_get("detail")?,
    })
}
