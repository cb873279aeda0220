//! Which handlers there are.

use oncebox_core::store::{
    HandlerId, HandlerState, KnownHandler, Lanes, Layout, Leftovers, Registration, Registry, Verdict,
    check_lanes,
};
use oncebox_core::{DeadHead, Error, ErrorKind, Mode, Start};
use sqlx::postgres::PgRow;
use sqlx::{FromRow, Row, SqlStr};

use crate::fault::failed;
use crate::line::Line;
use crate::store::{LONG, PostgresStore};

/// How an ordering key becomes a lane: the first eight bytes of its SHA-256, big-endian, modulo the number of lanes.
const HASH: &str = "sha256-first8-be";
const DOING: &str = "register the handlers";

impl Registry for PostgresStore {
    async fn register(&self, log: Option<Lanes>, handlers: &[Registration]) -> Result<Layout, Error> {
        let mut line = self.line(DOING).await?;
        if let Some(layout) = self.registered(&mut line, log, handlers).await? {
            return Ok(layout);
        }
        drop(line);
        let (store, handlers) = (self.clone(), handlers.to_vec());
        // In a task of its own: a caller that goes away must not leave a transaction half begun.
        match tokio::spawn(async move { store.register_anew(log, &handlers).await }).await {
            Ok(layout) => layout,
            Err(stopped) => Err(Error::unavailable("the runtime is shutting down", stopped)),
        }
    }
}

impl PostgresStore {
    /// The layout, if everything is there as it is wanted.
    async fn registered(
        &self,
        line: &mut Line,
        log: Option<Lanes>,
        handlers: &[Registration],
    ) -> Result<Option<Layout>, Error> {
        let lanes = self.lanes(line).await?;
        if let Some(Lanes(wanted)) = log {
            match lanes {
                0 => return Ok(None),
                fixed => check_lanes(wanted, fixed)?,
            }
        }
        let known = self.known_handlers(line, names(handlers)).await.map_err(failed(DOING))?;
        for wanted in handlers {
            let Verdict::Known(_) = wanted.judge(known.iter().find(|known| known.name == wanted.name))?
            else {
                return Ok(None);
            };
        }
        Ok(Some(layout(lanes, handlers, &known)))
    }

    async fn register_anew(&self, log: Option<Lanes>, handlers: &[Registration]) -> Result<Layout, Error> {
        let mut tx = self.begin_line(DOING).await?;
        tx.may_take(LONG);
        let registered = self.register_in(&mut tx, log, handlers).await;
        match registered {
            Ok(_) => tx.commit().await.map_err(failed(DOING))?,
            // Not later: whoever is refused finds its lanes free. If this fails, the connection is closed.
            Err(_) => drop(tx.rollback().await),
        }
        registered
    }

    async fn register_in(
        &self,
        tx: &mut Line,
        log: Option<Lanes>,
        handlers: &[Registration],
    ) -> Result<Layout, Error> {
        let statements = &self.statements;
        if let Some(wanted) = log {
            let make = sqlx::query(statements.make_layout.clone());
            let make = make.bind(i32::from(wanted.to_make())).bind(HASH);
            tx.execute(make).await.map_err(failed(DOING))?;
            check_lanes(wanted.0, self.lanes(tx).await?)?;
            tx.execute(sqlx::query(statements.lock_upkeep.clone())).await.map_err(failed(DOING))?;
        }
        let known = self.known_handlers(tx, names(handlers)).await.map_err(failed(DOING))?;
        for wanted in handlers {
            match wanted.judge(known.iter().find(|known| known.name == wanted.name))? {
                Verdict::Known(_) => {}
                Verdict::Reorder(id) => {
                    self.update_handler(tx, &statements.change_handler, id, wanted).await?;
                }
                Verdict::Change(id, from) => self.change_mode(tx, id, from, wanted).await?,
                Verdict::Revive(id) => {
                    self.update_handler(tx, &statements.revive_handler, id, wanted).await?;
                    self.begin_lanes(tx, id, wanted).await?;
                }
                Verdict::New => match self.insert_handler(tx, wanted).await? {
                    Some(id) => self.begin_lanes(tx, id, wanted).await?,
                    // Another process was faster; what it registered counts.
                    None => {
                        let there = self.known_handlers(tx, vec![&*wanted.name]).await;
                        let there = there.map_err(failed(DOING))?;
                        let Verdict::Known(_) = wanted.judge(there.first())? else {
                            return Err(changing(&wanted.name));
                        };
                    }
                },
            }
        }
        let lanes = self.lanes(tx).await?;
        let known = self.known_handlers(tx, names(handlers)).await.map_err(failed(DOING))?;
        Ok(layout(lanes, handlers, &known))
    }

