//! Nothing is lost: every message of every handler is in exactly one place, in every snapshot, while workers die.

use std::time::Duration;

use oncebox::{Envelope, Inbox};

use crate::every_store::judged;
use crate::stored_fixture::{Balance, Chance, LogFixture, seed};
use crate::worker::Worker;

async fn checked<F: LogFixture>(fixture: &F) -> Vec<Balance> {
    let balance = fixture.balance().await;
    for of in &balance {
        assert!(of.is_even(), "{of:?}");
    }
    balance
}

async fn nothing_is_lost_while_workers_die<F: LogFixture>(fixture: F) {
    let seed = seed();
    let mut chance = Chance::new(seed);
    let address = fixture.address();
    let mut workers = Vec::new();
    for _ in 0..4 {
        workers.push(Worker::start_stored(&address).await);
    }
    let acceptor = Inbox::builder(fixture.store()).stored().build().await.unwrap();
    let kills = judged(50);
    let each = 300;
    let mut accepted = 0;
    for _ in 0..kills {
        let ids = (0..each).map(|n| format!("m-{}", accepted + n));
        let delivery = |id: String| Envelope::new("delivery", format!("{{\"id\": \"{id}\"}}")).with_key(id);
        for accept in acceptor.accept_all(ids.map(delivery)).await {
            assert!(accept.unwrap().is_new());
        }
        accepted += each;
        // Somewhere in the middle of it, one of them dies.
        let remaining = chance.below(2 * each);
        loop {
            let balance = checked(&fixture).await;
            let open: i64 = balance.iter().map(|of| of.waiting + of.tasks).sum();
            if open <= remaining as i64 {
                break;
            }
        }
        workers.swap_remove(chance.below(4)).kill().await;
        workers.push(Worker::start_stored(&address).await);
    }
    let balance = loop {
        let balance = checked(&fixture).await;
        if balance.iter().all(|of| (of.waiting, of.tasks) == (0, 0)) {
            break balance;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    for worker in workers {
        worker.kill().await;
    }
    let [shaky, steady] = &balance[..] else { panic!("{balance:?}") };
    assert_eq!((steady.accepted, steady.done, steady.dead), (accepted as i64, accepted as i64, 0));
    // Every hundredth can never work.
    assert_eq!((shaky.done, shaky.dead), (accepted as i64 * 99 / 100, accepted as i64 / 100));
    let effects = steady.done + shaky.done;
    assert_eq!(fixture.totals().await, (effects, effects));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_lost_while_workers_die_on_sqlite() {
    nothing_is_lost_while_workers_die(crate::sqlite::in_a_file("conservation").await.unwrap()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_lost_while_workers_die_on_postgres() {
    if let Some(postgres) = crate::postgres::as_owner("conservation").await {
        nothing_is_lost_while_workers_die(postgres).await;
    }
}
