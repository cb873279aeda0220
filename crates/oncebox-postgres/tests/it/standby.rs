//! A primary and a standby behind one URL: which of them is written to.

use std::time::Duration;

use oncebox_core::store::{Fault, Inspect, Limits, Store, Upkeep};
use oncebox_core::{Error, ErrorKind};
use oncebox_postgres::PostgresStore;
use oncebox_servers::postgres::{PostgresOptions, PostgresPair, PostgresServer, find};
use oncebox_servers::skip::skip_or_fail;
use sqlx::{Connection, PgConnection, PgPool};

use crate::fixture;

async fn pair(test: &str) -> Option<PostgresPair> {
    if find().unwrap().is_none() {
        skip_or_fail(test, "PostgreSQL's server programs are not installed");
        return None;
    }
    Some(PostgresPair::start(PostgresOptions::default()).await.unwrap())
}

fn limits() -> Limits {
    let limit = Duration::from_secs(60);
    Limits { lock_timeout: limit, body_lock_timeout: None, handler_timeout: limit }
}

async fn port(store: &PostgresStore) -> u16 {
    let port: i32 = sqlx::query_scalar("select inet_server_port()").fetch_one(store.pool()).await.unwrap();
    port.try_into().unwrap()
}

async fn begin(store: &PostgresStore) -> Result<(), Error> {
    let tx = store.begin(limits()).await?;
    store.rollback(tx).await;
    Ok(())
}

fn chain(error: &Error) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

/// The same place as others, with the standby named first.
fn standby_first(pair: &mut PostgresPair) -> String {
    let ports = [pair.standby().unwrap().port(), pair.primary().port()];
    format!("postgres://postgres:secret@127.0.0.1:{},127.0.0.1:{}/postgres", ports[0], ports[1])
}

#[tokio::test]
async fn the_primary_is_found_wherever_it_stands_and_a_standby_is_an_outage() {
    let Some(mut pair) = pair("the_primary_is_found_wherever_it_stands").await else { return };
    let url = standby_first(&mut pair);
    let (primary, standby) = (pair.primary().port(), pair.standby().unwrap().port());
    let store = PostgresStore::connect(&url).await.unwrap();
    assert_eq!(port(&store).await, primary);
    assert!(!format!("{store:?}").contains("secret"));
    let at_once = PostgresStore::connect(&format!("{url}?target_session_attrs=any")).await.unwrap();
    assert_eq!(port(&at_once).await, standby, "any is any");

    // Nobody to write to, and that is said.
    let only = format!("postgres://postgres:secret@127.0.0.1:{standby}/postgres");
    let error = PostgresStore::connect(&format!("{only}?target_session_attrs=primary")).await.unwrap_err();
    let error = chain(&error);
    assert!(error.contains(&format!("127.0.0.1:{standby} is a standby")), "{error}");
    assert!(!error.contains("secret"), "{error}");

    // A pool of one's own goes where it goes: what it meets is an outage, not the end.
    store.migrate().await.unwrap();
    let own = PostgresStore::new(PgPool::connect(&only).await.unwrap());
    for error in [
        begin(&own).await.unwrap_err(),
        own.migrate().await.unwrap_err(),
        // A statement without a transaction.
        loop {
            match own.beat(Duration::from_secs(1)).await {
                // The tables may not have come over yet.
                Err(error) if PostgresStore::classify(&error) == Fault::Other => {}
                other => break other.unwrap_err(),
            }
        },
    ] {
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert_eq!(PostgresStore::classify(&error), Fault::Connection, "{error:?}");
        assert!(chain(&error).contains("takes no writes"), "{error:?}");
    }
}

#[tokio::test]
async fn a_store_follows_the_primary_and_leaves_the_old_one_alone() {
    let Some(mut pair) = pair("a_store_follows_the_primary").await else { return };
    let url = pair.url();
    let before = PostgresStore::connect(&url).await.unwrap();
    before.migrate().await.unwrap();
    let first = port(&before).await;
    let mut old = pair.fail_over().await.unwrap();
    // The connections of its pool are dead.
    while begin(&before).await.is_err() {}
    assert_ne!(port(&before).await, first);

    // It comes back, ready to take writes, with nobody to tell it that its time is over.
    old.restart().await.unwrap();
    assert!(takes_writes(&old).await);
    let after = PostgresStore::connect(&url).await.unwrap();
    assert_eq!(port(&after).await, pair.primary().port(), "the newest timeline counts, not the order");
    for store in [&before, &after] {
        begin(store).await.unwrap();
        assert_ne!(port(store).await, first);
    }
    // Nor when it is the only one left.
    pair.primary().kill().unwrap();
    let error = loop {
        match begin(&after).await {
            Err(error) if chain(&error).contains("timeline") => break error,
            Err(_) => {}
            Ok(()) => panic!("a server that was left behind is used"),
        }
    };
    assert_eq!(PostgresStore::classify(&error), Fault::Connection);
    // Until the newer one is back.
    pair.primary().restart().await.unwrap();
    while begin(&after).await.is_err() {}
    assert_ne!(port(&after).await, first);
}

#[tokio::test]
async fn a_server_that_is_set_to_read_only_is_left() {
    let Some(mut pair) = pair("a_server_that_is_set_to_read_only_is_left").await else { return };
    let store = PostgresStore::connect(&pair.url()).await.unwrap();
    store.migrate().await.unwrap();
    store.beat(Duration::from_secs(1)).await.unwrap();
    let mut admin = PgConnection::connect(&pair.primary().url()).await.unwrap();
    let fence = "alter system set default_transaction_read_only = on";
    sqlx::query(fence).execute(&mut admin).await.unwrap();
    sqlx::query("select pg_reload_conf()").execute(&mut admin).await.unwrap();
    let error = loop {
        if let Err(error) = store.beat(Duration::from_secs(1)).await {
            break error;
        }
    };
    assert_eq!(PostgresStore::classify(&error), Fault::Connection, "{error:?}");
    let old = pair.fail_over().await.unwrap();
    drop(old);
    pair.add_standby().await.unwrap();
    while store.beat(Duration::from_secs(1)).await.is_err() {}
    assert_eq!(port(&store).await, pair.primary().port());
    assert_eq!(store.markers(&[]).await.unwrap().len(), 0);
}

#[tokio::test]
async fn a_server_that_says_nothing_holds_nobody_up() {
    let Some(postgres) = fixture::as_owner("a_server_that_says_nothing_holds_nobody_up").await else {
        return;
    };
    // Connections are made, and that is all.
    let silent = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let real = postgres.store.pool().connect_options().get_port();
    let silent = silent.local_addr().unwrap().port();
    let url = postgres
        .database
        .url()
        .replace(&format!("127.0.0.1:{real}"), &format!("127.0.0.1:{silent},127.0.0.1:{real}"));
    assert!(url.contains(','), "the server for tests is somewhere else");
    let store = PostgresStore::connect(&url).await.unwrap();
    begin(&store).await.unwrap();
    assert_eq!(port(&store).await, real);
}

async fn takes_writes(server: &PostgresServer) -> bool {
    let mut conn = PgConnection::connect(&server.url()).await.unwrap();
    let standby: bool = sqlx::query_scalar("select pg_is_in_recovery()").fetch_one(&mut conn).await.unwrap();
    !standby
}
