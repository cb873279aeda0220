//! Reading the log. Nothing here counts messages.

use oncebox_core::store::row::{MessageStateRow, TaskRow};
use oncebox_core::store::{
    HandlerId, HandlerStatus, MessageState, MessageStatus, Place, StoredMessage, Survey, Task, UnhandledKind,
    doing, row,
};
use oncebox_core::{Error, Key};
use sqlx::sqlite::SqliteRow;
use sqlx::{Row, SqliteConnection};

use crate::fault::failed;
use crate::message::{read_key, read_message, read_published};
use crate::registry::read_handler;
use crate::statements;
use crate::store::SqliteStore;

impl Survey for SqliteStore {
    async fn handler_statuses(&self) -> Result<Vec<HandlerStatus>, Error> {
        let rows = sqlx::query(statements::handler_statuses())
            .bind(self.clock_offset_ms())
            .fetch_all(&self.pool)
            .await;
        let statuses = rows.and_then(|rows| rows.iter().map(read_status).collect());
        statuses.map_err(failed(doing::READ_HANDLERS))
    }

    async fn pending(&self, handler: HandlerId, limit: u32) -> Result<Vec<StoredMessage>, Error> {
        let doing = doing::READ_PENDING;
        let mut conn = self.pool.acquire().await.map_err(failed(doing))?;
        pending(&mut conn, handler, limit, self.clock_offset_ms()).await.map_err(failed(doing))
    }

    async fn messages(&self, lane: u16, behind: i64, limit: u32) -> Result<Vec<MessageStatus>, Error> {
        let doing = doing::READ_MESSAGES;
        // Both statements must see the same: a transaction that only reads.
        let mut tx = self.pool.begin().await.map_err(failed(doing))?;
        let read =
            messages(&mut tx, lane, behind, limit, self.clock_offset_ms()).await.map_err(failed(doing))?;
        tx.commit().await.map_err(failed(doing))?;
        Ok(read)
    }

    async fn find_message(&self, kind: &str, key: &Key) -> Result<Option<Place>, Error> {
        let found: Option<(u16, i64)> = sqlx::query_as(statements::find_message())
            .bind(kind)
            .bind(key.stored().as_bytes().to_owned())
            .fetch_optional(&self.pool)
            .await
            .map_err(failed(doing::FIND_MESSAGE))?;
        Ok(found.map(|(lane, pos)| Place { lane, pos }))
    }

    async fn tasks(&self, handler: Option<&str>, limit: u32) -> Result<Vec<Task>, Error> {
        let doing = doing::READ_TASKS;
        // As above: what a task waits for is a statement of its own.
        let mut tx = self.pool.begin().await.map_err(failed(doing))?;
        let read = tasks(&mut tx, handler, limit, self.clock_offset_ms()).await.map_err(failed(doing))?;
        tx.commit().await.map_err(failed(doing))?;
        Ok(read)
    }

    async fn unhandled_kinds(&self) -> Result<Vec<UnhandledKind>, Error> {
        let rows: Result<Vec<(String, i64)>, _> =
            sqlx::query_as(statements::unhandled_kinds()).fetch_all(&self.pool).await;
        let rows = rows.map_err(failed(doing::READ_KINDS))?;
        Ok(rows
            .into_iter()
            .map(|(kind, since)| UnhandledKind { kind, since: row::time_from_ms(since) })
            .collect())
    }
}

fn read_status(row: &SqliteRow) -> Result<HandlerStatus, sqlx::Error> {
    Ok(HandlerStatus {
        handler: read_handler(row)?,
        lag: row.try_get(8)?,
        oldest_waiting: row.try_get::<Option<i64>, _>(9)?.map(row::duration_from_ms),
        tasks: row.try_get(10)?,
        dead: row.try_get(11)?,
        passed: row.try_get(12)?,
    })
}

