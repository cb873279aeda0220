//! The handlers that there are, and the layout of the log.

use oncebox_core::store::{
    HandlerId, HandlerPlan, HandlerRow, KnownHandler, LaneCount, LaneStep, Layout, Leftovers, LogLayout,
    Registration, RegistrationPlan, Registry, RegistryState, RowStep, doing, row,
};
use oncebox_core::{DeadHead, Error, Start};
use sqlx::sqlite::SqliteRow;
use sqlx::{Row, SqliteConnection};

use crate::fault::failed;
use crate::json::to_json;
use crate::statements;
use crate::store::SqliteStore;

impl Registry for SqliteStore {
    async fn register(&self, log: Option<LaneCount>, handlers: &[Registration]) -> Result<Layout, Error> {
        // Read first: most starts change nothing, and need no turn as the writer.
        let mut conn = self.pool.acquire().await.map_err(failed(doing::REGISTER))?;
        let there = registry_state(&mut conn, handlers).await.map_err(failed(doing::REGISTER))?;
        // Returned before the write below: a database in memory has no second connection.
        drop(conn);
        if there.plan(log, handlers)?.is_empty() {
            return Ok(there.layout(handlers));
        }
        let offset_ms = self.clock_offset_ms();
        self.write(doing::REGISTER, async |conn| {
            // Another process may have been faster.
            let there = registry_state(&mut *conn, handlers).await?;
            let plan = match there.plan(log, handlers) {
                Ok(plan) => plan,
                // Nothing is written yet, so the commit behind a refusal does no harm.
                Err(refused) => return Ok(Err(refused)),
            };
            if let Err(refused) = check_leftovers(&mut *conn, &plan).await? {
                return Ok(Err(refused));
            }
            carry_out(&mut *conn, &plan, offset_ms).await?;
            Ok(Ok(registry_state(conn, handlers).await?.layout(handlers)))
        })
        .await?
    }
}

async fn registry_state(
    conn: &mut SqliteConnection,
    handlers: &[Registration],
) -> Result<RegistryState, sqlx::Error> {
    let log: Option<(u16, String)> =
        sqlx::query_as(statements::find_layout()).fetch_optional(&mut *conn).await?;
    let log = log.map(|(lanes, hash)| LogLayout { lanes, hash });
    let handlers = known_handlers(conn, handlers.iter().map(|handler| &*handler.name).collect()).await?;
    Ok(RegistryState { log, handlers })
}

/// Whether all changes of modes may be, before anything is written.
async fn check_leftovers(
    conn: &mut SqliteConnection,
    plan: &RegistrationPlan<'_>,
) -> Result<Result<(), Error>, sqlx::Error> {
    for handler in &plan.handlers {
        let Some(id) = handler.leaves_mode() else { continue };
        let find = sqlx::query_as(statements::find_leftovers()).bind(id.0);
        let (waiting, has_tasks, inline_keys, done_elsewhere) = find.fetch_one(&mut *conn).await?;
        let left = Leftovers { waiting, has_tasks, inline_keys, done_elsewhere };
        if let Err(refused) = handler.check_leftovers(left) {
            return Ok(Err(refused));
        }
    }
    Ok(Ok(()))
}

async fn carry_out(
    conn: &mut SqliteConnection,
    plan: &RegistrationPlan<'_>,
    offset_ms: i64,
) -> Result<(), sqlx::Error> {
    if let Some(log) = &plan.make_log {
        let make = sqlx::query(statements::make_layout()).bind(log.lanes).bind(&log.hash);
        make.execute(&mut *conn).await?;
    }
    for handler in &plan.handlers {
        let id = write_row(&mut *conn, handler, offset_ms).await?;
        for step in &handler.lanes {
            change_lanes(&mut *conn, id, *step, offset_ms).await?;
        }
    }
    Ok(())
}

async fn write_row(
    conn: &mut SqliteConnection,
    handler: &HandlerPlan<'_>,
    offset_ms: i64,
) -> Result<HandlerId, sqlx::Error> {
    let wanted = handler.wanted;
    let kinds = to_json(wanted.kinds.iter().map(String::as_str))?;
    let (mode, ordered) = (wanted.mode.name(), wanted.ordered.map(DeadHead::name));
    let keep_ms = wanted.keep.map(row::duration_to_ms);
    let (id, update) = match handler.row {
        RowStep::Add => {
            let add = sqlx::query_scalar(statements::add_handler()).bind(&wanted.name).bind(kinds);
            let id = add.bind(mode).bind(ordered).bind(keep_ms).bind(offset_ms).fetch_one(conn).await?;
            return Ok(HandlerId(id));
        }
        RowStep::Revive(id) => (id, statements::revive_handler()),
        RowStep::Update(id) => (id, statements::change_handler()),
    };
    let update = sqlx::query(update).bind(id.0).bind(kinds).bind(mode).bind(ordered).bind(keep_ms);
    update.execute(&mut *conn).await?;
    sqlx::query(statements::end_leases()).bind(id.0).execute(conn).await?;
    Ok(id)
}

async fn change_lanes(
    conn: &mut SqliteConnection,
    id: HandlerId,
    step: LaneStep,
    offset_ms: i64,
) -> Result<(), sqlx::Error> {
    match step {
        // There is one writer: lanes need no locks.
        LaneStep::Open | LaneStep::Close => {}
        LaneStep::Begin(start) => {
            let begin = sqlx::query(statements::begin_lanes()).bind(id.0).bind(start == Start::Now);
            begin.bind(offset_ms).execute(conn).await?;
        }
        // From stored to mixed: a key that was accepted before must be a duplicate inline too (decision 20).
        LaneStep::BackfillMarkers => {
            let backfill = sqlx::query(statements::backfill_markers()).bind(id.0).bind(offset_ms);
            backfill.execute(conn).await?;
        }
        LaneStep::End => {
            sqlx::query(statements::drop_progress()).bind(id.0).execute(&mut *conn).await?;
            sqlx::query(statements::drop_replays()).bind(id.0).execute(conn).await?;
        }
    }
    Ok(())
}

/// What the database has under these names.
pub(crate) async fn known_handlers(
    conn: &mut SqliteConnection,
    names: Vec<&str>,
) -> Result<Vec<KnownHandler>, sqlx::Error> {
    let find = sqlx::query(statements::find_handlers()).bind(to_json(names)?);
    find.fetch_all(conn).await?.iter().map(read_handler).collect()
}

/// A handler from its first eight columns: id, name, origin, kinds, mode, ordered, state, keep.
pub(crate) fn read_handler(row: &SqliteRow) -> Result<KnownHandler, sqlx::Error> {
    let decode = |error| sqlx::Error::Decode(error);
    let row = HandlerRow {
        id: row.try_get(0)?,
        name: row.try_get(1)?,
        origin: row.try_get(2)?,
        kinds: serde_json::from_str(row.try_get(3)?).map_err(|error| decode(error.into()))?,
        mode: row.try_get(4)?,
        ordered: row.try_get(5)?,
        state: row.try_get(6)?,
        keep_ms: row.try_get(7)?,
    };
    KnownHandler::try_from(row).map_err(|unknown| decode(unknown.into()))
}
