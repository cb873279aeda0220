//! Messages: listed, shown, and their states.

use oncebox::{Envelope, Key};

use super::database::{InboxDatabase, accept_and_work, on_each_database, with_ledger};

on_each_database!(
    a_new_database_has_no_lanes,
    messages_have_a_state_for_each_handler,
    bytes_that_are_not_text_are_shown_in_hexadecimal,
    waiting_messages_are_listed,
    tasks_are_listed_with_waiting_messages
);

async fn a_new_database_has_no_lanes(database: &InboxDatabase) {
    database.oncebox(&["migrate", "up"]).ok();
    database.oncebox(&["messages", "list"]).ok().prints("No messages.");
    database.oncebox(&["messages", "list", "--lane", "0"]).ends_with_code(4).reports("no lanes yet");
}

async fn messages_have_a_state_for_each_handler(database: &InboxDatabase) {
    with_ledger!(database, inbox => {
        accept_and_work(&inbox, &[("o-1", "{}"), ("o-2", "broken")]).await;
        let other = Envelope::new("order.sent", "text").with_key("s-1").with_header("trace", "abc");
        inbox.accept(other).await.unwrap();
    });
    let listed = database.oncebox(&["messages", "list", "--json"]).ok().json();
    let states: Vec<_> = listed.iter().map(|message| message["handlers"][0]["state"].clone()).collect();
    assert_eq!(states, ["done".into(), "dead".into(), serde_json::Value::Null]);
    assert_eq!(
        database.oncebox(&["messages", "list", "--lane", "0", "--behind", "2", "--json"]).ok().json().len(),
        1
    );
    assert_eq!(database.oncebox(&["messages", "list", "--limit", "2", "--json"]).ok().json().len(), 2);
    database.oncebox(&["messages"]).ok().prints("no handler").prints("ledger: dead");
    database.oncebox(&["messages", "list", "--lane", "1"]).ends_with_code(4).reports("the lanes 0 to 0");
    database.oncebox(&["messages", "list", "--behind", "1"]).ends_with_code(2);

    let by_key = ["messages", "show", "--kind", "order.sent", "--key", "s-1"];
    database
        .oncebox(&by_key)
        .ok()
        .prints("trace: abc")
        .prints("No handler for this kind.")
        .prints("\ntext\n");
    let shown = &database.oncebox(&[&by_key[..], &["--json"]].concat()).ok().json()[0];
    assert_eq!((&shown["place"], &shown["body"]), (&"0/3".into(), &"text".into()));
    assert_eq!(shown["headers"][0], serde_json::json!(["trace", "abc"]));
    database
        .oncebox(&["messages", "show", "--kind", "order.sent", "--key", "s-2"])
        .ends_with_code(4)
        .reports("stores keys as SOURCE/KEY");
    for nowhere in ["0/9", "9/1"] {
        database.oncebox(&["messages", "show", nowhere]).ends_with_code(4).reports(nowhere);
    }
    database.oncebox(&["messages", "show"]).ends_with_code(2).reports("--kind KIND with --key KEY");
    database.oncebox(&["messages", "list", "--limit", "0"]).ends_with_code(2);
}

async fn bytes_that_are_not_text_are_shown_in_hexadecimal(database: &InboxDatabase) {
    with_ledger!(database, inbox => {
        let odd = Envelope::new("order.paid", vec![0xff, 0x00, 0x1b]).with_key(Key::new([0xfe, 0x01]));
        inbox.accept(odd).await.unwrap();
    });
    database.oncebox(&["messages", "show", "0/1"]).ok().prints("ff001b").prints("0xfe01");
    let shown = &database.oncebox(&["messages", "show", "0/1", "--json"]).ok().json()[0];
    assert_eq!((&shown["body_hex"], &shown["key_hex"]), (&"ff001b".into(), &"fe01".into()));
    assert_eq!(database.oncebox(&["messages", "show", "0/1", "--raw"]).ok().bytes, [0xff, 0x00, 0x1b]);
    database.oncebox(&["messages", "show", "--kind", "order.paid", "--key", "0xfe01"]).ok().prints("0/1");
}

async fn waiting_messages_are_listed(database: &InboxDatabase) {
    with_ledger!(database, inbox => {
        accept_and_work(&inbox, &[("o-1", "{}")]).await;
        inbox.accept(Envelope::new("order.paid", "{}").with_key("o-2")).await.unwrap();
    });
    let waiting = database.oncebox(&["messages", "list", "--handler", "ledger", "--json"]).ok().json();
    assert_eq!(waiting.len(), 1);
    assert_eq!((&waiting[0]["key"], &waiting[0]["handlers"][0]["state"]), (&"o-2".into(), &"waiting".into()));
}

/// Retries and scheduled messages are behind the handler's position in the log, but not done.
async fn tasks_are_listed_with_waiting_messages(database: &InboxDatabase) {
    with_ledger!(database, inbox => {
        let tomorrow = std::time::SystemTime::now() + std::time::Duration::from_secs(86_400);
        inbox.accept(Envelope::new("order.paid", "{}").with_key("later").with_due_at(tomorrow)).await.unwrap();
        accept_and_work(&inbox, &[("o-1", "{}")]).await;
        inbox.accept(Envelope::new("order.paid", "{}").with_key("next")).await.unwrap();
    });
    let listed = |arguments: &[&str]| {
        let listed = database.oncebox(&[&["messages", "list", "--json"], arguments].concat()).ok().json();
        let of = |message: &serde_json::Value| {
            let text = |value: &serde_json::Value| value.as_str().unwrap().to_owned();
            (text(&message["key"]), text(&message["handlers"][0]["state"]))
        };
        listed.iter().map(of).collect::<Vec<_>>()
    };
    let (later, next) = (("later".to_owned(), "task".to_owned()), ("next".to_owned(), "waiting".to_owned()));
    assert_eq!(listed(&["--handler", "ledger"]), [later.clone(), next]);
    for arguments in
        [&["--handler", "ledger", "--limit", "1"][..], &["--handler", "ledger", "--tasks"], &["--tasks"]]
    {
        assert_eq!(listed(arguments), std::slice::from_ref(&later), "{arguments:?}");
    }
}
