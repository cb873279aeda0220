//! Dead letters: the actions of operators on them, and the audit of these actions.

use oncebox_core::store::{DeadLetter, Select};
use oncebox_core::{ErrorKind, Failure, Inbox, LogStore};
use std::time::Duration;

use super::stored::{Conn, accept_new, one_lane, sample};
use super::{Fixture, Sample};
use crate::operator;

const GOOD: &str = r#"{"id": "corrected", "text": "good"}"#;

/// An inbox with two handlers that fail permanently unless the message's text is `good`.
async fn particular<F: Fixture<Store: LogStore>>(fixture: &F) -> Inbox<F::Store> {
    let mut builder = one_lane(fixture);
    for name in ["one", "two"] {
        let effects = fixture.clone();
        let handler = async move |sample: Sample, conn: &mut Conn<F>| -> Result<(), Failure> {
            effects.effect(conn, &format!("{name} {}", sample.id)).await?;
            match sample.text.as_str() {
                "good" => Ok(()),
                _ => Err(Failure::permanent(format!("{name} does not take {}", sample.id))),
            }
        };
        builder = builder.on(name, handler);
    }
    builder.build().await.unwrap()
}

/// The same with two dead letters of each handler.
async fn with_dead_letters<F: Fixture<Store: LogStore>>(fixture: &F) -> Inbox<F::Store> {
    let inbox = particular(fixture).await;
    for id in ["a", "b"] {
        accept_new(&inbox, sample(id)).await;
    }
    assert_eq!(inbox.work_until_idle().await.unwrap().dead, 4);
    inbox
}

fn names(letters: &[DeadLetter]) -> Vec<String> {
    let name = |letter: &DeadLetter| {
        format!("{} {}", letter.handler, letter.key.as_ref().map(ToString::to_string).unwrap_or_default())
    };
    let mut names: Vec<String> = letters.iter().map(name).collect();
    names.sort();
    names
}

/// By handler, kind, place, error and time.
pub async fn dead_letters_are_selected_by_what_they_have<F: Fixture<Store: LogStore>>(fixture: F) {
    let inbox = with_dead_letters(&fixture).await;
    fixture.travel(Duration::from_secs(3600));
    let late = accept_new(&inbox, sample("c")).await;
    assert_eq!(inbox.work_until_idle().await.unwrap().dead, 2);
    let select = async |select: Select| names(&inbox.operators().dead_letters(select, 100).await.unwrap());

    assert_eq!(select(Select::all().handler("one")).await, ["one a", "one b", "one c"]);
    assert_eq!(select(Select::all().kind("sample")).await.len(), 6);
    assert!(select(Select::all().kind("another")).await.is_empty());
    // `%` and `_` are wildcards of SQL's `like`. In a filter they are plain characters.
    assert!(select(Select::all().handler("o%")).await.is_empty());
    assert_eq!(select(Select::all().at(late)).await, ["one c", "two c"]);
    assert_eq!(select(Select::all().at(late).handler("two")).await, ["two c"]);
    assert_eq!(select(Select::all().error("DOES NOT TAKE A")).await, ["one a", "two a"]);
    assert!(select(Select::all().error("does_not")).await.is_empty());
    let first_late = inbox.operators().dead_letters(Select::all().at(late), 10).await.unwrap();
    let died_at = first_late[0].died_at - Duration::from_secs(60);
    assert_eq!(select(Select::all().died_after(died_at)).await, ["one c", "two c"]);
    assert_eq!(select(Select::all().died_before(died_at)).await, ["one a", "one b", "two a", "two b"]);

    let oldest = inbox.operators().dead_letters(Select::all(), 4).await.unwrap();
    assert_eq!(names(&oldest), ["one a", "one b", "two a", "two b"]);
}

/// The time of a dead letter is exact enough to find it again.
pub async fn a_dead_letter_is_found_by_its_own_time<F: Fixture<Store: LogStore>>(fixture: F) {
    let inbox = particular(&fixture).await;
    // Several letters, because a rounding error of the time shows only at some times.
    for n in 0..20 {
        accept_new(&inbox, sample(&format!("m-{n}"))).await;
        assert_eq!(inbox.work_until_idle().await.unwrap().dead, 2);
    }
    for letter in inbox.operators().dead_letters(Select::all(), 100).await.unwrap() {
        let itself = Select::all().handler(&letter.handler).at(letter.place);
        let from_then =
            inbox.operators().dead_letters(itself.clone().died_after(letter.died_at), 10).await.unwrap();
        assert_eq!(from_then.len(), 1, "{letter:?} did not die at its time or later");
        let before = inbox.operators().dead_letters(itself.died_before(letter.died_at), 10).await.unwrap();
        assert_eq!(before.len(), 0, "{letter:?} died before its time");
    }
}

