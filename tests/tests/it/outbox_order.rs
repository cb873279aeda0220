//! Order and completeness of published messages, through a relay, whatever the transactions of the application do.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use oncebox::{Outbox, Verdict};
use sqlx::{Connection, Executor, PgConnection};
use tokio::sync::Semaphore;

use crate::every_store::{judged, on_every_store};
use crate::outbox_fixture::{
    OutboxFixture, Receiver, RunningOutbox, assert_nothing_parked, is_sent, message, publish, until,
};
use crate::stored_fixture::{Chance, seed};

on_every_store!(messages_of_many_writers_reach_the_receiver_complete_and_in_order);

const WRITERS: usize = 64;
const CUSTOMERS: u32 = 5;

/// Writers with hot rows. Some get the number of their transaction early and then wait for a row; some roll back. Two processes
/// send; of some messages the confirmation is lost.
async fn messages_of_many_writers_reach_the_receiver_complete_and_in_order<F: OutboxFixture>(fixture: F) {
    let seed = seed();
    fixture.prepare_customers(CUSTOMERS).await;
    let sent = AtomicUsize::new(0);
    let receiver =
        Receiver::new(move |_, copy| match copy == 1 && sent.fetch_add(1, Ordering::SeqCst) % 97 == 50 {
            true => Verdict::Unknown("the connection was lost".into()),
            false => Verdict::Confirmed,
        });
    let mut outboxes = Vec::new();
    for _process in 0..2 {
        let builder = Outbox::builder(fixture.another_store().await).lanes(4).relay(receiver.relay());
        outboxes.push(builder.build().await.unwrap());
    }
    let running: Vec<_> = outboxes.iter().map(RunningOutbox::start).collect();
    let committed = Arc::new(AtomicUsize::new(0));
    let rounds = judged(100);
    let mut writers = Vec::new();
    let mut shared = Vec::new();
    for _eight in 0..WRITERS / 8 {
        shared.push(fixture.again().await);
    }
    let turns = Arc::new(Semaphore::new(F::WRITERS));
    for writer in 0..WRITERS {
        let (fixture, outbox) = (shared[writer / 8].clone(), outboxes[writer % 2].clone());
        let (committed, turns) = (committed.clone(), turns.clone());
        let mut chance = Chance::new(seed.wrapping_mul(1_000).wrapping_add(writer as u64));
        writers.push(tokio::spawn(async move {
            for _round in 0..rounds {
                let commits = chance.below(10) > 0;
                let turn = turns.acquire().await.unwrap();
                write(&fixture, &outbox, &mut chance, commits).await;
                drop(turn);
                committed.fetch_add(usize::from(commits), Ordering::SeqCst);
            }
        }));
    }
    for writer in writers {
        writer.await.unwrap();
    }
    let committed = committed.load(Ordering::SeqCst);
    until(async || receiver.keys() >= committed && is_sent(&outboxes[0]).await).await;
    for running in running {
        running.stop().await;
    }
    assert_nothing_parked(&outboxes[0]).await;
    let mut first = HashSet::new();
    let mut numbers: HashMap<String, Vec<i64>> = HashMap::new();
    let mut ids = HashMap::new();
    for copy in receiver.copies() {
        assert_eq!(*ids.entry(copy.key.clone()).or_insert(copy.id), copy.id, "each copy has the same id");
        if copy.is_confirmed && first.insert(copy.key.clone()) {
            let (customer, number) = copy.key.split_once(' ').unwrap();
            assert_eq!(copy.order_by.as_deref(), Some(customer));
            numbers.entry(customer.to_owned()).or_default().push(number.parse().unwrap());
        }
    }
    assert_eq!(first.len(), committed);
    for customer in 0..CUSTOMERS {
        // A transaction that rolled back has given its number back, so that the others have no gaps.
        let expected: Vec<i64> = (1..=fixture.number(customer).await).collect();
        assert_eq!(
            numbers.remove(&format!("c{customer}")).unwrap_or_default(),
            expected,
            "customer {customer}"
        );
    }
}

/// One transaction: sometimes other work first, then the row of a customer, then its message.
async fn write<F: OutboxFixture>(fixture: &F, outbox: &Outbox<F::Store>, chance: &mut Chance, commits: bool) {
    let (customer, is_early) =
        (u32::try_from(chance.below(CUSTOMERS as usize)).unwrap(), chance.below(3) == 0);
    let pauses = [chance.below(4), chance.below(4)].map(|ms| Duration::from_millis(ms as u64));
    let (work, outbox) = (fixture.clone(), outbox.clone());
    let transaction = fixture.transaction(
        commits,
        Box::new(move |conn| {
            Box::pin(async move {
                if is_early {
                    work.effect(conn, "early").await.unwrap();
                    tokio::time::sleep(pauses[0]).await;
                }
                let number = F::next_number(conn, customer).await;
                let key = format!("c{customer} {number}");
                let envelope = message(&key).with_order_by(format!("c{customer}"));
                outbox.publish_envelope(conn, envelope).await.unwrap();
                tokio::time::sleep(pauses[1]).await;
            })
        }),
    );
    assert!(transaction.await);
}

/// Transactions that stay open hold back their own messages, and no other. Those of the same ordering key and lane included.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_open_transaction_holds_back_its_own_messages_only() {
    let test = "an_open_transaction_holds_back_its_own_messages_only";
    let Some(postgres) = crate::postgres::as_owner(test).await else { return };
    let receiver = Receiver::confirming();
    let builder = Outbox::builder(postgres.store.clone()).lanes(1).relay(receiver.relay());
    let outbox = builder.build().await.unwrap();
    let running = RunningOutbox::start(&outbox);
    let mut unrelated = PgConnection::connect(&postgres.database.url()).await.unwrap();
    let mut writes = unrelated.begin_with("begin isolation level repeatable read").await.unwrap();
    writes.execute("insert into effect (name) values ('open')").await.unwrap();
    let mut publisher = PgConnection::connect(&postgres.database.url()).await.unwrap();
    let mut publishes = publisher.begin().await.unwrap();
    outbox.publish_envelope(&mut publishes, message("held").with_order_by("a")).await.unwrap();
    for n in 0..50 {
        publish(&postgres, &outbox, vec![message(&format!("{n}")).with_order_by("a")]).await;
        until(async || receiver.received() > n).await;
    }
    let mut expected: Vec<String> = (0..50).map(|n| n.to_string()).collect();
    assert_eq!(receiver.confirmed(), expected);
    publishes.commit().await.unwrap();
    until(async || receiver.received() > 50).await;
    expected.push("held".to_owned());
    assert_eq!(receiver.confirmed(), expected);
    writes.rollback().await.unwrap();
    assert_eq!(running.stop().await.done, 51);
}
