//! One statement for many rows.
//!
//! The driver runs statements on a thread of its own, and every message to it costs more than the insert of a row. So
//! several statements go in one message. The driver keeps the statements of a message prepared, for each number of them.

use std::sync::Arc;

use futures_util::TryStreamExt;
use sqlx::query::Query;
use sqlx::sqlite::SqliteArguments;
use sqlx::{AssertSqlSafe, Executor, Sqlite, SqliteConnection};

/// So many statements go in one message.
const PER_MESSAGE: usize = 16;

type Statements<'r> = Query<'r, Sqlite, SqliteArguments>;

/// A statement without numbers at its parameters, repeated for each number of rows.
#[derive(Debug)]
pub(crate) struct Many(Vec<Arc<str>>);

impl Many {
    pub(crate) fn new(statement: &str) -> Self {
        Self((0..=PER_MESSAGE).map(|rows| vec![statement; rows].join(";\n").into()).collect())
    }

    /// Runs it once for each row; whether each changed something.
    pub(crate) async fn run<'r, T: Sync>(
        &self,
        conn: &mut SqliteConnection,
        rows: &'r [T],
        bind: impl Fn(Statements<'r>, &'r T) -> Statements<'r> + Send,
    ) -> Result<Vec<bool>, sqlx::Error> {
        let mut changed = Vec::with_capacity(rows.len());
        for rows in rows.chunks(PER_MESSAGE) {
            // Safe: the same statement several times.
            let mut statements = sqlx::query(AssertSqlSafe(self.0[rows.len()].clone()));
            for row in rows {
                statements = bind(statements, row);
            }
            let mut done = conn.fetch_many(statements);
            while let Some(one) = done.try_next().await? {
                changed.extend(one.left().map(|one| one.rows_affected() > 0));
            }
        }
        Ok(changed)
    }
}
