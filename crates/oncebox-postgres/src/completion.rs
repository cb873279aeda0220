//! How tasks ended that ran outside of a transaction.

use std::time::Duration;

use oncebox_core::Error;
use oncebox_core::store::{Captured, Completion, End, FailedAttempt, Unit, doing, row};
use sqlx::{FromRow, Row};

use crate::connection::TimedConnection;
use crate::store::PostgresStore;
use crate::work::to_i32;

/// A completion as the statement takes it.
#[derive(Default)]
struct Columns {
    handlers: Vec<i32>,
    lanes: Vec<i32>,
    positions: Vec<i64>,
    fences: Vec<i64>,
    ended: Vec<&'static str>,
    failures: Vec<i32>,
    due_in_ms: Vec<i64>,
    errors: Vec<Option<String>>,
    marker_handlers: Vec<Option<String>>,
    marker_kinds: Vec<Option<String>>,
    marker_keys: Vec<Option<Vec<u8>>>,
    results: Vec<Option<Vec<u8>>>,
}

impl Columns {
    fn add(&mut self, completion: &Completion) {
        let (ended, failures, due_in_ms, error, marker, result) = match &completion.end {
            End::Done { marker, result, .. } => ("done", 0, 0, None, marker.as_ref(), result.clone()),
            End::Retry { failures, due_in, error } => {
                ("retry", *failures, row::duration_to_ms(*due_in), error.clone(), None, None)
            }
            End::Dead { failures, error } => ("dead", *failures, 0, Some(error.clone()), None, None),
        };
        self.handlers.push(completion.handler.0);
        self.lanes.push(i32::from(completion.place.lane));
        self.positions.push(completion.place.pos);
        self.fences.push(completion.fence.0);
        self.ended.push(ended);
        self.failures.push(to_i32(failures));
        self.due_in_ms.push(due_in_ms);
        self.errors.push(error);
        self.marker_handlers.push(marker.map(|unit: &Unit| unit.handler.clone()));
        self.marker_kinds.push(marker.map(|unit| unit.kind.clone()));
        self.marker_keys.push(marker.map(|unit| unit.key.as_bytes().to_vec()));
        self.results.push(result);
    }
}

impl PostgresStore {
    /// Whether each of them was still under its fence.
    pub(crate) async fn write_completions(&self, completions: &[Completion]) -> Result<Vec<bool>, Error> {
        let mut columns = Columns::default();
        for completion in completions {
            columns.add(completion);
        }
        let ended: Vec<i64> = self
            .connections
            .in_transaction(doing::COMPLETE, Duration::ZERO, async |tx: &mut TimedConnection| {
                // Tasks change under the lane's lock only (decision 18).
                let lock = sqlx::query(self.statements.lock_lanes.clone())
                    .bind(&columns.handlers)
                    .bind(&columns.lanes);
                tx.execute(lock).await?;
                // Under the locks: nothing changes these tasks until the next statement has.
                let histories = self.histories(tx, &columns).await?;
                let complete = sqlx::query(self.statements.complete.clone())
                    .bind(columns.handlers)
                    .bind(columns.lanes)
                    .bind(columns.positions)
                    .bind(columns.fences)
                    .bind(columns.ended)
                    .bind(columns.failures)
                    .bind(columns.due_in_ms)
                    .bind(columns.errors)
                    .bind(columns.marker_handlers)
                    .bind(columns.marker_kinds)
                    .bind(columns.marker_keys)
                    .bind(columns.results)
                    .bind(self.clock_offset_ms())
                    .bind(histories);
                let rows = tx.fetch_all(complete).await?;
                let ended = rows.iter().map(|row| row.try_get(0)).collect::<Result<Vec<i64>, _>>()?;
                let published: Vec<Captured> = (1..)
                    .zip(completions)
                    .filter(|(n, _)| ended.contains(n))
                    .flat_map(|(_, completion)| completion.end.published().iter().cloned())
                    .collect();
                if !published.is_empty() {
                    tx.execute(self.capture_of(&published)).await?;
                }
                Ok(ended)
            })
            .await?;
        Ok((1..).take(completions.len()).map(|n: i64| ended.contains(&n)).collect())
    }

    /// The failed attempts of the tasks that failed once more, with room for that.
    async fn histories(
        &self,
        conn: &mut TimedConnection,
        columns: &Columns,
    ) -> Result<Vec<Option<String>>, sqlx::Error> {
        let mut histories = vec![None; columns.errors.len()];
        // No attempt has failed, so no history grows: a round trip less.
        if columns.errors.iter().all(Option::is_none) {
            return Ok(histories);
        }
        let read = sqlx::query(self.statements.task_attempts.clone())
            .bind(&columns.handlers)
            .bind(&columns.lanes)
            .bind(&columns.positions);
        for row in &conn.fetch_all(read).await? {
            let (n, attempts) = <(i64, String)>::from_row(row)?;
            if let Some(history) = usize::try_from(n - 1).ok().and_then(|n| histories.get_mut(n)) {
                *history = Some(FailedAttempt::with_room(&attempts).into_owned());
            }
        }
        Ok(histories)
    }
}
