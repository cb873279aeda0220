//! What operators do with handlers: each action in one transaction with its entry in the audit.
//!
//! There is one writer: nobody else works in a transaction meanwhile.

use oncebox_core::store::{HandlerId, Operate, ReplayFrom, Replayed};
use oncebox_core::{Error, ErrorKind, Mode};
use sqlx::sqlite::SqliteRow;
use sqlx::{Row, SqliteConnection};

use crate::statements;
use crate::store::SqliteStore;
use crate::time::to_ms;

impl Operate for SqliteStore {
    async fn pause_handler(&self, name: &str, paused: bool, operator: &str) -> Result<bool, Error> {
        let offset_ms = self.clock_offset_ms();
        self.write("pause a handler", async |conn| {
            let Some(handler) = find(&mut *conn, name).await? else { return Ok(Ok(false)) };
            if handler.mode == Mode::inline() {
                return Ok(Err(refused(format!(
                    "the handler {name:?} only handles inline: what is delivered to it cannot wait"
                ))));
            }
            if handler.is_paused == paused {
                return Ok(Ok(false));
            }
            let (state, action) = if paused { ("paused", "pause") } else { ("active", "resume") };
            let pause = sqlx::query(statements::pause_handler()).bind(handler.id.0).bind(state);
            pause.execute(&mut *conn).await?;
            Entry { operator, action, handler: name, detail: None }.write(conn, offset_ms).await?;
            Ok(Ok(true))
        })
        .await?
    }

    async fn replay(&self, name: &str, from: ReplayFrom, operator: &str) -> Result<Option<Replayed>, Error> {
        let offset_ms = self.clock_offset_ms();
        self.write("replay a handler", async |conn| {
            let Some(handler) = find(&mut *conn, name).await? else { return Ok(Ok(None)) };
            if !handler.mode.reads_log() {
                return Ok(Err(refused(format!(
                    "the handler {name:?} does not read the log: there is nothing to replay"
                ))));
            }
            let mut replayed = Replayed::default();
            for lane in find_lanes(&mut *conn, handler.id, from).await? {
                replayed.positions += lane.pos.abs_diff(lane.target);
                let (tasks, dead) = lane.go_back(&mut *conn, handler.id, offset_ms).await?;
                replayed.tasks += tasks;
                replayed.dead += dead;
            }
            let Replayed { positions, tasks, dead } = replayed;
            let from = describe(&mut *conn, from).await?;
            let detail = format!("from {from}; {positions} positions, {tasks} tasks, {dead} dead letters");
            let entry = Entry { operator, action: "replay", handler: name, detail: Some(detail) };
            entry.write(conn, offset_ms).await?;
            Ok(Ok(Some(replayed)))
        })
        .await?
    }

    async fn rename_handler(&self, name: &str, new_name: &str, operator: &str) -> Result<bool, Error> {
        let offset_ms = self.clock_offset_ms();
        self.write("rename a handler", async |conn| {
            let Some(handler) = find(&mut *conn, name).await? else { return Ok(Ok(false)) };
            let id = handler.id.0;
            let free = sqlx::query(statements::free_name()).bind(id).bind(new_name);
            free.execute(&mut *conn).await?;
            let is_taken = sqlx::query_scalar(statements::is_name_taken()).bind(new_name);
            if is_taken.fetch_one(&mut *conn).await? {
                return Ok(Err(refused(format!(
                    "the name {new_name:?} is taken: names of handlers are never given twice"
                ))));
            }
            let rename = sqlx::query(statements::rename_handler()).bind(id).bind(new_name);
            rename.execute(&mut *conn).await?;
            let reserve = sqlx::query(statements::reserve_name()).bind(id).bind(name).bind(offset_ms);
            reserve.execute(&mut *conn).await?;
            let detail = Some(format!("was {name}"));
            Entry { operator, action: "rename", handler: new_name, detail }.write(conn, offset_ms).await?;
            Ok(Ok(true))
        })
        .await?
    }

    async fn remove_handler(&self, name: &str, operator: &str) -> Result<bool, Error> {
        let offset_ms = self.clock_offset_ms();
        self.write("remove a handler", async |conn| {
            let removed = sqlx::query_as(statements::remove_handler()).bind(name);
            let Some((id, origin)): Option<(i32, String)> = removed.fetch_optional(&mut *conn).await? else {
                return Ok(false);
            };
            let tasks = sqlx::query(statements::drop_tasks()).bind(id).execute(&mut *conn).await?;
            let dead = sqlx::query(statements::drop_dead()).bind(id).execute(&mut *conn).await?;
            for forget in [
                statements::drop_progress(),
                statements::drop_replays(),
                statements::drop_attempts(),
                statements::drop_care(),
            ] {
                sqlx::query(forget).bind(id).execute(&mut *conn).await?;
            }
            let done = sqlx::query(statements::mark_all_done()).bind(origin).bind(offset_ms);
            done.execute(&mut *conn).await?;
            let (tasks, dead) = (tasks.rows_affected(), dead.rows_affected());
            let detail = Some(format!("tasks: {tasks}, dead letters: {dead}"));
            Entry { operator, action: "remove", handler: name, detail }.write(conn, offset_ms).await?;
            Ok(true)
        })
        .await
    }
}

