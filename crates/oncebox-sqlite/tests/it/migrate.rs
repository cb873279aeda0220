//! What is special about the schema of an SQLite file.

use oncebox_core::{ErrorKind, Inbox};
use oncebox_sqlite::SqliteStore;

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