/// A corrected body is for one handler of one message.
pub async fn one_dead_letter_is_corrected_at_a_time<F: Fixture<Store: LogStore>>(fixture: F) {
    let inbox = with_dead_letters(&fixture).await;
    let several =
        inbox.operators().edit_dead(Select::all().handler("one"), GOOD, &operator("ann")).await.unwrap_err();
    assert_eq!(several.kind(), ErrorKind::Configuration);
    assert_eq!(inbox.operators().dead_letters(Select::all(), 10).await.unwrap().len(), 4);
    assert!(inbox.operators().audit(10).await.unwrap().is_empty());

    let place = inbox.operators().find_message("sample", "b").await.unwrap().unwrap();
    let one = Select::all().handler("one").at(place);
    assert_eq!(inbox.operators().edit_dead(one.clone(), "nonsense", &operator("ann")).await.unwrap(), 1);
    assert_eq!(inbox.work_until_idle().await.unwrap().dead, 1);
    let letters = inbox.operators().dead_letters(one.clone(), 10).await.unwrap();
    assert_eq!(letters[0].body, b"nonsense", "what the handler would be given now");
    assert_eq!(inbox.operators().edit_dead(one.clone(), GOOD, &operator("bob")).await.unwrap(), 1);
    assert_eq!(inbox.work_until_idle().await.unwrap().done, 1);
    assert_eq!(inbox.operators().edit_dead(one, GOOD, &operator("bob")).await.unwrap(), 0, "it is done");
    assert_eq!((fixture.effects("one corrected").await, fixture.effects("two corrected").await), (1, 0));
    assert_eq!(
        names(&inbox.operators().dead_letters(Select::all(), 10).await.unwrap()),
        ["one a", "two a", "two b"]
    );
    // The message in the log stays as it was.
    let message = inbox.operators().message(place).await.unwrap().unwrap().message;
    assert_eq!(message.body, *oncebox_core::Envelope::of(&Sample::new("b")).unwrap().body());

    let audit = inbox.operators().audit(10).await.unwrap();
    let entries: Vec<_> = audit.iter().map(|entry| (&*entry.operator, &*entry.action, entry.place)).collect();
    assert_eq!(entries, [("bob", "edit", Some(place)), ("ann", "edit", Some(place))]);
    assert_eq!(audit[1].handler, "one");
    let detail = audit[1].detail.as_deref().unwrap();
    assert!(detail.starts_with("one does not take b; corrected to 8 bytes, SHA-256 "), "{detail}");
}

/// Discarded dead letters are removed, and each has an entry in the audit.
pub async fn discarded_letters_never_run<F: Fixture<Store: LogStore>>(fixture: F) {
    let inbox = with_dead_letters(&fixture).await;
    let place = inbox.operators().find_message("sample", "a").await.unwrap().unwrap();
    assert_eq!(inbox.operators().discard_dead(Select::all().at(place), &operator("ann")).await.unwrap(), 2);
    assert_eq!(inbox.operators().discard_dead(Select::all().at(place), &operator("ann")).await.unwrap(), 0);
    assert_eq!(names(&inbox.operators().dead_letters(Select::all(), 10).await.unwrap()), ["one b", "two b"]);
    assert_eq!(inbox.operators().retry_dead(Select::all().at(place), &operator("ann")).await.unwrap(), 0);
    assert!(inbox.work_until_idle().await.unwrap().is_empty());
    let audit = inbox.operators().audit(10).await.unwrap();
    assert_eq!(audit.len(), 2);
    for entry in audit {
        let found = (&*entry.operator, &*entry.action, entry.place);
        assert_eq!(found, ("ann", "discard", Some(place)));
    }
}

