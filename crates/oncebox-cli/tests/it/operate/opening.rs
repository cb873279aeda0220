//! Errors of databases that cannot be opened.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use super::database::{InboxDatabase, accept_and_work, on_each_database, unique_name, with_ledger};

on_each_database!(reading_needs_no_write_permission);

fn nowhere() -> InboxDatabase {
    InboxDatabase { url: "postgres://nobody@127.0.0.1:1/none".into(), ..InboxDatabase::sqlite() }
}

/// The same server with another user or database.
fn elsewhere(database: &InboxDatabase, user: Option<&str>, name: Option<&str>) -> InboxDatabase {
    let mut url = reqwest::Url::parse(&database.url).unwrap();
    if let Some(user) = user {
        url.set_username(user).unwrap();
    }
    if let Some(name) = name {
        url.set_path(name);
    }
    InboxDatabase { url: url.into(), schema: database.schema.clone(), ..InboxDatabase::sqlite() }
}

#[test]
fn a_missing_server_is_reported() {
    nowhere().oncebox(&["status"]).ends_with_code(3).reports("127.0.0.1:1").reports("Connection refused");
}

/// A command that only reads does not wait for a server that is starting.
#[test]
fn a_reading_command_connects_once() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let asked = Arc::new(AtomicU32::new(0));
    let count = asked.clone();
    // PostgreSQL's response while it starts.
    std::thread::spawn(move || {
        for connection in listener.incoming() {
            let mut connection = connection.unwrap();
            let mut length = [0; 4];
            connection.read_exact(&mut length).unwrap();
            let mut startup = vec![0; u32::from_be_bytes(length) as usize - 4];
            connection.read_exact(&mut startup).unwrap();
            count.fetch_add(1, Ordering::SeqCst);
            let fields = b"SFATAL\0VFATAL\0C57P03\0Mthe database system is starting up\0\0";
            let length = u32::try_from(fields.len() + 4).unwrap().to_be_bytes();
            connection.write_all(&[b"E", &length[..], fields].concat()).unwrap();
        }
    });
    let url = format!("postgres://nobody@127.0.0.1:{port}/none?sslmode=disable");
    let starting = InboxDatabase { url, ..InboxDatabase::sqlite() };
    starting.oncebox(&["status"]).ends_with_code(3).reports("starting up");
    assert_eq!(asked.load(Ordering::SeqCst), 1);
}

/// Programs that run for a long time wait for a starting server. Their last error is the same.
#[test]
fn a_gateway_waits_for_its_server_and_reports_the_cause() {
    let started = Instant::now();
    let serve = nowhere().oncebox(&["serve", "--listen", "127.0.0.1:0"]);
    serve.ends_with_code(3).reports("Connection refused");
    assert!(started.elapsed() > Duration::from_secs(3), "{:?}", started.elapsed());
}

#[test]
fn top_shows_an_outage_and_tries_again() {
    let lines = nowhere().oncebox(&["top", "--json", "--count", "2", "--every", "10ms"]).ok().json();
    assert_eq!(lines.len(), 2);
    assert!(lines[1]["error"].as_str().unwrap().contains("Connection refused"), "{lines:?}");
    InboxDatabase { url: "mysql://db/x".into(), ..nowhere() }.oncebox(&["top"]).ends_with_code(2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refusal_of_the_server_is_reported_once() {
    let Some(database) = InboxDatabase::postgres() else { return };
    let stranger = elsewhere(&database, Some(&unique_name()), None).oncebox(&["status"]);
    let missing = elsewhere(&database, None, Some("no_such_database")).oncebox(&["status"]);
    let watched = elsewhere(&database, Some(&unique_name()), None).oncebox(&["top", "--count", "1"]);
    let stranger = stranger.ends_with_code(3).reports("PostgreSQL refused the user or the password");
    assert!(!stranger.err.contains("at line"), "{}", stranger.err);
    assert_eq!(stranger.err.matches("does not exist").count(), 1, "{}", stranger.err);
    missing.ends_with_code(4).reports("there is no database no_such_database");
    watched.ends_with_code(3);
}

/// Grants do not help if there are no tables yet.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_error_of_a_role_that_may_not_create_tables_names_the_remedy() {
    let Some(database) = InboxDatabase::postgres() else { return };
    let role = unique_name();
    database.sql(&format!("create role {role} login")).await;
    let limited = elsewhere(&database, Some(&role), None);
    let (up, serve) =
        (limited.oncebox(&["migrate", "up"]), limited.oncebox(&["serve", "--listen", "127.0.0.1:0"]));
    database.sql(&format!("drop role {role}")).await;
    for refused in [up, serve] {
        let refused = refused.ends_with_code(3).reports("run `oncebox migrate up`").reports("CREATE");
        assert!(!refused.err.contains("migrate grants"), "{}", refused.err);
    }
}

#[test]
fn a_folder_and_another_file_are_not_databases() {
    let database = InboxDatabase::sqlite();
    let at = |url: String| InboxDatabase { url, ..InboxDatabase::sqlite() };
    let folder = at(format!("sqlite://{}", database.folder.path().display()));
    folder.oncebox(&["status"]).ends_with_code(2).reports("is a folder");
    folder.oncebox(&["migrate", "up"]).ends_with_code(2).reports("is a folder");
    let file = database.folder.path().join("notes.txt");
    std::fs::write(&file, "these are notes, and no database, whatever their name says".repeat(100)).unwrap();
    let notes = at(format!("sqlite://{}", file.display()));
    notes.oncebox(&["status"]).ends_with_code(2).reports("is not an SQLite database");
    notes.oncebox(&["migrate", "up"]).ends_with_code(2).reports("is not an SQLite database");
    let nowhere = at(format!("sqlite://{}/no/such/folder/x.db", database.folder.path().display()));
    nowhere.oncebox(&["migrate", "up"]).ends_with_code(4).reports("folder not found");
}

/// On SQLite with a read-only file.
async fn reading_needs_no_write_permission(database: &InboxDatabase) {
    with_ledger!(database, inbox => {
        accept_and_work(&inbox, &[("o-1", "{}"), ("o-2", "broken")]).await;
    });
    if !database.is_sqlite() {
        return;
    }
    let read_only = InboxDatabase { url: format!("{}?mode=ro", database.url), ..InboxDatabase::sqlite() };
    for arguments in [
        &["status"][..],
        &["messages", "list"],
        &["messages", "show", "0/1"],
        &["dead", "list"],
        &["dead", "show", "0/2"],
        &["handlers", "list"],
        &["audit"],
        &["migrate", "status"],
        &["top", "--count", "1"],
        &["doctor"],
    ] {
        read_only.oncebox(arguments).ok();
    }
    for arguments in [&["dead", "retry", "--all"][..], &["handlers", "pause", "ledger"], &["migrate", "up"]] {
        read_only.oncebox(arguments).ends_with_code(3).reports("no permission to write");
    }
}
