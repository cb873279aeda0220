//! Handlers: paused, resumed, replayed, renamed, removed.

use super::database::{Database, on_each_database, take, with_ledger};

on_each_database!(
    a_paused_handler_takes_nothing_until_it_is_resumed,
    a_replay_goes_over_what_was_received_since,
    a_new_name_has_everything_that_the_old_one_had,
    one_is_removed_only_on_purpose,
    a_name_that_nobody_has_is_said_so,
);

async fn a_paused_handler_takes_nothing_until_it_is_resumed(database: &Database) {
    with_ledger!(database, inbox => {
        assert_eq!(take(&inbox, &[("o-1", "{}")]).await, 1);
        database.oncebox(&["handlers", "pause", "ledger"]).ok().says("is paused");
        database.oncebox(&["handlers", "pause", "ledger"]).ok().says("was paused already");
        assert_eq!(take(&inbox, &[("o-2", "{}")]).await, 0);
        let status = &database.oncebox(&["status", "--json"]).ok().json()[0];
        assert_eq!((&status["handlers"][0]["state"], &status["handlers"][0]["lag"]), (&"paused".into(), &1.into()));
        database.oncebox(&["doctor"]).ok().says("an operator has paused ledger");
        let resumed = database.oncebox(&["handlers", "resume", "ledger", "--json"]).ok().json();
        assert_eq!(resumed[0]["changed"], true);
        let audit = database.oncebox(&["audit", "--json"]).ok().json();
        let actions: Vec<&str> = audit.iter().map(|entry| entry["action"].as_str().unwrap()).collect();
        assert_eq!(actions, ["resume", "pause"], "the newest first");
        database.oncebox(&["audit", "--limit", "1"]).ok().says("resume  ledger");
        assert_eq!(inbox.work_until_idle().await.unwrap().done, 1);
    });
}

async fn a_replay_goes_over_what_was_received_since(database: &Database) {
    with_ledger!(database, inbox => {
        assert_eq!(take(&inbox, &[("o-1", "{}"), ("o-2", "{}"), ("o-3", "broken")]).await, 2);
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
        .complains("30m or 2d");
}

async fn a_new_name_has_everything_that_the_old_one_had(database: &Database) {
    with_ledger!(database, inbox => {
        take(&inbox, &[("o-1", "broken")]).await;
    });
    database.oncebox(&["handlers", "rename", "ledger", "books"]).ok().says("is books from now on");
    let listed = database.oncebox(&["handlers", "--json"]).ok().json();
    assert_eq!(listed.len(), 1);
    assert_eq!((&listed[0]["name"], &listed[0]["dead"]), (&"books".into(), &1.into()));
    database.oncebox(&["handlers", "rename", "books", "a\nb"]).ends_with_code(2);
}

async fn one_is_removed_only_on_purpose(database: &Database) {
    with_ledger!(database, inbox => {
        take(&inbox, &[("o-1", "broken")]).await;
    });
    database
        .oncebox(&["handlers", "remove", "ledger"])
        .ends_with_code(2)
        .complains("1 dead letters")
        .complains("--yes");
    assert_eq!(database.oncebox(&["handlers", "list", "--json"]).ok().json().len(), 1);
    database.oncebox(&["handlers", "remove", "ledger", "--yes"]).ok();
    assert!(database.oncebox(&["handlers", "list", "--json"]).ok().json().is_empty());
    let all = database.oncebox(&["handlers", "list", "--all", "--json"]).ok().json();
    assert_eq!(all[0]["state"], "removed");
    database.oncebox(&["handlers", "pause", "ledger"]).ends_with_code(4);
}

async fn a_name_that_nobody_has_is_said_so(database: &Database) {
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
        let answer = database.oncebox(arguments).ends_with_code(4);
        answer.complains("Did you mean \"ledger\"?").complains("there are ledger");
    }
}
