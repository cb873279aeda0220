//! The schema: made once, however many start at once; checked, never altered by a build.

use oncebox_core::{ErrorKind, Inbox};
use oncebox_postgres::PostgresStore;
use oncebox_servers::database::test_database;
use sqlx::AssertSqlSafe;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn twenty_starters_at_once_migrate_once() {
    let Some(database) = test_database("twenty_starters_at_once_migrate_once").await else { return };
    // What a server's settings may be must not matter.
    let admin = PostgresStore::connect(&database.url()).await.unwrap();
    let name = database.url().rsplit('/').next().unwrap().to_owned();
    let setting = format!("alter database {name} set default_transaction_isolation = 'repeatable read'");
    sqlx::query(AssertSqlSafe(setting)).execute(admin.pool()).await.unwrap();
    let starters: Vec<_> = (0..20)
        .map(|_| {
            let url = database.url();
            tokio::spawn(async move {
                // A pool each, as processes have.
                let store = PostgresStore::connect(&url).await.unwrap();
                store.migrate().await.unwrap();
                Inbox::builder(store).build().await.unwrap();
            })
        })
        .collect();
    for starter in starters {
        starter.await.unwrap();
    }
    let store = PostgresStore::connect(&database.url()).await.unwrap();
    let versions: i64 =
        sqlx::query_scalar("select count(*) from oncebox.version").fetch_one(store.pool()).await.unwrap();
    assert_eq!(store.schema_version().await.unwrap(), (versions, versions));
}

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
async fn a_build_on_an_empty_database_says_what_to_do_and_alters_nothing() {
    let test = "a_build_on_an_empty_database_says_what_to_do_and_alters_nothing";
    let Some(database) = test_database(test).await else { return };
    let store = PostgresStore::connect(&database.url()).await.unwrap();
    let error = Inbox::builder(store.clone()).build().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Schema);
    assert!(error.to_string().contains("store.migrate()"), "{error}");
    let schemas = "select count(*) from pg_namespace where nspname = 'oncebox'";
    let schemas: i64 = sqlx::query_scalar(schemas).fetch_one(store.pool()).await.unwrap();
    assert_eq!(schemas, 0);
}

#[tokio::test]
async fn the_version_there_and_the_one_needed_can_be_asked_for() {
    let Some(database) = test_database("the_version_there_and_the_one_needed_can_be_asked_for").await else {
        return;
    };
    let store = PostgresStore::connect(&database.url()).await.unwrap();
    let (there, needed) = store.schema_version().await.unwrap();
    assert_eq!(there, 0);
    store.migrate().await.unwrap();
    assert_eq!(store.schema_version().await.unwrap(), (needed, needed));
    sqlx::query("insert into oncebox.version (version) values (99)").execute(store.pool()).await.unwrap();
    assert_eq!(store.schema_version().await.unwrap(), (99, needed));
}

#[tokio::test]
async fn the_printed_sql_is_all_that_is_needed() {
    let Some(database) = test_database("the_printed_sql_is_all_that_is_needed").await else { return };
    let store = PostgresStore::connect(&database.url()).await.unwrap().with_schema("billing").unwrap();
    sqlx::raw_sql(AssertSqlSafe(store.migration_sql())).execute(store.pool()).await.unwrap();
    Inbox::builder(store.clone()).build().await.unwrap();
    // Nothing is left to do for migrate, and another schema is another inbox.
    store.migrate().await.unwrap();
    let other = store.with_schema("shipping").unwrap();
    assert_eq!(Inbox::builder(other).build().await.unwrap_err().kind(), ErrorKind::Schema);
}

#[tokio::test]
async fn a_database_from_the_future_is_refused() {
    let Some(database) = test_database("a_database_from_the_future_is_refused").await else { return };
    let store = PostgresStore::connect(&database.url()).await.unwrap();
    store.migrate().await.unwrap();
    sqlx::query("insert into oncebox.version (version) values (99)").execute(store.pool()).await.unwrap();
    let error = Inbox::builder(store).build().await.unwrap_err();
    assert!(error.to_string().contains("update the program"), "{error}");
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