/// Lane by lane, so that no statement has to sort everything that waits.
async fn pending(
    conn: &mut SqliteConnection,
    handler: HandlerId,
    limit: u32,
    offset_ms: i64,
) -> Result<Vec<StoredMessage>, sqlx::Error> {
    let layout: Option<(u16, String)> =
        sqlx::query_as(statements::find_layout()).fetch_optional(&mut *conn).await?;
    let mut left = limit;
    let mut found = Vec::new();
    for lane in 0..layout.map_or(0, |(lanes, _)| lanes) {
        if left == 0 {
            break;
        }
        let rows = sqlx::query(statements::pending())
            .bind(handler.0)
            .bind(lane)
            .bind(left)
            .bind(offset_ms)
            .fetch_all(&mut *conn)
            .await?;
        for row in &rows {
            found.push(read_message(row)?);
            left -= 1;
        }
    }
    Ok(found)
}

async fn messages(
    conn: &mut SqliteConnection,
    lane: u16,
    behind: i64,
    limit: u32,
    offset_ms: i64,
) -> Result<Vec<MessageStatus>, sqlx::Error> {
    let rows = sqlx::query(statements::messages())
        .bind(lane)
        .bind(behind)
        .bind(limit)
        .bind(offset_ms)
        .fetch_all(&mut *conn)
        .await?;
    let mut messages = Vec::with_capacity(rows.len());
    for row in &rows {
        messages.push(MessageStatus {
            message: read_published(row)?,
            received_at: row::time_from_ms(row.try_get(20)?),
            handlers: Vec::new(),
        });
    }
    let Some(last) = messages.last() else { return Ok(messages) };
    let rows = sqlx::query(statements::message_states())
        .bind(lane)
        .bind(behind)
        .bind(last.message.place.pos)
        .fetch_all(&mut *conn)
        .await?;
    for row in &rows {
        let place = Place { lane, pos: row.try_get(0)? };
        if let Ok(n) = messages.binary_search_by_key(&place.pos, |one| one.message.place.pos) {
            let state = read_state(conn, row, place, offset_ms).await?;
            messages[n].handlers.push((row.try_get(1)?, state));
        }
    }
    Ok(messages)
}

async fn read_state(
    conn: &mut SqliteConnection,
    row: &SqliteRow,
    place: Place,
    offset_ms: i64,
) -> Result<MessageState, sqlx::Error> {
    let task = match row.try_get::<Option<u32>, _>(3)? {
        Some(failures) => Some(TaskRow {
            failures,
            due_ms: row.try_get(4)?,
            error: row.try_get(5)?,
            waits: task_waits(conn, row.try_get(7)?, place, offset_ms).await?,
        }),
        None => None,
    };
    Ok(MessageStateRow { dead_error: row.try_get(2)?, task, is_passed: row.try_get(6)? }.into())
}

async fn tasks(
    conn: &mut SqliteConnection,
    handler: Option<&str>,
    limit: u32,
    offset_ms: i64,
) -> Result<Vec<Task>, sqlx::Error> {
    let rows = sqlx::query(statements::tasks()).bind(handler).bind(limit).fetch_all(&mut *conn).await?;
    let mut tasks = Vec::with_capacity(rows.len());
    for row in &rows {
        let place = Place { lane: row.try_get(1)?, pos: row.try_get(2)? };
        let waits = task_waits(conn, row.try_get(9)?, place, offset_ms).await?;
        tasks.push(Task {
            handler: row.try_get(0)?,
            place,
            kind: row.try_get(3)?,
            key: read_key(row, 4)?,
            failures: row.try_get(6)?,
            due_at: row::time_from_ms(row.try_get(7)?),
            error: row.try_get(8)?,
            waits: row::waits(&waits),
        });
    }
    Ok(tasks)
}

/// The name of the reason why a task waits.
async fn task_waits(
    conn: &mut SqliteConnection,
    handler: i64,
    place: Place,
    offset_ms: i64,
) -> Result<String, sqlx::Error> {
    sqlx::query_scalar(statements::task_waits())
        .bind(handler)
        .bind(place.lane)
        .bind(place.pos)
        .bind(offset_ms)
        .fetch_one(conn)
        .await
}
