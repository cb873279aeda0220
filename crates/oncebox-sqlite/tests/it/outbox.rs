//! The outbox on SQLite, from another language.

use std::process::Command;

use oncebox_core::store::Survey;
use oncebox_core::{Inbox, Outbox};
use sqlx::AssertSqlSafe;

use crate::fixture;

const SCRIPT: &str = r#"
import sqlite3, sys
db = sqlite3.connect(sys.argv[1])
insert = "insert into oncebox_publish (kind, body, key, order_by, headers) values (?, ?, ?, ?, ?)"
with db:
    db.execute(insert, ("order.paid", '{"cents": 5}', "o-1", "customer-1", '{"x-one": "1"}'))
    db.execute(insert, ("order.paid", b"{}", None, None, None))
try:
    with db:
        db.execute(insert, ("order.paid", "{}", "rolled back", None, None))
        raise RuntimeError
except RuntimeError:
    pass
for kind, body, key in [("", "x", "k"), (None, "x", "k"), ("@accept", "x", "k"), ("k", None, "k"), ("k", "x", "")]:
    try:
        db.execute(insert, (kind, body, key, None, None))
        sys.exit("it was not refused: %r" % ((kind, body, key),))
    except sqlite3.DatabaseError as error:
        if "oncebox: " not in str(error):
            raise
"#;

#[tokio::test]
async fn python_publishes_in_its_own_transaction() {
    if Command::new("python3").arg("--version").output().is_err() {
        assert!(std::env::var_os("CI").is_none(), "python3 is not installed");
        eprintln!("skipped: python3 is not installed");
        return;
    }
    let file = fixture::in_a_file("python_publishes_in_its_own_transaction").await.unwrap();
    let outbox = Outbox::builder(file.store.clone()).build().await.unwrap();
    let inbox = Inbox::builder(file.store.clone()).stored().build().await.unwrap();
    let path = file.store.pool().connect_options().get_filename().to_owned();
    let python = Command::new("python3").args(["-c", SCRIPT]).arg(&path).output().unwrap();
    assert!(python.status.success(), "{}", String::from_utf8_lossy(&python.stderr));
    assert_eq!(outbox.flush().await.unwrap(), 2);
    let place = file.store.find_message("order.paid", &"o-1".into()).await.unwrap().unwrap();
    let found = file.store.messages(place.lane, place.pos - 1, 1).await.unwrap();
    let message = &found[0].message;
    assert_eq!(message.body, b"{\"cents\": 5}");
    assert_eq!(message.headers.get("x-one"), Some("1"));
    assert_eq!(message.order_by, Some("customer-1".into()));
    let mut ids = Vec::new();
    for lane in 0..8 {
        let messages = inbox.store().messages(lane, 0, 10).await.unwrap();
        ids.extend(messages.into_iter().filter_map(|found| found.message.key.map(|key| key.to_string())));
    }
    ids.retain(|id| id != "o-1");
    let [id] = &ids[..] else { panic!("{ids:?}") };
    assert_eq!((id.len(), id.as_bytes()[14]), (36, b'7'), "{id}");
    assert!(b"89ab".contains(&id.as_bytes()[19]), "{id}");
}

/// One row that the log refuses would stop all others, so the table refuses it first.
#[tokio::test]
async fn the_outbox_refuses_what_the_log_would_refuse() {
    let file = fixture::in_a_file("the_outbox_refuses_what_the_log_would_refuse").await.unwrap();
    let outbox = Outbox::builder(file.store.clone()).build().await.unwrap();
    let pool = file.store.pool();
    for (columns, values) in [
        ("kind, body", "'', ''"),
        ("kind, body", "'@accept', ''"),
        ("kind, body, due_at", "'k', '', 253402300800000"),
        ("kind, body, headers", "'k', '', 'no json'"),
    ] {
        let publish = format!("insert into oncebox_publish ({columns}) values ({values})");
        sqlx::query(AssertSqlSafe(publish)).execute(pool).await.expect_err(values);
    }
    for (columns, values) in [
        ("kind, body", "'', x''"),
        ("kind, body, key", "'k', x'', x''"),
        ("kind, body, order_by", "'k', x'', zeroblob(65537)"),
        ("kind, body, headers", "'k', x'', '{}'"),
        ("kind, body, occurred_at", "'k', x'', -62135596800001"),
    ] {
        let insert = format!(
            "insert into oncebox_outbox (message_id, captured_at, {columns}) values ('id', 0, {values})"
        );
        sqlx::query(AssertSqlSafe(insert)).execute(pool).await.expect_err(values);
    }
    sqlx::query("insert into oncebox_publish (kind, body, headers) values ('k', '', '{\"a\": 1}')")
        .execute(pool)
        .await
        .unwrap();
    assert_eq!(outbox.flush().await.unwrap(), 1);
}
