//! The tables: made, described, granted.

use super::database::{Database, on_each_database};

on_each_database!(the_version_is_told_and_reached, the_printed_sql_makes_the_same_tables);

async fn the_version_is_told_and_reached(database: &Database) {
    let code = if database.is_sqlite() { 4 } else { 1 };
    let missing = database.oncebox(&["migrate", "status"]).ends_with_code(code);
    assert!(format!("{}{}", missing.out, missing.err).contains("`oncebox migrate up`"));
    let up = database.oncebox(&["migrate", "up", "--json"]).ok().json();
    assert_eq!(up[0]["from"], 0);
    let status = database.oncebox(&["migrate", "status", "--json"]).ok().json();
    assert_eq!((&status[0]["current"], &status[0]["version"]), (&true.into(), &up[0]["version"]));
    database.oncebox(&["migrate", "up"]).ok().says("already");
    let newer = match &database.schema {
        None => "insert into oncebox_version values (99, 0)".to_owned(),
        Some(schema) => format!("insert into {schema}.version (version) values (99)"),
    };
    database.sql(&newer).await;
    database.oncebox(&["migrate", "status"]).ends_with_code(1).says("update it");
    database.oncebox(&["status"]).ends_with_code(2).complains("update it");
}

async fn the_printed_sql_makes_the_same_tables(database: &Database) {
    let printed = database.oncebox(&["migrate", "print"]).ok().out;
    // The shells of distributions are older than the library: 3.42 has brought this.
    assert!(!printed.contains("subsec"), "{printed}");
    database.sql(&printed).await;
    database.oncebox(&["migrate", "status"]).ok();
    let by_hand = shape(database).await;
    assert!(by_hand.len() > 50, "{by_hand:?}");
    drop_all(database).await;
    database.oncebox(&["migrate", "up"]).ok();
    assert_eq!(shape(database).await, by_hand);
}

/// What the schema is made of, but for its name.
async fn shape(database: &Database) -> Vec<String> {
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

async fn drop_all(database: &Database) {
    match &database.schema {
        None => std::fs::remove_file(database.url.strip_prefix("sqlite://").unwrap()).unwrap(),
        Some(schema) => database.sql(&format!("drop schema {schema} cascade")).await,
    }
}

#[test]
fn what_is_printed_needs_no_database() {
    let nowhere = Database { url: "postgres://nobody@127.0.0.1:1/none".into(), ..Database::sqlite() };
    nowhere
        .oncebox(&["migrate", "print", "--schema", "apart"])
        .ok()
        .says("create schema if not exists \"apart\"");
    nowhere.oncebox(&["migrate", "grants", "app"]).ok().says("to \"app\"");
    nowhere.oncebox(&["status"]).ends_with_code(3).complains("check host and port");
    Database::sqlite()
        .oncebox(&["migrate", "grants", "app"])
        .ends_with_code(2)
        .complains("SQLite has no roles");
}
