//! Many acceptors at once: positions without gaps, in the order in which they appear, and each key once.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use oncebox::{Accept, Envelope, Inbox, LogStore};
use sqlx::{Connection, PgConnection};

use crate::every_store::judged;
use crate::postgres::Postgres;
use crate::sqlite::Sqlite;
use crate::stored_fixture::{Chance, LogFixture, seed, when_all_have_left};

const ACCEPTORS: usize = 64;
const LANES: u16 = 4;

fn note(key: usize) -> Envelope {
    let envelope = Envelope::new("note", "{}").with_key(format!("k-{key}"));
    if key.is_multiple_of(3) { envelope.with_order_by(format!("o-{}", key % 7)) } else { envelope }
}

async fn inboxes<F: LogFixture>(fixture: &F) -> Vec<Inbox<F::Store>> {
    let mut inboxes = Vec::new();
    for _ in 0..4 {
        let builder = Inbox::builder(fixture.another_store().await).stored().lanes(LANES);
        inboxes.push(builder.build().await.unwrap());
    }
    inboxes
}

/// Follows every lane until it is stopped: nothing may be missing behind the positions that it has seen.
async fn follow<S: LogStore>(inbox: Inbox<S>, stop: Arc<AtomicBool>) -> Vec<i64> {
    let mut seen = vec![0; usize::from(LANES)];
    let mut last_round = false;
    while !last_round {
        last_round = stop.load(Ordering::SeqCst);
        for lane in 0..LANES {
            for found in inbox.operators().messages(lane, seen[usize::from(lane)], 1_000).await.unwrap() {
                let expected = seen[usize::from(lane)] + 1;
                assert_eq!(found.message.place.pos, expected, "lane {lane} was seen with a gap");
                seen[usize::from(lane)] = expected;
            }
        }
        tokio::task::yield_now().await;
    }
    seen
}

/// Overlapping keys, callers that go away and come back, and a task that watches.
async fn overlapping<F: LogFixture>(fixture: F) {
    let seed = seed();
    let each = judged(1_000);
    let keys = ACCEPTORS * each / 4;
    let inboxes = inboxes(&fixture).await;
    let stop = Arc::new(AtomicBool::new(false));
    let follower = tokio::spawn(follow(inboxes[0].clone(), stop.clone()));
    let acceptors: Vec<_> = (0..ACCEPTORS)
        .map(|acceptor| {
            let inbox = inboxes[acceptor % inboxes.len()].clone();
            tokio::spawn(async move {
                let mut chance = Chance::new(seed + acceptor as u64);
                let mut accepted: Vec<(usize, Accept)> = Vec::new();
                for n in 0..each {
                    let key = (acceptor * each + n * 17) % keys;
                    // Some go away at any moment, and deliver again.
                    if chance.below(5) == 0 {
                        let patience = Duration::from_micros(chance.below(3_000) as u64);
                        if let Ok(accept) = tokio::time::timeout(patience, inbox.accept(note(key))).await {
                            accepted.push((key, accept.unwrap()));
                        }
                    }
                    accepted.push((key, inbox.accept(note(key)).await.unwrap()));
                    if chance.below(10) == 0 {
                        tokio::time::sleep(Duration::from_micros(chance.below(500) as u64)).await;
                    }
                }
                accepted
            })
        })
        .collect();
    let mut new: HashMap<usize, u32> = HashMap::new();
    for acceptor in acceptors {
        for (key, accept) in acceptor.await.unwrap() {
            *new.entry(key).or_default() += u32::from(accept.is_new());
            assert!(!matches!(accept, Accept::KeyReuse { .. }));
        }
    }
    stop.store(true, Ordering::SeqCst);
    let seen = follower.await.unwrap();
    // Each key was reported as new once; callers that went away received nothing.
    assert!(new.values().all(|times| *times <= 1), "{new:?}");
    let mut places = HashMap::new();
    for lane in 0..LANES {
        let found = inboxes[0].operators().messages(lane, 0, u32::MAX).await.unwrap();
        assert_eq!(found.len() as i64, seen[usize::from(lane)], "the follower missed some of lane {lane}");
        for (n, found) in found.iter().enumerate() {
            assert_eq!(found.message.place.pos, n as i64 + 1, "lane {lane}");
            let before = places.insert(found.message.key.clone().unwrap(), found.message.place);
            assert_eq!(before, None, "a key sits in two places");
        }
    }
    assert_eq!(places.len(), new.len(), "each key that was delivered is there");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acceptors_on_sqlite_leave_no_gap_and_accept_once() {
    overlapping::<Sqlite>(crate::sqlite::in_a_file("acceptors").await.unwrap()).await;
}

/// Transactions that take their time before they commit, and some that are rolled back at the very end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acceptors_on_postgres_leave_no_gap_and_accept_once() {
    let Some(postgres) = crate::postgres::as_owner("acceptors").await else { return };
    let slow_commits = "
        create function slow_commit() returns trigger language plpgsql as $$
        begin
            if random() < 0.02 then perform pg_sleep(random() * 0.01); end if;
            if random() < 0.002 then raise exception 'on purpose' using errcode = '40001'; end if;
            return null;
        end $$;
        create constraint trigger slow_commit after insert on oncebox.message
        deferrable initially deferred for each row execute function slow_commit()";
    sqlx::raw_sql(slow_commits).execute(postgres.store.pool()).await.unwrap();
    overlapping::<Postgres>(postgres).await;
}

/// With keys that do not overlap nothing collides: not one transaction is rolled back, so no violation of a unique index
/// was hidden behind another try.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acceptors_of_distinct_keys_roll_nothing_back() {
    let Some(postgres) = crate::postgres::as_owner("acceptors_of_distinct_keys").await else { return };
    let url = postgres.database.url();
    let inboxes = inboxes(&postgres).await;
    postgres.store.pool().close().await;
    let mut conn = PgConnection::connect(&url).await.unwrap();
    sqlx::query("select pg_stat_reset()").execute(&mut conn).await.unwrap();
    let each = judged(500);
    let acceptors: Vec<_> = (0..ACCEPTORS)
        .map(|acceptor| {
            let inbox = inboxes[acceptor % inboxes.len()].clone();
            tokio::spawn(async move {
                for n in 0..each {
                    assert!(inbox.accept(note(acceptor * each + n)).await.unwrap().is_new());
                }
            })
        })
        .collect();
    for acceptor in acceptors {
        acceptor.await.unwrap();
    }
    for inbox in inboxes {
        inbox.close().await;
        inbox.store().pool().close().await;
    }
    when_all_have_left(&mut conn).await;
    let statistics =
        "select xact_commit, xact_rollback from pg_stat_database where datname = current_database()";
    let (commits, rollbacks): (i64, i64) = sqlx::query_as(statistics).fetch_one(&mut conn).await.unwrap();
    assert!(commits > 0, "the statistics have not arrived");
    assert_eq!(rollbacks, 0, "of {commits} transactions");
}