    /// Lets a handler change its mode, if what it still has to do in the old one allows it.
    async fn change_mode(
        &self,
        line: &mut Line,
        id: HandlerId,
        from: Mode,
        wanted: &Registration,
    ) -> Result<(), Error> {
        let statements = &self.statements;
        let lock = sqlx::query(statements.lock_handler_lanes.clone()).bind(&wanted.name);
        line.execute(lock).await.map_err(failed(DOING))?;
        let leftovers = sqlx::query(statements.find_leftovers.clone()).bind(id.0);
        let row = line.fetch_one(leftovers).await.map_err(failed(DOING))?;
        let left = read_leftovers(&row).map_err(failed(DOING))?;
        wanted.may_change(from, left)?;
        self.update_handler(line, &statements.change_handler, id, wanted).await?;
        if from == Mode::Stored {
            let backfill = sqlx::query(statements.backfill_markers.clone());
            let backfill = backfill.bind(id.0).bind(self.clock_offset_ms());
            line.execute(backfill).await.map_err(failed(DOING))?;
        } else if from.reads_log() && !wanted.mode.reads_log() {
            let end = sqlx::query(statements.end_lanes.clone()).bind(id.0).bind(wanted.mode.has_tasks());
            line.execute(end).await.map_err(failed(DOING))?;
        } else if !from.reads_log() {
            self.begin_lanes(line, id, wanted).await?;
        }
        Ok(())
    }

    async fn update_handler(
        &self,
        line: &mut Line,
        statement: &SqlStr,
        id: HandlerId,
        wanted: &Registration,
    ) -> Result<(), Error> {
        let update = sqlx::query(statement.clone())
            .bind(id.0)
            .bind(&wanted.kinds)
            .bind(wanted.mode.name())
            .bind(wanted.ordered.map(DeadHead::name));
        line.execute(update).await.map(drop).map_err(failed(DOING))
    }

    async fn insert_handler(
        &self,
        line: &mut Line,
        wanted: &Registration,
    ) -> Result<Option<HandlerId>, Error> {
        let add = sqlx::query(self.statements.add_handler.clone())
            .bind(&wanted.name)
            .bind(&wanted.kinds)
            .bind(wanted.mode.name())
            .bind(wanted.ordered.map(DeadHead::name));
        let row = line.fetch_optional(add).await.map_err(failed(DOING))?;
        row.map(|row| row.try_get(0).map(HandlerId)).transpose().map_err(failed(DOING))
    }

    /// The handler's place in every lane.
    async fn begin_lanes(&self, line: &mut Line, id: HandlerId, wanted: &Registration) -> Result<(), Error> {
        if !wanted.mode.has_tasks() {
            return Ok(());
        }
        let begin = sqlx::query(self.statements.begin_lanes.clone())
            .bind(id.0)
            .bind(wanted.start == Start::Now)
            .bind(wanted.mode.reads_log());
        line.execute(begin).await.map(drop).map_err(failed(DOING))
    }

    /// How many lanes there are; 0 if there is no log.
    async fn lanes(&self, line: &mut Line) -> Result<u16, Error> {
        let doing = "read the layout of the log";
        let row = line.fetch_optional(sqlx::query(self.statements.find_layout.clone())).await;
        let layout = row.map_err(failed(doing))?.as_ref().map(<(i32, String)>::from_row);
        match layout.transpose().map_err(failed(doing))? {
            None => Ok(0),
            Some((lanes, hash)) if hash == HASH => Ok(u16::try_from(lanes).unwrap_or(u16::MAX)),
            Some((_, hash)) => Err(Error::new(
                ErrorKind::Configuration,
                format!("the log orders its lanes by {hash}, this program by {HASH}: update the program"),
            )),
        }
    }

    /// What the database has under these names.
    pub(crate) async fn known_handlers(
        &self,
        line: &mut Line,
        names: Vec<&str>,
    ) -> Result<Vec<KnownHandler>, sqlx::Error> {
        let find = sqlx::query(self.statements.find_handlers.clone()).bind(names);
        line.fetch_all(find).await?.iter().map(read_handler).collect()
    }
}

fn names(wanted: &[Registration]) -> Vec<&str> {
    wanted.iter().map(|wanted| &*wanted.name).collect()
}

/// The answer, once all of them are known.
fn layout(lanes: u16, wanted: &[Registration], known: &[KnownHandler]) -> Layout {
    let find = |wanted: &Registration| known.iter().find(|known| known.name == wanted.name);
    let (handlers, origins) =
        wanted.iter().filter_map(find).map(|known| (known.id, known.origin.clone())).unzip();
    Layout { lanes, handlers, origins }
}

fn read_leftovers(row: &PgRow) -> Result<Leftovers, sqlx::Error> {
    Ok(Leftovers {
        waiting: row.try_get("waiting")?,
        set_apart: row.try_get("set_apart")?,
        inline_keys: row.try_get("inline_keys")?,
        done_elsewhere: row.try_get("done_elsewhere")?,
    })
}

pub(crate) fn read_handler(row: &PgRow) -> Result<KnownHandler, sqlx::Error> {
    let (mode, state): (&str, &str) = (row.try_get("mode")?, row.try_get("state")?);
    let ordered: Option<&str> = row.try_get("ordered")?;
    let unknown = |what, name| sqlx::Error::Decode(format!("an unknown {what}: {name}").into());
    Ok(KnownHandler {
        id: HandlerId(row.try_get("id")?),
        name: row.try_get("name")?,
        origin: row.try_get("origin")?,
        kinds: row.try_get("kinds")?,
        mode: Mode::from_name(mode).ok_or_else(|| unknown("mode", mode))?,
        ordered: ordered
            .map(|name| DeadHead::from_name(name).ok_or_else(|| unknown("policy", name)))
            .transpose()?,
        state: HandlerState::from_name(state).ok_or_else(|| unknown("state", state))?,
    })
}

fn changing(name: &str) -> Error {
    Error::new(
        ErrorKind::Unavailable,
        format!("the handler {name:?} is being changed by somebody else: start again"),
    )
}
