//! Order: effects of one ordering key come as they were accepted, whatever fails, dies or is done by operators.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use oncebox::store::{DeadLetter, Select};
use oncebox::{Envelope, Inbox, LogStore};
use oncebox_testing::operator;

use crate::every_store::{judged, on_every_store};
use crate::stored_fixture::{Chance, LogFixture, seed};
use crate::worker::LogWorker;

on_every_store!(effects_of_a_key_come_in_the_order_of_its_messages);

/// Messages of each ordering key in the first wave, and altogether.
const FIRST: usize = 4;
const ALL: usize = 6;

fn id(key: usize, n: usize) -> String {
    format!("{key}.{n}")
}

/// Messages that can never be handled, until an operator corrects them.
fn is_poison(key: usize, n: usize) -> bool {
    matches!((key % 10, n), (3, 1 | 5) | (7, 0) | (5, 4))
}

fn body(key: usize, n: usize, poison: bool) -> String {
    format!("{{\"id\": \"{}\", \"poison\": {poison}}}", id(key, n))
}

fn envelope(key: usize, n: usize) -> Envelope {
    let body = body(key, n, is_poison(key, n));
    Envelope::new("delivery", body).with_key(id(key, n)).with_order_by(format!("key {key}"))
}

/// The first dead head that a key meets in the first wave.
fn head(key: usize) -> Option<usize> {
    (0..FIRST).find(|&n| is_poison(key, n))
}

async fn accept<S: LogStore>(inbox: &Inbox<S>, keys: usize, wave: std::ops::Range<usize>) {
    let envelopes = wave.flat_map(|n| (0..keys).map(move |key| envelope(key, n)));
    for accept in inbox.accept_all(envelopes).await {
        assert!(accept.unwrap().is_new());
    }
}

/// Three processes, of which one dies now and then.
struct Crew<'a, F: LogFixture> {
    fixture: &'a F,
    seed: u64,
    workers: Vec<(usize, LogWorker)>,
}

impl<'a, F: LogFixture> Crew<'a, F> {
    async fn start(fixture: &'a F, seed: u64) -> Self {
        let mut crew = Self { fixture, seed, workers: Vec::new() };
        for workers in [3, 3, 2] {
            crew.join(workers).await;
        }
        crew
    }

    async fn join(&mut self, workers: usize) {
        let worker = LogWorker::start(&self.fixture.address(), "ordered", self.seed, workers).await;
        self.workers.push((workers, worker));
    }

    async fn replace(&mut self, one: usize) {
        let (workers, worker) = self.workers.swap_remove(one);
        let number = worker.number();
        worker.kill().await;
        self.fixture.remove_process(number).await;
        self.join(workers).await;
    }
}

/// What has come of each key so far, in order.
async fn by_key<F: LogFixture>(fixture: &F) -> HashMap<usize, Vec<usize>> {
    let mut effects = HashMap::<usize, Vec<usize>>::new();
    for name in fixture.effect_names().await {
        let (key, n) = name.split_once('.').unwrap();
        effects.entry(key.parse().unwrap()).or_default().push(n.parse().unwrap());
    }
    effects
}

/// An operator who acts on dead letters; remembers what is never to have an effect.
struct DeadLetterOperator<'a, F: LogFixture> {
    fixture: &'a F,
    inbox: &'a Inbox<F::Store>,
    dropped: HashSet<String>,
    healed: HashSet<String>,
    died_again: usize,
}

impl<F: LogFixture> DeadLetterOperator<'_, F> {
    /// Does one thing with one dead letter.
    async fn act(&mut self, letter: &DeadLetter, choice: usize) {
        let name = letter.key.as_ref().unwrap().to_string();
        let this = Select::all().handler("h").at(letter.place);
        self.died_again += usize::from(letter.attempts.len() > 1);
        let acted = match choice {
            0 => self.inbox.operators().retry_dead(this, &operator("hopeful")).await,
            1 => {
                self.fixture.heal(&name).await;
                self.healed.insert(name);
                self.inbox.operators().retry_dead(this, &operator("healer")).await
            }
            2 => {
                let (key, n) = name.split_once('.').unwrap();
                let body = body(key.parse().unwrap(), n.parse().unwrap(), false);
                self.inbox.operators().edit_dead(this, body, &operator("editor")).await
            }
            3 => {
                self.dropped.insert(name);
                self.inbox.operators().discard_dead(this, &operator("discarder")).await
            }
            _ => {
                self.dropped.insert(name);
                self.inbox.operators().resolve_dead(this, &operator("clerk")).await
            }
        };
        // No other operator acts on them.
        assert_eq!(acted.unwrap(), 1, "{letter:?}");
    }
}

