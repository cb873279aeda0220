//! Reading messages of the log.

use oncebox_core::store::{Place, StoredMessage, row};
use oncebox_core::{Headers, Key, MessageId};
use sqlx::Row;
use sqlx::sqlite::SqliteRow;

/// A message from its first nineteen columns: lane, position, kind, key, long key, ordering key, headers,
/// body, occurred, due, due in, waited, failures, attempts, edited, held, replay, crashes, spilled.
pub(crate) fn read_message(row: &SqliteRow) -> Result<StoredMessage, sqlx::Error> {
    let due_in: Option<i64> = row.try_get(10)?;
    Ok(StoredMessage {
        place: Place { lane: row.try_get(0)?, pos: row.try_get(1)? },
        kind: row.try_get(2)?,
        key: read_key(row, 3)?,
        order_by: row.try_get::<Option<&[u8]>, _>(5)?.map(Key::new),
        headers: Headers::from_json(row.try_get(6)?),
        body: row.try_get(7)?,
        occurred_at: row.try_get::<Option<i64>, _>(8)?.map(row::time_from_ms),
        due_at: row.try_get::<Option<i64>, _>(9)?.map(row::time_from_ms),
        due_in: due_in.map(row::duration_from_ms).unwrap_or_default(),
        waited: row::duration_from_ms(row.try_get(11)?),
        failures: row.try_get(12)?,
        attempts: row.try_get(13)?,
        edited: row.try_get(14)?,
        held: row.try_get(15)?,
        replay: row.try_get(16)?,
        crashes: row.try_get(17)?,
        spilled: row.try_get(18)?,
        message_id: None,
    })
}

/// The same, with the id of a published message in the twentieth column.
pub(crate) fn read_published(row: &SqliteRow) -> Result<StoredMessage, sqlx::Error> {
    let id: Option<&[u8]> = row.try_get(19)?;
    let message_id = id.and_then(|id| id.try_into().ok()).map(MessageId::from_bytes);
    Ok(StoredMessage { message_id, ..read_message(row)? })
}

/// A key from its two columns, the second behind the first.
pub(crate) fn read_key(row: &SqliteRow, column: usize) -> Result<Option<Key>, sqlx::Error> {
    let key: Option<&[u8]> = row.try_get(column)?;
    let long_key: Option<&[u8]> = row.try_get(column + 1)?;
    Ok(key.map(|key| row::key(key, long_key)))
}
