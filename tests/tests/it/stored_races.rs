//! Processes that start, remove, rename, replay, pause and prune, all at the same time as workers.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use oncebox::store::ReplayFrom;
use oncebox::{
    Accept, BoxError, EffectId, Error, Inbox, InboxBuilder, Key, LogStore, PruneReport, Replay, Retention,
    WorkReport,
};
use oncebox_testing::operator;
use tokio::task::JoinHandle;

use crate::every_store::{Conn, OrderPaid, envelope, judged, on_every_store};
use crate::stored_fixture::LogFixture;

on_every_store!(
    two_starters_skip_nothing_and_run_nothing_twice,
    eight_starters_skip_nothing_and_run_nothing_twice,
    a_replay_beside_pruning_runs_what_is_still_there,
    a_straggler_runs_nothing_for_a_handler_that_was_removed,
    a_straggler_goes_on_for_a_handler_that_was_renamed,
    nothing_runs_while_a_handler_is_paused,
);

/// The test says when time has passed.
const RETENTION: Retention = Retention::new()
    .period(Duration::from_secs(7 * 24 * 60 * 60))
    .automatic(false)
    .every(Duration::from_secs(3600))
    .batch(1_000);

async fn builder<F: LogFixture>(fixture: &F) -> InboxBuilder<F::Store> {
    let store = fixture.another_store().await;
    let builder = Inbox::builder(store).stored().retention(RETENTION).keep_messages(Duration::ZERO);
    builder.poll_every(Duration::from_millis(100)).workers(2).work_batch(20)
}

/// Writes `name id` as its effect.
fn with_effect<F: LogFixture>(
    fixture: &F,
    builder: InboxBuilder<F::Store>,
    name: &str,
) -> InboxBuilder<F::Store> {
    let (effects, prefix) = (fixture.clone(), name.to_owned());
    let handler = async move |order: OrderPaid, conn: &mut Conn<F>| -> Result<(), BoxError> {
        effects.effect(conn, &format!("{prefix} {}", order.order_id)).await
    };
    builder.on(name, handler)
}

/// Counts bodies, and writes `name id` as its effect.
fn with_count<F: LogFixture>(
    fixture: &F,
    builder: InboxBuilder<F::Store>,
    name: &str,
    bodies: &Arc<AtomicUsize>,
) -> InboxBuilder<F::Store> {
    let (effects, prefix, bodies) = (fixture.clone(), name.to_owned(), bodies.clone());
    let handler = async move |order: OrderPaid, conn: &mut Conn<F>| -> Result<(), BoxError> {
        bodies.fetch_add(1, Ordering::SeqCst);
        effects.effect(conn, &format!("{prefix} {}", order.order_id)).await
    };
    builder.on(name, handler)
}

type Running = JoinHandle<Result<WorkReport, Error>>;

fn run<S: LogStore>(inbox: &Inbox<S>) -> Running {
    let inbox = inbox.clone();
    tokio::spawn(async move { inbox.run(std::future::pending()).await })
}

async fn end<S: LogStore>(inbox: &Inbox<S>, running: Running) -> WorkReport {
    inbox.close().await;
    running.await.unwrap().unwrap()
}

/// Accepts messages; where they sit.
async fn accept<S: LogStore>(inbox: &Inbox<S>, ids: impl IntoIterator<Item = String>) -> Vec<(u16, i64)> {
    let accepts = inbox.accept_all(ids.into_iter().map(|id| envelope(&id))).await;
    let place = |accept| match accept {
        Ok(Accept::Accepted(oncebox::Place { lane, pos })) => (lane, pos),
        other => panic!("{other:?}"),
    };
    accepts.into_iter().map(place).collect()
}

