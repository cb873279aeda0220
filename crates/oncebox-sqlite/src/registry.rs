//! The handlers that there are, and the layout of the log.

use std::collections::HashMap;

use oncebox_core::store::{
    HandlerId, HandlerState, KnownHandler, Lanes, Layout, Leftovers, Registration, Registry, Verdict,
    check_lanes,
};
use oncebox_core::{DeadHead, Error, ErrorKind, Mode, Start};
use sqlx::sqlite::SqliteRow;
use sqlx::{Row, SqliteConnection};

use crate::fault::failed;
use crate::json::to_json;
use crate::statements;
use crate::store::SqliteStore;

/// How an ordering key becomes a lane. A log that was made with another rule would mix up the order.
const LANE_HASH: &str = "sha256-first8-be";

impl Registry for SqliteStore {
    async fn register(&self, log: Option<Lanes>, handlers: &[Registration]) -> Result<Layout, Error> {
        let mut conn = self.pool.acquire().await.map_err(failed("read the handlers"))?;
        let found = Found::read(&mut conn, handlers).await.map_err(failed("read the handlers"))?;
        // Given back before anything else: a database in memory has only this one.
        drop(conn);
        if let Some(layout) = found.as_wanted(&found.judge(log, handlers)?, log, handlers) {
            return Ok(layout);
        }
        let offset_ms = self.clock_offset_ms();
        self.write("register the handlers", async |conn| {
            // Somebody else may have been faster.
            let found = Found::read(&mut *conn, handlers).await?;
            let verdicts = match found.judge(log, handlers) {
                Ok(verdicts) => verdicts,
                Err(refused) => return Ok(Err(refused)),
            };
            match may_change(conn, handlers, &verdicts).await? {
                Ok(()) => found.complete(conn, log, handlers, &verdicts, offset_ms).await.map(Ok),
                Err(refused) => Ok(Err(refused)),
            }
        })
        .await?
    }
}

/// What the database has to say on a registration.
struct Found {
    /// The number of lanes and how keys are spread over them.
    layout: Option<(u16, String)>,
    handlers: HashMap<String, KnownHandler>,
}

impl Found {
    async fn read(conn: &mut SqliteConnection, handlers: &[Registration]) -> Result<Self, sqlx::Error> {
        let layout = sqlx::query_as(statements::find_layout()).fetch_optional(&mut *conn).await?;
        let known = known_handlers(conn, handlers.iter().map(|handler| &*handler.name).collect()).await?;
        let handlers = known.into_iter().map(|known| (known.name.clone(), known)).collect();
        Ok(Self { layout, handlers })
    }

    /// All decisions, before anything is written.
    fn judge(&self, log: Option<Lanes>, handlers: &[Registration]) -> Result<Vec<Verdict>, Error> {
        if let (Some(wanted), Some((lanes, hash))) = (log, &self.layout) {
            if hash != LANE_HASH {
                return Err(Error::new(
                    ErrorKind::Configuration,
                    format!(
                        "the log spreads keys by {hash:?}, and this program by {LANE_HASH:?}: update the program"
                    ),
                ));
            }
            check_lanes(wanted.0, *lanes)?;
        }
        handlers.iter().map(|handler| handler.judge(self.handlers.get(&handler.name))).collect()
    }

    /// The answer, if there is nothing to write.
    fn as_wanted(
        &self,
        verdicts: &[Verdict],
        log: Option<Lanes>,
        handlers: &[Registration],
    ) -> Option<Layout> {
        if log.is_some() && self.layout.is_none() {
            return None;
        }
        let known = verdicts.iter().map(|verdict| match verdict {
            Verdict::Known(id) => Some(*id),
            Verdict::New | Verdict::Revive(_) | Verdict::Reorder(_) | Verdict::Change(..) => None,
        });
        let known = known.collect::<Option<_>>()?;
        Some(Layout { lanes: self.lanes(), handlers: known, origins: self.origins(handlers) })
    }

    /// The first name of a new handler is the one that it has.
    fn origins(&self, handlers: &[Registration]) -> Vec<String> {
        let origin = |handler: &Registration| match self.handlers.get(&handler.name) {
            Some(known) => known.origin.clone(),
            None => handler.name.clone(),
        };
        handlers.iter().map(origin).collect()
    }

    fn lanes(&self) -> u16 {
        self.layout.as_ref().map_or(0, |(lanes, _)| *lanes)
    }

    /// Writes what is missing.
    async fn complete(
        &self,
        conn: &mut SqliteConnection,
        log: Option<Lanes>,
        handlers: &[Registration],
        verdicts: &[Verdict],
        offset_ms: i64,
    ) -> Result<Layout, sqlx::Error> {
        let mut lanes = self.lanes();
        if let (Some(wanted), None) = (log, &self.layout) {
            lanes = wanted.to_make();
            let make = sqlx::query(statements::make_layout()).bind(lanes).bind(LANE_HASH);
            make.execute(&mut *conn).await?;
        }
        let mut ids = Vec::with_capacity(handlers.len());
        for (handler, verdict) in handlers.iter().zip(verdicts) {
            ids.push(match *verdict {
                Verdict::Known(id) => id,
                Verdict::New => add(&mut *conn, handler, offset_ms).await?,
                Verdict::Revive(id) => revive(&mut *conn, id, handler, offset_ms).await?,
                Verdict::Reorder(id) => set_mode(&mut *conn, id, handler).await?,
                Verdict::Change(id, from) => change(&mut *conn, id, from, handler, offset_ms).await?,
            });
        }
        Ok(Layout { lanes, handlers: ids, origins: self.origins(handlers) })
    }
}

