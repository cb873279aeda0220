//! Messages: listed, shown, and what became of them.

use oncebox::{Envelope, Key};

use super::database::{Database, on_each_database, take, with_ledger};

on_each_database!(
    a_new_database_has_no_lanes,
    messages_say_what_became_of_them,
    bytes_are_shown_as_what_they_are,
    those_that_wait_are_listed,
    tasks_are_listed_with_what_waits
);

async fn a_new_database_has_no_lanes(database: &Database) {
    database.oncebox(&["migrate", "up"]).ok();
    database.oncebox(&["messages", "list"]).ok().says("No messages.");
    database.oncebox(&["messages", "list", "--lane", "0"]).ends_with_code(4).complains("no lanes yet");
}

async fn messages_say_what_became_of_them(database: &Database) {
    with_ledger!(database, inbox => {
        take(&inbox, &[("o-1", "{}"), ("o-2", "broken")]).await;
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
    database.oncebox(&["messages"]).ok().says("nobody takes it").says("ledger: dead");
    database.oncebox(&["messages", "list", "--lane", "1"]).ends_with_code(4).complains("lanes 0 to 0");
    database.oncebox(&["messages", "list", "--behind", "1"]).ends_with_code(2);

    let by_key = ["messages", "show", "--kind", "order.sent", "--key", "s-1"];
    database.oncebox(&by_key).ok().says("trace: abc").says("Nobody takes this kind.").says("\ntext\n");
    let shown = &database.oncebox(&[&by_key[..], &["--json"]].concat()).ok().json()[0];
    assert_eq!((&shown["place"], &shown["body"]), (&"0/3".into(), &"text".into()));
    assert_eq!(shown["headers"][0], serde_json::json!(["trace", "abc"]));
    database
        .oncebox(&["messages", "show", "--kind", "order.sent", "--key", "s-2"])
        .ends_with_code(4)
        .complains("the key SOURCE/KEY");
    for nowhere in ["0/9", "9/1"] {
        database.oncebox(&["messages", "show", nowhere]).ends_with_code(4).complains(nowhere);
    }
    database.oncebox(&["messages", "show"]).ends_with_code(2).complains("--kind with --key");
    database.oncebox(&["messages", "list", "--limit", "0"]).ends_with_code(2);
}

async fn bytes_are_shown_as_what_they_are(database: &Database) {
    with_ledger!(database, inbox => {
        let odd = Envelope::new("order.paid", vec![0xff, 0x00, 0x1b]).with_key(Key::new([0xfe, 0x01]));
        inbox.accept(odd).await.unwrap();
    });
    database.oncebox(&["messages", "show", "0/1"]).ok().says("ff001b").says("0xfe01");
    let shown = &database.oncebox(&["messages", "show", "0/1", "--json"]).ok().json()[0];
    assert_eq!((&shown["body_hex"], &shown["key_hex"]), (&"ff001b".into(), &"fe01".into()));
    assert_eq!(database.oncebox(&["messages", "show", "0/1", "--raw"]).ok().bytes, [0xff, 0x00, 0x1b]);
    database.oncebox(&["messages", "show", "--kind", "order.paid", "--key", "0xfe01"]).ok().says("0/1");
}

async fn those_that_wait_are_listed(database: &Database) {
    with_ledger!(database, inbox => {
        take(&inbox, &[("o-1", "{}")]).await;
        inbox.accept(Envelope::new("order.paid", "{}").with_key("o-2")).await.unwrap();
    });
    let waiting = database.oncebox(&["messages", "list", "--handler", "ledger", "--json"]).ok().json();
    assert_eq!(waiting.len(), 1);
    assert_eq!((&waiting[0]["key"], &waiting[0]["handlers"][0]["state"]), (&"o-2".into(), &"waiting".into()));
}

/// What is tried again, or scheduled, is not in the log's way any more, and still not done.
async fn tasks_are_listed_with_what_waits(database: &Database) {
    with_ledger!(database, inbox => {
        let tomorrow = std::time::SystemTime::now() + std::time::Duration::from_secs(86_400);
        inbox.accept(Envelope::new("order.paid", "{}").with_key("later").with_due_at(tomorrow)).await.unwrap();
        take(&inbox, &[("o-1", "{}")]).await;
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
