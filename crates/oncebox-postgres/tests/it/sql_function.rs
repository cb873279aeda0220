//! `oncebox.claim` in SQL: any driver and any language can join in.

use oncebox_core::{Inbox, Key};
use oncebox_servers::database::TestDatabase;
use tokio_postgres::{Client, NoTls};

use crate::fixture;

async fn client(database: &TestDatabase) -> Client {
    let (client, connection) = tokio_postgres::connect(&database.url(), NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

#[tokio::test]
async fn another_driver_claims_in_its_own_transaction() {
    let Some(postgres) = fixture::as_owner("another_driver_claims_in_its_own_transaction").await else {
        return;
    };
    let mut client = client(&postgres.database).await;
    let claim = "select oncebox.claim('ledger', 'order.paid', $1::text)";

    let tx = client.transaction().await.unwrap();
    assert!(tx.query_one(claim, &[&"o-1"]).await.unwrap().get::<_, bool>(0));
    tx.rollback().await.unwrap();

    let tx = client.transaction().await.unwrap();
    assert!(tx.query_one(claim, &[&"o-1"]).await.unwrap().get::<_, bool>(0), "the rollback freed it");
    tx.execute("insert into effect (name) values ('o-1')", &[]).await.unwrap();
    tx.commit().await.unwrap();
    assert!(!client.query_one(claim, &[&"o-1"]).await.unwrap().get::<_, bool>(0));
}

#[tokio::test]
async fn the_function_and_the_library_mean_the_same_key() {
    let Some(postgres) = fixture::as_owner("the_function_and_the_library_mean_the_same_key").await else {
        return;
    };
    let client = client(&postgres.database).await;
    let inbox = Inbox::builder(postgres.store.clone()).build().await.unwrap();
    let mut conn = postgres.store.pool().acquire().await.unwrap();
    let claim = "select oncebox.claim('h', 'k', $1::bytea)";
    let keys: [&[u8]; 6] = [b"a", &[0], &[0xff, 0], &[b'x'; 512], &[b'x'; 513], &[b'y'; 65_536]];
    for (n, key) in keys.into_iter().enumerate() {
        // Either may come first.
        if n % 2 == 0 {
            assert!(client.query_one(claim, &[&key]).await.unwrap().get::<_, bool>(0));
            assert!(!inbox.claim(&mut conn, "h", "k", key).await.unwrap());
        } else {
            assert!(inbox.claim(&mut conn, "h", "k", key).await.unwrap());
            assert!(!client.query_one(claim, &[&key]).await.unwrap().get::<_, bool>(0));
        }
        let marker = inbox.marker("h", "k", key).await.unwrap().unwrap();
        assert_eq!(marker.key, Key::new(key));
    }
}

#[tokio::test]
async fn the_function_refuses_what_the_library_refuses() {
    let Some(postgres) = fixture::as_owner("the_function_refuses_what_the_library_refuses").await else {
        return;
    };
    let client = client(&postgres.database).await;
    for (handler, kind, key) in
        [("", "k", "a"), ("h", "", "a"), ("h", "k", ""), (&*"h".repeat(201), "k", "a")]
    {
        let claim = "select oncebox.claim($1::text, $2::text, $3::text)";
        let error = client.query_one(claim, &[&handler, &kind, &key]).await.unwrap_err();
        let error = error.as_db_error().unwrap();
        assert_eq!(error.code().code(), "22023", "{error}");
    }
}

#[tokio::test]
async fn a_claim_waits_for_the_other_driver_s_transaction() {
    let Some(postgres) = fixture::as_owner("a_claim_waits_for_the_other_driver_s_transaction").await else {
        return;
    };
    let mut client = client(&postgres.database).await;
    let inbox = Inbox::builder(postgres.store.clone()).build().await.unwrap();
    let tx = client.transaction().await.unwrap();
    tx.query_one("select oncebox.claim('h', 'k', 'a'::text)", &[]).await.unwrap();
    let waiting = tokio::spawn(async move {
        let mut conn = inbox.store().pool().begin().await.unwrap();
        let fresh = inbox.claim(&mut conn, "h", "k", "a").await.unwrap();
        conn.commit().await.unwrap();
        fresh
    });
    // Until the server itself says that somebody waits for a transaction to end.
    let blocked = "select count(*) from pg_stat_activity where wait_event = 'transactionid' and datname = current_database()";
    while sqlx::query_scalar::<_, i64>(blocked).fetch_one(postgres.store.pool()).await.unwrap() == 0 {
        tokio::task::yield_now().await;
    }
    assert!(!waiting.is_finished());
    tx.commit().await.unwrap();
    assert!(!waiting.await.unwrap(), "the first one committed: this one is a duplicate");
}
