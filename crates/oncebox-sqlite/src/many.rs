//! One statement for many rows.
//!
//! The driver runs statements on a thread of its own, and every message to it costs more than the insert of a
//! row. So several statements go in one message. The driver keeps the statements of a message prepared, for
//! each number of them.

use std::sync::Arc;

use futures_util::TryStreamExt;
use sqlx::query::Query;
use sqlx::sqlite::SqliteArguments;
use sqlx::{AssertSqlSafe, Executor, Sqlite, SqliteConnection};

/// The number of statements that go in one message.
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

/// The numbers of rows that one insert has: few sizes, so that all of them stay prepared.
const ROWS: [usize; 4] = [64, 16, 4, 1];

/// An insert of rows that are new for sure, which ends with the values of one row, for each size. Faster than
/// [`Many`], and silent on the single row.
#[derive(Debug)]
pub(crate) struct NewRows(Vec<(usize, Arc<str>)>);

impl NewRows {
    pub(crate) fn new(statement: &str) -> Self {
        let (insert, row) = statement.rsplit_once("values").unwrap_or((statement, ""));
        let repeated = |rows| format!("{insert}values {}", vec![row.trim(); rows].join(", ")).into();
        Self(ROWS.into_iter().map(|rows| (rows, repeated(rows))).collect())
    }

    /// Inserts all rows, in their order.
    pub(crate) async fn insert<'r, T: Sync>(
        &self,
        conn: &mut SqliteConnection,
        mut rows: &'r [T],
        bind: impl Fn(Statements<'r>, &'r T) -> Statements<'r> + Send,
    ) -> Result<(), sqlx::Error> {
        for (size, sql) in &self.0 {
            while let Some((some, rest)) = rows.split_at_checked(*size) {
                // Safe: the same row several times.
                let mut statement = sqlx::query(AssertSqlSafe(sql.clone()));
                for row in some {
                    statement = bind(statement, row);
                }
                conn.execute(statement).await?;
                rows = rest;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_repeated_and_the_rest_is_not() {
        let rows = NewRows::new("-- Of values.\ninsert into x (a, b)\nvalues ('@', ?)\n");
        assert_eq!(&*rows.0[3].1, "-- Of values.\ninsert into x (a, b)\nvalues ('@', ?)");
        assert_eq!(
            &*rows.0[2].1,
            "-- Of values.\ninsert into x (a, b)\nvalues ('@', ?), ('@', ?), ('@', ?), ('@', ?)"
        );
    }
}
