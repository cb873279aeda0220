//! Handlers: paused, resumed, replayed, renamed, removed.

use super::database::{InboxDatabase, accept_and_work, on_each_database, with_ledger};

on_each_database!(
    a_paused_handler_takes_no_messages_until_it_is_resumed,
    a_replay_repeats_messages_since_a_time,
    a_renamed_handler_keeps_everything,
    removing_a_handler_needs_a_confirmation,
    an_unknown_name_is_reported_with_a_suggestion,
);

async fn a_paused_handler_takes_no_messages_until_it_is_resumed(database: &InboxDatabase) {
    with_ledger!(database, inbox => {
        assert_eq!(accept_and_work(&inbox, &[("o-1", "{}")]).await, 1);
        database.oncebox(&["handlers", "pause", "ledger"]).ok().prints("is paused");
        database.oncebox(&["handlers", "pause", "ledger"]).ok().prints("is already paused");
        assert_eq!(accept_and_work(&inbox, &[("o-2", "{}")]).await, 0);
        let status = &database.oncebox(&["status", "--json"]).ok().json()[0];
        assert_eq!((&status["handlers"][0]["state"], &status["handlers"][0]["lag"]), (&"paused".into(), &1.into()));
        database.oncebox(&["doctor"]).ok().prints("paused by an operator: ledger");
        let resumed = database.oncebox(&["handlers", "resume", "ledger", "--json"]).ok().json();
        assert_eq!(resumed[0]["changed"], true);
        let audit = database.oncebox(&["audit", "--json"]).ok().json();
        let actions: Vec<&str> = audit.iter().map(|entry| entry["action"].as_str().unwrap()).collect();
        assert_eq!(actions, ["resume", "pause"], "the newest first");
        database.oncebox(&["audit", "--limit", "1"]).ok().prints("resume  ledger");
        assert_eq!(inbox.work_until_idle().await.unwrap().done, 1);
    });
}

async fn a_replay_repeats_messages_since_a_time(database: &InboxDatabase) {
    with_ledger!(database, inbox => {
        assert_eq!(accept_and_work(&inbox, &[("o-1", "{}"), ("o-2", "{}"), ("o-3", "broken")]).await, 2);
        let replay = |from: &[&str]| {
            let arguments = [&["handlers", "replay", "ledger", "--json"], from].concat();
            database.oncebox(&arguments).ok().json().remove(0)
        };
        assert_eq!(replay(&["--since", "2100-01-01T00:00:00Z"])["positions"], 0);
        assert_eq!(inbox.work_until_idle().await.unwrap().done, 0);
        let all = replay(&["--since", "1h"]);
        assert_eq!((&all["positions"], &all["dead"]), (&3.into(), &1.into()));
        assert_eq!(inbox.work_until_idle().await.unwrap().done, 2);
        assert_eq!(replay(&["--at", "0/2"])["positions"], 2);
        assert_eq!(inbox.work_until_idle().await.unwrap().done, 1);
        assert_eq!(replay(&["--all"])["positions"], 3);
    });
    database.oncebox(&["handlers", "replay", "ledger"]).ends_with_code(2);
    database.oncebox(&["handlers", "replay", "ledger", "--all", "--at", "0/1"]).ends_with_code(2);
    database
        .oncebox(&["handlers", "replay", "ledger", "--since", "yesterday"])
        .ends_with_code(2)
        .reports("30m or 2d");
}

async fn a_renamed_handler_keeps_everything(database: &InboxDatabase) {
    with_ledger!(database, inbox => {
        accept_and_work(&inbox, &[("o-1", "broken")]).await;
    });
    database.oncebox(&["handlers", "rename", "ledger", "books"]).ok().prints("is renamed to books");
    let listed = database.oncebox(&["handlers", "--json"]).ok().json();
    assert_eq!(listed.len(), 1);
    assert_eq!((&listed[0]["name"], &listed[0]["dead"]), (&"books".into(), &1.into()));
    database.oncebox(&["handlers", "rename", "books", "a\nb"]).ends_with_code(2);
}

async fn removing_a_handler_needs_a_confirmation(database: &InboxDatabase) {
    with_ledger!(database, inbox => {
        accept_and_work(&inbox, &[("o-1", "broken")]).await;
    });
    database
        .oncebox(&["handlers", "remove", "ledger"])
        .ends_with_code(2)
        .reports("1 dead letters")
        .reports("--yes");
    assert_eq!(database.oncebox(&["handlers", "list", "--json"]).ok().json().len(), 1);
    database.oncebox(&["handlers", "remove", "ledger", "--yes"]).ok();
    assert!(database.oncebox(&["handlers", "list", "--json"]).ok().json().is_empty());
    let all = database.oncebox(&["handlers", "list", "--all", "--json"]).ok().json();
    assert_eq!(all[0]["state"], "removed");
    database.oncebox(&["handlers", "pause", "ledger"]).ends_with_code(4);
}

async fn an_unknown_name_is_reported_with_a_suggestion(database: &InboxDatabase) {
    with_ledger!(database, _inbox => {});
    for arguments in [
        &["handlers", "pause", "ledgr"][..],
        &["handlers", "resume", "ledgr"],
        &["handlers", "replay", "ledgr", "--all"],
        &["handlers", "remove", "ledgr", "--yes"],
        &["handlers", "rename", "ledgr", "books"],
        &["messages", "list", "--handler", "ledgr"],
        &["dead", "discard", "--handler", "ledgr", "--yes"],
    ] {
        let result = database.oncebox(arguments).ends_with_code(4);
        result.reports("Did you mean \"ledger\"?").reports("(known: ledger)");
    }
}
