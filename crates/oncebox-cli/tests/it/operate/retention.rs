//! Pruning: what is due goes, and what is not stays.

use std::time::Duration;

use super::database::{Database, on_each_database, take, with_ledger};

on_each_database!(what_is_due_goes_and_a_dead_letter_stays);

async fn what_is_due_goes_and_a_dead_letter_stays(database: &Database) {
    with_ledger!(database, inbox => {
        take(&inbox, &[("o-1", "{}"), ("o-2", "broken"), ("o-3", "{}"), ("o-4", "{}")]).await;
        // The first sign of life.
        while database.count("live").await == 0 {
            tokio::task::yield_now().await;
        }
        inbox.close().await;
    });
    let nothing = database.oncebox(&["prune", "--json"]).ok().json();
    assert_eq!(
        (&nothing[0]["messages"], &nothing[0]["markers_before"]),
        (&0.into(), &serde_json::Value::Null)
    );
    assert_eq!(database.count("message").await, 4);
    // Another one, later: that much time with a live process lies behind.
    tokio::time::sleep(Duration::from_millis(20)).await;
    let until = until(database).await;
    with_ledger!(database, inbox => {
        while self::until(database).await == until {
            tokio::task::yield_now().await;
        }
        inbox.close().await;
    });
    let pruned =
        database.oncebox(&["prune", "--retention", "1ms", "--keep-messages", "1ms", "--json"]).ok().json();
    // The newest of a lane stays too.
    assert_eq!((&pruned[0]["messages"], &pruned[0]["accept_markers"]), (&2.into(), &2.into()));
    assert_eq!(database.count("message").await, 2);
    assert_eq!(database.count("dead").await, 1);
    database.oncebox(&["prune", "--retention", "1ms"]).ok().says("Removed 0 messages");
    database.oncebox(&["prune", "--retention", "0s"]).ends_with_code(2);
    database.oncebox(&["prune", "--retention", "7"]).ends_with_code(2).complains("7d");
}

/// The last sign of life.
async fn until(database: &Database) -> Option<String> {
    match &database.schema {
        None => {
            let read = "select cast(max(until_ms) as text) from oncebox_live";
            sqlx::query_scalar(read).fetch_one(database.sqlite_store().await.pool()).await.unwrap()
        }
        Some(schema) => {
            let read = format!("select to_jsonb(l)::text from {schema}.live l order by 1 desc limit 1");
            let store = database.postgres_store().await;
            sqlx::query_scalar(sqlx::AssertSqlSafe(read)).fetch_optional(store.pool()).await.unwrap()
        }
    }
}
