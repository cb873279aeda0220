//! A message that fails inline is spilled to the log: the source is done with it, and it takes effect once, whichever process crashes.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use oncebox::store::{MarkerState, Select};
use oncebox::{Inbox, Mode};

use crate::every_store::{judged, on_every_store};
use crate::stored_fixture::{Chance, LogFixture, seed};
use crate::worker::LogWorker;

on_every_store!(what_fails_inline_takes_effect_once_whoever_dies);

/// Keys that are under way at the same time.
const IN_FLIGHT: usize = 32;

/// What a source knows: which process owes it an answer for which deliveries.
#[derive(Default)]
struct Source {
    /// Deliveries of a key that a process has not answered.
    owed: [HashMap<String, usize>; 2],
    acknowledged: BTreeSet<String>,
    outcomes: HashMap<String, usize>,
}

impl Source {
    async fn deliver(&mut self, workers: &mut [LogWorker], to: usize, key: &str) {
        *self.owed[to].entry(key.to_owned()).or_default() += 1;
        workers[to].tell(&format!("process {key}")).await;
    }

    /// An answer; the key that was acknowledged, if one was.
    async fn hear(&mut self, workers: &mut [LogWorker], from: usize, line: &str) -> Option<String> {
        let words: Vec<&str> = line.split(' ').collect();
        let ["settled", key, settlement, outcome] = words[..] else { panic!("{line}") };
        *self.outcomes.entry(outcome.to_owned()).or_default() += 1;
        let owed = self.owed[from].get_mut(key).unwrap();
        *owed -= 1;
        if *owed == 0 {
            self.owed[from].remove(key);
        }
        match settlement {
            "ack" => {
                self.acknowledged.insert(key.to_owned());
                return Some(key.to_owned());
            }
            "retry" => self.deliver(workers, from, key).await,
            _ => panic!("{line}"),
        }
        None
    }

    fn in_flight(&self) -> usize {
        self.owed.iter().map(|owed| owed.values().sum::<usize>()).sum()
    }
}

/// Every acknowledged message is visible: done, or to be done.
async fn is_durable<F: LogFixture>(fixture: &F, inbox: &Inbox<F::Store>, key: &str) {
    let marker = inbox.marker("h", "delivery", key).await.unwrap();
    match marker.unwrap_or_else(|| panic!("{key} was acknowledged, and is nowhere")).state {
        MarkerState::Done => assert_eq!(fixture.effects(key).await, 1, "{key}"),
        MarkerState::Spilled => {}
        MarkerState::Accepted => panic!("{key}: nothing is accepted inline"),
    }
}

async fn what_fails_inline_takes_effect_once_whoever_dies<F: LogFixture>(fixture: F) {
    let seed = seed();
    let mut chance = Chance::new(seed);
    let keys = judged(3_000);
    let kills = judged(50);
    let address = fixture.address();
    let mut workers = Vec::new();
    for _ in 0..2 {
        workers.push(LogWorker::start(&address, "spill", seed, 2).await);
    }
    // Both are at work.
    while fixture.crashes_pending(2).await {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let inbox = Inbox::builder(fixture.store()).mode(Mode::inline().spill()).build().await.unwrap();
    let mut kill_at: Vec<usize> = (0..kills).map(|_| chance.below(keys)).collect();
    kill_at.sort_unstable();
    let mut source = Source::default();
    let mut next = 0;
    let mut killed = 0;
    loop {
        while next < keys && source.in_flight() < IN_FLIGHT {
            let key = format!("k-{next}");
            next += 1;
            // To both at once, and sometimes twice.
            for to in 0..2 {
                for _ in 0..1 + chance.below(2) {
                    source.deliver(&mut workers, to, &key).await;
                }
            }
        }
        if source.in_flight() == 0 {
            break;
        }
        let [one, other] = &mut workers[..] else { unreachable!() };
        let (from, line) = tokio::select! {
            line = one.line() => (0, line.unwrap()),
            line = other.line() => (1, line.unwrap()),
        };
        if let Some(key) = source.hear(&mut workers, from, &line).await {
            is_durable(&fixture, &inbox, &key).await;
        }
        if kill_at.first().is_some_and(|&at| at <= source.acknowledged.len())
            && !fixture.crashes_pending(2).await
        {
            kill_at.remove(0);
            killed += 1;
            let victim = chance.below(2);
            let worker = workers.remove(victim);
            let number = worker.number();
            let said = worker.kill().await;
            fixture.remove_process(number).await;
            workers.insert(victim, LogWorker::start(&address, "spill", seed, 2).await);
            // What it has said it has said; what it owes is delivered again, as brokers do.
            for line in said {
                if let Some(key) = source.hear(&mut workers, victim, &line).await {
                    is_durable(&fixture, &inbox, &key).await;
                }
            }
            for (key, copies) in std::mem::take(&mut source.owed[victim]) {
                for _ in 0..copies {
                    source.deliver(&mut workers, victim, &key).await;
                }
            }
        }
    }
    assert_eq!(source.acknowledged.len(), keys);
    assert!(killed > 0, "no process was killed");
    loop {
        let statuses = inbox.operators().handler_statuses().await.unwrap();
        if statuses.iter().all(|status| status.tasks == 0) {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    for worker in workers {
        worker.stop().await;
    }
    for outcome in ["done", "duplicate", "queued"] {
        assert!(source.outcomes.contains_key(outcome), "{:?}", source.outcomes);
    }
    assert_eq!(inbox.operators().dead_letters(Select::all(), 10).await.unwrap(), []);
    let mut names = fixture.effect_names().await;
    names.sort_unstable();
    let mut expected: Vec<String> = (0..keys).map(|key| format!("k-{key}")).collect();
    expected.sort_unstable();
    assert_eq!(names, expected, "each once");
    for key in expected {
        let marker = inbox.marker("h", "delivery", &*key).await.unwrap().unwrap();
        assert_eq!(marker.state, MarkerState::Done, "{key}");
    }
}
