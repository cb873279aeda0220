//! Plans: what runs for ever must not slow down with the size of the table.

use std::fs;

use oncebox_core::store::statement::section;
use sqlx::AssertSqlSafe;

use crate::fixture;

/// A statement of the store.
pub(crate) fn statement(file: &str, name: &str) -> String {
    let path = format!("{}/src/sql/{file}.sql", env!("CARGO_MANIFEST_DIR"));
    section(&fs::read_to_string(path).unwrap(), name).to_owned()
}

async fn plan(store: &oncebox_sqlite::SqliteStore, sql: &str) -> String {
    let explain = AssertSqlSafe(format!("explain query plan {sql}"));
    let rows: Vec<(i64, i64, i64, String)> = sqlx::query_as(explain).fetch_all(store.pool()).await.unwrap();
    rows.into_iter().map(|row| row.3).collect::<Vec<_>>().join("\n")
}

#[tokio::test]
async fn a_sweep_walks_the_index() {
    let fixture = fixture::in_memory("plans").await.unwrap();
    let plan = plan(&fixture.store, &statement("marker", "sweep")).await;
    assert!(
        plan.contains("USING INDEX oncebox_marker_processed")
            || plan.contains("COVERING INDEX oncebox_marker_processed"),
        "{plan}"
    );
    assert!(!plan.contains("SCAN oncebox_marker"), "{plan}");
}

#[tokio::test]
async fn markers_and_results_are_found_by_their_primary_keys() {
    let fixture = fixture::in_memory("plans").await.unwrap();
    let plan = plan(&fixture.store, &statement("marker", "find_marker")).await;
    assert!(!plan.contains("SCAN"), "{plan}");
}
