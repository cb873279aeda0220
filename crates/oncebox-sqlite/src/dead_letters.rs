//! What operators do with dead letters: each action in one transaction with its entry in the audit.

use oncebox_core::Error;
use oncebox_core::store::{
    Acted, Action, AuditEntry, DeadLetter, DeadLetters, FailedAttempt, HandlerId, MarkerStep, Place, Select,
    doing, row,
};
use sqlx::query::Query;
use sqlx::sqlite::{SqliteArguments, SqliteRow};
use sqlx::{Row, Sqlite};

use crate::fault::failed;
use crate::message::read_key;
use crate::statements;
use crate::store::SqliteStore;

impl DeadLetters for SqliteStore {
    async fn dead_letters(&self, select: &Select, limit: u32) -> Result<Vec<DeadLetter>, Error> {
        let query = bind_select(sqlx::query(statements::dead_letters()), select, limit);
        let rows = query.fetch_all(&self.pool).await;
        let letters = rows.and_then(|rows| rows.iter().map(read_dead_letter).collect());
        letters.map_err(failed(doing::READ_DEAD_LETTERS))
    }

    async fn act(
        &self,
        select: &Select,
        action: &Action,
        operator: &str,
        after: Option<(HandlerId, Place)>,
        limit: u32,
    ) -> Result<Acted, Error> {
        let offset_ms = self.clock_offset_ms();
        self.write(doing::ACT_ON_DEAD_LETTERS, async |conn| {
            let plan = action.plan();
            let choose = bind_select(sqlx::query(statements::choose_dead()), select, limit);
            let chosen = choose
                .bind(plan.runs_again)
                .bind(after.map(|(handler, _)| handler.0))
                .bind(after.map(|(_, place)| place.lane))
                .bind(after.map(|(_, place)| place.pos))
                .fetch_one(&mut *conn)
                .await?;
            let chosen: &str = chosen.try_get(0)?;
            // The audit quotes the letters, which are removed at the end.
            sqlx::query(statements::audit_dead())
                .bind(chosen)
                .bind(operator)
                .bind(plan.action)
                .bind(plan.action_if_done)
                .bind(plan.detail_end)
                .bind(offset_ms)
                .execute(&mut *conn)
                .await?;
            if plan.runs_again {
                let retry = sqlx::query(statements::retry_dead()).bind(chosen).bind(plan.body);
                retry.bind(offset_ms).execute(&mut *conn).await?;
            }
            let mark = match plan.markers {
                MarkerStep::Leave => None,
                MarkerStep::Finish => Some(statements::mark_dead_done()),
                MarkerStep::Insert => Some(statements::resolve_dead()),
            };
            if let Some(mark) = mark {
                sqlx::query(mark).bind(chosen).bind(offset_ms).execute(&mut *conn).await?;
            }
            sqlx::query(statements::remove_dead()).bind(chosen).execute(conn).await?;
            let chosen: Vec<(i32, u16, i64, u8)> =
                serde_json::from_str(chosen).map_err(|error| sqlx::Error::Decode(error.into()))?;
            let letters = chosen.len() as u64;
            // The last one by its place: `json_group_array` need not keep the order of its rows.
            let last = chosen.iter().max().filter(|_| letters >= u64::from(limit));
            let next = last.map(|&(handler, lane, pos, _)| (HandlerId(handler), Place { lane, pos }));
            Ok(Acted { letters, next })
        })
        .await
    }

    async fn audit(&self, limit: u32) -> Result<Vec<AuditEntry>, Error> {
        let rows = sqlx::query(statements::audit()).bind(limit).fetch_all(&self.pool).await;
        let entries = rows.and_then(|rows| rows.iter().map(read_audit_entry).collect());
        entries.map_err(failed(doing::READ_AUDIT))
    }
}

type Statement<'q> = Query<'q, Sqlite, SqliteArguments>;

/// The first eight parameters of a statement that selects dead letters.
fn bind_select<'q>(query: Statement<'q>, select: &'q Select, limit: u32) -> Statement<'q> {
    let (died_after, died_before) = select.died_between_ms();
    query
        .bind(select.handler_name())
        .bind(select.kind_name())
        .bind(select.place().map(|place| place.lane))
        .bind(select.place().map(|place| place.pos))
        .bind(select.error_text())
        .bind(died_after)
        .bind(died_before)
        .bind(limit)
}

fn read_dead_letter(row: &SqliteRow) -> Result<DeadLetter, sqlx::Error> {
    Ok(DeadLetter {
        handler: row.try_get(0)?,
        place: Place { lane: row.try_get(1)?, pos: row.try_get(2)? },
        kind: row.try_get(3)?,
        key: read_key(row, 4)?,
        body: row.try_get(6)?,
        received_at: row::time_from_ms(row.try_get(7)?),
        died_at: row::time_from_ms(row.try_get(8)?),
        error: row.try_get(9)?,
        attempts: FailedAttempt::read(row.try_get(10)?),
    })
}

fn read_audit_entry(row: &SqliteRow) -> Result<AuditEntry, sqlx::Error> {
    let (lane, pos): (Option<u16>, Option<i64>) = (row.try_get(4)?, row.try_get(5)?);
    Ok(AuditEntry {
        at: row::time_from_ms(row.try_get(0)?),
        operator: row.try_get(1)?,
        action: row.try_get(2)?,
        handler: row.try_get(3)?,
        place: lane.zip(pos).map(|(lane, pos)| Place { lane, pos }),
        detail: row.try_get(6)?,
    })
}
