//! The doctor finds problems, and no others.

use std::time::Duration;

use oncebox_servers::postgres::{PostgresOptions, PostgresServer, find};
use oncebox_servers::skip::skip_or_fail;
use serde_json::Value;

use super::database::{
    InboxDatabase, ProgramResult, accept_and_work, on_each_database, unique_name, with_ledger,
};

on_each_database!(warnings_are_found, a_handler_without_a_process_is_found);

fn check(result: &ProgramResult, id: &str) -> Value {
    let report = result.json().remove(0);
    let checks = report["checks"].as_array().unwrap().clone();
    checks.into_iter().find(|check| check["id"] == id).unwrap_or_else(|| panic!("no check {id}: {report}"))
}

#[track_caller]
fn assert_level(result: &ProgramResult, id: &str, level: &str) {
    let check = check(result, id);
    assert_eq!(check["level"], level, "{check}");
    assert_eq!(check["fix"].is_null(), level == "ok", "{check}");
}

async fn warnings_are_found(database: &InboxDatabase) {
    database.oncebox(&["migrate", "up"]).ok();
    let well = database.oncebox(&["doctor", "--deep", "--json"]).ok();
    assert_eq!(well.json()[0]["ok"], true);
    for id in [
        "schema_version",
        "connect",
        "clock",
        "dead_letters",
        "unhandled_kinds",
        "retention",
        "handlers_at_work",
        "relays_at_work",
        "parked_messages",
        "outbox",
    ] {
        assert_level(&well, id, "ok");
    }
    let short = database.oncebox(&["doctor", "--retention", "1d", "--redelivery", "3d", "--json"]).ok();
    assert_level(&short, "retention", "warning");
    with_ledger!(database, inbox => {
        accept_and_work(&inbox, &[("o-1", "broken")]).await;
        inbox.accept(oncebox::Envelope::new("order.sent", "{}").with_key("s-1")).await.unwrap();
    });
    let worse = database.oncebox(&["doctor", "--json"]);
    assert_level(&worse, "dead_letters", "warning");
    assert_level(&worse, "unhandled_kinds", "warning");
}

async fn a_handler_without_a_process_is_found(database: &InboxDatabase) {
    with_ledger!(database, inbox => {
        accept_and_work(&inbox, &[("o-1", "{}")]).await;
        let idle = database.oncebox(&["doctor", "--json"]).ok();
        assert_level(&idle, "handlers_at_work", "warning");
        inbox.accept(oncebox::Envelope::new("order.paid", "{}").with_key("o-2")).await.unwrap();
        let waiting = database.oncebox(&["doctor", "--json"]).ends_with_code(1);
        assert_level(&waiting, "handlers_at_work", "problem");
        assert_eq!(waiting.json()[0]["ok"], false);
        database.oncebox(&["doctor"]).ends_with_code(1).prints("no process runs ledger").prints("problems: 1");
    });
}

#[tokio::test]
async fn a_journal_that_blocks_readers_is_found() {
    let database = InboxDatabase::sqlite();
    database.oncebox(&["migrate", "up"]).ok();
    database.sql("pragma journal_mode = delete").await;
    assert_level(&database.oncebox(&["doctor", "--json"]), "journal_mode", "warning");
}

#[test]
fn a_server_that_does_not_respond_is_a_problem() {
    let nowhere =
        InboxDatabase { url: "postgres://nobody@127.0.0.1:1/none".into(), ..InboxDatabase::sqlite() };
    assert_level(&nowhere.oncebox(&["doctor", "--json"]).ends_with_code(1), "connect", "problem");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_asynchronous_commit_is_found() {
    let Some(database) = InboxDatabase::postgres() else { return };
    database.oncebox(&["migrate", "up"]).ok();
    let careless = InboxDatabase {
        url: format!("{}?options=-c%20synchronous_commit%3Doff", database.url),
        schema: database.schema.clone(),
        ..InboxDatabase::sqlite()
    };
    let (found, well) = (careless.oncebox(&["doctor", "--json"]), database.oncebox(&["doctor", "--json"]));
    database.end().await;
    assert_level(&well, "synchronous_commit", "ok");
    assert_level(&found, "synchronous_commit", "problem");
}

/// A service that publishes has a role of its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_asynchronous_commit_of_another_role_is_found() {
    // A server of its own: the setting concerns all databases of a server.
    let Some(server) = server("an_asynchronous_commit_of_another_role_is_found").await else { return };
    let database = on_server(&server);
    database.oncebox(&["migrate", "up"]).ok();
    database.sql("create role shop login").await;
    assert_level(&database.oncebox(&["doctor", "--json"]), "synchronous_commit", "ok");
    database.sql("alter role shop set synchronous_commit = off").await;
    let found = database.oncebox(&["doctor", "--json"]);
    assert_level(&found, "synchronous_commit", "warning");
    assert!(found.out.contains("off for the role shop"), "{}", found.out);
    database.sql("alter role shop reset synchronous_commit").await;
    database.sql("alter database postgres set synchronous_commit = off").await;
    assert_level(&database.oncebox(&["doctor", "--json"]), "synchronous_commit", "problem");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_asynchronous_standby_is_found() {
    let Some(server) = server("an_asynchronous_standby_is_found").await else { return };
    let database = on_server(&server);
    database.oncebox(&["migrate", "up"]).ok();
    assert_level(&database.oncebox(&["doctor", "--json"]), "standbys", "ok");
    let mut standby = server.start_standby(None).await.unwrap();
    until_level(&database, "standbys", "warning").await;
    database.sql("alter system set synchronous_standby_names = '*'").await;
    database.sql("select pg_reload_conf()").await;
    until_level(&database, "standbys", "ok").await;
    standby.stop().unwrap();
}

async fn until_level(database: &InboxDatabase, id: &str, level: &str) {
    while check(&database.oncebox(&["doctor", "--json"]), id)["level"] != level {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

fn on_server(server: &PostgresServer) -> InboxDatabase {
    InboxDatabase { url: server.url(), schema: Some(unique_name()), ..InboxDatabase::sqlite() }
}

/// A private server, if its programs are installed.
async fn server(test: &str) -> Option<PostgresServer> {
    if find().unwrap().is_none() {
        skip_or_fail(test, "PostgreSQL is not installed");
        return None;
    }
    Some(PostgresServer::start(PostgresOptions::default()).await.unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_error_of_a_role_without_privileges_names_the_remedy() {
    let Some(database) = InboxDatabase::postgres() else { return };
    let role = unique_name();
    database.oncebox(&["migrate", "up"]).ok();
    database.sql(&format!("create role {role} login")).await;
    let (scheme, rest) = database.url.split_once("://").unwrap();
    let host = rest.rsplit_once('@').map_or(rest, |(_, host)| host);
    let limited = InboxDatabase {
        url: format!("{scheme}://{role}@{host}"),
        schema: database.schema.clone(),
        ..InboxDatabase::sqlite()
    };
    let refused = limited.oncebox(&["status"]);
    let examined = limited.oncebox(&["doctor", "--json"]);
    let grants = database.oncebox(&["migrate", "grants", &role]).ok().out;
    database.sql(&grants).await;
    let granted = (
        limited.oncebox(&["status"]),
        limited.oncebox(&["doctor", "--json"]),
        limited.oncebox(&["dead", "retry", "--all"]),
    );
    database.end().await;
    database.sql(&format!("drop role {role}")).await;
    refused.ends_with_code(3).reports("`oncebox migrate grants ROLE`");
    assert_level(&examined, "privileges", "problem");
    granted.0.ok();
    assert_level(&granted.1, "privileges", "ok");
    granted.2.ends_with_code(4);
}
