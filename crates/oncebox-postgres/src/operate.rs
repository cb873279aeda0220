//! What operators do with handlers.

use oncebox_core::Error;
use oncebox_core::store::{HandlerState, KnownHandler, Operate, ReplayFrom, Replayed};
use sqlx::{FromRow, Row};

use crate::line::Line;
use crate::log::to_ms;
use crate::registry::read_handler;
use crate::store::{LONG, PostgresStore};

impl Operate for PostgresStore {
    async fn pause_handler(&self, name: &str, paused: bool, operator: &str) -> Result<bool, Error> {
        self.in_transaction("pause a handler", LONG, async |tx: &mut Line| {
            let Some(known) = self.find_at_work(&mut *tx, name).await? else { return Ok(Ok(false)) };
            if !known.mode.has_tasks() {
                return Ok(Err(Error::configuration(format!(
                    "the handler {name:?} has nothing in the log, and handles what is delivered: stop the delivery instead"
                ))));
            }
            tx.execute(sqlx::query(self.statements.lock_handler_lanes.clone()).bind(name)).await?;
            let pause = sqlx::query(self.statements.pause_handler.clone())
                .bind(name)
                .bind(paused)
                .bind(operator)
                .bind(self.clock_offset_ms());
            Ok(Ok(tx.execute(pause).await?.rows_affected() == 1))
        })
        .await?
    }

    async fn replay(&self, name: &str, from: ReplayFrom, operator: &str) -> Result<Option<Replayed>, Error> {
        self.in_transaction("replay", LONG, async |tx: &mut Line| {
            let Some(known) = self.find_at_work(&mut *tx, name).await? else { return Ok(Ok(None)) };
            if !known.mode.reads_log() {
                return Ok(Err(Error::configuration(format!(
                    "the handler {name:?} is {} and does not read the log: there is nothing to replay",
                    known.mode.name()
                ))));
            }
            // Whatever is long is done before the locks.
            let (lanes, targets) = self.replay_targets(&mut *tx, from).await?;
            tx.execute(sqlx::query(self.statements.lock_upkeep.clone())).await?;
            tx.execute(sqlx::query(self.statements.lock_handler_lanes.clone()).bind(name)).await?;
            let replay = sqlx::query(self.statements.replay.clone())
                .bind(known.id.0)
                .bind(lanes)
                .bind(targets)
                .bind(operator)
                .bind(from.to_string())
                .bind(self.clock_offset_ms());
            let row = tx.fetch_one(replay).await?;
            let count =
                |column| Ok::<_, sqlx::Error>(u64::try_from(row.try_get::<i64, _>(column)?).unwrap_or(0));
            let (positions, tasks, dead) = (count("positions")?, count("tasks")?, count("dead")?);
            Ok(Ok(Some(Replayed { positions, tasks, dead })))
        })
        .await?
    }

    async fn rename_handler(&self, name: &str, new_name: &str, operator: &str) -> Result<bool, Error> {
        self.in_transaction("rename a handler", LONG, async |tx: &mut Line| {
            let statements = &self.statements;
            tx.execute(sqlx::query(statements.lock_upkeep.clone())).await?;
            let Some(known) = self.find_at_work(&mut *tx, name).await? else { return Ok(Ok(false)) };
            if let Some(taken) = self.find_handler(&mut *tx, new_name).await?
                && !(taken.state == HandlerState::Renamed && taken.origin == name)
            {
                return Ok(Err(Error::configuration(format!(
                    "there is or was a handler {new_name:?} already: choose another name"
                ))));
            }
            let free = sqlx::query(statements.free_name.clone())
                .bind(known.id.0)
                .bind(new_name)
                .bind(operator)
                .bind(self.clock_offset_ms())
                .bind(name);
            tx.execute(free).await?;
            tx.execute(sqlx::query(statements.rename_handler.clone()).bind(known.id.0).bind(new_name))
                .await?;
            tx.execute(sqlx::query(statements.reserve_name.clone()).bind(known.id.0).bind(name)).await?;
            Ok(Ok(true))
        })
        .await?
    }

    async fn remove_handler(&self, name: &str, operator: &str) -> Result<bool, Error> {
        self.in_transaction("remove a handler", LONG, async |tx: &mut Line| {
            let statements = &self.statements;
            tx.execute(sqlx::query(statements.lock_upkeep.clone())).await?;
            tx.execute(sqlx::query(statements.lock_handler_lanes.clone()).bind(name)).await?;
            let remove = sqlx::query(statements.remove_handler.clone())
                .bind(name)
                .bind(operator)
                .bind(self.clock_offset_ms());
            Ok(tx.execute(remove).await?.rows_affected() == 1)
        })
        .await
    }
}

impl PostgresStore {
    async fn find_handler(&self, line: &mut Line, name: &str) -> Result<Option<KnownHandler>, sqlx::Error> {
        let find = sqlx::query(self.statements.find_handlers.clone()).bind(vec![name]);
        line.fetch_optional(find).await?.as_ref().map(read_handler).transpose()
    }

    /// A handler that is there, not only its name.
    async fn find_at_work(&self, line: &mut Line, name: &str) -> Result<Option<KnownHandler>, sqlx::Error> {
        let known = self.find_handler(line, name).await?;
        Ok(known.filter(|known| matches!(known.state, HandlerState::Active | HandlerState::Paused)))
    }

    /// Lanes, and right before which of their positions a replay begins.
    async fn replay_targets(
        &self,
        line: &mut Line,
        from: ReplayFrom,
    ) -> Result<(Vec<i32>, Vec<i64>), sqlx::Error> {
        let (time, place) = match from {
            ReplayFrom::Beginning => (None, None),
            ReplayFrom::Time(time) => (Some(to_ms(time)), None),
            ReplayFrom::Place(place) => (None, Some(place)),
        };
        let find = sqlx::query(self.statements.replay_targets.clone())
            .bind(time)
            .bind(place.map(|place| i32::from(place.lane)))
            .bind(place.map(|place| place.pos));
        let rows = line.fetch_all(find).await?;
        let targets = rows.iter().map(<(i32, i64)>::from_row).collect::<Result<Vec<_>, _>>()?;
        Ok(targets.into_iter().unzip())
    }
}
