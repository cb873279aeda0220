//! Appending to the log, and pruning it.

use std::collections::{BTreeSet, HashSet};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use oncebox_core::store::{
    Appended, Fault, Inspect, LaneChoice, Log, NewMessage, Place, PruneRange, Pruned, Spill, Spilled, doing,
    refusal, row,
};
use oncebox_core::{Error, Fingerprint, Key, StoredKey};
use sqlx::postgres::PgRow;
use sqlx::types::Uuid;
use sqlx::{FromRow, Row};

use crate::fault::{classify, failed, is_refused};
use crate::store::PostgresStore;
use crate::work::{lane as read_lane, to_i32};

/// The number of times that an append may lose against another one with the same key.
pub(crate) const RACES_MAX: u32 = 100;

impl Log for PostgresStore {
    async fn append(&self, lane: LaneChoice, messages: &[NewMessage]) -> Result<Vec<Appended>, Error> {
        let mut races = 0;
        loop {
            match self.try_append(lane, messages).await {
                // Nothing was stored, and by now the other message's key is known (decision 14).
                Err(error) if is_known_by_now(&error) && races < RACES_MAX => races += 1,
                Err(error) if is_refused(&error) => return Err(refusal::no_such_lane(lane.lane())),
                appended => return appended.map_err(self.connections.failed(doing::APPEND)),
            }
        }
    }

    async fn spill(&self, spill: &Spill, lock_timeout: Duration) -> Result<Spilled, Error> {
        let doing = doing::SPILL;
        loop {
            match self.try_spill(spill, lock_timeout).await {
                Ok(Some(place)) => return Ok(Spilled::New(place)),
                Ok(None) => {}
                // Usually a running copy holds the marker: how it ends is not known yet.
                Err(error) if classify(&error) == Fault::LockTimeout => return Ok(Spilled::Busy),
                Err(error) if is_refused(&error) => return Err(refusal::no_tasks_for_handler()),
                Err(error) => return Err(self.connections.failed(doing)(error)),
            }
            // A sweep may have deleted the marker meanwhile: then try again.
            if let Some(unit) = &spill.marker
                && let Some(marker) = self.marker(unit).await?
            {
                return Ok(Spilled::Known(marker));
            }
        }
    }

    async fn import_accepted(&self, kind: &str, keys: &[StoredKey]) -> Result<u64, Error> {
        let doing = doing::IMPORT_ACCEPTED;
        let mark = sqlx::query(self.statements.import_accepted.clone())
            .bind(kind)
            .bind(keys.iter().map(StoredKey::as_bytes).collect::<Vec<_>>())
            .bind(keys.iter().map(|key| key.original().map(Key::as_bytes)).collect::<Vec<_>>())
            .bind(self.clock_offset_ms());
        let inserted = self.connections.execute(doing, mark).await?;
        Ok(inserted.rows_affected())
    }

    async fn prune(&self, lane: u16, range: PruneRange) -> Result<Pruned, Error> {
        let doing = doing::PRUNE;
        let prune = sqlx::query(self.statements.prune.clone())
            // Planned anew each time: a plan made while the table was small would scan it for ever.
            .persistent(false)
            .bind(i32::from(lane))
            .bind(range.behind)
            .bind(i32::try_from(range.positions).unwrap_or(i32::MAX))
            .bind(range.before_ms)
            .bind(self.clock_offset_ms());
        let row = self.connections.fetch_one(doing, prune).await?;
        let (deleted, next) = <(i64, Option<i64>)>::from_row(&row).map_err(failed(doing))?;
        Ok(Pruned { deleted: u64::try_from(deleted).unwrap_or(0), next })
    }

    async fn sweep_accepted(&self, before_ms: i64, limit: u32) -> Result<u64, Error> {
        let doing = doing::SWEEP_ACCEPTED;
        // Planned anew each time, as above.
        let sweep = sqlx::query(self.statements.sweep_accepted.clone())
            .persistent(false)
            .bind(before_ms)
            .bind(i64::from(limit));
        let swept = self.connections.execute(doing, sweep).await?;
        Ok(swept.rows_affected())
    }

    async fn announce(&self) -> Result<(), Error> {
        let doing = doing::ANNOUNCE;
        let announce = sqlx::query(self.statements.announce.clone()).bind(self.channel());
        self.connections.execute(doing, announce).await.map(drop)
    }

    async fn listen(&self, heard: impl Fn() + Send) -> Result<(), Error> {
        self.connections.listen(&self.channel(), heard).await.map_err(failed(doing::LISTEN))
    }
}

