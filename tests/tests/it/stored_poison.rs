//! A message that kills the process that handles it: five processes crash, and no more. Everything else is done.

use std::time::Duration;

use oncebox::store::Select;
use oncebox::{Envelope, Inbox};

use crate::every_store::{judged, on_every_store};
use crate::stored_fixture::LogFixture;
use crate::worker::LogWorker;

on_every_store!(
    a_message_that_kills_its_process_is_a_dead_letter_after_five,
    those_that_run_beside_a_killer_are_not_to_blame,
);

fn envelope(id: &str, poison: bool) -> Envelope {
    Envelope::new("delivery", format!("{{\"id\": \"{id}\", \"poison\": {poison}}}")).with_key(id)
}

/// One process is alive at a time; no other one can find its lease expired.
const LEASE: Duration = Duration::from_millis(500);

/// What a supervisor saw: how many processes died, and what all of them said.
struct Watched {
    crashes: usize,
    said: Vec<String>,
}

/// Keeps one worker alive until nothing is left to do, then ends it as it should. The first one has a role of its own.
async fn supervise<F: LogFixture>(fixture: &F, inbox: &Inbox<F::Store>, [first, role]: [&str; 2]) -> Watched {
    let mut watched = Watched { crashes: 0, said: Vec::new() };
    let address = fixture.address();
    let start = |role| LogWorker::start_with_lease(&address, role, 0, 2, LEASE);
    let mut worker = start(first).await;
    loop {
        if worker.ended().is_some() {
            watched.crashes += 1;
            watched.said.extend(worker.kill().await);
            worker = start(role).await;
        }
        let statuses = inbox.operators().handler_statuses().await.unwrap();
        if statuses.iter().all(|status| (status.lag, status.tasks) == (0, 0)) {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let (said, _) = worker.stop().await;
    watched.said.extend(said);
    watched
}

/// Accepts a killer among others; what a supervisor sees then. The killer is all that is dead in the end.
async fn a_killer_among_others<F: LogFixture>(
    fixture: &F,
    others: usize,
    roles: [&str; 2],
    deaths: usize,
) -> Watched {
    // A process has to register the handler before there is something to wait for.
    LogWorker::start(&fixture.address(), roles[1], 0, 1).await.stop().await;
    let inbox = Inbox::builder(fixture.store()).stored().build().await.unwrap();
    let envelopes = (0..=others).map(|n| match n {
        3 => envelope("killer", true),
        n => envelope(&format!("m-{n}"), false),
    });
    for accept in inbox.accept_all(envelopes).await {
        assert!(accept.unwrap().is_new());
    }
    let watched = supervise(fixture, &inbox, roles).await;
    let letters = inbox.operators().dead_letters(Select::all(), 1_000).await.unwrap();
    let dead: Vec<String> = letters.iter().map(|dead| dead.key.as_ref().unwrap().to_string()).collect();
    assert_eq!(dead, ["killer"]);
    assert!(letters[0].error.contains(&format!("{deaths} processes crashed")), "{}", letters[0].error);
    assert_eq!(watched.crashes, deaths);
    watched
}

async fn a_message_that_kills_its_process_is_a_dead_letter_after_five<F: LogFixture>(fixture: F) {
    let others = judged(1_000);
    a_killer_among_others(&fixture, others, ["poison"; 2], 5).await;
    let mut names = fixture.effect_names().await;
    names.sort_unstable();
    let mut expected: Vec<String> = (0..=others).filter(|&n| n != 3).map(|n| format!("m-{n}")).collect();
    expected.sort_unstable();
    assert_eq!(names, expected, "each once");
}

/// Outside of transactions the cause is not known: messages that were in flight in two crashes are tried again, one by one.
async fn those_that_run_beside_a_killer_are_not_to_blame<F: LogFixture>(fixture: F) {
    let others = judged(400);
    let watched = a_killer_among_others(&fixture, others, ["poison_beside", "poison_detached"], 5).await;
    let begun = |name: &str| watched.said.iter().filter(|line| **line == format!("begin {name}")).count();
    let ended = |name: &str| watched.said.iter().filter(|line| **line == format!("end {name}")).count();
    assert_eq!((begun("killer"), ended("killer")), (5, 0));
    let mut beside = 0;
    for name in (0..=others).filter(|&n| n != 3).map(|n| format!("m-{n}")) {
        assert!(ended(&name) >= 1, "{name} never came to its end");
        beside += usize::from(begun(&name) > ended(&name));
    }
    assert!(beside > 0, "no message was in flight when a process died");
}
