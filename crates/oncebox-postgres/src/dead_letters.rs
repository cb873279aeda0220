//! Dead letters, and what operators do.

use oncebox_core::Error;
use oncebox_core::store::{
    Acted, Action, AuditEntry, DeadLetter, DeadLetters, HandlerId, PastAttempt, Place, Select,
};
use sqlx::postgres::{PgArguments, PgRow};
use sqlx::query::Query;
use sqlx::{Postgres, Row, SqlStr};

use crate::fault::failed;
use crate::inspect::from_ms;
use crate::line::Line;
use crate::store::{LONG, PostgresStore};
use crate::work::{lane, read_key};

impl DeadLetters for PostgresStore {
    async fn dead_letters(&self, select: &Select, limit: u32) -> Result<Vec<DeadLetter>, Error> {
        let doing = "read dead letters";
        let read = select_by(&self.statements.dead_letters, select).bind(i64::from(limit));
        let rows = self.line(doing).await?.fetch_all(read).await.map_err(self.failed(doing))?;
        rows.iter().map(read_dead_letter).collect::<Result<_, _>>().map_err(failed(doing))
    }

    async fn act(
        &self,
        select: &Select,
        action: &Action,
        operator: &str,
        after: Option<(HandlerId, Place)>,
        limit: u32,
    ) -> Result<Acted, Error> {
        let after_handler = after.map(|(handler, _)| handler.0);
        let after_lane = after.map(|(_, place)| i32::from(place.lane));
        let after_pos = after.map(|(_, place)| place.pos);
        self.in_transaction("act on dead letters", LONG, async |tx: &mut Line| {
            let body = match action {
                Action::Edit(body) => Some(&body[..]),
                Action::Retry | Action::Discard | Action::MarkProcessed => None,
            };
            let lock = select_by(&self.statements.lock_dead, select)
                .bind(i64::from(limit))
                .bind(after_handler)
                .bind(after_lane)
                .bind(after_pos);
            let locked: Vec<(i32, i32)> = tx
                .fetch_all(lock)
                .await?
                .iter()
                .map(|row| Ok((row.try_get(0)?, row.try_get(1)?)))
                .collect::<Result<_, sqlx::Error>>()?;
            let (handlers, lanes): (Vec<_>, Vec<_>) = locked.into_iter().unzip();
            let act = select_by(&self.statements.act, select)
                .bind(action.name())
                .bind(operator)
                .bind(body)
                .bind(self.clock_offset_ms())
                .bind(i64::from(limit))
                .bind(action.note())
                .bind(handlers)
                .bind(lanes)
                .bind(after_handler)
                .bind(after_lane)
                .bind(after_pos);
            let Some(last) = tx.fetch_optional(act).await? else { return Ok(Acted::default()) };
            let place = Place { lane: lane(&last)?, pos: last.try_get(2)? };
            Ok(Acted {
                letters: u64::try_from(last.try_get::<i64, _>(3)?).unwrap_or(0),
                last: Some((HandlerId(last.try_get(0)?), place)),
            })
        })
        .await
    }

    async fn audit(&self, limit: u32) -> Result<Vec<AuditEntry>, Error> {
        let doing = "read the audit";
        let read = sqlx::query(self.statements.audit.clone()).bind(i64::from(limit));
        let rows = self.line(doing).await?.fetch_all(read).await.map_err(self.failed(doing))?;
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