/// A resolved dead letter has a marker, so the message cannot run later.
pub async fn letters_that_were_resolved_count_as_done<F: Fixture<Store: LogStore>>(fixture: F) {
    let inbox = with_dead_letters(&fixture).await;
    let place = inbox.operators().find_message("sample", "a").await.unwrap().unwrap();
    let one = Select::all().handler("one").at(place);
    assert_eq!(inbox.operators().resolve_dead(one, &operator("ann")).await.unwrap(), 1);
    assert!(inbox.marker("one", "sample", "a").await.unwrap().is_some());
    assert!(inbox.marker("two", "sample", "a").await.unwrap().is_none());
    assert!(inbox.work_until_idle().await.unwrap().is_empty());
    let audit = inbox.operators().audit(10).await.unwrap();
    assert_eq!((audit.len(), &*audit[0].action, &*audit[0].handler), (1, "resolve", "one"));
    assert_eq!(audit[0].place, Some(place));

    // The other one turns out to be done elsewhere: it leaves, and does not run.
    assert_eq!(inbox.import_processed_kind("two", "sample", ["a"]).await.unwrap(), 1);
    assert_eq!(
        inbox.operators().retry_dead(Select::all().handler("two").at(place), &operator("bob")).await.unwrap(),
        1
    );
    assert!(inbox.work_until_idle().await.unwrap().is_empty());
    assert_eq!(names(&inbox.operators().dead_letters(Select::all(), 10).await.unwrap()), ["one b", "two b"]);
    assert_eq!(inbox.operators().audit(10).await.unwrap().len(), 2);
}

/// A retried dead letter has all attempts again, and its history grows.
pub async fn a_dead_letter_that_is_run_again_has_all_its_attempts<F: Fixture<Store: LogStore>>(fixture: F) {
    let inbox = with_dead_letters(&fixture).await;
    // Twice, because a message that is dead again must have the attempts from before its retry too.
    for round in 1..=2 {
        assert_eq!(
            inbox.operators().retry_dead(Select::all(), &operator("ann")).await.unwrap(),
            4,
            "round {round}"
        );
        assert!(inbox.operators().dead_letters(Select::all(), 10).await.unwrap().is_empty());
        assert_eq!(inbox.work_until_idle().await.unwrap().dead, 4, "round {round}");
        for letter in inbox.operators().dead_letters(Select::all(), 10).await.unwrap() {
            assert_eq!(letter.attempts.len(), 1 + round, "{letter:?}");
        }
    }
    assert_eq!(inbox.operators().audit(100).await.unwrap().len(), 8);
    assert_eq!(fixture.effects("one a").await, 0);
}

/// Word for word, on every store.
pub async fn the_audit_says_what_was_done_with_a_dead_letter<F: Fixture<Store: LogStore>>(fixture: F) {
    let inbox = particular(&fixture).await;
    let mut places = Vec::new();
    for id in ["retry", "edit", "discard", "mark", "done"] {
        places.push(accept_new(&inbox, sample(id)).await);
    }
    inbox.work_until_idle().await.unwrap();
    let select = |n: usize| Select::all().handler("one").at(places[n]);
    let operators = inbox.operators();
    assert_eq!(inbox.import_processed_kind("one", "sample", ["done"]).await.unwrap(), 1);
    operators.retry_dead(select(0), &operator("ann")).await.unwrap();
    operators.edit_dead(select(1), "better", &operator("ann")).await.unwrap();
    operators.discard_dead(select(2), &operator("ann")).await.unwrap();
    operators.resolve_dead(select(3), &operator("ann")).await.unwrap();
    operators.retry_dead(select(4), &operator("ann")).await.unwrap();

    // The SHA-256 of the corrected body `better`.
    let digest = "d7d5dcc369426e2e5f8dcb89af4308b0daed6e55910d53395ce38bd6dd1a9456";
    let edited = format!("one does not take edit; corrected to 6 bytes, SHA-256 {digest}");
    let expected = [
        ("retry", "one does not take retry"),
        ("edit", &*edited),
        ("discard", "one does not take discard"),
        ("resolve", "one does not take mark"),
        ("already_done", "one does not take done"),
    ];
    let written: Vec<_> = operators.audit(100).await.unwrap().into_iter().rev().collect();
    assert_eq!(written.len(), expected.len());
    for ((entry, (action, detail)), place) in written.iter().zip(expected).zip(&places) {
        assert_eq!((&*entry.operator, &*entry.action, &*entry.handler), ("ann", action, "one"));
        assert_eq!((entry.place, entry.detail.as_deref()), (Some(*place), Some(detail)));
    }
}
