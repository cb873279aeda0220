//! Appending to the log, and removing what everybody has passed.

use std::collections::BTreeSet;
use std::sync::LazyLock;
use std::time::Duration;

use oncebox_core::store::{
    Appended, HandlerId, LaneChoice, Log, NewMessage, Place, PruneRange, Pruned, Spill, Spilled, doing,
    refusal, row,
};
use oncebox_core::{Error, Fingerprint, Key, StoredKey};
use sqlx::{Row, SqliteConnection};

use crate::json::{hex, to_json};
use crate::many::{Many, NewRows};
use crate::statements;
use crate::store::SqliteStore;

/// The number of keys that one statement looks up.
const KEYS_PER_LOOKUP: usize = 256;

static APPEND: LazyLock<NewRows> = LazyLock::new(|| NewRows::new(statements::append()));
static APPEND_MARKER: LazyLock<NewRows> = LazyLock::new(|| NewRows::new(statements::append_marker()));
static MARK_ACCEPTED: LazyLock<Many> = LazyLock::new(|| Many::new(statements::import_accepted()));

impl Log for SqliteStore {
    /// SQLite has one writer, so no lane is free when another is not: the preferred one is always taken.
    async fn append(&self, lane: LaneChoice, messages: &[NewMessage]) -> Result<Vec<Appended>, Error> {
        let lane = lane.lane();
        let offset_ms = self.clock_offset_ms();
        self.write(doing::APPEND, async |conn| {
            let appended = append_to(conn, lane, messages, offset_ms).await?;
            Ok(appended.ok_or_else(|| refusal::no_such_lane(lane)))
        })
        .await?
    }

    async fn spill(&self, spill: &Spill, lock_timeout: Duration) -> Result<Spilled, Error> {
        self.spill_one(spill, lock_timeout).await
    }

    async fn import_accepted(&self, kind: &str, keys: &[StoredKey]) -> Result<u64, Error> {
        let offset_ms = self.clock_offset_ms();
        self.write(doing::IMPORT_ACCEPTED, async |conn| {
            let new = MARK_ACCEPTED.run(conn, keys, |insert, key| {
                insert.bind(kind).bind(key.as_bytes()).bind(key.original().map(Key::as_bytes)).bind(offset_ms)
            });
            Ok(new.await?.into_iter().map(u64::from).sum())
        })
        .await
    }

    async fn prune(&self, lane: u16, range: PruneRange) -> Result<Pruned, Error> {
        let PruneRange { behind, positions, before_ms } = range;
        let offset_ms = self.clock_offset_ms();
        self.write(doing::PRUNE, async |conn| {
            // Before the delete: it counts the same positions, of which some are gone afterwards.
            let next: Option<Option<i64>> = sqlx::query_scalar(statements::prune_next())
                .bind(lane)
                .bind(behind)
                .bind(positions)
                .bind(before_ms)
                .bind(offset_ms)
                .fetch_optional(&mut *conn)
                .await?;
            let deleted = sqlx::query(statements::prune())
                .bind(lane)
                .bind(behind)
                .bind(positions)
                .bind(before_ms)
                .bind(offset_ms)
                .execute(&mut *conn)
                .await?;
            let next = next.flatten();
            // Once per round, at its last step: this goes through the progress of all handlers.
            if next.is_none() && before_ms.is_some() {
                let progress = sqlx::query(statements::prune_progress());
                progress.bind(lane).bind(before_ms).execute(conn).await?;
            }
            Ok(Pruned { deleted: deleted.rows_affected(), next })
        })
        .await
    }

    async fn sweep_accepted(&self, before_ms: i64, limit: u32) -> Result<u64, Error> {
        self.write(doing::SWEEP_ACCEPTED, async |conn| {
            let sweep = sqlx::query(statements::sweep_accepted()).bind(before_ms).bind(limit);
            Ok(sweep.execute(conn).await?.rows_affected())
        })
        .await
    }
}

/// A message that gets a place.
pub(crate) struct Fresh<'a> {
    pub(crate) message: &'a NewMessage,
    pub(crate) place: Place,
    /// The handler that it is for alone, if it is for one.
    pub(crate) target: Option<HandlerId>,
    pub(crate) now_ms: i64,
}

impl Fresh<'_> {
    fn received_ms(&self) -> i64 {
        self.now_ms.saturating_sub(row::duration_to_ms(self.message.waited))
    }
}

