//! The outbox: messages of transactions that publish, until the mover takes them to the log.
//!
//! SQLite has one writer. Its commits are in the order of their numbers, so the mover needs no window: what it sees is complete.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashSet};
use std::sync::LazyLock;
use std::time::Duration;

use futures_util::TryStreamExt;
use oncebox_core::store::{
    Capture, Captured, HandlerId, MoveLimits, MoveWindow, Moved, NewMessage, OutboxSize, OutboxStatus, Place,
    StoredMessage, WaitingMessage, doing, lane_of_captured, refusal, row,
};
use oncebox_core::{Error, Fingerprint, Headers, Key, MessageId};
use sqlx::sqlite::SqliteRow;
use sqlx::{Row, SqliteConnection};

use crate::fault::failed;
use crate::log::append_to;
use crate::many::Many;
use crate::message::read_published;
use crate::statements;
use crate::store::SqliteStore;
use crate::transaction::SqliteTx;

static CAPTURE: LazyLock<Many> = LazyLock::new(|| Many::new(statements::capture()));

impl Capture for SqliteStore {
    async fn capture(&self, conn: &mut SqliteConnection, messages: &[Captured]) -> Result<(), Error> {
        capture(conn, messages, self.clock_offset_ms()).await.map_err(failed(doing::CAPTURE))
    }

    async fn capture_in(&self, tx: &mut SqliteTx, messages: &[Captured]) -> Result<(), Error> {
        tx.check_whole().await?;
        self.capture(tx.connection(), messages).await
    }

    async fn move_captured(&self, window: &MoveWindow, limits: MoveLimits) -> Result<Option<Moved>, Error> {
        let doing = doing::MOVE;
        // A read first: an idle mover does not ask for the writer.
        let found: Option<(bool, u16)> = sqlx::query_as(statements::has_captured())
            .fetch_optional(&self.pool)
            .await
            .map_err(failed(doing))?;
        let Some((has_captured, lanes)) = found else { return Err(refusal::no_such_lane(0)) };
        let nothing = Moved { messages: 0, is_complete: true, next: window.clone() };
        if !has_captured {
            return Ok(Some(nothing));
        }
        let offset_ms = self.clock_offset_ms();
        let (messages, is_complete) =
            self.write(doing, async |conn| move_to_log(conn, lanes, limits, offset_ms).await).await?;
        Ok(Some(Moved { messages, is_complete, ..nothing }))
    }

    async fn outbox_status(&self) -> Result<OutboxStatus, Error> {
        let read =
            sqlx::query_as(statements::captured()).bind(self.clock_offset_ms()).fetch_one(&self.pool).await;
        let (waiting, oldest): (i64, Option<i64>) = read.map_err(failed(doing::READ_OUTBOX))?;
        Ok(OutboxStatus::new(u64::try_from(waiting).unwrap_or(0), oldest.map(row::duration_from_ms)))
    }

    async fn outbox_size(&self) -> Result<OutboxSize, Error> {
        let read = sqlx::query_as(statements::outbox_size()).fetch_one(&self.pool).await;
        let (outbox, log, database) = read.map_err(failed(doing::READ_OUTBOX))?;
        Ok(OutboxSize::new(outbox, log, database))
    }

    async fn waiting_messages(&self, limit: u32) -> Result<Vec<WaitingMessage>, Error> {
        let read = sqlx::query(statements::waiting_messages())
            .bind(limit)
            .bind(self.clock_offset_ms())
            .fetch_all(&self.pool)
            .await;
        let messages = read.and_then(|rows| rows.iter().map(read_waiting).collect());
        messages.map_err(failed(doing::READ_OUTBOX))
    }

    async fn waiting_message(&self, id: MessageId) -> Result<Option<WaitingMessage>, Error> {
        let read = sqlx::query(statements::waiting_message())
            .bind(id.to_string())
            .bind(self.clock_offset_ms())
            .fetch_optional(&self.pool)
            .await;
        read.and_then(|row| row.as_ref().map(read_waiting).transpose()).map_err(failed(doing::READ_OUTBOX))
    }

    async fn find_published(&self, id: MessageId) -> Result<Option<Place>, Error> {
        let found: Option<(u16, i64)> = sqlx::query_as(statements::find_published())
            .bind(&id.as_bytes()[..])
            .fetch_optional(&self.pool)
            .await
            .map_err(failed(doing::FIND_MESSAGE))?;
        Ok(found.map(|(lane, pos)| Place { lane, pos }))
    }

    async fn unsent_messages(&self, relay: HandlerId, limit: u32) -> Result<Vec<StoredMessage>, Error> {
        let doing = doing::READ_PENDING;
        let mut conn = self.pool.acquire().await.map_err(failed(doing))?;
        unsent(&mut conn, relay, limit, self.clock_offset_ms()).await.map_err(failed(doing))
    }
}

