//! Plans: what runs for ever must not slow down with the size of the table.

use std::fs;

use oncebox_core::store::statement::{names, section};
use sqlx::AssertSqlSafe;

use crate::fixture;

/// A statement of the store.
fn statement(file: &str, name: &str) -> String {
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

#[tokio::test]
async fn work_is_found_along_indexes() {
    let fixture = fixture::in_memory("plans").await.unwrap();
    // Every table that grows, by the names that the statements give it.
    let grown = [
        "a",
        "d",
        "m",
        "p",
        "t",
        "oncebox_dead",
        "oncebox_marker",
        "oncebox_message",
        "oncebox_progress",
        "oncebox_task",
    ];
    let scanned = |plan: &str| {
        plan.lines().any(|line| {
            grown.contains(&line.trim_start_matches("SCAN ").split(' ').next().unwrap())
                && line.starts_with("SCAN ")
        })
    };
    let table = [
        ("work", "look"),
        ("work", "find_progress"),
        ("work", "take"),
        ("work", "find_taker"),
        ("work", "due_tasks"),
        ("work", "due_near"),
        ("work", "due_behind"),
        ("work", "take_tasks"),
        ("task", "count_tasks"),
        ("task", "free_tasks"),
        ("replay", "replay_lanes"),
        ("replay", "drop_tasks_behind"),
        ("replay", "drop_dead_behind"),
        ("marker", "find_accepted"),
        ("message", "begin_append"),
        ("message", "prune_next"),
        ("message", "prune"),
        ("marker", "sweep_accepted"),
        ("lane", "prune_progress"),
        ("survey", "find_message"),
        ("survey", "message_states"),
        ("survey", "handler_statuses"),
        ("survey", "messages"),
        ("survey", "pending"),
    ];
    for (file, name) in table {
        let plan = plan(&fixture.store, &statement(file, name)).await;
        assert!(plan.contains("SEARCH"), "{name}: {plan}");
        assert!(!scanned(&plan), "{name}: {plan}");
        // A sort would read everything that waits before it gives the first of it. The groups are kinds.
        assert!(!plan.contains("TEMP B-TREE FOR ORDER BY"), "{name}: {plan}");
    }
}

#[tokio::test]
async fn an_index_that_a_statement_names_is_in_its_plan() {
    let fixture = fixture::in_memory("plans").await.unwrap();
    let mut compared = 0;
    for entry in fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/src/sql")).unwrap().map(Result::unwrap) {
        let text = fs::read_to_string(entry.path()).unwrap();
        for name in names(&text).filter(|name| !["isolate", "keep", "undo"].contains(name)) {
            let statement = section(&text, name);
            let comments: Vec<_> = statement.lines().take_while(|line| line.starts_with("--")).collect();
            let comments = comments.join(" ");
            let Some((_, indexes)) = comments.split_once("-- Index: ") else { continue };
            let plan = plan(&fixture.store, statement).await;
            // An insert uses the primary key without a line in its plan.
            for index in indexes.split([' ', ',', ';', '.']).filter(|word| word.starts_with("oncebox_")) {
                if index.matches('_').count() > 1 {
                    assert!(plan.contains(index), "{name}: {index} is not in the plan\n{plan}");
                    compared += 1;
                }
            }
        }
    }
    assert!(compared > 15, "{compared}");
}

#[tokio::test]
async fn heads_are_found_along_the_index() {
    let fixture = fixture::in_memory("plans").await.unwrap();
    for name in ["due_heads", "look"] {
        let plan = plan(&fixture.store, &statement("work", name)).await;
        let keys = "SEARCH t USING COVERING INDEX oncebox_task_order (handler=? AND lane=? AND order_by>?)";
        assert!(plan.contains(keys), "{plan}");
        assert!(plan.contains("oncebox_task_order (handler=? AND lane=? AND order_by=?"), "{plan}");
        assert!(
            plan.contains("oncebox_dead_order (handler=? AND lane=? AND order_by=? AND pos<?)"),
            "{plan}"
        );
        assert!(plan.contains("oncebox_task_free (handler=? AND lane=? AND due_at<?)"), "{plan}");
        // What has no key is not sorted before it is cut.
        assert!(!plan.contains("due_at<?)\nUSE TEMP B-TREE"), "{plan}");
        for table in ["t", "d", "head"] {
            assert!(!plan.lines().any(|line| line.starts_with(&format!("SCAN {table} "))), "{plan}");
        }
    }
}