/// Appends new messages to a lane, and skips messages with a known key. `None` if the lane does not exist.
pub(crate) async fn append_to(
    conn: &mut SqliteConnection,
    lane: u16,
    messages: &[NewMessage],
    offset_ms: i64,
) -> Result<Option<Vec<Appended>>, sqlx::Error> {
    let Some((newest, now_ms)) = begin_append(&mut *conn, lane, offset_ms).await? else { return Ok(None) };
    // Keys first: only fresh messages get positions, and each marker points to one (decision 14).
    let known = find_accepted(conn, messages).await?;
    let mut place = Place { lane, pos: newest };
    let mut fresh = Vec::with_capacity(messages.len());
    let appended = messages.iter().zip(known).map(|(message, known)| {
        known.unwrap_or_else(|| {
            place.pos += 1;
            fresh.push(Fresh { message, place, target: None, now_ms });
            Appended::New(place)
        })
    });
    let appended = appended.collect();
    insert(conn, &fresh).await?;
    Ok(Some(appended))
}

/// The newest position of a lane, and the time now; `None` if there is no such lane.
pub(crate) async fn begin_append(
    conn: &mut SqliteConnection,
    lane: u16,
    offset_ms: i64,
) -> Result<Option<(i64, i64)>, sqlx::Error> {
    let begun: Option<(u16, i64, i64)> =
        sqlx::query_as(statements::begin_append()).bind(lane).bind(offset_ms).fetch_optional(conn).await?;
    Ok(begun.filter(|&(lanes, ..)| lane < lanes).map(|(_, newest, now_ms)| (newest, now_ms)))
}

/// What is known of each message's key.
async fn find_accepted(
    conn: &mut SqliteConnection,
    messages: &[NewMessage],
) -> Result<Vec<Option<Appended>>, sqlx::Error> {
    let mut known = vec![None; messages.len()];
    for (messages, known) in messages.chunks(KEYS_PER_LOOKUP).zip(known.chunks_mut(KEYS_PER_LOOKUP)) {
        // A message without a key is looked up as null, and found by nothing.
        let keys = messages.iter().map(|message| {
            let key = message.key.as_ref().map(|key| hex(key.as_bytes()));
            vec![Some(message.kind.clone()), key]
        });
        let rows =
            sqlx::query(statements::find_accepted()).bind(to_json(keys)?).fetch_all(&mut *conn).await?;
        for row in &rows {
            let n: i64 = row.try_get(0)?;
            let (lane, pos): (Option<u16>, Option<i64>) = (row.try_get(1)?, row.try_get(2)?);
            let fingerprint: Option<i64> = row.try_get(3)?;
            if let Some(known) = usize::try_from(n).ok().and_then(|n| known.get_mut(n)) {
                let place = lane.zip(pos).map(|(lane, pos)| Place { lane, pos });
                let fingerprint = fingerprint.map(Fingerprint::from_i64);
                *known = Some(Appended::Known { place, fingerprint });
            }
        }
    }
    Ok(known)
}

/// Inserts messages with their markers, and notes their kinds.
async fn insert(conn: &mut SqliteConnection, fresh: &[Fresh<'_>]) -> Result<(), sqlx::Error> {
    let Some(first) = fresh.first() else { return Ok(()) };
    // Operators see from these few rows which kinds no handler takes, without a read of the log.
    let kinds: BTreeSet<&str> = fresh.iter().map(|fresh| &*fresh.message.kind).collect();
    let note = sqlx::query(statements::note_kinds()).bind(to_json(kinds)?).bind(first.now_ms);
    note.execute(&mut *conn).await?;
    let keyed: Vec<_> =
        fresh.iter().filter_map(|fresh| fresh.message.key.as_ref().map(|key| (fresh, key))).collect();
    APPEND_MARKER
        .insert(conn, &keyed, |insert, (fresh, key)| {
            insert
                .bind(&fresh.message.kind)
                .bind(key.as_bytes())
                .bind(key.original().map(Key::as_bytes))
                .bind(fresh.message.fingerprint.to_i64())
                .bind(fresh.received_ms())
                .bind(fresh.now_ms)
                .bind(fresh.place.lane)
                .bind(fresh.place.pos)
        })
        .await?;
    insert_messages(conn, fresh).await
}

/// Inserts messages only.
pub(crate) async fn insert_messages(
    conn: &mut SqliteConnection,
    fresh: &[Fresh<'_>],
) -> Result<(), sqlx::Error> {
    APPEND
        .insert(conn, fresh, |insert, fresh| {
            let message = fresh.message;
            let original = message.key.as_ref().and_then(StoredKey::original);
            insert
                .bind(fresh.place.lane)
                .bind(fresh.place.pos)
                .bind(&message.kind)
                .bind(message.key.as_ref().map(StoredKey::as_bytes))
                .bind(original.map(Key::as_bytes))
                .bind(message.order_by.as_ref().map(Key::as_bytes))
                .bind(fresh.target.map(|handler| handler.0))
                .bind(message.headers.to_json())
                .bind(message.occurred_at.map(row::time_to_ms))
                .bind(message.due_at.map(row::time_to_ms))
                .bind(fresh.received_ms())
                .bind(message.message_id.map(|id| id.as_bytes().to_vec()))
                .bind(&message.body)
        })
        .await?;
    Ok(())
}
