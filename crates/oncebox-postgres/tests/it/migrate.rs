//! What is special about the schema of a PostgreSQL database.

use oncebox_core::{ErrorKind, Inbox};
use oncebox_postgres::PostgresStore;
use oncebox_servers::database::test_database;
use sqlx::AssertSqlSafe;

#[tokio::test]
async fn what_was_done_before_a_migration_is_known_after_it() {
    let test = "what_was_done_before_a_migration_is_known_after_it";
    let Some(database) = test_database(test).await else { return };
    let store = PostgresStore::connect(&database.url()).await.unwrap();
    let first = [
        include_str!("../../src/migrations/0001_inbox.sql"),
        include_str!("../../src/migrations/0002_log.sql"),
    ];
    for step in first {
        let step = AssertSqlSafe(step.replace("{schema}", "oncebox"));
        sqlx::raw_sql(step).execute(store.pool()).await.unwrap();
    }
    let claim = "select oncebox.claim('ledger', 'order.paid', 'o-1')";
    let claimed: bool = sqlx::query_scalar(claim).fetch_one(store.pool()).await.unwrap();
    assert!(claimed);

    store.migrate().await.unwrap();
    let again: bool = sqlx::query_scalar(claim).fetch_one(store.pool()).await.unwrap();
    assert!(!again);
    let key = "select string_agg(attname, ', ' order by a.attnum) from pg_attribute a
               where a.attrelid = 'oncebox.marker_pkey'::regclass";
    let key: String = sqlx::query_scalar(key).fetch_one(store.pool()).await.unwrap();
    assert_eq!(key, "key, kind, handler");
}

#[tokio::test]
async fn the_printed_sql_is_for_the_schema_of_the_store() {
    let Some(database) = test_database("the_printed_sql_is_for_the_schema_of_the_store").await else {
        return;
    };
    let store = PostgresStore::connect(&database.url()).await.unwrap().with_schema("billing").unwrap();
    sqlx::raw_sql(AssertSqlSafe(store.migration_sql())).execute(store.pool()).await.unwrap();
    Inbox::builder(store.clone()).build().await.unwrap();
    // Nothing is left to do for migrate, and another schema is another inbox.
    store.migrate().await.unwrap();
    let other = store.with_schema("shipping").unwrap();
    assert_eq!(Inbox::builder(other).build().await.unwrap_err().kind(), ErrorKind::Schema);
}

#[tokio::test]
async fn a_wrong_address_says_what_to_check_and_hides_the_password() {
    for url in
        ["postgres://u:secret@127.0.0.1:1/db", "not a url with secret", "postgres://u:secret@[broken/db"]
    {
        let error = PostgresStore::connect(url).await.unwrap_err();
        let text = format!("{error} {error:?}");
        assert!(!text.contains("secret"), "{text}");
        assert!(text.contains("check host") || text.contains("use postgres://"), "{text}");
    }
    let error = PostgresStore::connect_at_once("postgres://u:secret@127.0.0.1:1/db").await.unwrap_err();
    let cause = std::error::Error::source(&error).unwrap().to_string();
    assert!(cause.contains("Connection refused"), "{cause}");
}
