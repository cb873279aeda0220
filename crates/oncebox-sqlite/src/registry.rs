//! The handlers that there are, and the layout of the log.

use std::collections::HashMap;

use oncebox_core::store::{
    HandlerId, HandlerState, KnownHandler, Lanes, Layout, Registration, Registry, Verdict, check_lanes,
};
use oncebox_core::{Error, ErrorKind, Mode, Start};
use sqlx::sqlite::SqliteRow;
use sqlx::{Row, SqliteConnection};

use crate::fault::failed;
use crate::json::to_json;
use crate::store::SqliteStore;

/// How an ordering key becomes a lane. A log that was made with another rule would mix up the order.
const LANE_HASH: &str = "sha256-first8-be";

impl Registry for SqliteStore {
    async fn register(&self, log: Option<Lanes>, handlers: &[Registration]) -> Result<Layout, Error> {
        let mut conn = self.pool.acquire().await.map_err(failed("read the handlers"))?;
        let found = Found::read(&mut conn, handlers).await.map_err(failed("read the handlers"))?;
        // Given back before anything else: a database in memory has only this one.
        drop(conn);
        if let Some(layout) = found.as_wanted(&found.judge(log, handlers)?, log) {
            return Ok(layout);
        }
        let offset_ms = self.clock_offset_ms();
        self.write("register the handlers", async |conn| {
            // Somebody else may have been faster.
            let found = Found::read(&mut *conn, handlers).await?;
            match found.judge(log, handlers) {
                Ok(verdicts) => found.complete(conn, log, handlers, &verdicts, offset_ms).await.map(Ok),
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
        let layout = sqlx::query_as(include_str!("sql/find_layout.sql")).fetch_optional(&mut *conn).await?;
        let rows = sqlx::query(include_str!("sql/find_handlers.sql"))
            .bind(to_json(handlers.iter().map(|handler| &*handler.name))?)
            .fetch_all(conn)
            .await?;
        let known = rows.iter().map(read_handler).collect::<Result<Vec<_>, _>>()?;
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
    fn as_wanted(&self, verdicts: &[Verdict], log: Option<Lanes>) -> Option<Layout> {
        if log.is_some() && self.layout.is_none() {
            return None;
        }
        let known = verdicts.iter().map(|verdict| match verdict {
            Verdict::Known(id) => Some(*id),
            Verdict::New | Verdict::Revive(_) => None,
        });
        Some(Layout { lanes: self.lanes(), handlers: known.collect::<Option<_>>()? })
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
            let make = sqlx::query(include_str!("sql/make_layout.sql")).bind(lanes).bind(LANE_HASH);
            make.execute(&mut *conn).await?;
        }
        let mut ids = Vec::with_capacity(handlers.len());
        for (handler, verdict) in handlers.iter().zip(verdicts) {
            ids.push(match *verdict {
                Verdict::Known(id) => id,
                Verdict::New => add(&mut *conn, handler, offset_ms).await?,
                Verdict::Revive(id) => revive(&mut *conn, id, handler, offset_ms).await?,
            });
        }
        Ok(Layout { lanes, handlers: ids })
    }
}

async fn add(
    conn: &mut SqliteConnection,
    handler: &Registration,
    offset_ms: i64,
) -> Result<HandlerId, sqlx::Error> {
    let id: i32 = sqlx::query_scalar(include_str!("sql/add_handler.sql"))
        .bind(&handler.name)
        .bind(to_json(handler.kinds.iter().map(String::as_str))?)
        .bind(handler.mode.name())
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
    sqlx::query(include_str!("sql/revive_handler.sql"))
        .bind(id.0)
        .bind(to_json(handler.kinds.iter().map(String::as_str))?)
        .bind(handler.mode.name())
        .execute(&mut *conn)
        .await?;
    let epoch: Option<i32> =
        sqlx::query_scalar(include_str!("sql/newest_epoch.sql")).bind(id.0).fetch_one(&mut *conn).await?;
    sqlx::query(include_str!("sql/drop_progress.sql")).bind(id.0).execute(&mut *conn).await?;
    begin(conn, id, handler, epoch.map_or(0, |epoch| epoch + 1), offset_ms).await
}

/// Puts a handler that reads the log at its start in every lane.
async fn begin(
    conn: &mut SqliteConnection,
    id: HandlerId,
    handler: &Registration,
    epoch: i32,
    offset_ms: i64,
) -> Result<HandlerId, sqlx::Error> {
    if handler.mode != Mode::Inline {
        sqlx::query(include_str!("sql/begin_progress.sql"))
            .bind(id.0)
            .bind(epoch)
            .bind(handler.start == Start::Now)
            .bind(offset_ms)
            .execute(conn)
            .await?;
    }
    Ok(id)
}

/// A handler from its first five columns: id, name, kinds, mode, state.
pub(crate) fn read_handler(row: &SqliteRow) -> Result<KnownHandler, sqlx::Error> {
    let mode: &str = row.try_get(3)?;
    let state: &str = row.try_get(4)?;
    Ok(KnownHandler {
        id: HandlerId(row.try_get(0)?),
        name: row.try_get(1)?,
        kinds: serde_json::from_str(row.try_get(2)?).map_err(|error| sqlx::Error::Decode(error.into()))?,
        mode: Mode::from_name(mode)
            .ok_or_else(|| sqlx::Error::Decode(format!("there is no mode {mode:?}").into()))?,
        state: if state == "active" { HandlerState::Active } else { HandlerState::Removed },
    })
}
