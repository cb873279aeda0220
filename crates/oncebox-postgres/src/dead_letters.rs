//! Dead letters, and what operators do.

use oncebox_core::Error;
use oncebox_core::store::{
    Acted, Action, AuditEntry, DeadLetter, DeadLetters, FailedAttempt, HandlerId, MarkerStep, Place, Select,
    doing, row,
};
use sqlx::postgres::{PgArguments, PgRow};
use sqlx::query::Query;
use sqlx::{FromRow, Postgres, Row, SqlStr};

use crate::connection::TimedConnection;
use crate::fault::failed;
use crate::store::{LONG, PostgresStore};
use crate::work::{lane, read_key};

/// The last one of some dead letters, by handler, lane and position; and how many they are.
type Last = (i32, i32, i64, i64);

impl DeadLetters for PostgresStore {
    async fn dead_letters(&self, select: &Select, limit: u32) -> Result<Vec<DeadLetter>, Error> {
        let doing = doing::READ_DEAD_LETTERS;
        let read = select_by(&self.statements.dead_letters, select).bind(i64::from(limit));
        let rows = self.connections.fetch_all(doing, read).await?;
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
        self.connections
            .in_transaction(doing::ACT_ON_DEAD_LETTERS, LONG, async |tx: &mut TimedConnection| {
                let plan = action.plan();
                // Waits for the workers in these lanes: dead letters change under the lane's lock only (decision 18).
                let lock = select_by(&self.statements.lock_dead, select)
                    .bind(i64::from(limit))
                    .bind(after_handler)
                    .bind(after_lane)
                    .bind(after_pos);
                let locked = tx.fetch_all(lock).await?;
                let locked: Vec<Last> = locked.iter().map(Last::from_row).collect::<Result<_, _>>()?;
                let meant = locked.last().copied();
                let (handlers, lanes): (Vec<_>, Vec<_>) =
                    locked.into_iter().map(|(handler, lane, ..)| (handler, lane)).unzip();
                let act = select_by(&self.statements.act_on_dead, select)
                    .bind(plan.action)
                    .bind(operator)
                    .bind(plan.body)
                    .bind(self.clock_offset_ms())
                    .bind(i64::from(limit))
                    .bind(plan.detail_end)
                    .bind(handlers)
                    .bind(lanes)
                    .bind(after_handler)
                    .bind(after_lane)
                    .bind(after_pos)
                    .bind(plan.action_if_done)
                    .bind(plan.runs_again)
                    .bind(plan.markers == MarkerStep::Finish)
                    .bind(plan.markers == MarkerStep::Insert);
                let acted = tx.fetch_optional(act).await?;
                let acted = acted.as_ref().map(Last::from_row).transpose()?;
                let is_full = |&(.., letters): &Last| letters >= i64::from(limit);
                // A letter that died between the two statements may take the place of one that was meant. So the next
                // step begins behind the last one acted on.
                let next = acted.filter(is_full).or(meant.filter(is_full));
                Ok(Acted {
                    letters: acted.map_or(0, |(.., letters)| u64::try_from(letters).unwrap_or(0)),
                    next: next.map(|(handler, lane, pos, _)| {
                        let lane = u16::try_from(lane).unwrap_or(u16::MAX);
                        (HandlerId(handler), Place { lane, pos })
                    }),
                })
            })
            .await
    }

    async fn audit(&self, limit: u32) -> Result<Vec<AuditEntry>, Error> {
        let doing = doing::READ_AUDIT;
        let read = sqlx::query(self.statements.audit.clone()).bind(i64::from(limit));
        let rows = self.connections.fetch_all(doing, read).await?;
        rows.iter().map(read_entry).collect::<Result<_, _>>().map_err(failed(doing))
    }
}

/// A statement on selected dead letters, with what all of them begin with.
fn select_by<'s>(statement: &SqlStr, select: &'s Select) -> Query<'s, Postgres, PgArguments> {
    let (after, before) = select.died_between_ms();
    sqlx::query(statement.clone())
        // Planned anew each time: the best index depends on which conditions are set.
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
        received_at: row::time_from_ms(row.try_get("received_ms")?),
        died_at: row::time_from_ms(row.try_get("died_ms")?),
        error: row.try_get("error")?,
        attempts: FailedAttempt::read(row.try_get("attempts")?),
    })
}

fn read_entry(row: &PgRow) -> Result<AuditEntry, sqlx::Error> {
    let lane: Option<i32> = row.try_get("lane")?;
    let pos: Option<i64> = row.try_get("pos")?;
    Ok(AuditEntry {
        at: row::time_from_ms(row.try_get("at_ms")?),
        operator: row.try_get("operator")?,
        action: row.try_get("action")?,
        handler: row.try_get("handler")?,
        place: lane.zip(pos).map(|(lane, pos)| Place { lane: u16::try_from(lane).unwrap_or(u16::MAX), pos }),
        detail: row.try_get("detail")?,
    })
}
