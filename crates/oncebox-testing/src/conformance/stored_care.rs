//! Care: where processes have crashed, messages run one by one until it is clear that none of them was the cause.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use oncebox_core::store::{Care, HandlerId, NewProcess, Place, ProcessId, Processes, Select};
use oncebox_core::{Attempt, BoxError, Error, Failure, Inbox, LogStore};
use uuid::Uuid;

use super::stored::{Conn, NO_LIMIT, accept_new, sample};
use super::{Fixture, Sample};
use crate::faulty::{Faults, Faulty, Point};
use crate::operator;

const LEASE: Duration = Duration::from_secs(60);

/// The number of a handler.
pub(super) async fn id_of<S: LogStore>(inbox: &Inbox<S>, handler: &str) -> HandlerId {
    let statuses = inbox.operators().handler_statuses().await.unwrap();
    statuses.iter().find(|status| status.handler.name == handler).unwrap().handler.id
}

/// A process on another machine begins to work.
pub(super) async fn enter<S: LogStore>(store: &S, handler: HandlerId, in_flight: u32) -> ProcessId {
    let id = ProcessId(Uuid::now_v7());
    let name = "elsewhere 1 first".to_owned();
    store
        .enter(&NewProcess { id, name, handlers: vec![handler], lease: LEASE, in_flight, moves: false })
        .await
        .unwrap();
    id
}

/// Its lease expires. Returns how many tasks it had in flight.
pub(super) async fn crash<F: Fixture<Store: LogStore>>(fixture: &F, process: ProcessId) -> u64 {
    let store = fixture.store();
    assert_eq!(store.remove_crashed(process, false).await.unwrap(), None, "it is alive");
    fixture.travel(LEASE + Duration::from_secs(1));
    let tasks = store.remove_crashed(process, false).await.unwrap().expect("it is silent");
    assert_eq!(store.remove_crashed(process, false).await.unwrap(), None, "it was removed before");
    tasks
}

/// Whether care is needed for a handler in the first lane.
async fn is_careful<S: LogStore>(store: &S, handler: HandlerId) -> bool {
    store.look(&[handler]).await.unwrap().waiting.iter().any(|waiting| waiting.careful)
}

/// Says when transactions are about to commit.
#[derive(Clone, Default)]
struct WorkJournal(Arc<Mutex<Vec<String>>>);

impl WorkJournal {
    fn write(&self, entry: &str) {
        self.0.lock().unwrap().push(entry.to_owned());
    }

    fn read(&self) -> Vec<String> {
        std::mem::take(&mut *self.0.lock().unwrap())
    }
}

impl Faults for WorkJournal {
    async fn at(&self, point: Point) -> Result<(), Error> {
        if point == Point::BeforeCommit {
            self.write("commit");
        }
        Ok(())
    }
}

/// An inbox with one lane that keeps a journal.
async fn with_journal<F: Fixture<Store: LogStore>>(
    fixture: &F,
) -> (Inbox<Faulty<F::Store, WorkJournal>>, HandlerId, WorkJournal) {
    let journal = WorkJournal::default();
    let (effects, runs) = (fixture.clone(), journal.clone());
    let handler = async move |sample: Sample, conn: &mut Conn<F>| -> Result<(), BoxError> {
        runs.write(&sample.id);
        effects.effect(conn, &sample.id).await
    };
    let store = Faulty::new(fixture.store(), journal.clone());
    let builder = Inbox::builder(store).stored().lanes(1).batch_time(NO_LIMIT);
    let inbox = builder.on("ledger", handler).build().await.unwrap();
    let ledger = id_of(&inbox, "ledger").await;
    (inbox, ledger, journal)
}

/// Each in a transaction of its own, as many as a process can have had in flight. Then care ends.
pub async fn where_two_processes_crashed_messages_run_one_by_one<F: Fixture<Store: LogStore>>(fixture: F) {
    if !fixture.capabilities().counts_crashes {
        return super::log::crashes_lead_to_no_care(fixture).await;
    }
    let store = fixture.store();
    let (inbox, ledger, journal) = with_journal(&fixture).await;
    for id in ["a", "b", "c", "d", "e"] {
        accept_new(&inbox, sample(id)).await;
    }
    for death in 0..2 {
        assert!(!is_careful(&store, ledger).await, "one crash is no reason");
        let process = enter(&store, ledger, 3).await;
        assert_eq!(crash(&fixture, process).await, 0, "{death}");
    }
    assert!(is_careful(&store, ledger).await);
    journal.read();
    assert_eq!(inbox.work_until_idle().await.unwrap().done, 5);
    let entries = journal.read();
    // Only three run alone: the process had at most three messages in flight.
    assert_eq!(entries[..6], ["a", "commit", "b", "commit", "c", "commit"]);
    for id in ["a", "b", "c", "d", "e"] {
        assert_eq!(fixture.effects(id).await, 1, "{id}");
    }

    accept_new(&inbox, sample("f")).await;
    accept_new(&inbox, sample("g")).await;
    assert!(!is_careful(&store, ledger).await, "care has ended");
    journal.read();
    assert_eq!(inbox.work_until_idle().await.unwrap().done, 2);
    assert_eq!(journal.read(), ["f", "g", "commit"]);
    // Their notes were removed: the next crash counts for none of them.
    let another = enter(&store, ledger, 3).await;
    for pos in 1..=7 {
        let noted = store.note_attempt(ledger, Place { lane: 0, pos }, another).await.unwrap();
        assert_eq!(noted, Some(1), "position {pos}");
    }
}

