//! The life of a private PostgreSQL server.

use std::net::TcpListener;

use oncebox_servers::postgres::{self, PostgresOptions, PostgresServer};
use oncebox_servers::skip::skip_or_fail;
use sqlx::{Connection, PgConnection};

use crate::running::runs;

/// Whether PostgreSQL is installed; otherwise the test is to return.
pub(crate) fn is_installed(test: &str) -> bool {
    let found = postgres::find().expect("the environment names a complete folder or none").is_some();
    if !found {
        skip_or_fail(test, "PostgreSQL's server programs are not installed");
    }
    found
}

/// A started server, or `None` where PostgreSQL is not installed and the test is to return.
pub(crate) async fn server(test: &str) -> Option<PostgresServer> {
    if !is_installed(test) {
        return None;
    }
    Some(PostgresServer::start(PostgresOptions::default()).await.expect("PostgreSQL starts"))
}

async fn connect(server: &PostgresServer) -> PgConnection {
    PgConnection::connect(&server.url()).await.expect("PostgreSQL accepts connections")
}

async fn text(server: &PostgresServer, query: &'static str) -> String {
    sqlx::query_scalar(query).fetch_one(&mut connect(server).await).await.expect("PostgreSQL answers")
}

#[tokio::test]
async fn a_server_is_durable_roomy_and_in_utf8() {
    let Some(server) = server("a_server_is_durable_roomy_and_in_utf8").await else { return };
    assert_eq!(text(&server, "SHOW fsync").await, "on");
    assert_eq!(text(&server, "SHOW synchronous_commit").await, "on");
    assert_eq!(text(&server, "SHOW max_connections").await, "300");
    assert_eq!(text(&server, "SHOW server_encoding").await, "UTF8");
    assert_eq!(text(&server, "SHOW listen_addresses").await, "127.0.0.1");
}

#[tokio::test]
async fn committed_data_survives_a_kill_and_a_restart_on_the_same_port() {
    let Some(mut server) = server("committed_data_survives_a_kill_and_a_restart_on_the_same_port").await
    else {
        return;
    };
    let url = server.url();
    let mut connection = connect(&server).await;
    sqlx::raw_sql("CREATE TABLE kept AS SELECT 'here' AS word").execute(&mut connection).await.unwrap();

    server.kill().unwrap();
    assert!(PgConnection::connect(&url).await.is_err(), "a killed server does not answer");

    server.restart().await.unwrap();
    assert_eq!(server.url(), url);
    assert_eq!(text(&server, "SELECT word FROM kept").await, "here");

    server.restart().await.unwrap();
    assert_eq!(text(&server, "SELECT word FROM kept").await, "here");
}

#[tokio::test]
async fn a_kill_spares_no_backend_however_busy() {
    let Some(mut server) = server("a_kill_spares_no_backend_however_busy").await else { return };
    let mut connection = connect(&server).await;
    let backend: i32 =
        sqlx::query_scalar("SELECT pg_backend_pid()").fetch_one(&mut connection).await.unwrap();
    let busy = tokio::spawn(async move {
        // Computes without ever waiting, so it would not notice that the postmaster is gone.
        sqlx::raw_sql("SELECT count(*) FROM generate_series(1, 1000000000000)").execute(&mut connection).await
    });
    let mut observer = connect(&server).await;
    loop {
        let active = sqlx::query("SELECT 1 FROM pg_stat_activity WHERE pid = $1 AND state = 'active'");
        if active.bind(backend).fetch_optional(&mut observer).await.unwrap().is_some() {
            break;
        }
    }

    server.kill().unwrap();
    assert!(!runs(backend));
    assert!(busy.await.unwrap().is_err());
}

#[tokio::test]
async fn stopping_and_dropping_leave_no_process_and_no_folder() {
    let Some(mut server) = server("stopping_and_dropping_leave_no_process_and_no_folder").await else {
        return;
    };
    let (first, folder) = (server.pid().unwrap(), server.folder().to_owned());
    // An open connection must not hold a stop up.
    let connection = connect(&server).await;
    server.stop().unwrap();
    drop(connection);
    assert!(!runs(first));
    assert_eq!(server.pid(), None);
    server.stop().unwrap();
    server.kill().unwrap();

    server.restart().await.unwrap();
    let second = server.pid().unwrap();
    drop(server);
    assert!(!runs(second));
    assert!(!folder.exists());
}

#[tokio::test]
async fn servers_do_not_get_in_each_others_way() {
    let Some(one) = server("servers_do_not_get_in_each_others_way").await else { return };
    let Some(other) = server("servers_do_not_get_in_each_others_way").await else { return };
    assert_ne!(one.port(), other.port());
    assert_ne!(text(&one, "SHOW data_directory").await, text(&other, "SHOW data_directory").await);
}

#[tokio::test]
async fn a_start_that_fails_shows_what_the_server_said() {
    if !is_installed("a_start_that_fails_shows_what_the_server_said") {
        return;
    }
    let options = PostgresOptions::default().setting("shared_buffers", "plenty");
    let error = PostgresServer::start(options).await.unwrap_err().to_string();
    assert!(error.contains("invalid value for parameter \"shared_buffers\": \"plenty\""), "{error}");
}

#[tokio::test]
async fn a_restart_tells_when_the_port_is_lost() {
    let Some(mut server) = server("a_restart_tells_when_the_port_is_lost").await else { return };
    server.stop().unwrap();
    let thief = TcpListener::bind(("127.0.0.1", server.port())).unwrap();
    let error = server.restart().await.unwrap_err().to_string();
    assert!(error.contains("another process took port"), "{error}");

    drop(thief);
    server.restart().await.unwrap();
}
