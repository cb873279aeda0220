//! The handlers of the database.

use std::sync::Arc;

use oncebox_core::store::{
    HandlerId, HandlerPlan, HandlerRow, KnownHandler, LaneCount, LaneStep, Layout, Leftovers, LogLayout,
    Registration, Registry, RegistryState, RowStep, doing, refusal, row,
};
use oncebox_core::{DeadHead, Error, Start};
use sqlx::postgres::PgRow;
use sqlx::{FromRow, Row, SqlStr};

use crate::connection::TimedConnection;
use crate::connections::Connections;
use crate::fault::failed;
use crate::statements::Statements;
use crate::store::{LONG, PostgresStore};

impl Registry for PostgresStore {
    async fn register(&self, log: Option<LaneCount>, handlers: &[Registration]) -> Result<Layout, Error> {
        let registrar = Registrar {
            connections: self.connections.clone(),
            statements: self.statements.clone(),
            clock_offset_ms: self.clock_offset_ms(),
        };
        registrar.register(log, handlers).await
    }
}

/// Registers handlers: executes the core's plans.
struct Registrar {
    connections: Connections,
    statements: Arc<Statements>,
    clock_offset_ms: i64,
}

impl Registrar {
    async fn register(self, log: Option<LaneCount>, handlers: &[Registration]) -> Result<Layout, Error> {
        let mut conn = self.connections.open(doing::REGISTER).await?;
        let there = self.registry_state(&mut conn, handlers).await.map_err(failed(doing::REGISTER))?;
        if there.plan(log, handlers)?.is_empty() {
            return Ok(there.layout(handlers));
        }
        // The transaction below takes a connection of its own, and the pool may have no other.
        drop(conn);
        let handlers = handlers.to_vec();
        // In a task of its own: a caller that goes away must not leave a transaction half begun.
        match tokio::spawn(async move { self.register_anew(log, &handlers).await }).await {
            Ok(layout) => layout,
            Err(stopped) => Err(refusal::runtime_stops(stopped)),
        }
    }

    async fn register_anew(
        &self,
        log: Option<LaneCount>,
        handlers: &[Registration],
    ) -> Result<Layout, Error> {
        let mut tx = self.connections.begin(doing::REGISTER).await?;
        tx.may_take(LONG);
        let registered = self.register_in(&mut tx, log, handlers).await;
        match registered {
            Ok(_) => tx.commit().await.map_err(failed(doing::REGISTER))?,
            // At once: the locks of the lanes are free when the caller gets its refusal. If this fails, the connection is closed.
            Err(_) => drop(tx.rollback().await),
        }
        registered
    }

    async fn register_in(
        &self,
        tx: &mut TimedConnection,
        log: Option<LaneCount>,
        handlers: &[Registration],
    ) -> Result<Layout, Error> {
        let there = self.registry_state(tx, handlers).await.map_err(failed(doing::REGISTER))?;
        // The log comes first: its rows are the locks for everything else.
        if let Some(log) = there.plan(log, handlers)?.make_log {
            self.make_log(tx, &log).await.map_err(failed(doing::REGISTER))?;
        }
        // Pruning and other registrations wait: they read the rows that change here.
        tx.execute(sqlx::query(self.statements.lock_upkeep.clone()))
            .await
            .map_err(failed(doing::REGISTER))?;
        // Another process may have been faster.
        let there = self.registry_state(tx, handlers).await.map_err(failed(doing::REGISTER))?;
        let plan = there.plan(log, handlers)?;
        for handler in &plan.handlers {
            self.check_leftovers(tx, handler).await?;
        }
        for handler in &plan.handlers {
            self.carry_out_registration(tx, handler).await?;
        }
        Ok(self.registry_state(tx, handlers).await.map_err(failed(doing::REGISTER))?.layout(handlers))
    }

    async fn registry_state(
        &self,
        conn: &mut TimedConnection,
        handlers: &[Registration],
    ) -> Result<RegistryState, sqlx::Error> {
        let row = conn.fetch_optional(sqlx::query(self.statements.find_layout.clone())).await?;
        let log = row.as_ref().map(<(i32, String)>::from_row).transpose()?;
        let log =
            log.map(|(lanes, hash)| LogLayout { lanes: u16::try_from(lanes).unwrap_or(u16::MAX), hash });
        let names = handlers.iter().map(|handler| &*handler.name).collect();
        Ok(RegistryState { log, handlers: known_handlers(&self.statements, conn, names).await? })
    }

    async fn make_log(&self, conn: &mut TimedConnection, log: &LogLayout) -> Result<(), sqlx::Error> {
        let make = sqlx::query(self.statements.make_layout.clone());
        conn.execute(make.bind(i32::from(log.lanes)).bind(&log.hash)).await.map(drop)
    }