/// Tasks run one by one too.
pub async fn where_two_processes_crashed_tasks_run_one_by_one<F: Fixture<Store: LogStore>>(fixture: F) {
    if !fixture.capabilities().counts_crashes {
        return super::log::crashes_lead_to_no_care(fixture).await;
    }
    let store = fixture.store();
    let effects = fixture.clone();
    let handler = async move |sample: Sample, Attempt(n): Attempt, conn: &mut Conn<F>| {
        effects.effect(conn, &sample.id).await?;
        if n == 1 { Err(Failure::after(LEASE, "at first")) } else { Ok(()) }
    };
    let journal = WorkJournal::default();
    let faulty = Faulty::new(store.clone(), journal.clone());
    let inbox = Inbox::builder(faulty).stored().lanes(1).on("ledger", handler).build().await.unwrap();
    let ledger = id_of(&inbox, "ledger").await;
    for id in ["a", "b", "c"] {
        accept_new(&inbox, sample(id)).await;
    }
    assert_eq!(inbox.work_until_idle().await.unwrap().failed, 3);
    fixture.travel(LEASE);
    for _ in 0..2 {
        assert!(!is_careful(&store, ledger).await, "one crash is no reason");
        let process = enter(&store, ledger, 10).await;
        crash(&fixture, process).await;
    }
    assert!(is_careful(&store, ledger).await);
    journal.read();
    assert_eq!(inbox.work_until_idle().await.unwrap().done, 3);
    assert_eq!(journal.read(), ["commit"; 3]);
    for id in ["a", "b", "c"] {
        assert_eq!(fixture.effects(id).await, 1, "{id}");
    }
    accept_new(&inbox, sample("d")).await;
    assert!(!is_careful(&store, ledger).await);
}

/// The message does not run a fourth time, and the messages behind it run.
pub async fn a_message_of_which_processes_keep_dying_is_a_dead_letter<F: Fixture<Store: LogStore>>(
    fixture: F,
) {
    if !fixture.capabilities().counts_crashes {
        return super::log::crashes_lead_to_no_care(fixture).await;
    }
    let store = fixture.store();
    let (inbox, ledger, journal) = with_journal(&fixture).await;
    accept_new(&inbox, sample("before")).await;
    let poison = accept_new(&inbox, sample("poison")).await;
    let survivor = accept_new(&inbox, sample("survivor")).await;
    accept_new(&inbox, sample("behind")).await;
    for crashes in [1, 2, 3] {
        let process = enter(&store, ledger, 10).await;
        assert_eq!(store.note_attempt(ledger, poison, process).await.unwrap(), Some(crashes));
        if crashes < 3 {
            // Two crashes prove nothing about this message.
            assert_eq!(store.note_attempt(ledger, survivor, process).await.unwrap(), Some(crashes));
        }
        crash(&fixture, process).await;
    }
    journal.read();
    let report = inbox.work_until_idle().await.unwrap();
    assert_eq!((report.done, report.failed, report.dead), (3, 0, 1));
    let runs: Vec<String> = journal.read().into_iter().filter(|entry| entry != "commit").collect();
    assert_eq!(runs, ["before", "survivor", "behind"]);
    let letters = inbox.operators().dead_letters(Select::all(), 10).await.unwrap();
    assert_eq!((letters.len(), letters[0].place), (1, poison));
    assert!(letters[0].error.contains("5 processes crashed"), "{}", letters[0].error);
    accept_new(&inbox, sample("later")).await;
    assert!(!is_careful(&store, ledger).await, "care has ended");

    // An operator can still retry the message.
    assert_eq!(inbox.operators().retry_dead(Select::all(), &operator("ann")).await.unwrap(), 1);
    assert_eq!(inbox.work_until_idle().await.unwrap().done, 2);
    for id in ["before", "poison", "survivor", "behind", "later"] {
        assert_eq!(fixture.effects(id).await, 1, "{id}");
    }
}