async fn effects_of_a_key_come_in_the_order_of_its_messages<F: LogFixture>(fixture: F) {
    let seed = seed();
    let mut chance = Chance::new(seed);
    let keys = judged(1_000);
    fixture.prepare_order().await;
    let mut crew = Crew::start(&fixture, seed).await;
    let inbox = Inbox::builder(fixture.store()).stored().build().await.unwrap();
    accept(&inbox, keys, 0..FIRST).await;

    // Heads are dead, and no operator acts on them yet: all other keys come to their end.
    let free: Vec<usize> = (0..keys).filter(|&key| head(key).is_none()).collect();
    let heads = keys - free.len();
    let mut kills = 0;
    let mut kills_at: Vec<usize> = (0..2).map(|_| chance.below(free.len() * FIRST)).collect();
    kills_at.sort_unstable();
    loop {
        let effects = by_key(&fixture).await;
        let done: usize = free.iter().filter_map(|key| effects.get(key)).map(Vec::len).sum();
        if kills_at.first().is_some_and(|&at| at <= done) && !fixture.crashes_pending(3).await {
            kills_at.remove(0);
            crew.replace(chance.below(3)).await;
            kills += 1;
        }
        let dead = inbox.operators().dead_letters(Select::all(), 10_000).await.unwrap().len();
        if done >= free.len() * FIRST && dead == heads && kills > 0 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let effects = by_key(&fixture).await;
    for key in 0..keys {
        let expected: Vec<usize> = (0..head(key).unwrap_or(FIRST)).collect();
        assert_eq!(effects.get(&key).cloned().unwrap_or_default(), expected, "key {key}");
    }

    // More messages, operators and deaths at the same time.
    let (acceptor, all) = (inbox.clone(), keys * ALL);
    let accepting = tokio::spawn(async move { accept(&acceptor, keys, FIRST..ALL).await });
    let mut operator = DeadLetterOperator {
        fixture: &fixture,
        inbox: &inbox,
        dropped: HashSet::new(),
        healed: HashSet::new(),
        died_again: 0,
    };
    let begun = by_key(&fixture).await.values().map(Vec::len).sum::<usize>();
    let mut kills_at: Vec<usize> = (0..2).map(|_| begun + chance.below(all - begun)).collect();
    kills_at.sort_unstable();
    loop {
        let done = by_key(&fixture).await.values().map(Vec::len).sum::<usize>() + operator.dropped.len();
        if kills_at.first().is_some_and(|&at| at <= done) && !fixture.crashes_pending(3).await {
            kills_at.remove(0);
            crew.replace(chance.below(3)).await;
        }
        if done >= all {
            break;
        }
        let letters = inbox.operators().dead_letters(Select::all(), 10_000).await.unwrap();
        for _ in 0..letters.len().min(3) {
            let letter = &letters[chance.below(letters.len())];
            let select = Select::all().handler("h").at(letter.place);
            // It may be in flight already, or have been taken a moment ago.
            if let [letter] = &inbox.operators().dead_letters(select, 2).await.unwrap()[..] {
                operator.act(letter, chance.below(5)).await;
            }
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    accepting.await.unwrap();

    let dropped = operator.dropped;
    assert!(!dropped.is_empty() && !operator.healed.is_empty() && operator.died_again > 0);
    let effects = by_key(&fixture).await;
    for key in 0..keys {
        let expected: Vec<usize> = (0..ALL).filter(|&n| !dropped.contains(&id(key, n))).collect();
        assert_eq!(effects.get(&key).cloned().unwrap_or_default(), expected, "key {key}");
    }
    for (_, worker) in crew.workers {
        worker.stop().await;
    }
    let statuses = inbox.operators().handler_statuses().await.unwrap();
    let [status] = &statuses[..] else { panic!("{statuses:?}") };
    assert_eq!((status.lag, status.tasks, status.dead), (0, 0, 0));
    assert_eq!(fixture.effect_names().await.len(), all - dropped.len());
}
