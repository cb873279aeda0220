//! Which handlers there are.

use oncebox_core::store::{
    HandlerId, HandlerState, KnownHandler, Lanes, Layout, Registration, Registry, Verdict, check_lanes,
};
use oncebox_core::{Error, ErrorKind, Mode, Start};
use sqlx::postgres::PgRow;
use sqlx::{PgConnection, Row};

use crate::fault::failed;
use crate::store::PostgresStore;

/// How an ordering key becomes a lane: the first eight bytes of its SHA-256, big-endian, modulo the number of lanes.
const HASH: &str = "sha256-first8-be";
const DOING: &str = "register the handlers";

impl Registry for PostgresStore {
    async fn register(&self, log: Option<Lanes>, handlers: &[Registration]) -> Result<Layout, Error> {
        let mut conn = self.pool.acquire().await.map_err(failed(DOING))?;
        if let Some(layout) = self.registered(&mut conn, log, handlers).await? {
            return Ok(layout);
        }
        drop(conn);
        let (store, handlers) = (self.clone(), handlers.to_vec());
        // In a task of its own: a caller that goes away must not leave a transaction half begun.
        match tokio::spawn(async move { store.register_new(log, &handlers).await }).await {
            Ok(layout) => layout,
            Err(stopped) => Err(Error::unavailable("the runtime is shutting down", stopped)),
        }
    }
}

impl PostgresStore {
    /// The layout, if everything is there as it is wanted.
    async fn registered(
        &self,
        conn: &mut PgConnection,
        log: Option<Lanes>,
        handlers: &[Registration],
    ) -> Result<Option<Layout>, Error> {
        let lanes = self.lanes(conn).await?;
        if let Some(Lanes(wanted)) = log {
            match lanes {
                0 => return Ok(None),
                fixed => check_lanes(wanted, fixed)?,
            }
        }
        let known = self.known_handlers(conn, handlers).await?;
        let mut ids = Vec::with_capacity(handlers.len());
        for wanted in handlers {
            match wanted.judge(known.iter().find(|known| known.name == wanted.name))? {
                Verdict::Known(id) => ids.push(id),
                Verdict::New | Verdict::Revive(_) => return Ok(None),
            }
        }
        Ok(Some(Layout { lanes, handlers: ids }))
    }

    async fn register_new(&self, log: Option<Lanes>, handlers: &[Registration]) -> Result<Layout, Error> {
        let statements = &self.statements;
        // Whatever the default is: what is read behind the locks must be newer than the locks.
        let mut tx = self.pool.begin_with(statements.begin_shared.clone()).await.map_err(failed(DOING))?;
        if let Some(wanted) = log {
            sqlx::query(statements.make_layout.clone())
                .bind(i32::from(wanted.to_make()))
                .bind(HASH)
                .execute(&mut *tx)
                .await
                .map_err(failed(DOING))?;
            check_lanes(wanted.0, self.lanes(&mut tx).await?)?;
            sqlx::query(statements.lock_upkeep.clone()).execute(&mut *tx).await.map_err(failed(DOING))?;
        }
        let known = self.known_handlers(&mut tx, handlers).await?;
        let mut ids = Vec::with_capacity(handlers.len());
        for wanted in handlers {
            let id = match wanted.judge(known.iter().find(|known| known.name == wanted.name))? {
                Verdict::Known(id) => id,
                Verdict::Revive(id) => {
                    sqlx::query(statements.revive_handler.clone())
                        .bind(id.0)
                        .bind(&wanted.kinds)
                        .bind(wanted.mode.name())
                        .execute(&mut *tx)
                        .await
                        .map_err(failed(DOING))?;
                    self.begin_lanes(&mut tx, id, wanted).await?;
                    id
                }
                Verdict::New => match self.insert_handler(&mut tx, wanted).await? {
                    Some(id) => {
                        self.begin_lanes(&mut tx, id, wanted).await?;
                        id
                    }
                    // Another process was faster; what it registered counts.
                    None => {
                        let there = self.known_handlers(&mut tx, std::slice::from_ref(wanted)).await?;
                        match wanted.judge(there.first())? {
                            Verdict::Known(id) => id,
                            Verdict::New | Verdict::Revive(_) => return Err(changing(&wanted.name)),
                        }
                    }
                },
            };
            ids.push(id);
        }
        let lanes = self.lanes(&mut tx).await?;
        tx.commit().await.map_err(failed(DOING))?;
        Ok(Layout { lanes, handlers: ids })
    }

    async fn insert_handler(
        &self,
        conn: &mut PgConnection,
        wanted: &Registration,
    ) -> Result<Option<HandlerId>, Error> {
        let id: Option<i32> = sqlx::query_scalar(self.statements.add_handler.clone())
            .bind(&wanted.name)
            .bind(&wanted.kinds)
            .bind(wanted.mode.name())
            .fetch_optional(conn)
            .await
            .map_err(failed(DOING))?;
        Ok(id.map(HandlerId))
    }

    /// The handler's place in every lane.
    async fn begin_lanes(
        &self,
        conn: &mut PgConnection,
        id: HandlerId,
        wanted: &Registration,
    ) -> Result<(), Error> {
        if wanted.mode == Mode::Inline {
            return Ok(());
        }
        sqlx::query(self.statements.begin_lanes.clone())
            .bind(id.0)
            .bind(wanted.start == Start::Now)
            .execute(conn)
            .await
            .map_err(failed(DOING))?;
        Ok(())
    }

    /// How many lanes there are; 0 if there is no log.
    async fn lanes(&self, conn: &mut PgConnection) -> Result<u16, Error> {
        let row: Option<(i32, String)> = sqlx::query_as(self.statements.find_layout.clone())
            .fetch_optional(conn)
            .await
            .map_err(failed("read the layout of the log"))?;
        match row {
            None => Ok(0),
            Some((lanes, hash)) if hash == HASH => Ok(u16::try_from(lanes).unwrap_or(u16::MAX)),
            Some((_, hash)) => Err(Error::new(
                ErrorKind::Configuration,
                format!("the log orders its lanes by {hash}, this program by {HASH}: update the program"),
            )),
        }
    }

    async fn known_handlers(
        &self,
        conn: &mut PgConnection,
        wanted: &[Registration],
    ) -> Result<Vec<KnownHandler>, Error> {
        let rows = sqlx::query(self.statements.find_handlers.clone())
            .bind(wanted.iter().map(|wanted| &*wanted.name).collect::<Vec<_>>())
            .fetch_all(conn)
            .await
            .map_err(failed(DOING))?;
        rows.iter().map(read_handler).collect::<Result<_, _>>().map_err(failed(DOING))
    }
}

pub(crate) fn read_handler(row: &PgRow) -> Result<KnownHandler, sqlx::Error> {
    let mode: &str = row.try_get("mode")?;
    let state: &str = row.try_get("state")?;
    Ok(KnownHandler {
        id: HandlerId(row.try_get("id")?),
        name: row.try_get("name")?,
        kinds: row.try_get("kinds")?,
        mode: Mode::from_name(mode)
            .ok_or_else(|| sqlx::Error::Decode(format!("an unknown mode: {mode}").into()))?,
        state: if state == "removed" { HandlerState::Removed } else { HandlerState::Active },
    })
}

fn changing(name: &str) -> Error {
    Error::new(
        ErrorKind::Unavailable,
        format!("the handler {name:?} is being changed by somebody else: start again"),
    )
}
