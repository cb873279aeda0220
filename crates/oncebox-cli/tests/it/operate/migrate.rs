//! The tables: created, described, granted.

use super::database::{InboxDatabase, on_each_database};

on_each_database!(the_schema_version_is_reported_and_upgraded, the_printed_sql_creates_the_same_tables);

async fn the_schema_version_is_reported_and_upgraded(database: &InboxDatabase) {
    let code = if database.is_sqlite() { 4 } else { 1 };
    let missing = database.oncebox(&["migrate", "status"]).ends_with_code(code);
    assert!(format!("{}{}", missing.out, missing.err).contains("`oncebox migrate up`"));
    let up = database.oncebox(&["migrate", "up", "--json"]).ok().json();
    assert_eq!(up[0]["from"], 0);
    let status = database.oncebox(&["migrate", "status", "--json"]).ok().json();
    assert_eq!((&status[0]["current"], &status[0]["version"]), (&true.into(), &up[0]["version"]));
    database.oncebox(&["migrate", "up"]).ok().prints("already");
    let newer = match &database.schema {
        None => "insert into oncebox_version values (99, 0)".to_owned(),
        Some(schema) => format!("insert into {schema}.version (version) values (99)"),
    };
    database.sql(&newer).await;
    database.oncebox(&["migrate", "status"]).ends_with_code(1).prints("update the program");
    database.oncebox(&["status"]).ends_with_code(2).reports("update the program");
}

async fn the_printed_sql_creates_the_same_tables(database: &InboxDatabase) {
    let printed = database.oncebox(&["migrate", "print"]).ok().out;
    // The SQLite shells of distributions are older than the library. This function is new in 3.42.
    assert!(!printed.contains("subsec"), "{printed}");
    database.sql(&printed).await;
    database.oncebox(&["migrate", "status"]).ok();
    let by_hand = shape(database).await;
    assert!(by_hand.len() > 50, "{by_hand:?}");
    drop_all(database).await;
    database.oncebox(&["migrate", "up"]).ok();
    assert_eq!(shape(database).await, by_hand);
}

/// The content of the schema, without its name.
async fn shape(database: &InboxDatabase) -> Vec<String> {
    match &database.schema {
        None => {
            let all = "select coalesce(sql, name) from sqlite_schema union all \
                       select m.name || '.' || c.name from sqlite_schema m join pragma_table_info(m.name) c order by 1";
            sqlx::query_scalar(all).fetch_all(database.sqlite_store().await.pool()).await.unwrap()
        }
        Some(schema) => {
            let all = "select table_name || '.' || column_name || ' ' || data_type || ' ' || coalesce(column_default, '') \
                       from information_schema.columns where table_schema = $1 \
                       union all select indexdef from pg_indexes where schemaname = $1 \
                       union all select pg_get_functiondef(p.oid) from pg_proc p where p.pronamespace = $1::regnamespace \
                       order by 1";
            let store = database.postgres_store().await;
            sqlx::query_scalar(all).bind(schema).fetch_all(store.pool()).await.unwrap()
        }
    }
}

async fn drop_all(database: &InboxDatabase) {
    match &database.schema {
        None => std::fs::remove_file(database.url.strip_prefix("sqlite://").unwrap()).unwrap(),
        Some(schema) => database.sql(&format!("drop schema {schema} cascade")).await,
    }
}

#[test]
fn what_is_printed_needs_no_database() {
    let nowhere =
        InboxDatabase { url: "postgres://nobody@127.0.0.1:1/none".into(), ..InboxDatabase::sqlite() };
    nowhere
        .oncebox(&["migrate", "print", "--schema", "apart"])
        .ok()
        .prints("create schema if not exists \"apart\"");
    nowhere.oncebox(&["migrate", "grants", "app"]).ok().prints("to \"app\"");
    nowhere.oncebox(&["status"]).ends_with_code(3).reports("check host and port");
    InboxDatabase::sqlite()
        .oncebox(&["migrate", "grants", "app"])
        .ends_with_code(2)
        .reports("SQLite has no roles");
}