impl PostgresStore {
    async fn try_append(
        &self,
        lane: LaneChoice,
        messages: &[NewMessage],
    ) -> Result<Vec<Appended>, sqlx::Error> {
        let keys = |of: fn(&StoredKey) -> Option<&[u8]>| {
            messages.iter().map(|message| message.key.as_ref().and_then(of)).collect::<Vec<_>>()
        };
        let times = |of: fn(&NewMessage) -> Option<SystemTime>| {
            messages.iter().map(|message| of(message).map(row::time_to_ms)).collect::<Vec<_>>()
        };
        let new_kinds = self.kinds.unnoted(messages.iter().map(|message| &*message.kind));
        let append = sqlx::query(self.statements.append.clone())
            .bind(matches!(lane, LaneChoice::Prefer(_)))
            .bind(i32::from(lane.lane()))
            .bind(messages.iter().map(|message| &*message.kind).collect::<Vec<_>>())
            .bind(keys(|key| Some(key.as_bytes())))
            .bind(keys(|key| key.original().map(Key::as_bytes)))
            .bind(messages.iter().map(|message| message.fingerprint.to_i64()).collect::<Vec<_>>())
            .bind(messages.iter().map(|m| m.order_by.as_ref().map(Key::as_bytes)).collect::<Vec<_>>())
            .bind(messages.iter().map(|message| message.headers.to_json()).collect::<Vec<_>>())
            .bind(messages.iter().map(|message| &*message.body).collect::<Vec<_>>())
            .bind(times(|message| message.occurred_at))
            .bind(times(|message| message.due_at))
            .bind(messages.iter().map(|message| row::duration_to_ms(message.waited)).collect::<Vec<_>>())
            .bind(self.clock_offset_ms())
            .bind(&new_kinds)
            .bind(
                messages
                    .iter()
                    .map(|m| m.message_id.map(|id| Uuid::from_bytes(*id.as_bytes())))
                    .collect::<Vec<_>>(),
            );
        let mut conn = self.connections.warm().await?;
        let rows = conn.fetch_all(append).await?;
        // Only after a success: otherwise the pool checks the connection when it comes back (decision 26).
        self.connections.keep_warm(conn);
        self.kinds.note(new_kinds);
        rows.iter().map(read_appended).collect()
    }

    async fn try_spill(&self, spill: &Spill, lock_timeout: Duration) -> Result<Option<Place>, sqlx::Error> {
        let Spill { marker, message, lane, .. } = spill;
        let spill = sqlx::query(self.statements.spill.clone())
            .bind(spill.handler.0)
            .bind(marker.as_ref().map(|unit| &*unit.handler))
            .bind(&message.kind)
            .bind(message.key.as_ref().map(StoredKey::as_bytes))
            .bind(message.key.as_ref().and_then(StoredKey::original).map(Key::as_bytes))
            .bind(message.fingerprint.to_i64())
            .bind(message.order_by.as_ref().map(Key::as_bytes))
            .bind(message.headers.to_json())
            .bind(&message.body)
            .bind(message.occurred_at.map(row::time_to_ms))
            .bind(message.due_at.map(row::time_to_ms))
            .bind(row::duration_to_ms(message.waited))
            .bind(matches!(lane, LaneChoice::Prefer(_)))
            .bind(i32::from(lane.lane()))
            .bind(to_i32(spill.failures))
            .bind(row::duration_to_ms(spill.due_in))
            .bind(spill.error.as_deref())
            .bind(spill.is_dead)
            .bind(self.clock_offset_ms())
            // Never 0, which would mean no limit.
            .bind(format!("{}ms", lock_timeout.as_millis().max(1)));
        let mut conn = self.connections.take().await?;
        // The server may wait this long for a lock before it responds.
        conn.may_take(lock_timeout);
        let row = conn.fetch_optional(spill).await?;
        row.map(|row| Ok(Place { lane: read_lane(&row)?, pos: row.try_get("pos")? })).transpose()
    }

    /// The channel on which processes tell each other of messages.
    pub(crate) fn channel(&self) -> String {
        format!("{}_log", self.schema.name())
    }
}

/// Whether a key was accepted elsewhere at the same time. Two messages in one place would be another matter.
pub(crate) fn is_known_by_now(error: &sqlx::Error) -> bool {
    let error = error.as_database_error();
    error.is_some_and(|error| error.is_unique_violation() && error.constraint() == Some("marker_pkey"))
}

/// The kinds that the database knows from this process: they need not be noted again.
#[derive(Debug, Default)]
pub(crate) struct Kinds(Mutex<HashSet<String>>);

/// A program with more kinds than this writes the others to the database each time.
const KINDS_MAX: usize = 10_000;

impl Kinds {
    fn unnoted<'k>(&self, kinds: impl Iterator<Item = &'k str>) -> Vec<String> {
        let noted = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let new: BTreeSet<&str> = kinds.filter(|&kind| !noted.contains(kind)).collect();
        new.into_iter().map(str::to_owned).collect()
    }

    fn note(&self, kinds: Vec<String>) {
        if kinds.is_empty() {
            return;
        }
        let mut noted = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if noted.len() + kinds.len() <= KINDS_MAX {
            noted.extend(kinds);
        }
    }
}

fn read_appended(row: &PgRow) -> Result<Appended, sqlx::Error> {
    let lane: Option<i32> = row.try_get("lane")?;
    let pos: Option<i64> = row.try_get("pos")?;
    let place = lane.zip(pos).map(|(lane, pos)| Place { lane: u16::try_from(lane).unwrap_or(u16::MAX), pos });
    Ok(match (row.try_get("is_known")?, place) {
        (false, Some(place)) => Appended::New(place),
        (_, place) => {
            let fingerprint: Option<i64> = row.try_get("fingerprint")?;
            Appended::Known { place, fingerprint: fingerprint.map(Fingerprint::from_i64) }
        }
    })
}
