//! Taking tasks: those that are due and that nothing holds back.

use oncebox_core::DeadHead;
use oncebox_core::store::{StoredMessage, Taker, TaskLimits};
use sqlx::SqliteConnection;

use crate::json::to_json;
use crate::message::read_published;
use crate::statements;

/// Where no more tasks than this are due, the order is looked up for each; else from key to key.
const LOOKED_AT_FIRST: u32 = 256;

/// Takes tasks out of the table; `None` if the handler is gone, paused or not what the taker knows.
pub(crate) async fn take_tasks(
    conn: &mut SqliteConnection,
    taker: Taker<'_>,
    limits: TaskLimits,
    offset_ms: i64,
) -> Result<Option<Vec<StoredMessage>>, sqlx::Error> {
    let ordered: Option<Option<String>> = sqlx::query_scalar(statements::find_taker())
        .bind(taker.handler.0)
        .bind(to_json(taker.kinds.iter().map(String::as_str))?)
        .bind(taker.mode.name())
        .bind(taker.ordered.map(DeadHead::name))
        .fetch_optional(&mut *conn)
        .await?;
    let Some(ordered) = ordered else { return Ok(None) };
    let due = match &ordered {
        None => find_due(&mut *conn, taker, limits.tasks, offset_ms).await?,
        Some(dead_head) => find_in_order(&mut *conn, taker, limits, dead_head, offset_ms).await?,
    };
    let due = to_json(due)?;
    let rows = sqlx::query(statements::take_tasks())
        .bind(taker.handler.0)
        .bind(taker.lane)
        .bind(&due)
        .bind(offset_ms)
        .fetch_all(&mut *conn)
        .await?;
    let tasks = rows.iter().map(read_published).collect::<Result<Vec<_>, _>>()?;
    // A statement of its own: a delete that returns rows cannot join the messages.
    sqlx::query(statements::remove_tasks())
        .bind(taker.handler.0)
        .bind(taker.lane)
        .bind(&due)
        .execute(conn)
        .await?;
    Ok(Some(tasks))
}

async fn find_due(
    conn: &mut SqliteConnection,
    taker: Taker<'_>,
    limit: u32,
    offset_ms: i64,
) -> Result<Vec<i64>, sqlx::Error> {
    sqlx::query_scalar(statements::due_tasks())
        .bind(taker.handler.0)
        .bind(taker.lane)
        .bind(limit)
        .bind(offset_ms)
        .fetch_all(conn)
        .await
}

/// The tasks that are free to run and, if they are wanted and there is room, what may follow each head.
async fn find_in_order(
    conn: &mut SqliteConnection,
    taker: Taker<'_>,
    limits: TaskLimits,
    dead_head: &str,
    offset_ms: i64,
) -> Result<Vec<i64>, sqlx::Error> {
    // Heads first: a long queue of one ordering key must not delay the other keys (decision 18).
    let free = find_free(&mut *conn, taker, limits.tasks, dead_head, offset_ms).await?;
    let mut due: Vec<i64> = free.iter().map(|(pos, _)| *pos).collect();
    if limits.heads_only {
        return Ok(due);
    }
    for (head, key) in free {
        let left = (limits.tasks as usize).saturating_sub(due.len());
        let Some(key) = key.filter(|_| left > 0) else { continue };
        let behind: Vec<i64> = sqlx::query_scalar(statements::due_behind())
            .bind(taker.handler.0)
            .bind(taker.lane)
            .bind(key)
            .bind(head)
            .bind(i64::try_from(left).unwrap_or(i64::MAX))
            .bind(offset_ms)
            .bind(dead_head)
            .fetch_all(&mut *conn)
            .await?;
        due.extend(behind);
    }
    Ok(due)
}

/// The heads of the ordering keys and what has none, the longest due first, each with its key.
async fn find_free(
    conn: &mut SqliteConnection,
    taker: Taker<'_>,
    limit: u32,
    dead_head: &str,
    offset_ms: i64,
) -> Result<Vec<(i64, Option<Vec<u8>>)>, sqlx::Error> {
    let looked = limit.max(LOOKED_AT_FIRST);
    let near: Vec<(i64, Option<Vec<u8>>, bool)> = sqlx::query_as(statements::due_near())
        .bind(taker.handler.0)
        .bind(taker.lane)
        .bind(looked)
        .bind(offset_ms)
        .bind(dead_head)
        .fetch_all(&mut *conn)
        .await?;
    let is_all = near.len() < looked as usize;
    let mut free: Vec<_> =
        near.into_iter().filter(|(.., free)| *free).map(|(pos, key, _)| (pos, key)).collect();
    free.truncate(limit as usize);
    if is_all || free.len() == limit as usize {
        return Ok(free);
    }
    // Most due tasks are held back. Going from key to key skips what is parked behind a head.
    let heads: Vec<(i64, Option<Vec<u8>>, i64)> = sqlx::query_as(statements::due_heads())
        .bind(taker.handler.0)
        .bind(taker.lane)
        .bind(limit)
        .bind(offset_ms)
        .bind(dead_head)
        .fetch_all(conn)
        .await?;
    Ok(heads.into_iter().map(|(pos, key, _)| (pos, key)).collect())
}
