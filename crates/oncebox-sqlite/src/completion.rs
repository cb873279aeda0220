//! How tasks ended that ran outside of a transaction.

use oncebox_core::store::{Completion, End, FailedAttempt, Unit, row};
use sqlx::query::Query;
use sqlx::sqlite::SqliteArguments;
use sqlx::{Sqlite, SqliteConnection};

use crate::outbox::capture;
use crate::statements;

/// Writes down how a task ended; whether it was still under its fence.
pub(crate) async fn complete(
    conn: &mut SqliteConnection,
    completion: &Completion,
    offset_ms: i64,
) -> Result<bool, sqlx::Error> {
    match &completion.end {
        End::Done { marker, result, published } => {
            let ended = end_task(&mut *conn, completion).await?;
            // Only the newest fence may say that the work is done (S7).
            if let Some(marker) = marker.as_ref().filter(|_| ended) {
                mark_done(&mut *conn, marker, result.as_deref(), offset_ms).await?;
            }
            if ended {
                capture(conn, published, offset_ms).await?;
            }
            Ok(ended)
        }
        End::Retry { failures, due_in, error } => {
            // Without an error no attempt has failed, and the history stays as it is.
            let history = match error {
                Some(_) => Some(history_with_room(&mut *conn, completion).await?),
                None => None,
            };
            let retry = bind_task(sqlx::query(statements::retry_task()), completion);
            let retry = retry.bind(failures).bind(row::duration_to_ms(*due_in)).bind(error.as_deref());
            Ok(retry.bind(offset_ms).bind(history).execute(conn).await?.rows_affected() > 0)
        }
        End::Dead { failures, error } => {
            let history = history_with_room(&mut *conn, completion).await?;
            let dead_letter = bind_task(sqlx::query(statements::dead_letter_task()), completion);
            // Before the task is removed, because the statement reads it.
            dead_letter.bind(failures).bind(error).bind(offset_ms).bind(history).execute(&mut *conn).await?;
            end_task(conn, completion).await
        }
    }
}

/// The failed attempts of a task, with room for one more. Whether it is still under its fence shows when it is written.
async fn history_with_room(
    conn: &mut SqliteConnection,
    completion: &Completion,
) -> Result<String, sqlx::Error> {
    let attempts: Option<String> = sqlx::query_scalar(statements::task_attempts())
        .bind(completion.handler.0)
        .bind(completion.place.lane)
        .bind(completion.place.pos)
        .fetch_optional(conn)
        .await?;
    let attempts = attempts.unwrap_or_else(|| "[]".to_owned());
    Ok(FailedAttempt::with_room(&attempts).into_owned())
}

type Statement<'q> = Query<'q, Sqlite, SqliteArguments>;

/// The first four parameters of a statement on a task under its fence.
fn bind_task<'q>(statement: Statement<'q>, completion: &Completion) -> Statement<'q> {
    statement
        .bind(completion.handler.0)
        .bind(completion.place.lane)
        .bind(completion.place.pos)
        .bind(completion.fence.0)
}

async fn end_task(conn: &mut SqliteConnection, completion: &Completion) -> Result<bool, sqlx::Error> {
    let end = bind_task(sqlx::query(statements::end_task()), completion);
    Ok(end.execute(conn).await?.rows_affected() > 0)
}

/// A marker that is done already keeps its result.
async fn mark_done(
    conn: &mut SqliteConnection,
    marker: &Unit,
    result: Option<&[u8]>,
    offset_ms: i64,
) -> Result<(), sqlx::Error> {
    let done = sqlx::query(statements::mark_done())
        .bind(&marker.handler)
        .bind(&marker.kind)
        .bind(marker.key.as_bytes())
        .bind(offset_ms)
        .execute(&mut *conn)
        .await?;
    if let Some(result) = result.filter(|_| done.rows_affected() > 0) {
        sqlx::query(statements::record_results())
            .bind(&marker.handler)
            .bind(&marker.kind)
            .bind(marker.key.as_bytes())
            .bind(result)
            .execute(conn)
            .await?;
    }
    Ok(())
}
