//! Dead letters: found, read, and dealt with.

use oncebox::store::Place;

use super::database::{Database, on_each_database, take, with_ledger};

on_each_database!(
    they_are_found_by_what_is_known_of_them,
    one_is_shown_with_everything_that_can_be_done,
    they_are_tried_again_under_the_name_of_who_said_so,
    one_is_corrected_and_the_log_keeps_the_original,
    they_are_discarded_only_on_purpose,
    they_count_as_done_when_somebody_saw_to_it,
);

const ORDERS: [(&str, &str); 3] =
    [("o-1", r#"{"order":1}"#), ("o-2", r#"{"order":2,"state":"broken"}"#), ("o-3", "broken \u{1b}[2J")];

async fn they_are_found_by_what_is_known_of_them(database: &Database) {
    with_ledger!(database, inbox => {
        assert_eq!(take(&inbox, &ORDERS).await, 1);
    });
    let found = |filter: &[&str]| {
        let listed = database.oncebox(&[&["dead", "list", "--json"], filter].concat()).ok().json();
        listed.iter().map(|letter| letter["place"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(found(&[]), ["0/2", "0/3"]);
    assert_eq!(found(&["--limit", "1"]), ["0/2"]);
    assert_eq!(found(&["--at", "0/3"]), ["0/3"]);
    assert_eq!(found(&["--handler", "ledger", "--kind", "order.paid"]).len(), 2);
    assert!(found(&["--kind", "order.sent"]).is_empty());
    assert_eq!(found(&["--error", "CLOSED"]).len(), 2);
    assert!(found(&["--error", "open"]).is_empty());
    assert_eq!(found(&["--since", "1h"]).len(), 2);
    assert!(found(&["--before", "1h"]).is_empty());

    let letter = &database.oncebox(&["dead", "--json"]).ok().json()[0];
    assert_eq!((&letter["handler"], &letter["key"]), (&"ledger".into(), &"o-2".into()));
    assert_eq!(letter["attempts"].as_array().unwrap().len(), 2);
    assert_eq!(letter["attempts"][1]["attempt"], 2);
    assert!(letter.get("body").is_none());
    database.oncebox(&["dead"]).ok().says("the ledger is closed").says("0/2");
    database
        .oncebox(&["dead", "list", "--handler", "legder"])
        .ends_with_code(4)
        .complains("Did you mean \"ledger\"?");
    database.oncebox(&["dead", "list", "--at", "3"]).ends_with_code(2).complains("LANE/POSITION");
}

async fn one_is_shown_with_everything_that_can_be_done(database: &Database) {
    with_ledger!(database, inbox => {
        take(&inbox, &ORDERS).await;
    });
    let shown =
        database.oncebox(&["dead", "show", "0/2"]).ok().says("\"state\": \"broken\"").says("attempt 2:");
    let mut steps: Vec<&str> = shown.out.lines().rev().take(4).collect();
    steps.reverse();
    let expected = [
        "oncebox dead retry --at 0/2 --handler ledger",
        "oncebox dead edit 0/2 --handler ledger --body corrected.json",
        "oncebox dead resolve --at 0/2 --handler ledger",
        "oncebox dead discard --at 0/2 --handler ledger",
    ];
    for (step, expected) in steps.iter().zip(expected) {
        assert!(step.trim().starts_with(expected), "{step}");
        assert!(step.contains("--store"), "{step}");
    }
    let json = &database.oncebox(&["dead", "show", "0/2", "--handler", "ledger", "--json"]).ok().json()[0];
    assert_eq!(json["body"], ORDERS[1].1);
    // What a sender wrote does nothing to the terminal.
    let hostile = database.oncebox(&["dead", "show", "0/3"]).ok().says("\\u{1b}[2J");
    assert!(!hostile.out.contains('\u{1b}'));
    database.oncebox(&["dead", "show", "0/1"]).ends_with_code(4).complains("there is no dead letter at 0/1");
}

async fn they_are_tried_again_under_the_name_of_who_said_so(database: &Database) {
    with_ledger!(database, inbox => {
        take(&inbox, &ORDERS).await;
        database.oncebox(&["dead", "retry"]).ends_with_code(2).complains("--all");
        database.oncebox(&["dead", "retry", "--all", "--at", "0/2"]).ends_with_code(2);
        assert_eq!(inbox.operators().dead_letters(oncebox::store::Select::all(), 9).await.unwrap().len(), 2);
        let retried = database.oncebox(&["dead", "retry", "--at", "0/2", "--json"]).ok().json();
        assert_eq!(retried[0]["letters"], 1);
        assert_eq!(inbox.operators().tasks(None, 9).await.unwrap()[0].place, Place { lane: 0, pos: 2 });
        let audit = &inbox.operators().audit(1).await.unwrap()[0];
        assert_eq!((&*audit.operator, &*audit.action), ("ann", "retry"));
        database.oncebox(&["dead", "retry", "--at", "0/2"]).ends_with_code(4).complains("no dead letter matches --at 0/2");
        // It dies again.
        inbox.work_until_idle().await.unwrap();
        database.oncebox(&["dead", "retry", "--all", "--operator", "bob"]).ok().says("2 dead letters");
        assert_eq!(inbox.operators().audit(1).await.unwrap()[0].operator, "bob");
    });
}

async fn one_is_corrected_and_the_log_keeps_the_original(database: &Database) {
    with_ledger!(database, inbox => {
        take(&inbox, &ORDERS).await;
        let edit = ["dead", "edit", "0/2", "--handler", "ledger", "--body"];
        database.oncebox(&[&edit[..], &["nowhere.json"]].concat()).ends_with_code(1).complains("nowhere.json");
        database.oncebox_with(&[&edit[..], &["-"]].concat(), b"{}").ok().says("2 bytes");
        assert_eq!(inbox.work_until_idle().await.unwrap().done, 1);
        database.oncebox(&["messages", "show", "0/2"]).ok().says("ledger: done");
        let original = database.oncebox(&["messages", "show", "0/2", "--raw"]).ok();
        assert_eq!(original.bytes, ORDERS[1].1.as_bytes());
        database.oncebox_with(&[&edit[..], &["-"]].concat(), b"{}").ends_with_code(4);
        let other = ["dead", "edit", "0/3", "--handler", "mail", "--body", "-"];
        database.oncebox_with(&other, b"{}").ends_with_code(4).complains("there is no handler \"mail\"");
    });
}

async fn they_are_discarded_only_on_purpose(database: &Database) {
    with_ledger!(database, inbox => {
        take(&inbox, &ORDERS).await;
    });
    let discard = ["dead", "discard", "--at", "0/2"];
    database.oncebox(&discard).ends_with_code(2).complains("1 dead letter of ledger").complains("Add --yes");
    assert_eq!(database.count("dead").await, 2);
    database.oncebox(&[&discard[..], &["--yes"]].concat()).ok().says("1 dead letter: discarded");
    assert_eq!(database.count("dead").await, 1);
    database
        .oncebox(&[&discard[..], &["--yes"]].concat())
        .ends_with_code(4)
        .complains("no dead letter matches");
    database.oncebox(&["dead", "discard", "--yes"]).ends_with_code(2);
    assert_eq!(database.count("dead").await, 1);
}

async fn they_count_as_done_when_somebody_saw_to_it(database: &Database) {
    with_ledger!(database, inbox => {
        take(&inbox, &ORDERS).await;
    });
    let marked = database.oncebox(&["dead", "resolve", "--error", "closed", "--json"]).ok().json();
    assert_eq!((&marked[0]["action"], &marked[0]["letters"]), (&"resolve".into(), &2.into()));
    database.oncebox(&["messages", "show", "0/3"]).ok().says("ledger: done");
    database.oncebox(&["dead"]).ok().says("No dead letters.");
    database.oncebox(&["dead", "resolve", "--all"]).ends_with_code(4).complains("there are no dead letters");
}
