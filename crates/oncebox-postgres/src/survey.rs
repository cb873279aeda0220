//! Reading the log.

use oncebox_core::store::row::{MessageStateRow, TaskRow};
use oncebox_core::store::{
    HandlerId, HandlerStatus, MessageState, MessageStatus, Place, StoredMessage, Survey, Task, UnhandledKind,
    doing, row,
};
use oncebox_core::{Error, Key};
use sqlx::postgres::{PgArguments, PgRow};
use sqlx::query::Query;
use sqlx::{Postgres, Row, SqlStr};

use crate::fault::failed;
use crate::registry::read_handler;
use crate::store::PostgresStore;
use crate::work::{lane, read_key, read_message, read_message_id};

impl Survey for PostgresStore {
    async fn handler_statuses(&self) -> Result<Vec<HandlerStatus>, Error> {
        let doing = doing::READ_HANDLERS;
        let read = anew(&self.statements.handler_statuses).bind(self.clock_offset_ms());
        let rows = self.connections.fetch_all(doing, read).await?;
        rows.iter().map(read_status).collect::<Result<_, _>>().map_err(failed(doing))
    }

    async fn pending(&self, handler: HandlerId, limit: u32) -> Result<Vec<StoredMessage>, Error> {
        let doing = doing::READ_PENDING;
        let read = anew(&self.statements.pending)
            .bind(handler.0)
            .bind(i64::from(limit))
            .bind(self.clock_offset_ms());
        let rows = self.connections.fetch_all(doing, read).await?;
        let read = |row: &PgRow| {
            let message = read_message(row, lane(row)?)?;
            Ok(StoredMessage { replay: row.try_get("replay")?, ..message })
        };
        rows.iter().map(read).collect::<Result<_, _>>().map_err(failed(doing))
    }

    async fn messages(&self, lane: u16, behind: i64, limit: u32) -> Result<Vec<MessageStatus>, Error> {
        let doing = doing::READ_MESSAGES;
        let read = anew(&self.statements.messages)
            .bind(i32::from(lane))
            .bind(behind)
            .bind(i64::from(limit))
            .bind(self.clock_offset_ms());
        let rows = self.connections.fetch_all(doing, read).await?;
        let mut messages: Vec<MessageStatus> = Vec::new();
        for row in &rows {
            add_row(&mut messages, row, lane).map_err(failed(doing))?;
        }
        Ok(messages)
    }

    async fn find_message(&self, kind: &str, key: &Key) -> Result<Option<Place>, Error> {
        let doing = doing::FIND_MESSAGE;
        let stored = key.stored();
        let read = anew(&self.statements.find_message).bind(kind).bind(stored.as_bytes());
        let row = self.connections.fetch_optional(doing, read).await?;
        let read = |row: PgRow| Ok(Place { lane: lane(&row)?, pos: row.try_get("pos")? });
        row.map(read).transpose().map_err(failed(doing))
    }

    async fn tasks(&self, handler: Option<&str>, limit: u32) -> Result<Vec<Task>, Error> {
        let doing = doing::READ_TASKS;
        let read =
            anew(&self.statements.tasks).bind(handler).bind(i64::from(limit)).bind(self.clock_offset_ms());
        let rows = self.connections.fetch_all(doing, read).await?;
        rows.iter().map(read_task).collect::<Result<_, _>>().map_err(failed(doing))
    }

    async fn unhandled_kinds(&self) -> Result<Vec<UnhandledKind>, Error> {
        let doing = doing::READ_KINDS;
        let read = anew(&self.statements.unhandled_kinds);
        let rows = self.connections.fetch_all(doing, read).await?;
        let read = |row: &PgRow| {
            Ok(UnhandledKind {
                kind: row.try_get("kind")?,
                since: row::time_from_ms(row.try_get("since_ms")?),
            })
        };
        rows.iter().map(read).collect::<Result<_, _>>().map_err(failed(doing))
    }
}

/// A statement that is planned anew each time: a plan made while the tables were small would scan them for ever.
fn anew<'q>(statement: &SqlStr) -> Query<'q, Postgres, PgArguments> {
    sqlx::query(statement.clone()).persistent(false)
}

pub(crate) fn count(row: &PgRow, column: &str) -> Result<u64, sqlx::Error> {
    Ok(u64::try_from(row.try_get::<i64, _>(column)?).unwrap_or(0))
}

fn read_status(row: &PgRow) -> Result<HandlerStatus, sqlx::Error> {
    Ok(HandlerStatus {
        handler: read_handler(row)?,
        lag: count(row, "lag")?,
        oldest_waiting: row.try_get::<Option<i64>, _>("oldest_ms")?.map(row::duration_from_ms),
        tasks: count(row, "tasks")?,
        dead: count(row, "dead")?,
        passed: count(row, "passed")?,
    })
}

/// One row for each handler of a message, one without handler for a message that has none.
fn add_row(messages: &mut Vec<MessageStatus>, row: &PgRow, lane: u16) -> Result<(), sqlx::Error> {
    let pos: i64 = row.try_get("pos")?;
    if messages.last().is_none_or(|last| last.message.place.pos != pos) {
        messages.push(MessageStatus {
            message: StoredMessage { message_id: read_message_id(row)?, ..read_message(row, lane)? },
            received_at: row::time_from_ms(row.try_get("received_ms")?),
            handlers: Vec::new(),
        });
    }
    let handler: Option<String> = row.try_get("handler")?;
    if let (Some(handler), Some(message)) = (handler, messages.last_mut()) {
        message.handlers.push((handler, read_state(row)?));
    }
    Ok(())
}

fn read_state(row: &PgRow) -> Result<MessageState, sqlx::Error> {
    let task = |failures: i32| {
        Ok::<_, sqlx::Error>(TaskRow {
            failures: u32::try_from(failures).unwrap_or(0),
            due_ms: row.try_get("task_due_ms")?,
            error: row.try_get("task_error")?,
            waits: row.try_get("waits")?,
        })
    };
    let task = row.try_get::<Option<i32>, _>("failures")?.map(task).transpose()?;
    let (dead_error, is_passed) = (row.try_get("dead_error")?, row.try_get("is_passed")?);
    Ok(MessageStateRow { dead_error, task, is_passed }.into())
}

fn read_task(row: &PgRow) -> Result<Task, sqlx::Error> {
    Ok(Task {
        handler: row.try_get("handler")?,
        place: Place { lane: lane(row)?, pos: row.try_get("pos")? },
        kind: row.try_get("kind")?,
        key: read_key(row)?,
        failures: u32::try_from(row.try_get::<i32, _>("failures")?).unwrap_or(0),
        due_at: row::time_from_ms(row.try_get("due_ms")?),
        error: row.try_get("error")?,
        waits: row::waits(row.try_get("waits")?),
    })
}