fn refused(message: String) -> Error {
    Error::new(ErrorKind::Configuration, message)
}

/// A handler that is not removed.
struct Handler {
    id: HandlerId,
    mode: Mode,
    is_paused: bool,
}

async fn find(conn: &mut SqliteConnection, name: &str) -> Result<Option<Handler>, sqlx::Error> {
    let find = sqlx::query_as(statements::find_handler()).bind(name);
    let found: Option<(i32, String, String)> = find.fetch_optional(conn).await?;
    let handler = found.map(|(id, mode, state)| {
        let mode = Mode::from_name(&mode)
            .ok_or_else(|| sqlx::Error::Decode(format!("there is no mode {mode:?}").into()))?;
        Ok(Handler { id: HandlerId(id), mode, is_paused: state == "paused" })
    });
    handler.transpose()
}

/// An entry in the audit.
struct Entry<'a> {
    operator: &'a str,
    action: &'static str,
    handler: &'a str,
    detail: Option<String>,
}

impl Entry<'_> {
    async fn write(self, conn: &mut SqliteConnection, offset_ms: i64) -> Result<(), sqlx::Error> {
        sqlx::query(statements::audit_handler())
            .bind(self.operator)
            .bind(self.action)
            .bind(self.handler)
            .bind(self.detail)
            .bind(offset_ms)
            .execute(conn)
            .await?;
        Ok(())
    }
}

/// A lane in which a handler goes back.
struct LaneBack {
    lane: u16,
    epoch: i32,
    /// How far it has come.
    pos: i64,
    /// Where it goes back to.
    target: i64,
    /// Behind which position it runs again already, if it does.
    after: Option<i64>,
    /// And up to which.
    until: Option<i64>,
}

async fn find_lanes(
    conn: &mut SqliteConnection,
    handler: HandlerId,
    from: ReplayFrom,
) -> Result<Vec<LaneBack>, sqlx::Error> {
    let (time, place) = match from {
        ReplayFrom::Beginning => (None, None),
        ReplayFrom::Time(time) => (Some(to_ms(time)), None),
        ReplayFrom::Place(place) => (None, Some(place)),
    };
    let rows = sqlx::query(statements::replay_targets())
        .bind(handler.0)
        .bind(time)
        .bind(place.map(|place| place.lane))
        .bind(place.map(|place| place.pos))
        .fetch_all(conn)
        .await?;
    let read = |row: &SqliteRow| {
        Ok(LaneBack {
            lane: row.try_get(0)?,
            epoch: row.try_get(1)?,
            pos: row.try_get(2)?,
            target: row.try_get(3)?,
            after: row.try_get(4)?,
            until: row.try_get(5)?,
        })
    };
    rows.iter().map(read).collect()
}

impl LaneBack {
    /// Begins a new epoch; how many tasks and dead letters that takes in.
    async fn go_back(
        &self,
        conn: &mut SqliteConnection,
        handler: HandlerId,
        offset_ms: i64,
    ) -> Result<(u64, u64), sqlx::Error> {
        let epoch = self.epoch + 1;
        // One that has not come to its end goes on in the new one.
        let unended = self.after.zip(self.until).filter(|&(_, until)| self.pos < until);
        let (after, until) = unended.unwrap_or((self.target, self.pos));
        sqlx::query(statements::advance())
            .bind(handler.0)
            .bind(self.lane)
            .bind(epoch)
            .bind(self.target)
            .bind(offset_ms)
            .execute(&mut *conn)
            .await?;
        let drop = sqlx::query(statements::drop_replay()).bind(handler.0).bind(self.lane);
        drop.execute(&mut *conn).await?;
        sqlx::query(statements::begin_replay())
            .bind(handler.0)
            .bind(self.lane)
            .bind(epoch)
            .bind(after.min(self.target))
            .bind(until.max(self.pos))
            .execute(&mut *conn)
            .await?;
        let drop_behind = async |conn: &mut SqliteConnection, sql: &'static str| {
            let drop = sqlx::query(sql).bind(handler.0).bind(self.lane).bind(self.target);
            drop.execute(conn).await.map(|dropped| dropped.rows_affected())
        };
        let tasks = drop_behind(&mut *conn, statements::drop_tasks_behind()).await?;
        let dead = drop_behind(conn, statements::drop_dead_behind()).await?;
        Ok((tasks, dead))
    }
}

/// From where, as the audit says it.
async fn describe(conn: &mut SqliteConnection, from: ReplayFrom) -> Result<String, sqlx::Error> {
    Ok(match from {
        ReplayFrom::Beginning => "the beginning".to_owned(),
        ReplayFrom::Place(place) => format!("position {} of lane {}", place.pos, place.lane),
        ReplayFrom::Time(time) => {
            sqlx::query_scalar(statements::iso_time()).bind(to_ms(time)).fetch_one(conn).await?
        }
    })
}