    /// Whether a handler may leave its mode, if the plan says so. Locks its lanes: no process works for it from now on.
    async fn check_leftovers(
        &self,
        conn: &mut TimedConnection,
        handler: &HandlerPlan<'_>,
    ) -> Result<(), Error> {
        let Some(id) = handler.leaves_mode() else { return Ok(()) };
        let lock = sqlx::query(self.statements.lock_handler_lanes.clone()).bind(&handler.wanted.name);
        conn.execute(lock).await.map_err(failed(doing::REGISTER))?;
        let find = sqlx::query(self.statements.find_leftovers.clone()).bind(id.0);
        let row = conn.fetch_one(find).await.map_err(failed(doing::REGISTER))?;
        handler.check_leftovers(read_leftovers(&row).map_err(failed(doing::REGISTER))?)
    }

    async fn carry_out_registration(
        &self,
        conn: &mut TimedConnection,
        handler: &HandlerPlan<'_>,
    ) -> Result<(), Error> {
        let Some(id) = self.write_row(conn, handler).await.map_err(failed(doing::REGISTER))? else {
            return self.check_faster(conn, handler.wanted).await;
        };
        for step in &handler.lanes {
            self.change_lanes(conn, id, *step).await.map_err(failed(doing::REGISTER))?;
        }
        Ok(())
    }

    /// The handler's number; `None` if another process has just added one of that name.
    async fn write_row(
        &self,
        conn: &mut TimedConnection,
        handler: &HandlerPlan<'_>,
    ) -> Result<Option<HandlerId>, sqlx::Error> {
        let (statements, wanted) = (&self.statements, handler.wanted);
        let (mode, ordered) = (wanted.mode.name(), wanted.ordered.map(DeadHead::name));
        let keep_ms = wanted.keep.map(row::duration_to_ms);
        let (id, update): (HandlerId, &SqlStr) = match handler.row {
            RowStep::Add => {
                let add = sqlx::query(statements.add_handler.clone()).bind(&wanted.name);
                let add = add.bind(&wanted.kinds).bind(mode).bind(ordered).bind(keep_ms);
                let row = conn.fetch_optional(add).await?;
                return row.map(|row| row.try_get(0).map(HandlerId)).transpose();
            }
            RowStep::Revive(id) => (id, &statements.revive_handler),
            RowStep::Update(id) => (id, &statements.change_handler),
        };
        let update = sqlx::query(update.clone()).bind(id.0).bind(&wanted.kinds).bind(mode).bind(ordered);
        conn.execute(update.bind(keep_ms)).await?;
        Ok(Some(id))
    }

    /// Where there is no log there are no locks: what another process has just added counts, if it is what is wanted.
    async fn check_faster(&self, conn: &mut TimedConnection, wanted: &Registration) -> Result<(), Error> {
        let wanted = std::slice::from_ref(wanted);
        let there = self.registry_state(conn, wanted).await.map_err(failed(doing::REGISTER))?;
        if there.plan(None, wanted)?.is_empty() {
            return Ok(());
        }
        Err(refusal::handler_changes(&wanted[0].name))
    }

    async fn change_lanes(
        &self,
        conn: &mut TimedConnection,
        id: HandlerId,
        step: LaneStep,
    ) -> Result<(), sqlx::Error> {
        let statements = &self.statements;
        let change = match step {
            LaneStep::Open => sqlx::query(statements.open_lanes.clone()).bind(id.0),
            LaneStep::Begin(start) => {
                sqlx::query(statements.begin_lanes.clone()).bind(id.0).bind(start == Start::Now)
            }
            // From stored to mixed: a key that was accepted before must be a duplicate inline too (decision 20).
            LaneStep::BackfillMarkers => {
                sqlx::query(statements.backfill_markers.clone()).bind(id.0).bind(self.clock_offset_ms)
            }
            LaneStep::End => sqlx::query(statements.end_lanes.clone()).bind(id.0),
            LaneStep::Close => sqlx::query(statements.close_lanes.clone()).bind(id.0),
        };
        conn.execute(change).await.map(drop)
    }
}

/// The handlers that the database has under these names.
pub(crate) async fn known_handlers(
    statements: &Statements,
    conn: &mut TimedConnection,
    names: Vec<&str>,
) -> Result<Vec<KnownHandler>, sqlx::Error> {
    let find = sqlx::query(statements.find_handlers.clone()).bind(names);
    conn.fetch_all(find).await?.iter().map(read_handler).collect()
}

fn read_leftovers(row: &PgRow) -> Result<Leftovers, sqlx::Error> {
    Ok(Leftovers {
        waiting: row.try_get("waiting")?,
        has_tasks: row.try_get("has_tasks")?,
        inline_keys: row.try_get("inline_keys")?,
        done_elsewhere: row.try_get("done_elsewhere")?,
    })
}

pub(crate) fn read_handler(row: &PgRow) -> Result<KnownHandler, sqlx::Error> {
    let row = HandlerRow {
        id: row.try_get("id")?,
        name: row.try_get("name")?,
        origin: row.try_get("origin")?,
        kinds: row.try_get("kinds")?,
        mode: row.try_get("mode")?,
        ordered: row.try_get("ordered")?,
        state: row.try_get("state")?,
        keep_ms: row.try_get("keep_ms")?,
    };
    KnownHandler::try_from(row).map_err(|unknown| sqlx::Error::Decode(unknown.into()))
}
