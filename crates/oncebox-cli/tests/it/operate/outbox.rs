//! The outbox: what services publish in SQL, the program delivers.

use super::database::{InboxDatabase, on_each_database};

on_each_database!(
    published_messages_are_delivered_by_the_program,
    an_outbox_that_no_process_moves_is_reported,
);

/// Publishes a message as a service does, in a transaction of its own.
async fn publish(database: &InboxDatabase, key: &str) {
    let publish = match &database.schema {
        None => {
            format!("insert into oncebox_publish (kind, body, key) values ('order.paid', '{{}}', '{key}')")
        }
        Some(schema) => format!("select {schema}.publish('order.paid', '{{}}'::jsonb, '{key}')"),
    };
    database.sql(&publish).await;
}

async fn published_messages_are_delivered_by_the_program(database: &InboxDatabase) {
    database.oncebox(&["migrate", "up"]).ok();
    for key in ["o-1", "o-2", "o-1"] {
        publish(database, key).await;
    }
    let config = "[handlers.ledger]\nkinds = [\"order.paid\"]\ncommand = [\"sh\", \"-c\", \"echo $ONCEBOX_KEY >> keys\"]\n";
    std::fs::write(database.folder.path().join("oncebox.toml"), config).unwrap();
    database.oncebox(&["work", "--once"]).ok();
    let keys = std::fs::read_to_string(database.folder.path().join("keys")).unwrap();
    let mut keys: Vec<&str> = keys.lines().collect();
    keys.sort_unstable();
    assert_eq!(keys.len(), 2, "{keys:?}");
    assert!(keys[0].ends_with("o-1") && keys[1].ends_with("o-2"), "{keys:?}");
    assert_eq!(database.count("outbox").await, 0);
    database.oncebox(&["doctor"]).prints("no message waits for the mover");
}

async fn an_outbox_that_no_process_moves_is_reported(database: &InboxDatabase) {
    database.oncebox(&["migrate", "up"]).ok();
    let status = database.oncebox(&["status", "--json"]).ok().json().remove(0);
    assert_eq!(status["outbox"], serde_json::json!({ "waiting": 0, "oldest_ms": null }));
    publish(database, "o-1").await;
    let status = database.oncebox(&["status", "--json"]).ok().json().remove(0);
    assert_eq!(status["outbox"]["waiting"], 1);
    database.oncebox(&["status"]).ok().prints("outbox: 1 message waits for the mover, the oldest for ");
    let long_ago = match &database.schema {
        None => "update oncebox_outbox set captured_at = captured_at - 60000".to_owned(),
        Some(schema) => format!("update {schema}.outbox set captured_at = captured_at - interval '1 minute'"),
    };
    database.sql(&long_ago).await;
    database
        .oncebox(&["doctor"])
        .ends_with_code(1)
        .prints("1 message waits for the mover, the oldest for 1 m ");
}
