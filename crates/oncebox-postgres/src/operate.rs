//! What operators do with handlers: each operation in one transaction with its entry in the audit.

use oncebox_core::Error;
use oncebox_core::store::{
    Affected, HandlerId, Operate, Operation, OperationEntry, OperationPlan, OperationStep, ReplayEpoch,
    ReplayFrom, ReplayLane,
};
use sqlx::postgres::PgRow;
use sqlx::{FromRow, Row};

use crate::connection::TimedConnection;
use crate::registry::known_handlers;
use crate::store::{LONG, PostgresStore};
use crate::survey::count;
use crate::work::lane;

/// LaneCount, and the first message of each that is to run again.
type FirstMessages = (Vec<i32>, Vec<i64>);

impl Operate for PostgresStore {
    async fn operate(
        &self,
        handler: &str,
        operation: &Operation,
        operator: &str,
    ) -> Result<Option<Affected>, Error> {
        self.connections
            .in_transaction(operation.doing(), LONG, async |tx: &mut TimedConnection| {
                // A refusal waits for no lock, and slow reads come before the locks.
                let known = known_handlers(&self.statements, &mut *tx, operation.names(handler)).await?;
                let first = match operation.plan(handler, &known) {
                    Ok(Some(plan)) => self.first_messages(&mut *tx, &plan).await?,
                    Ok(None) => return Ok(Ok(None)),
                    Err(refused) => return Ok(Err(refused)),
                };
                // In the order in which a registration locks them, so that the two cannot deadlock.
                tx.execute(sqlx::query(self.statements.lock_upkeep.clone())).await?;
                tx.execute(sqlx::query(self.statements.lock_handler_lanes.clone()).bind(handler)).await?;
                // Another operator may have been faster.
                let known = known_handlers(&self.statements, &mut *tx, operation.names(handler)).await?;
                let plan = match operation.plan(handler, &known) {
                    Ok(Some(plan)) => plan,
                    Ok(None) => return Ok(Ok(None)),
                    Err(refused) => return Ok(Err(refused)),
                };
                let affected = self.carry_out(&mut *tx, &plan, first).await?;
                self.write_entry(tx, operator, &plan.entry(affected)).await?;
                Ok(Ok(Some(affected)))
            })
            .await?
    }
}

impl PostgresStore {
    async fn carry_out(
        &self,
        conn: &mut TimedConnection,
        plan: &OperationPlan,
        first: FirstMessages,
    ) -> Result<Affected, sqlx::Error> {
        let statements = &self.statements;
        let handler = plan.handler;
        match &plan.step {
            OperationStep::SetState(state) => {
                let set = sqlx::query(statements.set_state.clone()).bind(handler.0).bind(state.name());
                conn.execute(set).await?;
                Ok(Affected::default())
            }
            OperationStep::Replay(_) => self.go_back(conn, handler, first).await,
            OperationStep::Rename { from, to } => {
                // The new name may be a former one of this handler, which is still reserved.
                conn.execute(sqlx::query(statements.free_name.clone()).bind(handler.0).bind(to)).await?;
                conn.execute(sqlx::query(statements.rename_handler.clone()).bind(handler.0).bind(to)).await?;
                conn.execute(sqlx::query(statements.reserve_name.clone()).bind(handler.0).bind(from)).await?;
                Ok(Affected::default())
            }
            OperationStep::Remove { origin } => {
                let remove = sqlx::query(statements.remove_handler.clone())
                    .bind(handler.0)
                    .bind(origin)
                    .bind(self.clock_offset_ms());
                read_affected(&conn.fetch_one(remove).await?)
            }
        }
    }

    async fn go_back(
        &self,
        conn: &mut TimedConnection,
        handler: HandlerId,
        (lanes, first): FirstMessages,
    ) -> Result<Affected, sqlx::Error> {
        let find = sqlx::query(self.statements.replay_lanes.clone()).bind(handler.0).bind(lanes).bind(first);
        let rows = conn.fetch_all(find).await?;
        let epochs = rows.iter().filter_map(|row| read_epoch(row).transpose());
        let epochs = epochs.collect::<Result<Vec<_>, _>>()?;
        let column = |of: fn(&ReplayEpoch) -> i64| epochs.iter().map(of).collect::<Vec<_>>();
        let replay = sqlx::query(self.statements.replay.clone())
            .bind(handler.0)
            .bind(epochs.iter().map(|epoch| i32::from(epoch.lane)).collect::<Vec<_>>())
            .bind(epochs.iter().map(|epoch| epoch.epoch).collect::<Vec<_>>())
            .bind(column(|epoch| epoch.pos))
            .bind(column(|epoch| epoch.after))
            .bind(column(|epoch| epoch.until));
        let dropped = read_affected(&conn.fetch_one(replay).await?)?;
        Ok(Affected { positions: epochs.iter().map(|epoch| epoch.positions).sum(), ..dropped })
    }

    /// Where a replay begins; nothing for all other operations.
    async fn first_messages(
        &self,
        conn: &mut TimedConnection,
        plan: &OperationPlan,
    ) -> Result<FirstMessages, sqlx::Error> {
        match plan.step {
            OperationStep::Replay(from) => self.find_first_messages(conn, from).await,
            _ => Ok(FirstMessages::default()),
        }
    }

    async fn find_first_messages(
        &self,
        conn: &mut TimedConnection,
        from: ReplayFrom,
    ) -> Result<FirstMessages, sqlx::Error> {
        let find = sqlx::query(self.statements.first_messages.clone())
            .bind(from.time_ms())
            .bind(from.place().map(|place| i32::from(place.lane)))
            .bind(from.place().map(|place| place.pos));
        let rows = conn.fetch_all(find).await?;
        let first = rows.iter().map(<(i32, i64)>::from_row).collect::<Result<Vec<_>, _>>()?;
        Ok(first.into_iter().unzip())
    }

    async fn write_entry(
        &self,
        conn: &mut TimedConnection,
        operator: &str,
        entry: &OperationEntry,
    ) -> Result<(), sqlx::Error> {
        let write = sqlx::query(self.statements.audit_handler.clone())
            .bind(operator)
            .bind(entry.action)
            .bind(&entry.handler)
            .bind(&entry.detail)
            .bind(self.clock_offset_ms());
        conn.execute(write).await.map(drop)
    }
}

fn read_epoch(row: &PgRow) -> Result<Option<ReplayEpoch>, sqlx::Error> {
    let (after, until): (Option<i64>, Option<i64>) = (row.try_get("after")?, row.try_get("until")?);
    let lane = ReplayLane {
        lane: lane(row)?,
        epoch: row.try_get("epoch")?,
        pos: row.try_get("pos")?,
        replay: after.zip(until),
    };
    Ok(lane.back_to(row.try_get("first")?))
}

fn read_affected(row: &PgRow) -> Result<Affected, sqlx::Error> {
    Ok(Affected { positions: 0, tasks: count(row, "tasks")?, dead: count(row, "dead")? })
}
