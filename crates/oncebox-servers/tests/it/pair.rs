//! A primary with a synchronous standby.

use oncebox_servers::postgres::{PostgresOptions, PostgresPair, PostgresServer};
use sqlx::{Connection, PgConnection};

use crate::running::runs;
use crate::server::is_installed;

async fn connect(server: &PostgresServer) -> PgConnection {
    PgConnection::connect(&server.url()).await.expect("PostgreSQL accepts connections")
}

async fn is_standby(server: &PostgresServer) -> bool {
    let mut connection = connect(server).await;
    sqlx::query_scalar("SELECT pg_is_in_recovery()").fetch_one(&mut connection).await.unwrap()
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

#[tokio::test]
async fn a_commit_waits_for_the_standby() {
    if !is_installed("a_commit_waits_for_the_standby") {
        return;
    }
    let mut pair = PostgresPair::start(PostgresOptions::default()).await.unwrap();
    let mut connection = connect(pair.primary()).await;
    sqlx::raw_sql("CREATE TABLE kept (n int)").execute(&mut connection).await.unwrap();
    pair.standby().unwrap().kill().unwrap();
    let commit =
        tokio::spawn(
            async move { sqlx::query("INSERT INTO kept VALUES (1)").execute(&mut connection).await },
        );
    let mut observer = connect(pair.primary()).await;
    let waits = "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE wait_event = 'SyncRep')";
    while !sqlx::query_scalar::<_, bool>(waits).fetch_one(&mut observer).await.unwrap() {}
    // Until it is confirmed nobody sees it either.
    let seen: i64 = sqlx::query_scalar("SELECT count(*) FROM kept").fetch_one(&mut observer).await.unwrap();
    assert_eq!(seen, 0);
    assert!(!commit.is_finished());
    pair.standby().unwrap().restart().await.unwrap();
    commit.await.unwrap().unwrap();
}
