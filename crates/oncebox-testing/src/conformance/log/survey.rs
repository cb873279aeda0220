//! The survey of handlers, messages and tasks.

use oncebox_core::store::{MessageState, Registration, Waits};
use oncebox_core::{DeadHead, LogStore, Mode};

use super::order::{ordered, scheduled};
use crate::Fixture;
use crate::one_handler::{
    A_WHILE, LATER, NOW, OneHandler, as_tasks, dead, failure, message, place, stored, unfinished,
};

/// Lag, tasks and dead letters of each handler, and the state of each message.
pub async fn a_survey_reports_handlers_and_messages<F: Fixture<Store: LogStore>>(fixture: F) {
    let log = OneHandler::new(fixture).await;
    log.append_keys(0, &["1", "2", "3"]).await;
    log.pass(0, &as_tasks([failure(1, 2, "x")])).await;
    log.settle(0, &dead([failure(2, 5, "y")])).await;
    log.append(0, &[message("a", "4"), message("b", "5")]).await;
    log.append_keys(2, &["6"]).await;
    log.travel(LATER);
    log.beside(Registration { mode: Mode::inline(), ..stored("a mailer", &["b"]) }).await;

    let statuses = log.statuses().await;
    let [mailer, ledger] = statuses.as_slice() else { panic!("{statuses:?}") };
    assert_eq!((mailer.handler.name.as_str(), mailer.lag, mailer.oldest_waiting), ("a mailer", 0, None));
    assert_eq!((ledger.lag, ledger.tasks, ledger.dead), (3, 1, 1));
    let oldest = ledger.oldest_waiting.unwrap();
    assert!(oldest >= LATER && oldest < LATER + A_WHILE, "{oldest:?}");

    let messages = log.messages(0, 0, 10).await;
    let states: Vec<Vec<_>> = messages
        .iter()
        .map(|one| one.handlers.iter().map(|(name, state)| (name.as_str(), state)).collect())
        .collect();
    assert!(matches!(
        states[0].as_slice(),
        [("ledger", MessageState::Task { failures: 2, error: Some(error), .. })] if error == "x"
    ));
    assert_eq!(states[1], [("ledger", &MessageState::Dead { error: "y".into() })]);
    assert_eq!(states[2], [("ledger", &MessageState::Done)]);
    assert_eq!(states[3], [("ledger", &MessageState::Waiting)]);
    assert_eq!(states[4], []);
    let two = log.messages(0, 1, 2).await;
    assert_eq!(two.iter().map(|one| one.message.place.pos).collect::<Vec<_>>(), [2, 3]);
}

/// Since the first message of the kind; an inline handler takes none from the log.
pub async fn an_unhandled_kind_is_reported_until_a_handler_reads_it<F: Fixture<Store: LogStore>>(fixture: F) {
    let log = OneHandler::new(fixture).await;
    log.append(0, &[message("a", "1"), message("b", "2")]).await;
    log.beside(Registration { mode: Mode::inline(), ..stored("mailer", &["b"]) }).await;
    log.travel(LATER);
    let unhandled = log.unhandled_kinds().await;
    assert_eq!(unhandled.iter().map(|one| one.kind.as_str()).collect::<Vec<_>>(), ["b"]);
    let age = log.now().await.duration_since(unhandled[0].since).unwrap();
    assert!(age >= LATER && age < LATER + A_WHILE, "{age:?}");
    log.beside(stored("reader", &["b"])).await;
    assert!(log.unhandled_kinds().await.is_empty());
}

/// For its sender's time, for an earlier message of its ordering key, for its turn, or for the process that runs it.
pub async fn a_survey_reports_what_each_task_waits_for<F: Fixture<Store: LogStore>>(fixture: F) {
    let log = ordered(fixture, DeadHead::Hold, 7).await;
    log.settle(0, &dead([unfinished(6, "C", NOW)])).await;
    let tasks = [
        scheduled(1, "A", LATER),
        unfinished(2, "A", LATER),
        unfinished(3, "A", NOW),
        unfinished(7, "C", NOW),
    ];
    log.settle(0, &as_tasks(tasks)).await;
    let process = log.enter().await;
    log.lease(process, &[unfinished(4, "B", NOW)]).await.unwrap();
    log.settle(0, &as_tasks([unfinished(5, "B", NOW)])).await;
    let expected = [
        (1, Waits::Scheduled),
        (2, Waits::Turn),
        (3, Waits::Parked),
        (4, Waits::Running),
        (5, Waits::Parked),
        (7, Waits::Parked),
    ];
    let mut tasks: Vec<_> = log.tasks().await.iter().map(|task| (task.place.pos, task.waits)).collect();
    tasks.sort_unstable_by_key(|task| task.0);
    assert_eq!(tasks, expected);
    let messages = log.messages(0, 0, 10).await;
    let states: Vec<_> = messages
        .iter()
        .filter_map(|one| match &one.handlers[0].1 {
            MessageState::Task { waits, .. } => Some((one.message.place.pos, *waits)),
            _ => None,
        })
        .collect();
    assert_eq!(states, expected);
    log.travel(LATER);
    let due = log.tasks_of("ledger").await.into_iter().find(|task| task.place == place(0, 1)).unwrap();
    assert_eq!(due.waits, Waits::Turn);
}
