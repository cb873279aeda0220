//! A primary with a synchronous standby.

use oncebox_servers::postgres::{PostgresOptions, PostgresPair, PostgresServer};
use sqlx::postgres::PgQueryResult;
use sqlx::{Connection, PgConnection};
use tokio::task::JoinHandle;

use crate::running::runs;
use crate::server::is_installed;

async fn connect(server: &PostgresServer) -> PgConnection {
    PgConnection::connect(&server.url()).await.expect("PostgreSQL accepts connections")
}

async fn is_standby(server: &PostgresServer) -> bool {
    let mut connection = connect(server).await;
    sqlx::query_scalar("SELECT pg_is_in_recovery()")
        .fetch_one(&mut connection)
        .await
        .expect("PostgreSQL answers")
}

#[tokio::test]
async fn what_was_committed_is_on_the_standby_and_roles_swap() {
    if !is_installed("what_was_committed_is_on_the_standby_and_roles_swap") {
        return;
    }
    let mut pair = PostgresPair::start(PostgresOptions::default()).await.unwrap();
    let (url, first) = (pair.url(), pair.primary().port());
    let mut connection = connect(pair.primary()).await;
    sqlx::raw_sql("CREATE TABLE kept (n int)").execute(&mut connection).await.unwrap();
    let mut folders = vec![pair.primary().folder().to_owned()];
    let mut pids = vec![pair.primary().pid().unwrap()];
    for n in 0..3 {
        let standby = pair.standby().unwrap();
        assert!(is_standby(standby).await);
        folders.push(standby.folder().to_owned());
        pids.push(standby.pid().unwrap());
        let mut connection = connect(pair.primary()).await;
        sqlx::query("INSERT INTO kept VALUES ($1)").bind(n).execute(&mut connection).await.unwrap();

        let old = pair.fail_over().await.unwrap();
        assert_eq!(old.pid(), None);
        drop(old);
        assert!(!is_standby(pair.primary()).await);
        let mut connection = connect(pair.primary()).await;
        let kept: Vec<i32> =
            sqlx::query_scalar("SELECT n FROM kept ORDER BY n").fetch_all(&mut connection).await.unwrap();
        assert_eq!(kept, (0..=n).collect::<Vec<_>>());
        pair.add_standby().await.unwrap();
        assert_eq!(pair.url(), url);
    }
    assert_ne!(pair.primary().port(), first, "the third promotion is that of the other one");
    drop(pair);
    assert!(!pids.into_iter().any(runs));
    assert!(!folders.iter().any(|folder| folder.exists()));
}

/// Inserts a row on a primary whose standby is gone, and returns once the commit waits.
async fn waiting_insert(server: &PostgresServer, n: i32) -> JoinHandle<Result<PgQueryResult, sqlx::Error>> {
    let mut connection = connect(server).await;
    let backend: i32 = sqlx::query_scalar("SELECT pg_backend_pid()")
        .fetch_one(&mut connection)
        .await
        .expect("PostgreSQL answers");
    let commit = tokio::spawn(async move {
        sqlx::query("INSERT INTO kept VALUES ($1)").bind(n).execute(&mut connection).await
    });
    let mut observer = connect(server).await;
    let waits = "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND pid = $1)";
    while !sqlx::query_scalar::<_, bool>(waits)
        .bind(backend)
        .fetch_one(&mut observer)
        .await
        .expect("PostgreSQL answers")
    {}
    commit
}

async fn kept(server: &PostgresServer) -> Vec<i32> {
    let mut connection = connect(server).await;
    let all = sqlx::query_scalar("SELECT n FROM kept ORDER BY n").fetch_all(&mut connection).await;
    all.expect("PostgreSQL answers")
}

#[tokio::test]
async fn a_commit_waits_for_the_standby_and_is_not_seen_before() {
    if !is_installed("a_commit_waits_for_the_standby_and_is_not_seen_before") {
        return;
    }
    let mut pair = PostgresPair::start(PostgresOptions::default()).await.unwrap();
    let mut connection = connect(pair.primary()).await;
    sqlx::raw_sql("CREATE TABLE kept (n int)").execute(&mut connection).await.unwrap();
    pair.standby().unwrap().kill().unwrap();
    let commit = waiting_insert(pair.primary(), 1).await;
    assert_eq!(kept(pair.primary()).await, []);
    assert!(!commit.is_finished());
    pair.standby().unwrap().restart().await.unwrap();
    commit.await.unwrap().unwrap();
    assert_eq!(kept(pair.primary()).await, [1]);
}

/// Not what one would wish for, and what the guarantees say of standbys rests on it.
#[tokio::test]
async fn a_wait_that_is_cut_short_shows_what_the_standby_does_not_have() {
    if !is_installed("a_wait_that_is_cut_short_shows_what_the_standby_does_not_have") {
        return;
    }
    let mut pair = PostgresPair::start(PostgresOptions::default()).await.unwrap();
    let mut connection = connect(pair.primary()).await;
    sqlx::raw_sql("CREATE TABLE kept (n int)").execute(&mut connection).await.unwrap();
    pair.standby().unwrap().kill().unwrap();
    let cut_short = async |server: &PostgresServer, how: &'static str| {
        let cut = sqlx::AssertSqlSafe(format!(
            "SELECT {how}(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
        ));
        sqlx::query(cut).execute(&mut connect(server).await).await.unwrap();
    };

    let cancelled = waiting_insert(pair.primary(), 1).await;
    cut_short(pair.primary(), "pg_cancel_backend").await;
    cancelled.await.unwrap().expect("it is answered as if all was well");
    assert_eq!(kept(pair.primary()).await, [1]);

    let terminated = waiting_insert(pair.primary(), 2).await;
    cut_short(pair.primary(), "pg_terminate_backend").await;
    terminated.await.unwrap().expect_err("the client gets no response");
    while kept(pair.primary()).await != [1, 2] {}

    let killed = waiting_insert(pair.primary(), 3).await;
    pair.primary().kill().unwrap();
    killed.await.unwrap().expect_err("the client gets no response");
    pair.primary().restart().await.unwrap();
    assert_eq!(
        kept(pair.primary()).await,
        [1, 2, 3],
        "a server that starts again does not wait for a standby"
    );

    pair.primary().kill().unwrap();
    pair.standby().unwrap().restart().await.unwrap();
    assert_eq!(kept(pair.standby().unwrap()).await, []);
}
