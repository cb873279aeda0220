//! Writes unfinished messages: as tasks, or as dead letters.

use std::borrow::Cow;
use std::sync::LazyLock;

use oncebox_core::Key;
use oncebox_core::store::{FailedAttempt, Fence, HandlerId, ProcessId, Unfinished, row};
use sqlx::SqliteConnection;

use crate::many::Many;
use crate::statements;

static WRITE_TASKS: LazyLock<Many> = LazyLock::new(|| Many::new(statements::write_tasks()));
static WRITE_DEAD_LETTERS: LazyLock<Many> = LazyLock::new(|| Many::new(statements::write_dead_letters()));

/// The failed attempts before this one, with room for it where it failed.
fn history(one: &Unfinished) -> Option<Cow<'_, str>> {
    let attempts = one.attempts.as_deref()?;
    Some(if one.error.is_some() { FailedAttempt::with_room(attempts) } else { Cow::Borrowed(attempts) })
}

/// The messages of a handler in a lane that something is done with.
#[derive(Clone, Copy)]
pub(crate) struct LaneUnfinished<'a> {
    pub(crate) handler: HandlerId,
    pub(crate) lane: u16,
    pub(crate) messages: &'a [Unfinished],
    pub(crate) offset_ms: i64,
}

impl LaneUnfinished<'_> {
    /// Makes them tasks, which a process runs outside of a transaction, if one is named.
    pub(crate) async fn write_tasks(
        self,
        conn: &mut SqliteConnection,
        run_by: Option<(ProcessId, Fence)>,
    ) -> Result<(), sqlx::Error> {
        let owner = run_by.map(|(process, _)| process.0.as_bytes().to_vec());
        let insert = WRITE_TASKS.run(conn, self.messages, |insert, one| {
            insert
                .bind(self.offset_ms)
                .bind(self.handler.0)
                .bind(self.lane)
                .bind(one.pos)
                .bind(one.order_by.as_ref().map(Key::as_bytes))
                .bind(one.failures)
                .bind(row::duration_to_ms(one.due_in))
                .bind(one.error.as_deref())
                .bind(history(one))
                .bind(one.body.as_deref())
                .bind(one.scheduled)
                .bind(one.crashes)
                .bind(owner.clone())
                .bind(run_by.map(|(_, fence)| fence.0))
        });
        insert.await.map(drop)
    }

    /// Makes them dead letters.
    pub(crate) async fn write_dead_letters(self, conn: &mut SqliteConnection) -> Result<(), sqlx::Error> {
        let insert = WRITE_DEAD_LETTERS.run(conn, self.messages, |insert, one| {
            insert
                .bind(self.offset_ms)
                .bind(self.handler.0)
                .bind(self.lane)
                .bind(one.pos)
                .bind(one.order_by.as_ref().map(Key::as_bytes))
                .bind(one.failures)
                .bind(one.error.as_deref())
                .bind(history(one))
                .bind(one.body.as_deref())
        });
        insert.await.map(drop)
    }
}