/// The oldest messages of all lanes.
async fn unsent(
    conn: &mut SqliteConnection,
    relay: HandlerId,
    limit: u32,
    offset_ms: i64,
) -> Result<Vec<StoredMessage>, sqlx::Error> {
    let layout: Option<(u16, String)> =
        sqlx::query_as(statements::find_layout()).fetch_optional(&mut *conn).await?;
    let mut found: Vec<(Duration, StoredMessage)> = Vec::new();
    for lane in 0..layout.map_or(0, |(lanes, _)| lanes) {
        let rows = sqlx::query(statements::unsent_messages())
            .bind(relay.0)
            .bind(lane)
            .bind(limit)
            .bind(offset_ms)
            .fetch_all(&mut *conn)
            .await?;
        // Within a lane they stay in their order: times of neighbours differ by less than the precision of their ages.
        let mut age = Duration::MAX;
        for row in &rows {
            let message = read_published(row)?;
            age = age.min(message.waited);
            found.push((age, message));
        }
        // After each lane, so that there are never more bodies than twice the limit.
        found.sort_by_key(|(age, _)| Reverse(*age));
        found.truncate(usize::try_from(limit).unwrap_or(usize::MAX));
    }
    Ok(found.into_iter().map(|(_, message)| message).collect())
}

/// Writes messages to the outbox.
pub(crate) async fn capture(
    conn: &mut SqliteConnection,
    messages: &[Captured],
    offset_ms: i64,
) -> Result<(), sqlx::Error> {
    let capture = CAPTURE.run(conn, messages, |insert, message| {
        insert
            .bind(offset_ms)
            .bind(message.id.to_string())
            .bind(&message.kind)
            .bind(message.key.as_ref().map(Key::as_bytes))
            .bind(message.order_by.as_ref().map(Key::as_bytes))
            .bind(message.headers.to_json())
            .bind(&message.body)
            .bind(message.occurred_at.map(row::time_to_ms))
            .bind(message.due_at.map(row::time_to_ms))
    });
    capture.await.map(drop)
}

/// Moves messages, and returns their number, and whether they were all.
async fn move_to_log(
    conn: &mut SqliteConnection,
    lanes: u16,
    limits: MoveLimits,
    offset_ms: i64,
) -> Result<(u64, bool), sqlx::Error> {
    let mut by_lane: BTreeMap<u16, Vec<NewMessage>> = BTreeMap::new();
    let mut keys = HashSet::new();
    let (mut count, mut bytes, mut last) = (0, 0, None);
    // Row by row: all bodies up to the limit of messages might not fit into the memory.
    let mut rows =
        sqlx::query(statements::move_captured()).bind(limits.messages).bind(offset_ms).fetch(&mut *conn);
    while let Some(row) = rows.try_next().await? {
        if bytes >= limits.bytes {
            break;
        }
        let id: i64 = row.try_get(0)?;
        let message = read_captured(&row)?;
        count += 1;
        bytes += message.body.len() as u64 + message.headers.bytes() as u64;
        last = Some(id);
        // The log takes no two messages of one kind and key in one step. A later copy is a duplicate.
        if keys.insert((message.kind.clone(), message.key.clone())) {
            let lane = lane_of_captured(message.order_by.as_ref(), id, lanes);
            by_lane.entry(lane).or_default().push(message);
        }
    }
    drop(rows);
    let is_complete = count < u64::from(limits.messages) && bytes < limits.bytes;
    for (lane, messages) in by_lane {
        append_to(conn, lane, &messages, offset_ms).await?.ok_or(sqlx::Error::RowNotFound)?;
    }
    sqlx::query(statements::remove_captured()).bind(last).execute(conn).await?;
    Ok((count, is_complete))
}

fn read_captured(row: &SqliteRow) -> Result<NewMessage, sqlx::Error> {
    let key = match row.try_get::<Option<&[u8]>, _>(3)? {
        Some(key) => Key::new(key),
        None => Key::new(row.try_get::<&[u8], _>(1)?),
    };
    let message_id = MessageId::from_text(&String::from_utf8_lossy(row.try_get(1)?));
    let body: Vec<u8> = row.try_get(6)?;
    Ok(NewMessage {
        // Another program can write text that is not UTF-8. It must not stop the messages behind it.
        kind: String::from_utf8_lossy(row.try_get(2)?).into_owned(),
        key: Some(key.stored()),
        fingerprint: Fingerprint::of(&body),
        order_by: row.try_get::<Option<&[u8]>, _>(4)?.map(Key::new),
        headers: Headers::from_json(
            row.try_get::<Option<&[u8]>, _>(5)?.map(String::from_utf8_lossy).as_deref(),
        ),
        body,
        occurred_at: row.try_get::<Option<i64>, _>(7)?.map(row::time_from_ms),
        due_at: row.try_get::<Option<i64>, _>(8)?.map(row::time_from_ms),
        waited: row::duration_from_ms(row.try_get(9)?),
        // Another program can write any text into the table. No copy of that message has left yet.
        message_id: Some(message_id.unwrap_or_default()),
    })
}

/// A message for operators. Its text is read as the mover reads it.
fn read_waiting(row: &SqliteRow) -> Result<WaitingMessage, sqlx::Error> {
    let message = read_captured(row)?;
    Ok(WaitingMessage {
        id: MessageId::from_text(&String::from_utf8_lossy(row.try_get(1)?)),
        kind: message.kind,
        key: row.try_get::<Option<&[u8]>, _>(3)?.map(Key::new),
        order_by: message.order_by,
        headers: message.headers,
        body: message.body,
        occurred_at: message.occurred_at,
        due_at: message.due_at,
        captured_at: row::time_from_ms(row.try_get(10)?),
        waited: message.waited,
    })
}
