//! Databases that cannot be opened, and what is said then.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use super::database::{Database, on_each_database, take, unique_name, with_ledger};

on_each_database!(looking_needs_no_right_to_write);

fn nowhere() -> Database {
    Database { url: "postgres://nobody@127.0.0.1:1/none".into(), ..Database::sqlite() }
}

/// The same server with another user or database.
fn elsewhere(database: &Database, user: Option<&str>, name: Option<&str>) -> Database {
    let mut url = reqwest::Url::parse(&database.url).unwrap();
    if let Some(user) = user {
        url.set_username(user).unwrap();
    }
    if let Some(name) = name {
        url.set_path(name);
    }
    Database { url: url.into(), schema: database.schema.clone(), ..Database::sqlite() }
}

#[test]
fn a_server_that_is_not_there_is_said_so() {
    nowhere().oncebox(&["status"]).ends_with_code(3).complains("127.0.0.1:1").complains("Connection refused");
}

/// At once: whoever waits for a server asks it again.
#[test]
fn whoever_only_looks_asks_a_server_once() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let asked = Arc::new(AtomicU32::new(0));
    let count = asked.clone();
    // As PostgreSQL answers while it starts.
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
    let starting = Database { url, ..Database::sqlite() };
    starting.oncebox(&["status"]).ends_with_code(3).complains("starting up");
    assert_eq!(asked.load(Ordering::SeqCst), 1);
}

/// A server that is just starting is waited for by those who are to run for long; in the end they say the same.
#[test]
fn a_gateway_waits_for_its_server_and_says_why_it_gives_up() {
    let started = Instant::now();
    let serve = nowhere().oncebox(&["serve", "--listen", "127.0.0.1:0"]);
    serve.ends_with_code(3).complains("Connection refused");
    assert!(started.elapsed() > Duration::from_secs(3), "{:?}", started.elapsed());
}

#[test]
fn top_shows_an_outage_and_asks_again() {
    let lines = nowhere().oncebox(&["top", "--json", "--count", "2", "--every", "10ms"]).ok().json();
    assert_eq!(lines.len(), 2);
    assert!(lines[1]["trouble"].as_str().unwrap().contains("Connection refused"), "{lines:?}");
    Database { url: "mysql://db/x".into(), ..nowhere() }.oncebox(&["top"]).ends_with_code(2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_server_refuses_is_said_once() {
    let Some(database) = Database::postgres() else { return };
    let stranger = elsewhere(&database, Some(&unique_name()), None).oncebox(&["status"]);
    let missing = elsewhere(&database, None, Some("no_such_database")).oncebox(&["status"]);
    let watched = elsewhere(&database, Some(&unique_name()), None).oncebox(&["top", "--count", "1"]);
    let stranger = stranger.ends_with_code(3).complains("PostgreSQL refused the user or the password");
    assert!(!stranger.err.contains("at line"), "{}", stranger.err);
    assert_eq!(stranger.err.matches("does not exist").count(), 1, "{}", stranger.err);
    missing.ends_with_code(4).complains("there is no database no_such_database");
    watched.ends_with_code(3);
}

/// Where there are no tables yet, grants do not help.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_role_that_may_not_make_tables_is_told_who_may() {
    let Some(database) = Database::postgres() else { return };
    let role = unique_name();
    database.sql(&format!("create role {role} login")).await;
    let limited = elsewhere(&database, Some(&role), None);
    let (up, serve) =
        (limited.oncebox(&["migrate", "up"]), limited.oncebox(&["serve", "--listen", "127.0.0.1:0"]));
    database.sql(&format!("drop role {role}")).await;
    for refused in [up, serve] {
        let refused = refused.ends_with_code(3).complains("run `oncebox migrate up`").complains("CREATE");
        assert!(!refused.err.contains("migrate grants"), "{}", refused.err);
    }
}

#[test]
fn what_is_no_database_file_is_said_to_be_none() {
    let database = Database::sqlite();
    let at = |url: String| Database { url, ..Database::sqlite() };
    let folder = at(format!("sqlite://{}", database.folder.path().display()));
    folder.oncebox(&["status"]).ends_with_code(2).complains("is a folder");
    folder.oncebox(&["migrate", "up"]).ends_with_code(2).complains("is a folder");
    let file = database.folder.path().join("notes.txt");
    std::fs::write(&file, "these are notes, and no database, whatever their name says".repeat(100)).unwrap();
    let notes = at(format!("sqlite://{}", file.display()));
    notes.oncebox(&["status"]).ends_with_code(2).complains("is no SQLite database");
    notes.oncebox(&["migrate", "up"]).ends_with_code(2).complains("is no SQLite database");
    let nowhere = at(format!("sqlite://{}/no/such/folder/x.db", database.folder.path().display()));
    nowhere.oncebox(&["migrate", "up"]).ends_with_code(4).complains("there is no folder");
}

/// On SQLite with a file that is opened to be read only.
async fn looking_needs_no_right_to_write(database: &Database) {
    with_ledger!(database, inbox => {
        take(&inbox, &[("o-1", "{}"), ("o-2", "broken")]).await;
    });
    if !database.is_sqlite() {
        return;
    }
    let read_only = Database { url: format!("{}?mode=ro", database.url), ..Database::sqlite() };
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
        read_only.oncebox(arguments).ends_with_code(3).complains("may not write");
    }
}