/// Whether all changes of modes may be, before anything is written.
async fn may_change(
    conn: &mut SqliteConnection,
    handlers: &[Registration],
    verdicts: &[Verdict],
) -> Result<Result<(), Error>, sqlx::Error> {
    for (handler, verdict) in handlers.iter().zip(verdicts) {
        let Verdict::Change(id, from) = *verdict else { continue };
        let find = sqlx::query_as(statements::find_leftovers()).bind(id.0);
        let (waiting, set_apart, inline_keys, done_elsewhere) = find.fetch_one(&mut *conn).await?;
        let left = Leftovers { waiting, set_apart, inline_keys, done_elsewhere };
        if let Err(refused) = handler.may_change(from, left) {
            return Ok(Err(refused));
        }
    }
    Ok(Ok(()))
}

async fn add(
    conn: &mut SqliteConnection,
    handler: &Registration,
    offset_ms: i64,
) -> Result<HandlerId, sqlx::Error> {
    let id: i32 = sqlx::query_scalar(statements::add_handler())
        .bind(&handler.name)
        .bind(to_json(handler.kinds.iter().map(String::as_str))?)
        .bind(handler.mode.name())
        .bind(handler.ordered.map(DeadHead::name))
        .bind(offset_ms)
        .fetch_one(&mut *conn)
        .await?;
    begin(conn, HandlerId(id), handler, 0, offset_ms).await
}

async fn revive(
    conn: &mut SqliteConnection,
    id: HandlerId,
    handler: &Registration,
    offset_ms: i64,
) -> Result<HandlerId, sqlx::Error> {
    sqlx::query(statements::revive_handler())
        .bind(id.0)
        .bind(to_json(handler.kinds.iter().map(String::as_str))?)
        .bind(handler.mode.name())
        .bind(handler.ordered.map(DeadHead::name))
        .execute(&mut *conn)
        .await?;
    let epoch: Option<i32> =
        sqlx::query_scalar(statements::newest_epoch()).bind(id.0).fetch_one(&mut *conn).await?;
    sqlx::query(statements::drop_progress()).bind(id.0).execute(&mut *conn).await?;
    begin(conn, id, handler, epoch.map_or(0, |epoch| epoch + 1), offset_ms).await
}

/// How messages reach a handler is as it is wanted now.
async fn set_mode(
    conn: &mut SqliteConnection,
    id: HandlerId,
    handler: &Registration,
) -> Result<HandlerId, sqlx::Error> {
    sqlx::query(statements::change_handler())
        .bind(id.0)
        .bind(to_json(handler.kinds.iter().map(String::as_str))?)
        .bind(handler.mode.name())
        .bind(handler.ordered.map(DeadHead::name))
        .execute(conn)
        .await?;
    Ok(id)
}

async fn change(
    conn: &mut SqliteConnection,
    id: HandlerId,
    from: Mode,
    handler: &Registration,
    offset_ms: i64,
) -> Result<HandlerId, sqlx::Error> {
    set_mode(&mut *conn, id, handler).await?;
    match (from, handler.mode) {
        (Mode::Inline { .. }, Mode::Mixed) => {
            begin(conn, id, handler, 0, offset_ms).await?;
        }
        // From now on its markers are the referee, also of what it took from the log before.
        (Mode::Stored, Mode::Mixed) => {
            let backfill = sqlx::query(statements::backfill_markers()).bind(id.0).bind(offset_ms);
            backfill.execute(conn).await?;
        }
        (Mode::Mixed, Mode::Inline { .. }) => {
            sqlx::query(statements::drop_progress()).bind(id.0).execute(&mut *conn).await?;
            sqlx::query(statements::drop_replays()).bind(id.0).execute(conn).await?;
        }
        // Tasks and markers count in both modes.
        _ => {}
    }
    Ok(id)
}

/// Puts a handler that reads the log at its start in every lane.
async fn begin(
    conn: &mut SqliteConnection,
    id: HandlerId,
    handler: &Registration,
    epoch: i32,
    offset_ms: i64,
) -> Result<HandlerId, sqlx::Error> {
    if handler.mode.reads_log() {
        sqlx::query(statements::begin_lanes())
            .bind(id.0)
            .bind(epoch)
            .bind(handler.start == Start::Now)
            .bind(offset_ms)
            .execute(conn)
            .await?;
    }
    Ok(id)
}

/// What the database has under these names.
pub(crate) async fn known_handlers(
    conn: &mut SqliteConnection,
    names: Vec<&str>,
) -> Result<Vec<KnownHandler>, sqlx::Error> {
    let find = sqlx::query(statements::find_handlers()).bind(to_json(names)?);
    find.fetch_all(conn).await?.iter().map(read_handler).collect()
}

/// A handler from its first seven columns: id, name, origin, kinds, mode, ordered, state.
pub(crate) fn read_handler(row: &SqliteRow) -> Result<KnownHandler, sqlx::Error> {
    let unknown = |what: &str, name: &str| sqlx::Error::Decode(format!("there is no {what} {name:?}").into());
    let (mode, state): (&str, &str) = (row.try_get(4)?, row.try_get(6)?);
    let ordered: Option<&str> = row.try_get(5)?;
    Ok(KnownHandler {
        id: HandlerId(row.try_get(0)?),
        name: row.try_get(1)?,
        origin: row.try_get(2)?,
        kinds: serde_json::from_str(row.try_get(3)?).map_err(|error| sqlx::Error::Decode(error.into()))?,
        mode: Mode::from_name(mode).ok_or_else(|| unknown("mode", mode))?,
        ordered: ordered.and_then(DeadHead::from_name),
        state: HandlerState::from_name(state).ok_or_else(|| unknown("state", state))?,
    })
}