/// Waits until these handlers have nothing to do.
async fn until_through<S: LogStore>(inbox: &Inbox<S>, handlers: &[&str]) {
    loop {
        let statuses = inbox.operators().handler_statuses().await.unwrap();
        let open = |name: &&str| {
            let status = statuses.iter().find(|status| status.handler.name == **name);
            status.is_none_or(|status| status.lag + status.tasks > 0)
        };
        if !handlers.iter().any(open) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Prunes all the time, whatever is allowed.
struct Pruner {
    stop: Arc<AtomicBool>,
    pruning: JoinHandle<u64>,
}

impl Pruner {
    fn start<S: LogStore>(inbox: &Inbox<S>) -> Self {
        let (inbox, stop) = (inbox.clone(), Arc::new(AtomicBool::new(false)));
        let is_over = stop.clone();
        let pruning = tokio::spawn(async move {
            let mut pruned = 0;
            while !is_over.load(Ordering::SeqCst) {
                pruned += prune(&inbox).await.messages;
            }
            pruned
        });
        Self { stop, pruning }
    }

    /// How many messages it has pruned.
    async fn stop(self) -> u64 {
        self.stop.store(true, Ordering::SeqCst);
        self.pruning.await.unwrap()
    }
}

async fn prune<S: LogStore>(inbox: &Inbox<S>) -> PruneReport {
    inbox.store().beat(Retention::DEFAULT_PERIOD).await.unwrap();
    inbox.prune().await.unwrap()
}

async fn two_starters_skip_nothing_and_run_nothing_twice<F: LogFixture>(fixture: F) {
    starters_skip_nothing_and_run_nothing_twice(fixture, 2, judged(40)).await;
}

async fn eight_starters_skip_nothing_and_run_nothing_twice<F: LogFixture>(fixture: F) {
    starters_skip_nothing_and_run_nothing_twice(fixture, 8, judged(20)).await;
}

/// A handler runs on every message that is there when it is registered, and on all that come later, whoever of those that started it
/// first works there. What was pruned before is not there; that need not be the beginning of a lane, since messages that waited to be
/// appended were received earlier than some in front of them.
async fn starters_skip_nothing_and_run_nothing_twice<F: LogFixture>(
    fixture: F,
    starters: usize,
    rounds: usize,
) {
    /// Messages of a round, and those of them that are accepted before all starters are known to have started.
    const EACH: usize = 220;
    const KNOWN: usize = 200;
    let first = with_effect(&fixture, builder(&fixture).await, "first").build().await.unwrap();
    let working = run(&first);
    let pruner = Pruner::start(&builder(&fixture).await.build().await.unwrap());
    let mut places: BTreeMap<(u16, i64), String> = BTreeMap::new();
    let accept_some = async |numbers: std::ops::Range<usize>| {
        let ids: Vec<String> = numbers.map(|n| format!("o-{n}")).collect();
        let sits_at = accept(&first, ids.iter().cloned()).await;
        sits_at.into_iter().zip(ids).collect::<Vec<_>>()
    };
    let mut seen_by_starters: Vec<Vec<BTreeMap<u16, BTreeSet<i64>>>> = Vec::new();
    for round in 0..rounds {
        let name = format!("h{round}");
        let begin = round * EACH;
        places.extend(accept_some(begin..begin + 100).await);
        let mut building = Vec::new();
        for _ in 0..starters {
            building.push(with_effect(&fixture, builder(&fixture).await, &name));
        }
        let building: Vec<_> = building
            .into_iter()
            .map(|builder| {
                tokio::spawn(async move {
                    let inbox = builder.build().await.unwrap();
                    let there = there(&inbox).await;
                    let running = run(&inbox);
                    (inbox, running, there)
                })
            })
            .collect();
        places.extend(accept_some(begin + 100..begin + KNOWN).await);
        let (mut inboxes, mut seen) = (Vec::new(), Vec::new());
        for built in building {
            let (inbox, running, there) = built.await.unwrap();
            inboxes.push((inbox, running));
            seen.push(there);
        }
        seen_by_starters.push(seen);
        places.extend(accept_some(begin + KNOWN..begin + EACH).await);
        until_through(&first, &["first", &name]).await;
        for (inbox, running) in inboxes {
            let report = end(&inbox, running).await;
            assert_eq!((report.failed, report.dead), (0, 0));
        }
    }
    let pruned = pruner.stop().await;
    end(&first, working).await;
    assert!(pruned > 0, "nothing was pruned meanwhile");

    let mut by_handler: HashMap<String, BTreeSet<String>> = HashMap::new();
    for name in fixture.effect_names().await {
        let (handler, id) = name.split_once(' ').unwrap();
        assert!(by_handler.entry(handler.to_owned()).or_default().insert(id.to_owned()), "{name} twice");
    }
    assert_eq!(by_handler["first"].len(), rounds * EACH);
    for round in 0..rounds {
        let ran = &by_handler[&format!("h{round}")];
        // Its inboxes have ended before those of the next round were accepted.
        let (known, last) = (round * EACH + KNOWN, (round + 1) * EACH);
        // There after it was registered, or not yet.
        let must_run = |lane: &u16, pos: &i64| {
            seen_by_starters[round].iter().any(|seen| {
                let there = &seen[lane];
                there.contains(pos) || there.last().is_none_or(|newest| pos > newest)
            })
        };
        for ((lane, pos), id) in &places {
            let n: usize = id[2..].parse().unwrap();
            assert!(
                ran.contains(id) || n >= last || !must_run(lane, pos),
                "round {round} skipped {id} at {pos} of lane {lane}"
            );
            assert!(ran.contains(id) || n < known || n >= last, "round {round} passed over {id}");
            assert!(
                !ran.contains(id) || n < last,
                "round {round} ran {id}, when no handler was registered for it"
            );
        }
    }
}

/// The positions of all messages that are there, by lane.
async fn there<S: LogStore>(inbox: &Inbox<S>) -> BTreeMap<u16, BTreeSet<i64>> {
    let mut lanes = BTreeMap::new();
    for lane in 0..8 {
        let messages = inbox.operators().messages(lane, 0, 10_000).await.unwrap();
        lanes.insert(lane, messages.iter().map(|status| status.message.place.pos).collect());
    }
    lanes
}

/// A replay goes over as many positions as it reports, each once, and each of them is a message that was there.
async fn a_replay_beside_pruning_runs_what_is_still_there<F: LogFixture>(fixture: F) {
    let mut inboxes = Vec::new();
    for _ in 0..2 {
        let effects = fixture.clone();
        let handler = async move |order: OrderPaid,
                                  Replay(again): Replay,
                                  conn: &mut Conn<F>|
                    -> Result<(), BoxError> {
            let how = if again { "again" } else { "new" };
            effects.effect(conn, &format!("{how} {}", order.order_id)).await
        };
        let inbox = builder(&fixture).await.on("h", handler).build().await.unwrap();
        let running = run(&inbox);
        inboxes.push((inbox, running));
    }
    let inbox = inboxes[0].0.clone();
    let mut known: HashMap<String, usize> = HashMap::new();
    let (mut most, mut pruned) = (0, 0);
    for round in 0..judged(80) {
        let ids: Vec<String> = (0..100).map(|n| format!("o-{round}-{n}")).collect();
        accept(&inbox, ids.iter().cloned()).await;
        until_through(&inbox, &["h"]).await;
        let pruner = Pruner::start(&inbox);
        let replayed = inbox.operators().replay("h", ReplayFrom::Beginning, &operator("ann")).await.unwrap();
        assert_eq!((replayed.tasks, replayed.dead), (0, 0));
        until_through(&inbox, &["h"]).await;
        pruned += pruner.stop().await;
        let mut now: HashMap<String, usize> = HashMap::new();
        for name in fixture.effect_names().await {
            *now.entry(name).or_default() += 1;
        }
        let mut again = 0;
        for (name, times) in &now {
            let more = times - known.get(name).unwrap_or(&0);
            assert!(
                more <= 1 && (*times == 1 || name.starts_with("again ")),
                "{name} {times} times in {round}"
            );
            again += if name.starts_with("again ") { more } else { 0 };
        }
        for id in &ids {
            assert!(now.contains_key(&format!("new {id}")), "{id} in round {round}");
        }
        assert_eq!(again as u64, replayed.positions, "round {round}");
        most = most.max(again);
        known = now;
    }
    for (inbox, running) in inboxes {
        assert_eq!(end(&inbox, running).await.failed, 0);
    }
    assert!(pruned > 0, "nothing was pruned beside a replay");
    assert!(most > 8, "no replay had more than the newest message of each lane");
}

async fn a_straggler_runs_nothing_for_a_handler_that_was_removed<F: LogFixture>(fixture: F) {
    let rounds = judged(40);
    let acting = builder(&fixture).await.build().await.unwrap();
    for round in 0..rounds {
        let (name, other) = (format!("h{round}"), format!("other{round}"));
        let bodies = Arc::default();
        let straggler = with_count(&fixture, builder(&fixture).await, &name, &bodies);
        let straggler = with_effect(&fixture, straggler, &other).build().await.unwrap();
        let running = run(&straggler);
        accept(&acting, (0..200).map(|n| format!("o-{round}-{n}"))).await;
        // In the middle of it.
        while bodies.load(Ordering::SeqCst) < 20 {
            tokio::task::yield_now().await;
        }
        assert!(acting.operators().remove_handler(&name, &operator("ann")).await.unwrap());
        let at_removal = bodies.load(Ordering::SeqCst);
        accept(&acting, (0..50).map(|n| format!("later-{round}-{n}"))).await;
        // It is alive, and has been everywhere since.
        until_through(&acting, &[&other]).await;
        assert_eq!(bodies.load(Ordering::SeqCst), at_removal, "round {round}");
        let report = end(&straggler, running).await;
        assert_eq!((report.failed, report.dead), (0, 0));
        assert_eq!(bodies.load(Ordering::SeqCst), at_removal, "round {round}");
        assert!(acting.operators().remove_handler(&other, &operator("ann")).await.unwrap());
    }
    let (effects, distinct) = fixture.totals().await;
    assert_eq!(effects, distinct);
}

async fn a_straggler_goes_on_for_a_handler_that_was_renamed<F: LogFixture>(fixture: F) {
    type Seen = Vec<(String, EffectId, &'static str)>;
    let seen: Arc<Mutex<Seen>> = Arc::default();
    let with_seen = |builder: InboxBuilder<F::Store>, name: &str, who: &'static str| {
        let (effects, seen) = (fixture.clone(), seen.clone());
        let handler =
            async move |order: OrderPaid, effect_id: EffectId, conn: &mut Conn<F>| -> Result<(), BoxError> {
                effects.effect(conn, &order.order_id).await?;
                seen.lock().unwrap().push((order.order_id, effect_id, who));
                Ok(())
            };
        builder.on(name, handler)
    };
    let acting = builder(&fixture).await.build().await.unwrap();
    let straggler = with_seen(builder(&fixture).await, "h", "straggler").build().await.unwrap();
    let running = run(&straggler);
    accept(&acting, (0..200).map(|n| format!("before-{n}"))).await;
    while seen.lock().unwrap().len() < 20 {
        tokio::task::yield_now().await;
    }
    assert!(acting.operators().rename_handler("h", "renamed", &operator("ann")).await.unwrap());
    // The old name is taken, and says which one is meant.
    let late = with_seen(builder(&fixture).await, "h", "late").build().await.unwrap_err();
    assert!(late.to_string().contains("renamed"), "{late}");
    accept(&acting, (0..200).map(|n| format!("straggler-{n}"))).await;
    until_through(&acting, &["renamed"]).await;
    let newcomer = with_seen(builder(&fixture).await, "renamed", "newcomer").build().await.unwrap();
    let also_running = run(&newcomer);
    accept(&acting, (0..200).map(|n| format!("both-{n}"))).await;
    until_through(&acting, &["renamed"]).await;
    end(&straggler, running).await;
    accept(&acting, (0..200).map(|n| format!("newcomer-{n}"))).await;
    until_through(&acting, &["renamed"]).await;
    end(&newcomer, also_running).await;

    assert_eq!(fixture.totals().await, (800, 800));
    let seen = std::mem::take(&mut *seen.lock().unwrap());
    assert_eq!(seen.iter().map(|(id, ..)| id).collect::<BTreeSet<_>>().len(), 800);
    for (id, effect_id, who) in seen {
        assert_eq!(effect_id, EffectId::of("h", "order.paid", &Key::from(&*id)), "{id} by {who}");
        assert!(id.starts_with("both") || id.starts_with("newcomer") == (who == "newcomer"), "{id} by {who}");
    }
}

async fn nothing_runs_while_a_handler_is_paused<F: LogFixture>(fixture: F) {
    let bodies = Arc::default();
    let mut inboxes = Vec::new();
    for _ in 0..4 {
        let counted = with_count(&fixture, builder(&fixture).await, "h", &bodies);
        let inbox = with_effect(&fixture, counted, "other").build().await.unwrap();
        let running = run(&inbox);
        inboxes.push((inbox, running));
    }
    let acting = builder(&fixture).await.build().await.unwrap();
    let rounds = judged(30);
    let mut accepted = 0;
    for round in 0..rounds {
        let before = bodies.load(Ordering::SeqCst);
        accept(&acting, (0..200).map(|n| format!("o-{round}-{n}"))).await;
        // In the middle of it.
        while bodies.load(Ordering::SeqCst) < before + 20 {
            tokio::task::yield_now().await;
        }
        assert!(acting.operators().pause_handler("h", &operator("ann")).await.unwrap());
        let at_pause = bodies.load(Ordering::SeqCst);
        accept(&acting, (0..50).map(|n| format!("later-{round}-{n}"))).await;
        accepted += 250;
        until_through(&acting, &["other"]).await;
        assert_eq!(bodies.load(Ordering::SeqCst), at_pause, "round {round}");
        assert!(
            !acting.operators().pause_handler("h", &operator("ann")).await.unwrap(),
            "it is paused already"
        );
        assert!(acting.operators().resume_handler("h", &operator("ann")).await.unwrap());
        until_through(&acting, &["h"]).await;
    }
    for (inbox, running) in inboxes {
        assert_eq!(end(&inbox, running).await.failed, 0);
    }
    assert_eq!(fixture.totals().await, (2 * accepted as i64, 2 * accepted as i64));
}
