//! The schema: made once, however many start at once; checked, never altered by a build.

use oncebox_core::{ErrorKind, Inbox};
use oncebox_sqlite::SqliteStore;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn twenty_starters_at_once_migrate_once() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("inbox.db").to_str().unwrap().to_owned();
    let starters: Vec<_> = (0..20)
        .map(|_| {
            let path = path.clone();
            tokio::spawn(async move {
                // A pool each, as processes have.
                let store = SqliteStore::connect(&path).await.unwrap();
                store.migrate().await.unwrap();
                Inbox::builder(store).build().await.unwrap();
            })
        })
        .collect();
    for starter in starters {
        starter.await.unwrap();
    }
    let store = SqliteStore::connect(&path).await.unwrap();
    let versions: i64 =
        sqlx::query_scalar("select count(*) from oncebox_version").fetch_one(store.pool()).await.unwrap();
    assert_eq!(store.schema_version().await.unwrap(), (versions, versions));
}

#[tokio::test]
async fn a_build_on_an_empty_database_says_what_to_do_and_alters_nothing() {
    let store = SqliteStore::connect("sqlite::memory:").await.unwrap();
    let error = Inbox::builder(store.clone()).build().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Schema);
    assert!(error.to_string().contains("store.migrate()"), "{error}");
    let tables: i64 =
        sqlx::query_scalar("select count(*) from sqlite_schema").fetch_one(store.pool()).await.unwrap();
    assert_eq!(tables, 0);
}

#[tokio::test]
async fn the_printed_sql_is_all_that_is_needed() {
    let store = SqliteStore::connect("sqlite::memory:").await.unwrap();
    sqlx::raw_sql(sqlx::AssertSqlSafe(SqliteStore::migration_sql())).execute(store.pool()).await.unwrap();
    Inbox::builder(store.clone()).build().await.unwrap();
    store.migrate().await.unwrap();
}

#[tokio::test]
async fn the_version_there_and_the_one_needed_can_be_asked_for() {
    let store = SqliteStore::connect("sqlite::memory:").await.unwrap();
    let (there, needed) = store.schema_version().await.unwrap();
    assert_eq!(there, 0);
    store.migrate().await.unwrap();
    assert_eq!(store.schema_version().await.unwrap(), (needed, needed));
    sqlx::query("insert into oncebox_version values (99, 0)").execute(store.pool()).await.unwrap();
    assert_eq!(store.schema_version().await.unwrap(), (99, needed));
}

#[tokio::test]
async fn a_database_from_the_future_is_refused() {
    let store = SqliteStore::connect("sqlite::memory:").await.unwrap();
    store.migrate().await.unwrap();
    sqlx::query("insert into oncebox_version values (99, 0)").execute(store.pool()).await.unwrap();
    let error = Inbox::builder(store).build().await.unwrap_err();
    assert!(error.to_string().contains("update the program"), "{error}");
}

#[tokio::test]
async fn a_folder_that_is_not_there_says_what_to_check() {
    let error = SqliteStore::connect("sqlite:///nowhere/at/all/inbox.db").await.unwrap_err();
    assert!(error.to_string().contains("check that the folder exists"), "{error}");
    let error = SqliteStore::connect("sqlite://a.db?mode=nonsense").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Configuration);
}

#[tokio::test]
async fn markers_of_the_first_version_are_still_there() {
    let store = SqliteStore::connect("sqlite::memory:").await.unwrap();
    let first = include_str!("../../src/migrations/0001_inbox.sql");
    sqlx::raw_sql(first).execute(store.pool()).await.unwrap();
    sqlx::raw_sql(
        "insert into oncebox_marker values ('h', 'k', x'0061', null, 7, 'done', 1, 2), ('h', 'k', x'01', x'62', null, 'spilled', 3, 4)",
    )
    .execute(store.pool())
    .await
    .unwrap();
    let error = Inbox::builder(store.clone()).build().await.unwrap_err();
    let (_, needed) = store.schema_version().await.unwrap();
    let expected = format!("version 1, this program needs {needed}: run store.migrate()");
    assert!(error.to_string().contains(&expected), "{error}");
    store.migrate().await.unwrap();
    type Row =
        (String, String, Vec<u8>, Option<Vec<u8>>, Option<i64>, String, i64, i64, Option<i64>, Option<i64>);
    let rows: Vec<Row> =
        sqlx::query_as("select * from oncebox_marker order by key").fetch_all(store.pool()).await.unwrap();
    let (h, k) = (|| "h".to_owned(), || "k".to_owned());
    assert_eq!(
        rows,
        [
            (h(), k(), vec![0, b'a'], None, Some(7), "done".into(), 1, 2, None, None),
            (h(), k(), vec![1], Some(vec![b'b']), None, "spilled".into(), 3, 4, None, None),
        ]
    );
    let indexes: Vec<String> = sqlx::query_scalar(
        "select name from sqlite_schema where type = 'index' and tbl_name = 'oncebox_marker' and sql is not null order by name",
    )
    .fetch_all(store.pool())
    .await
    .unwrap();
    assert_eq!(indexes, ["oncebox_marker_accepted", "oncebox_marker_processed"]);
}
