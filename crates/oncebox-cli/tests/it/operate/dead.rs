//! Dead letters: listed, shown, retried, edited, resolved and discarded.

use oncebox::store::Place;

use super::database::{InboxDatabase, accept_and_work, on_each_database, with_ledger};

on_each_database!(
    filters_select_dead_letters,
    a_dead_letter_is_shown_with_next_steps,
    a_retry_is_recorded_with_the_operator,
    a_body_is_corrected_and_the_log_keeps_the_original,
    discarding_needs_a_confirmation,
    a_resolved_dead_letter_counts_as_done,
);

const ORDERS: [(&str, &str); 3] =
    [("o-1", r#"{"order":1}"#), ("o-2", r#"{"order":2,"state":"broken"}"#), ("o-3", "broken \u{1b}[2J")];

async fn filters_select_dead_letters(database: &InboxDatabase) {
    with_ledger!(database, inbox => {
        assert_eq!(accept_and_work(&inbox, &ORDERS).await, 1);
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
    database.oncebox(&["dead"]).ok().prints("the ledger is closed").prints("0/2");
    database
        .oncebox(&["dead", "list", "--handler", "legder"])
        .ends_with_code(4)
        .reports("Did you mean \"ledger\"?");
    database.oncebox(&["dead", "list", "--at", "3"]).ends_with_code(2).reports("LANE/POSITION");
}

async fn a_dead_letter_is_shown_with_next_steps(database: &InboxDatabase) {
    with_ledger!(database, inbox => {
        accept_and_work(&inbox, &ORDERS).await;
    });
    let shown =
        database.oncebox(&["dead", "show", "0/2"]).ok().prints("\"state\": \"broken\"").prints("attempt 2:");
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
    // A sender's text cannot control the terminal.
    let hostile = database.oncebox(&["dead", "show", "0/3"]).ok().prints("\\u{1b}[2J");
    assert!(!hostile.out.contains('\u{1b}'));
    database.oncebox(&["dead", "show", "0/1"]).ends_with_code(4).reports("there is no dead letter at 0/1");
}

async fn a_retry_is_recorded_with_the_operator(database: &InboxDatabase) {
    with_ledger!(database, inbox => {
        accept_and_work(&inbox, &ORDERS).await;
        database.oncebox(&["dead", "retry"]).ends_with_code(2).reports("--all");
        database.oncebox(&["dead", "retry", "--all", "--at", "0/2"]).ends_with_code(2);
        assert_eq!(inbox.operators().dead_letters(oncebox::store::Select::all(), 9).await.unwrap().len(), 2);
        let retried = database.oncebox(&["dead", "retry", "--at", "0/2", "--json"]).ok().json();
        assert_eq!(retried[0]["letters"], 1);
        assert_eq!(inbox.operators().tasks(None, 9).await.unwrap()[0].place, Place { lane: 0, pos: 2 });
        let audit = &inbox.operators().audit(1).await.unwrap()[0];
        assert_eq!((&*audit.operator, &*audit.action), ("ann", "retry"));
        database.oncebox(&["dead", "retry", "--at", "0/2"]).ends_with_code(4).reports("no dead letter matches --at 0/2");
        // It dies again.
        inbox.work_until_idle().await.unwrap();
        database.oncebox(&["dead", "retry", "--all", "--operator", "bob"]).ok().prints("2 dead letters");
        assert_eq!(inbox.operators().audit(1).await.unwrap()[0].operator, "bob");
    });
}

async fn a_body_is_corrected_and_the_log_keeps_the_original(database: &InboxDatabase) {
    with_ledger!(database, inbox => {
        accept_and_work(&inbox, &ORDERS).await;
        let edit = ["dead", "edit", "0/2", "--handler", "ledger", "--body"];
        database.oncebox(&[&edit[..], &["nowhere.json"]].concat()).ends_with_code(1).reports("nowhere.json");
        database.oncebox_with(&[&edit[..], &["-"]].concat(), b"{}").ok().prints("2 bytes");
        assert_eq!(inbox.work_until_idle().await.unwrap().done, 1);
        database.oncebox(&["messages", "show", "0/2"]).ok().prints("ledger: done");
        let original = database.oncebox(&["messages", "show", "0/2", "--raw"]).ok();
        assert_eq!(original.bytes, ORDERS[1].1.as_bytes());
        database.oncebox_with(&[&edit[..], &["-"]].concat(), b"{}").ends_with_code(4);
        let other = ["dead", "edit", "0/3", "--handler", "mail", "--body", "-"];
        database.oncebox_with(&other, b"{}").ends_with_code(4).reports("there is no handler \"mail\"");
    });
}

async fn discarding_needs_a_confirmation(database: &InboxDatabase) {
    with_ledger!(database, inbox => {
        accept_and_work(&inbox, &ORDERS).await;
    });
    let discard = ["dead", "discard", "--at", "0/2"];
    database.oncebox(&discard).ends_with_code(2).reports("1 dead letter of ledger").reports("Add --yes");
    assert_eq!(database.count("dead").await, 2);
    database.oncebox(&[&discard[..], &["--yes"]].concat()).ok().prints("1 dead letter: discarded");
    assert_eq!(database.count("dead").await, 1);
    database
        .oncebox(&[&discard[..], &["--yes"]].concat())
        .ends_with_code(4)
        .reports("no dead letter matches");
    database.oncebox(&["dead", "discard", "--yes"]).ends_with_code(2);
    assert_eq!(database.count("dead").await, 1);
}

async fn a_resolved_dead_letter_counts_as_done(database: &InboxDatabase) {
    with_ledger!(database, inbox => {
        accept_and_work(&inbox, &ORDERS).await;
    });
    let marked = database.oncebox(&["dead", "resolve", "--error", "closed", "--json"]).ok().json();
    assert_eq!((&marked[0]["action"], &marked[0]["letters"]), (&"resolve".into(), &2.into()));
    database.oncebox(&["messages", "show", "0/3"]).ok().prints("ledger: done");
    database.oncebox(&["dead"]).ok().prints("No dead letters.");
    database.oncebox(&["dead", "resolve", "--all"]).ends_with_code(4).reports("there are no dead letters");
}
