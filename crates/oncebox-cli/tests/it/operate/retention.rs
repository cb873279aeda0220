//! Pruning removes expired messages and markers only.

use std::time::Duration;

use super::database::{InboxDatabase, accept_and_work, on_each_database, with_ledger};

on_each_database!(expired_messages_are_removed_and_a_dead_letter_stays);

async fn expired_messages_are_removed_and_a_dead_letter_stays(database: &InboxDatabase) {
    with_ledger!(database, inbox => {
        accept_and_work(&inbox, &[("o-1", "{}"), ("o-2", "broken"), ("o-3", "{}"), ("o-4", "{}")]).await;
        // The first heartbeat.
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
    // A later heartbeat, so that some live time has passed.
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
    // The newest message of a lane stays too.
    assert_eq!((&pruned[0]["messages"], &pruned[0]["accept_markers"]), (&2.into(), &2.into()));
    assert_eq!(database.count("message").await, 2);
    assert_eq!(database.count("dead").await, 1);
    database.oncebox(&["prune", "--retention", "1ms"]).ok().prints("Removed 0 messages");
    database.oncebox(&["prune", "--retention", "0s"]).ends_with_code(2);
    database.oncebox(&["prune", "--retention", "7"]).ends_with_code(2).reports("7d");
}

/// The time of the last heartbeat.
async fn until(database: &InboxDatabase) -> Option<String> {
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