/// Processes that are killed from outside, one after the other, slow no lane down: it has moved in between.
pub async fn crashes_with_progress_in_between_are_no_reason_for_care<F: Fixture<Store: LogStore>>(
    fixture: F,
) {
    let store = fixture.store();
    let (inbox, ledger, journal) = with_journal(&fixture).await;
    for round in 0..4 {
        for id in ["a", "b"] {
            accept_new(&inbox, sample(&format!("{id}-{round}"))).await;
        }
        let process = enter(&store, ledger, 10).await;
        crash(&fixture, process).await;
        assert!(!is_careful(&store, ledger).await, "round {round}");
        journal.read();
        assert_eq!(inbox.work_until_idle().await.unwrap().done, 2);
        assert_eq!(journal.read().iter().filter(|entry| *entry == "commit").count(), 1, "round {round}");
    }
}

/// A process that was seen to end is removed before its lease expires. So is one that was silent before this process began.
pub async fn a_process_that_was_seen_to_end_is_removed_at_once<F: Fixture<Store: LogStore>>(fixture: F) {
    let store = fixture.store();
    let (inbox, ledger, _) = with_journal(&fixture).await;
    accept_new(&inbox, sample("a")).await;
    let seen = enter(&store, ledger, 1).await;
    assert_eq!(store.remove_crashed(seen, false).await.unwrap(), None, "it is alive");
    assert_eq!(store.remove_crashed(seen, true).await.unwrap(), Some(0));
    assert_eq!(store.remove_crashed(seen, true).await.unwrap(), None, "another one was faster");
    // No process has watched this one for a whole lease. One that starts still buries it before it works.
    let silent = enter(&store, ledger, 1).await;
    fixture.travel(LEASE + Duration::from_secs(1));
    assert_eq!(inbox.work_until_idle().await.unwrap().done, 1);
    assert!(!store.beat_process(silent).await.unwrap(), "a process that begins to work buries it");
}

/// A process that shuts down is no reason for care.
pub async fn a_process_that_leaves_causes_no_care<F: Fixture<Store: LogStore>>(fixture: F) {
    let store = fixture.store();
    let (inbox, ledger, journal) = with_journal(&fixture).await;
    for id in ["a", "b"] {
        accept_new(&inbox, sample(id)).await;
    }
    let process = enter(&store, ledger, 10).await;
    let place = Place { lane: 0, pos: 1 };
    store.note_attempt(ledger, place, process).await.unwrap();
    assert!(store.beat_process(process).await.unwrap());
    store.leave(process).await.unwrap();
    fixture.travel(LEASE * 2);
    assert!(!store.beat_process(process).await.unwrap());
    assert_eq!(store.remove_crashed(process, false).await.unwrap(), None);
    assert!(!is_careful(&store, ledger).await);
    journal.read();
    assert_eq!(inbox.work_until_idle().await.unwrap().done, 2);
    assert_eq!(journal.read(), ["a", "b", "commit"]);
    let another = enter(&store, ledger, 10).await;
    assert_eq!(store.note_attempt(ledger, place, another).await.unwrap(), Some(1));
}

/// A note whose message did not run adds no crash, and keeps the crashes counted before.
pub async fn a_note_that_is_given_back_counts_for_nothing<F: Fixture<Store: LogStore>>(fixture: F) {
    if !fixture.capabilities().counts_crashes {
        return super::log::crashes_lead_to_no_care(fixture).await;
    }
    let inbox = super::stored::with_effect(&fixture, super::stored::one_lane(&fixture), "ledger")
        .build()
        .await
        .unwrap();
    let place = accept_new(&inbox, sample("a")).await;
    let (store, handler) = (fixture.store(), id_of(&inbox, "ledger").await);
    let note = async |process| store.note_attempt(handler, place, process).await.unwrap();
    let first = enter(&store, handler, 1).await;
    assert_eq!(note(first).await, Some(1));
    store.give_back_attempt(handler, place, first).await.unwrap();
    crash(&fixture, first).await;
    let second = enter(&store, handler, 1).await;
    assert_eq!(note(second).await, Some(1));
    crash(&fixture, second).await;
    let third = enter(&store, handler, 1).await;
    assert_eq!(note(third).await, Some(2));
    store.give_back_attempt(handler, place, third).await.unwrap();
    crash(&fixture, third).await;
    let fourth = enter(&store, handler, 1).await;
    assert_eq!(
        note(fourth).await,
        Some(2),
        "one has crashed with it, and one counts for the crash before the note"
    );
    // A process cannot give back the note of another one.
    store.give_back_attempt(handler, place, first).await.unwrap();
    assert_eq!(note(fourth).await, Some(2));
}
