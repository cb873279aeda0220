//! Transactions that publish and do not end as planned: no message without its transaction, and no transaction without its message.

use oncebox::{Outbox, PostgresStore};
use oncebox_servers::proxy::FaultyProxy;
use sqlx::{Connection, PgConnection};

use crate::every_store::{judged, on_every_store};
use crate::outbox_fixture::{OutboxFixture, Receiver, RunningOutbox, is_sent, message, publish, until};

on_every_store!(a_transaction_that_rolls_back_sends_nothing_and_frees_its_key);

/// The same key is published by a transaction that commits, and by a copy of it. The copy publishes nothing further.
async fn a_transaction_that_rolls_back_sends_nothing_and_frees_its_key<F: OutboxFixture>(fixture: F) {
    let receiver = Receiver::confirming();
    let outbox = Outbox::builder(fixture.store()).relay(receiver.relay()).build().await.unwrap();
    let running = RunningOutbox::start(&outbox);
    for n in 0..20 {
        for commits in [false, true, true, false] {
            let (outbox, key) = (outbox.clone(), format!("{n}"));
            let transaction = fixture.transaction(
                commits,
                Box::new(move |conn| {
                    Box::pin(async move {
                        let _id = outbox.publish_envelope(conn, message(&key)).await.unwrap();
                    })
                }),
            );
            assert!(transaction.await);
        }
    }
    until(async || is_sent(&outbox).await).await;
    assert_eq!(running.stop().await.done, 20);
    let mut sent = receiver.confirmed();
    sent.sort_by_key(|key| key.parse::<u32>().unwrap());
    assert_eq!(sent, (0..20).map(|n| n.to_string()).collect::<Vec<_>>());
}

/// Two transactions lock two rows in opposite order, and both have published. The database ends one of them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transaction_that_deadlocks_publishes_nothing() {
    let test = "a_transaction_that_deadlocks_publishes_nothing";
    let Some(postgres) = crate::postgres::as_owner(test).await else { return };
    postgres.prepare_customers(2).await;
    let receiver = Receiver::confirming();
    let outbox =
        Outbox::builder(postgres.store.clone()).lanes(1).relay(receiver.relay()).build().await.unwrap();
    let running = RunningOutbox::start(&outbox);
    for round in 0..3 {
        let mut conns = Vec::new();
        for _ in 0..2 {
            conns.push(PgConnection::connect(&postgres.database.url()).await.unwrap());
        }
        // Both hold their first row before either asks for its second one.
        let barrier = std::sync::Arc::new(tokio::sync::Barrier::new(2));
        let transactions = conns.into_iter().zip([0_i64, 1]).map(|(mut conn, first)| {
            let (outbox, barrier) = (outbox.clone(), barrier.clone());
            tokio::spawn(async move {
                let mut tx = conn.begin().await.unwrap();
                let lock = "update customer set number = number + 1 where id = $1";
                sqlx::query(lock).bind(first).execute(&mut *tx).await.unwrap();
                let key = format!("{round} {first}");
                outbox.publish_envelope(&mut tx, message(&key).with_order_by("a")).await.unwrap();
                barrier.wait().await;
                match sqlx::query(lock).bind(1 - first).execute(&mut *tx).await {
                    Ok(_) => {
                        tx.commit().await.unwrap();
                        Ok(key)
                    }
                    Err(error) => Err((key, error)),
                }
            })
        });
        let (mut committed, mut victims) = (Vec::new(), Vec::new());
        for transaction in transactions.collect::<Vec<_>>() {
            match transaction.await.unwrap() {
                Ok(key) => committed.push(key),
                Err((key, error)) => {
                    let code = error.as_database_error().and_then(|error| error.code()).unwrap_or_default();
                    assert_eq!(code, "40P01", "{error}");
                    victims.push(key);
                }
            }
        }
        assert_eq!((committed.len(), victims.len()), (1, 1));
        until(async || is_sent(&outbox).await).await;
        let sent = receiver.confirmed();
        assert_eq!((sent.len(), sent.last()), (2 * round + 1, committed.first()));
        // The victim repeats its work: its key is free.
        publish(&postgres, &outbox, vec![message(&victims[0]).with_order_by("a")]).await;
        until(async || is_sent(&outbox).await).await;
        assert_eq!(receiver.confirmed().last(), victims.first());
    }
    running.stop().await;
}

/// The connection is cut when the server has the commit and before its response. The publisher repeats its work with the same key.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_whose_commit_is_cut_off_is_sent_once() {
    let test = "a_message_whose_commit_is_cut_off_is_sent_once";
    let Some(postgres) = crate::postgres::as_owner(test).await else { return };
    let port = postgres.store.pool().connect_options().get_port();
    let proxy = FaultyProxy::start(port).await.unwrap();
    let url = postgres.database.url().replace(&format!(":{port}/"), &format!(":{}/", proxy.port()));
    let publisher = Outbox::builder(PostgresStore::connect(&url).await.unwrap()).build().await.unwrap();
    let receiver = Receiver::confirming();
    let outbox = Outbox::builder(postgres.store.clone()).relay(receiver.relay()).build().await.unwrap();
    let running = RunningOutbox::start(&outbox);
    let rounds = judged(100);
    for round in 0..rounds {
        let key = format!("{round}");
        for is_cut in [true, false] {
            let mut conn = PgConnection::connect(&url).await.unwrap();
            let mut tx = conn.begin().await.unwrap();
            publisher.publish_envelope(&mut tx, message(&key)).await.unwrap();
            let before = proxy.cuts();
            proxy.cut_after_commits(u32::from(is_cut));
            assert_eq!(tx.commit().await.is_err(), is_cut);
            assert_eq!(proxy.cuts() - before, u32::from(is_cut));
            if is_cut {
                // The lost commit has happened.
                until(async || receiver.received() > round).await;
            }
        }
    }
    until(async || is_sent(&outbox).await).await;
    running.stop().await;
    assert_eq!(receiver.confirmed(), (0..rounds).map(|n| n.to_string()).collect::<Vec<_>>());
}
