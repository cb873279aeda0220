//! A handler whose messages come both ways, from several processes at once: each key takes effect once.

use std::collections::HashMap;
use std::time::Duration;

use oncebox::store::Select;
use oncebox::{Failure, Inbox, Mode};

use crate::every_store::{Conn, OrderPaid, envelope, judged, on_every_store};
use crate::stored_fixture::{Chance, LogFixture, seed};
use crate::worker::LogWorker;

on_every_store!(
    a_key_that_comes_both_ways_takes_effect_once,
    what_fails_behind_a_copy_that_is_done_holds_up_nobody,
);

/// Deliveries that are under way at the same time.
const IN_FLIGHT: usize = 64;

async fn a_key_that_comes_both_ways_takes_effect_once<F: LogFixture>(fixture: F) {
    let seed = seed();
    let mut chance = Chance::new(seed);
    let keys = judged(5_000);
    let address = fixture.address();
    let mut workers = Vec::new();
    for _ in 0..2 {
        workers.push(LogWorker::start(&address, "mixed", seed, 2).await);
    }
    // Every key comes at least once each way, and some come again, but for some that come from the log only; neighbours in the
    // list are under way together.
    let mut deliveries: Vec<(usize, bool, usize)> = Vec::new();
    for key in 0..keys {
        for copy in 0..2 + chance.below(4) {
            let is_inline = if copy < 2 { copy == 0 } else { chance.below(2) == 0 } && key % 10 != 0;
            deliveries.push((key, is_inline, chance.below(2)));
        }
    }
    // Copies of a key are close to each other, in any order.
    for n in 1..deliveries.len() {
        let other = n - chance.below(n.min(12) + 1);
        deliveries.swap(n, other);
    }
    let mut outcomes: HashMap<String, usize> = HashMap::new();
    let mut waiting = deliveries.into_iter();
    let mut in_flight = 0;
    loop {
        while in_flight < IN_FLIGHT
            && let Some((key, is_inline, to)) = waiting.next()
        {
            let way = if is_inline { "process" } else { "accept" };
            workers[to].tell(&format!("{way} k-{key}")).await;
            in_flight += 1;
        }
        if in_flight == 0 {
            break;
        }
        let [one, other] = &mut workers[..] else { unreachable!() };
        let (from, line) = tokio::select! {
            line = one.line() => (0, line.unwrap()),
            line = other.line() => (1, line.unwrap()),
        };
        let words: Vec<&str> = line.split(' ').collect();
        match words[..] {
            ["settled", key, "retry", outcome] => {
                *outcomes.entry(outcome.to_owned()).or_default() += 1;
                // As a broker would, to any of them.
                let to = if chance.below(2) == 0 { from } else { 1 - from };
                workers[to].tell(&format!("process {key}")).await;
            }
            ["settled", _, "ack", outcome] => {
                *outcomes.entry(outcome.to_owned()).or_default() += 1;
                in_flight -= 1;
            }
            ["accepted", _] => in_flight -= 1,
            _ => panic!("{line}"),
        }
    }
    let inbox = Inbox::builder(fixture.store()).mode(Mode::mixed()).build().await.unwrap();
    loop {
        let statuses = inbox.operators().handler_statuses().await.unwrap();
        if statuses.iter().all(|status| (status.lag, status.tasks) == (0, 0)) {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let mut from_log = 0;
    for worker in workers {
        let (said, report) = worker.stop().await;
        assert_eq!(said, [""; 0]);
        from_log += report[0];
    }
    // Both ways have won, and lost, and failed.
    for outcome in ["done", "duplicate", "retry"] {
        assert!(outcomes.contains_key(outcome), "{outcomes:?}");
    }
    assert!(from_log >= keys as u64 / 10, "only {from_log} came from the log");
    assert_eq!(inbox.operators().dead_letters(Select::all(), 10).await.unwrap(), []);
    let mut names = fixture.effect_names().await;
    names.sort_unstable();
    let mut expected: Vec<String> = (0..keys).map(|key| format!("k-{key}")).collect();
    expected.sort_unstable();
    let twice: Vec<&[String]> = names.windows(2).filter(|pair| pair[0] == pair[1]).collect();
    assert!(twice.is_empty(), "took effect twice: {twice:?}");
    assert_eq!(names, expected);
}

async fn what_fails_behind_a_copy_that_is_done_holds_up_nobody<F: LogFixture>(fixture: F) {
    let effects = fixture.clone();
    let handler = async move |order: OrderPaid, conn: &mut Conn<F>| -> Result<(), Failure> {
        match &*order.order_id {
            "bad" => Err(Failure::permanent("it can never work")),
            id => Ok(effects.effect(conn, id).await?),
        }
    };
    // What a visit takes does not depend on how fast the machine is.
    let builder = Inbox::builder(fixture.store()).mode(Mode::mixed()).lanes(1);
    let builder = builder.batch_time(Duration::from_secs(3600));
    let inbox = builder.on("h", handler).build().await.unwrap();
    assert!(inbox.process(envelope("done")).await.unwrap().is_handled());
    for id in ["done", "bad", "behind"] {
        assert!(inbox.accept(envelope(id)).await.unwrap().is_new());
    }
    // A few visits at most, not as many as it takes.
    for _ in 0..5 {
        inbox.work_once().await.unwrap();
    }
    let dead = inbox.operators().dead_letters(Select::all(), 10).await.unwrap();
    assert_eq!(dead.iter().map(|dead| dead.key.as_ref().unwrap().to_string()).collect::<Vec<_>>(), ["bad"]);
    let mut names = fixture.effect_names().await;
    names.sort_unstable();
    assert_eq!(names, ["behind", "done"]);
}
