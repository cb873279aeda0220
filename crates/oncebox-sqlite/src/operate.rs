//! What operators do with handlers: each operation in one transaction with its entry in the audit.
//!
//! SQLite has one writer, so no other transaction runs meanwhile.

use oncebox_core::Error;
use oncebox_core::store::{
    Affected, HandlerId, Operate, Operation, OperationEntry, OperationPlan, OperationStep, ReplayEpoch,
    ReplayFrom, ReplayLane,
};
use sqlx::sqlite::SqliteRow;
use sqlx::{Row, SqliteConnection};

use crate::registry::known_handlers;
use crate::statements;
use crate::store::SqliteStore;

impl Operate for SqliteStore {
    async fn operate(
        &self,
        handler: &str,
        operation: &Operation,
        operator: &str,
    ) -> Result<Option<Affected>, Error> {
        let offset_ms = self.clock_offset_ms();
        self.write(operation.doing(), async |conn| {
            let known = known_handlers(&mut *conn, operation.names(handler)).await?;
            let plan = match operation.plan(handler, &known) {
                Ok(Some(plan)) => plan,
                Ok(None) => return Ok(Ok(None)),
                Err(refused) => return Ok(Err(refused)),
            };
            let affected = carry_out(&mut *conn, &plan, offset_ms).await?;
            write_entry(conn, operator, &plan.entry(affected), offset_ms).await?;
            Ok(Ok(Some(affected)))
        })
        .await?
    }
}

async fn carry_out(
    conn: &mut SqliteConnection,
    plan: &OperationPlan,
    offset_ms: i64,
) -> Result<Affected, sqlx::Error> {
    let handler = plan.handler;
    match &plan.step {
        OperationStep::SetState(state) => {
            let set = sqlx::query(statements::set_state()).bind(handler.0).bind(state.name());
            set.execute(&mut *conn).await?;
            sqlx::query(statements::end_leases()).bind(handler.0).execute(conn).await?;
            Ok(Affected::default())
        }
        OperationStep::Replay(from) => replay(conn, handler, *from, offset_ms).await,
        OperationStep::Rename { from, to } => {
            // The new name may be a former one of this handler, which is still reserved.
            sqlx::query(statements::free_name()).bind(handler.0).bind(to).execute(&mut *conn).await?;
            sqlx::query(statements::rename_handler()).bind(handler.0).bind(to).execute(&mut *conn).await?;
            let reserve = sqlx::query(statements::reserve_name()).bind(handler.0).bind(from);
            reserve.bind(offset_ms).execute(conn).await?;
            Ok(Affected::default())
        }
        OperationStep::Remove { origin } => remove(conn, handler, origin, offset_ms).await,
    }
}

async fn remove(
    conn: &mut SqliteConnection,
    handler: HandlerId,
    origin: &str,
    offset_ms: i64,
) -> Result<Affected, sqlx::Error> {
    let tasks = sqlx::query(statements::drop_tasks()).bind(handler.0).execute(&mut *conn).await?;
    let dead = sqlx::query(statements::drop_dead()).bind(handler.0).execute(&mut *conn).await?;
    for statement in [
        statements::remove_handler(),
        statements::drop_progress(),
        statements::drop_replays(),
        statements::drop_attempts(),
        statements::drop_care(),
        statements::end_leases(),
    ] {
        sqlx::query(statement).bind(handler.0).execute(&mut *conn).await?;
    }
    // Nothing runs these keys any more. Only done markers are swept; others would stay for ever.
    sqlx::query(statements::mark_all_done()).bind(origin).bind(offset_ms).execute(conn).await?;
    Ok(Affected { positions: 0, tasks: tasks.rows_affected(), dead: dead.rows_affected() })
}

async fn replay(
    conn: &mut SqliteConnection,
    handler: HandlerId,
    from: ReplayFrom,
    offset_ms: i64,
) -> Result<Affected, sqlx::Error> {
    let mut affected = Affected::default();
    sqlx::query(statements::end_leases()).bind(handler.0).execute(&mut *conn).await?;
    for epoch in find_epochs(&mut *conn, handler, from).await? {
        affected.positions += epoch.positions;
        begin_epoch(&mut *conn, handler, &epoch, offset_ms).await?;
        let drop_behind = async |conn: &mut SqliteConnection, statement: &'static str| {
            let drop = sqlx::query(statement).bind(handler.0).bind(epoch.lane).bind(epoch.pos);
            drop.execute(conn).await.map(|dropped| dropped.rows_affected())
        };
        // The lane passes these messages again, and they must not run a second time as tasks.
        affected.tasks += drop_behind(&mut *conn, statements::drop_tasks_behind()).await?;
        affected.dead += drop_behind(&mut *conn, statements::drop_dead_behind()).await?;
    }
    Ok(affected)
}

/// The epochs that a replay begins, at most one for each lane.
async fn find_epochs(
    conn: &mut SqliteConnection,
    handler: HandlerId,
    from: ReplayFrom,
) -> Result<Vec<ReplayEpoch>, sqlx::Error> {
    let rows = sqlx::query(statements::replay_lanes())
        .bind(handler.0)
        .bind(from.time_ms())
        .bind(from.place().map(|place| place.lane))
        .bind(from.place().map(|place| place.pos))
        .fetch_all(conn)
        .await?;
    let read = |row: &SqliteRow| {
        let (after, until): (Option<i64>, Option<i64>) = (row.try_get(4)?, row.try_get(5)?);
        let lane = ReplayLane {
            lane: row.try_get(0)?,
            epoch: row.try_get(1)?,
            pos: row.try_get(2)?,
            replay: after.zip(until),
        };
        Ok(lane.back_to(row.try_get(3)?))
    };
    rows.iter().filter_map(|row| read(row).transpose()).collect()
}

async fn begin_epoch(
    conn: &mut SqliteConnection,
    handler: HandlerId,
    epoch: &ReplayEpoch,
    offset_ms: i64,
) -> Result<(), sqlx::Error> {
    sqlx::query(statements::advance())
        .bind(handler.0)
        .bind(epoch.lane)
        .bind(epoch.epoch)
        .bind(epoch.pos)
        .bind(offset_ms)
        .execute(&mut *conn)
        .await?;
    sqlx::query(statements::drop_replay()).bind(handler.0).bind(epoch.lane).execute(&mut *conn).await?;
    sqlx::query(statements::begin_replay())
        .bind(handler.0)
        .bind(epoch.lane)
        .bind(epoch.epoch)
        .bind(epoch.after)
        .bind(epoch.until)
        .execute(conn)
        .await?;
    Ok(())
}

async fn write_entry(
    conn: &mut SqliteConnection,
    operator: &str,
    entry: &OperationEntry,
    offset_ms: i64,
) -> Result<(), sqlx::Error> {
    sqlx::query(statements::audit_handler())
        .bind(operator)
        .bind(entry.action)
        .bind(&entry.handler)
        .bind(&entry.detail)
        .bind(offset_ms)
        .execute(conn)
        .await?;
    Ok(())
}
