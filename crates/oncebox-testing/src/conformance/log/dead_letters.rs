//! Actions of operators on dead letters.

use oncebox_core::LogStore;
use oncebox_core::store::{Action, MarkerState, Select};

use crate::Fixture;
use crate::one_handler::{OneHandler, dead, failed_again, place, positions};

/// One entry for each letter, with the action, the operator and the letter's error.
pub async fn every_action_on_a_dead_letter_is_audited<F: Fixture<Store: LogStore>>(fixture: F) {
    let log = OneHandler::new(fixture).await;
    log.make_dead(&[("1", "e1"), ("2", "e2"), ("3", "e3"), ("4", "e4"), ("5", "e5")]).await;
    log.import_processed("5").await;
    let better = Action::Edit(b"better".to_vec());
    let actions = [&Action::Retry, &better, &Action::Discard, &Action::Resolve, &Action::Retry];
    for (action, pos) in actions.into_iter().zip(1..) {
        let select = Select::all().at(place(0, pos));
        assert_eq!(log.act(&select, action, 10).await, 1, "{action:?}");
        assert_eq!(log.act(&select, action, 10).await, 0, "{action:?}");
    }
    assert!(log.dead_letters().await.is_empty());
    let audit = log.audit().await;
    let entries: Vec<_> =
        audit.iter().map(|entry| (entry.action.as_str(), entry.place.unwrap().pos)).collect();
    assert_eq!(entries, [("already_done", 5), ("resolve", 4), ("discard", 3), ("edit", 2), ("retry", 1)]);
    for (entry, error) in audit.iter().zip(["e5", "e4", "e3", "e2", "e1"]) {
        assert_eq!((entry.operator.as_str(), entry.handler.as_str()), ("ann", "ledger"));
        assert!(entry.detail.as_deref().unwrap().contains(error), "{entry:?}");
    }
    for (key, state) in [("3", None), ("4", Some(MarkerState::Done)), ("5", Some(MarkerState::Done))] {
        assert_eq!(log.marker_state(key).await, state, "{key}");
    }
    let tasks = log.due_tasks(0).await;
    assert_eq!(positions(&tasks), [1, 2]);
    assert_eq!((tasks[0].failures, tasks[0].edited), (0, false));
    assert!(tasks[0].attempts.as_deref().unwrap().contains("e1"));
    assert_eq!((tasks[1].body.as_slice(), tasks[1].edited), (&b"better"[..], true));
}

/// It is what the handler gets the next time, too.
pub async fn a_correction_stays_when_the_message_dies_again<F: Fixture<Store: LogStore>>(fixture: F) {
    let log = OneHandler::new(fixture).await;
    log.make_dead(&[("1", "e1")]).await;
    log.act(&Select::all(), &Action::Edit(b"better".to_vec()), 10).await;
    log.work_tasks(0, 10, |tasks| dead([failed_again(&tasks[0], "e2")])).await;
    let letters = log.dead_letters().await;
    assert_eq!((letters[0].body.as_slice(), letters[0].attempts.len()), (&b"better"[..], 2));
    log.act(&Select::all(), &Action::Retry, 10).await;
    let tasks = log.due_tasks(0).await;
    assert_eq!((tasks[0].body.as_slice(), tasks[0].edited), (&b"better"[..], true));
}

/// One step after the other, each behind the last letter of the step before.
pub async fn an_action_takes_the_first_dead_letters_up_to_its_limit<F: Fixture<Store: LogStore>>(fixture: F) {
    let log = OneHandler::new(fixture).await;
    log.make_dead(&[("1", "e"), ("2", "e"), ("3", "e")]).await;
    let step = log.act_after(&Select::all(), &Action::Discard, None, 2).await;
    assert_eq!((step.letters, step.next), (2, Some((log.handler, place(0, 2)))));
    assert_eq!(log.dead_letters().await.iter().map(|letter| letter.place.pos).collect::<Vec<_>>(), [3]);
    let step = log.act_after(&Select::all(), &Action::Discard, step.next, 2).await;
    assert_eq!((step.letters, step.next), (1, None));
}
