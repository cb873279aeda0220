//! The outbox: what services publish in SQL, the program delivers; and its relays.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use oncebox::{Envelope, Outbox, Outgoing, Relay, Retry, Sink, Verdict};
use serde_json::json;
use tokio::sync::oneshot;

use super::database::{InboxDatabase, ProgramResult, accept_and_work, on_each_database, with_ledger};

on_each_database!(
    published_messages_are_delivered_by_the_program,
    an_outbox_that_no_process_moves_is_reported,
    the_status_names_movers_and_relays,
    messages_on_their_way_are_listed_and_shown,
    parked_messages_are_those_of_relays,
    a_replay_sends_the_same_ids_and_refuses_pruned_times,
    a_relay_that_needs_an_operator_is_found,
);

/// A sink that confirms everything but bodies with "broken".
#[derive(Clone, Default)]
struct Broker {
    /// The ids that it has confirmed.
    confirmed: Arc<Mutex<Vec<String>>>,
}

impl Sink for Broker {
    async fn publish(&self, wave: &[Outgoing]) -> Vec<Verdict> {
        let judge = |message: &Outgoing| match message.body.windows(6).any(|word| word == b"broken") {
            true => Verdict::Refused("no such queue".into()),
            false => {
                self.confirmed.lock().unwrap().push(message.id.to_string());
                Verdict::Confirmed
            }
        };
        wave.iter().map(judge).collect()
    }
}

impl Broker {
    fn relay(&self) -> Relay {
        let at_once = Retry::new().max_attempts(2).first_delay(Duration::ZERO).max_delay(Duration::ZERO);
        let relay = Relay::new("events", self.clone()).kinds(["order.*"]).retry(at_once);
        relay.unordered().keep_sent(Duration::from_secs(60))
    }

    fn confirmed(&self) -> Vec<String> {
        self.confirmed.lock().unwrap().clone()
    }
}

/// Creates the tables, and an outbox of one lane with the relay of a broker.
macro_rules! with_relay {
    ($database:expr, $broker:expr, $outbox:ident => $body:expr) => {
        match $database.is_sqlite() {
            true => {
                let store = $database.sqlite_store().await;
                store.migrate().await.unwrap();
                let $outbox = Outbox::builder(store).lanes(1).relay($broker.relay()).build().await.unwrap();
                $body
            }
            false => {
                let store = $database.postgres_store().await;
                store.migrate().await.unwrap();
                let $outbox = Outbox::builder(store).lanes(1).relay($broker.relay()).build().await.unwrap();
                $body
            }
        }
    };
}

/// Publishes orders by the program, each a body and a key, and returns their ids.
fn publish_orders(database: &InboxDatabase, orders: &[(&str, &str)]) -> Vec<String> {
    let line = |(key, state): &(&str, &str)| format!("{}\n", json!({ "id": key, "state": state }));
    let lines: String = orders.iter().map(line).collect();
    let publish =
        ["publish", "--kind", "order.paid", "--key-pointer", "/id", "--order-pointer", "/state", "--json"];
    let printed = database.oncebox_with(&publish, lines.as_bytes()).ok().json();
    let ids = printed.iter().filter_map(|line| line["id"].as_str());
    ids.map(str::to_owned).collect()
}

#[track_caller]
fn level(result: &ProgramResult, id: &str) -> String {
    let report = result.json().remove(0);
    let checks = report["checks"].as_array().unwrap().clone();
    let check =
        checks.into_iter().find(|check| check["id"] == id).unwrap_or_else(|| panic!("{id}: {report}"));
    assert_eq!(check["fix"].is_null(), check["level"] == "ok", "{check}");
    check["level"].as_str().unwrap().to_owned()
}

/// Publishes a message as a service does, in a transaction of its own.
async fn publish(database: &InboxDatabase, key: &str) {
    let publish = match &database.schema {
        None => {
            format!("insert into oncebox_publish (kind, body, key) values ('order.paid', '{{}}', '{key}')")
        }
        Some(schema) => format!("select {schema}.publish('order.paid', '{{}}'::jsonb, '{key}')"),
    };
    database.sql(&publish).await;
}

async fn published_messages_are_delivered_by_the_program(database: &InboxDatabase) {
    database.oncebox(&["migrate", "up"]).ok();
    for key in ["o-1", "o-2", "o-1"] {
        publish(database, key).await;
    }
    let config = "[handlers.ledger]\nkinds = [\"order.paid\"]\ncommand = [\"sh\", \"-c\", \"echo $ONCEBOX_KEY >> keys\"]\n";
    std::fs::write(database.folder.path().join("oncebox.toml"), config).unwrap();
    database.oncebox(&["work", "--once"]).ok();
    let keys = std::fs::read_to_string(database.folder.path().join("keys")).unwrap();
    let mut keys: Vec<&str> = keys.lines().collect();
    keys.sort_unstable();
    assert_eq!(keys.len(), 2, "{keys:?}");
    assert!(keys[0].ends_with("o-1") && keys[1].ends_with("o-2"), "{keys:?}");
    assert_eq!(database.count("outbox").await, 0);
    database.oncebox(&["doctor"]).prints("no message waits for the mover");
}

async fn an_outbox_that_no_process_moves_is_reported(database: &InboxDatabase) {
    database.oncebox(&["migrate", "up"]).ok();
    let status = database.oncebox(&["status", "--json"]).ok().json().remove(0);
    assert_eq!(status["outbox"], serde_json::json!({ "waiting": 0, "oldest_ms": null }));
    publish(database, "o-1").await;
    let status = database.oncebox(&["status", "--json"]).ok().json().remove(0);
    assert_eq!(status["outbox"]["waiting"], 1);
    database.oncebox(&["status"]).ok().prints("outbox: 1 message waits for the mover, the oldest for ");
    let long_ago = match &database.schema {
        None => "update oncebox_outbox set captured_at = captured_at - 60000".to_owned(),
        Some(schema) => format!("update {schema}.outbox set captured_at = captured_at - interval '1 minute'"),
    };
    database.sql(&long_ago).await;
    database
        .oncebox(&["doctor"])
        .ends_with_code(1)
        .prints("1 message waits for the mover, the oldest for 1 m ")
        .prints("and no process moves them");
}

async fn the_status_names_movers_and_relays(database: &InboxDatabase) {
    let broker = Broker::default();
    with_relay!(database, broker, outbox => {
        publish_orders(database, &[("o-1", "paid"), ("o-2", "broken")]);
        let status = database.oncebox(&["outbox", "status", "--json"]).ok().json().remove(0);
        assert_eq!((&status["waiting"], &status["moved_by"]), (&2.into(), &json!([])));
        let size = if database.is_sqlite() { "database" } else { "outbox" };
        assert!(status["bytes"][size].as_u64().unwrap() > 0, "{status}");
        database.oncebox(&["outbox"]).ok().prints("2 messages wait for the mover").prints("No process moves messages");

        let (stop, stopped) = oneshot::channel::<()>();
        let runner = outbox.clone();
        let running = tokio::spawn(async move { runner.run(async { drop(stopped.await) }).await });
        while database.count("dead").await == 0 || broker.confirmed().is_empty() {
            tokio::task::yield_now().await;
        }
        let status = database.oncebox(&["outbox", "--json"]).ok().json().remove(0);
        assert_eq!((&status["waiting"], status["moved_by"].as_array().unwrap().len()), (&0.into(), 1));
        let relay = &status["relays"][0];
        assert_eq!((&relay["name"], &relay["parked"], &relay["keep_sent_ms"]), (&"events".into(), &1.into(), &60_000.into()));
        assert_eq!(relay["kinds"], json!(["order.*"]));
        database.oncebox(&["outbox"]).ok().prints("moved by: ").prints("1 m 0 s");
        let status = database.oncebox(&["status", "--json"]).ok().json().remove(0);
        assert_eq!((&status["handlers"][0]["mode"], &status["processes"][0]["moves_outbox"]), (&"relay".into(), &true.into()));
        let top = database.oncebox(&["top", "--count", "1", "--json"]).ok().json().remove(0);
        assert_eq!((&top["handlers"][0]["mode"], &top["processes"]), (&"relay".into(), &1.into()));
        database.oncebox(&["top", "--count", "1"]).ok().prints("events active relay passed/s");
        drop(stop);
        running.await.unwrap().unwrap();
    });
}

async fn messages_on_their_way_are_listed_and_shown(database: &InboxDatabase) {
    let broker = Broker::default();
    with_relay!(database, broker, outbox => {
        database.oncebox(&["outbox", "list"]).ok().prints("No messages on their way.");
        database.oncebox(&["handlers", "pause", "events"]).ok();
        let first = publish_orders(database, &[("o-1", "paid"), ("o-2", "sent")]);
        outbox.flush().await.unwrap();
        let later = publish_orders(database, &[("o-3", "paid")]);
        let listed = |arguments: &[&str]| database.oncebox(&[&["outbox", "list", "--json"], arguments].concat()).ok().json();
        let all = listed(&[]);
        let ids: Vec<&str> = all.iter().map(|message| message["id"].as_str().unwrap()).collect();
        assert_eq!(ids, [&first[0], &first[1], &later[0]]);
        assert_eq!((&all[0]["relay"], &all[0]["place"], &all[0]["order_by"]), (&"events".into(), &"0/1".into(), &"paid".into()));
        assert_eq!((&all[2]["waits_for"], &all[2]["place"]), (&"mover".into(), &serde_json::Value::Null));
        assert_eq!(listed(&["--relay", "events"]).len(), 2);
        assert_eq!(listed(&["--limit", "1"])[0]["id"], first[0]);
        database.oncebox(&["outbox", "list", "--limit", "1"]).ok().prints("raise --limit").prints(&first[0]);
        database.oncebox(&["outbox", "list", "--relay", "event"]).ends_with_code(4).reports("there is no relay \"event\". Did you mean");

        let shown = |which: &str| database.oncebox(&["outbox", "show", which, "--json"]).ok().json().remove(0);
        let waiting = shown(&later[0]);
        assert_eq!((&waiting["where"], &waiting["key"], &waiting["receivers"]), (&"outbox".into(), &"o-3".into(), &json!([])));
        database.oncebox(&["outbox", "show", &later[0]]).ok().prints("it waits for the mover").prints("\"state\": \"paid\"");
        for which in [&*first[1], "0/2"] {
            let stored = shown(which);
            assert_eq!((&stored["id"], &stored["place"], &stored["kind"]), (&first[1].as_str().into(), &"0/2".into(), &"order.paid".into()));
            assert_eq!(stored["receivers"], json!([{ "name": "events", "role": "relay", "state": "waiting" }]));
        }
        database.oncebox(&["handlers", "resume", "events"]).ok();
        outbox.flush().await.unwrap();
        database.oncebox(&["outbox", "show", &first[1]]).ok().prints("relay events: sent").prints("where:     the log, at 0/2");
        database.oncebox(&["messages", "show", "0/2"]).ok().prints(&format!("id:        {}", first[1]));
        assert_eq!(broker.confirmed().len(), 3);
    });
    with_ledger!(database, inbox => inbox.accept(Envelope::new("order.paid", "{}").with_key("accepted")).await.unwrap());
    database.oncebox(&["outbox", "show", "0/4"]).ends_with_code(4).reports("`oncebox messages show 0/4`");
    database.oncebox(&["outbox", "show", "0/9"]).ends_with_code(4).reports("there is no message at 0/9");
    let unknown = "019a9d2c-8c1e-7cc3-98c4-dc0c0c07398f";
    database.oncebox(&["outbox", "show", unknown]).ends_with_code(4).reports(unknown);
    database.oncebox(&["outbox", "show", "o-1"]).ends_with_code(2).reports("a UUID, or LANE/POSITION");
}

async fn parked_messages_are_those_of_relays(database: &InboxDatabase) {
    let broker = Broker::default();
    with_ledger!(database, inbox => accept_and_work(&inbox, &[("l-1", "broken")]).await);
    with_relay!(database, broker, outbox => {
        database.oncebox(&["outbox", "parked"]).ok().prints("No parked messages.");
        database.oncebox(&["outbox", "retry", "--all"]).ends_with_code(4).reports("there are no parked messages");
        publish_orders(database, &[("o-1", "broken"), ("o-2", "broken"), ("o-3", "paid")]);
        outbox.flush().await.unwrap();
        let parked = |arguments: &[&str]| database.oncebox(&[&["outbox", "parked", "--json"], arguments].concat()).ok().json();
        // Both were sent at the same time: the one whose outcome was written first is the older letter.
        let place = |key: &str| parked(&[]).into_iter().find(|letter| letter["key"] == key).map(|letter| letter["place"].clone());
        assert_eq!(parked(&[]).len(), 2);
        let (first, second) = (place("o-1").unwrap(), place("o-2").unwrap());
        assert_eq!((parked(&["--relay", "events"]).len(), parked(&["--limit", "1"]).len()), (2, 1));
        database.oncebox(&["outbox", "parked"]).ok().prints("no such queue").prints("relay");
        assert_eq!(database.oncebox(&["dead", "--json"]).ok().json().len(), 3, "`dead` has those of handlers too");
        database.oncebox(&["outbox", "parked", "--relay", "ledger"]).ends_with_code(4).reports("ledger is a handler");
        database.oncebox(&["outbox", "retry"]).ends_with_code(2).reports("--relay NAME").reports("`oncebox outbox retry`");

        let discard = ["outbox", "discard", "--at", first.as_str().unwrap()];
        database.oncebox(&discard).ends_with_code(2).reports("1 parked message of events").reports("Add --yes");
        database.oncebox(&[&discard[..], &["--yes", "--operator", "bob"]].concat()).ok().prints("1 parked message: discarded");
        let retried = database.oncebox(&["outbox", "retry", "--all", "--json"]).ok().json().remove(0);
        assert_eq!(retried, json!({ "action": "retry", "letters": 1 }));
        let audit = database.oncebox(&["audit", "--json"]).ok().json();
        let actions: Vec<_> = audit.iter().map(|entry| (entry["operator"].clone(), entry["action"].clone())).collect();
        assert_eq!(actions, [("ann".into(), "retry".into()), ("bob".into(), "discard".into())]);
        assert_eq!(database.oncebox(&["dead", "--json"]).ok().json()[0]["handler"], "ledger");
        outbox.flush().await.unwrap();
        assert_eq!((place("o-2"), parked(&[]).len()), (Some(second), 1), "it is refused again");
        // The mechanism of `dead` acts on both.
        database.oncebox(&["dead", "discard", "--handler", "events", "--yes"]).ok();
        assert!(parked(&[]).is_empty());
    });
}

async fn a_replay_sends_the_same_ids_and_refuses_pruned_times(database: &InboxDatabase) {
    let broker = Broker::default();
    with_relay!(database, broker, outbox => {
        let ids = publish_orders(database, &[("o-1", "paid"), ("o-2", "paid")]);
        outbox.flush().await.unwrap();
        assert_eq!(broker.confirmed(), ids);
        let replay = ["outbox", "replay", "events", "--since"];
        // Older than what is kept, but nothing is pruned yet.
        database.oncebox(&[&replay[..], &["1h"]].concat()).ok().prints("events replays 2 positions").prints("the ids that they had before");
        outbox.flush().await.unwrap();
        assert_eq!(broker.confirmed(), [ids.clone(), ids.clone()].concat());
        let replayed = database.oncebox(&[&replay[..], &["30s", "--json"]].concat()).ok().json().remove(0);
        assert_eq!((&replayed["relay"], &replayed["action"]), (&"events".into(), &"replay".into()));
        outbox.flush().await.unwrap();

        let prune = match &database.schema {
            None => "delete from oncebox_message where pos = 1".to_owned(),
            Some(schema) => format!("delete from {schema}.message where pos = 1"),
        };
        database.sql(&prune).await;
        let before = database.count("audit").await;
        database.oncebox(&[&replay[..], &["1h"]].concat())
            .ends_with_code(4)
            .reports("events keeps sent messages for 1 m 0 s")
            .reports("`oncebox outbox replay events --all`");
        assert_eq!(database.count("audit").await, before, "nothing was replayed");
        database.oncebox(&["outbox", "replay", "events", "--all"]).ok();
        outbox.flush().await.unwrap();
        assert_eq!(broker.confirmed().last(), ids.last());
    });
    with_ledger!(database, _inbox => {});
    database
        .oncebox(&["outbox", "replay", "ledger", "--all"])
        .ends_with_code(4)
        .reports("ledger is a handler");
    database.oncebox(&["outbox", "replay", "events"]).ends_with_code(2);
}

async fn a_relay_that_needs_an_operator_is_found(database: &InboxDatabase) {
    let broker = Broker::default();
    with_relay!(database, broker, outbox => {
        let idle = database.oncebox(&["doctor", "--json"]).ok();
        assert_eq!((&*level(&idle, "relays_at_work"), &*level(&idle, "handlers_at_work")), ("warning", "ok"));
        assert_eq!((&*level(&idle, "outbox"), &*level(&idle, "parked_messages")), ("ok", "ok"));
        publish_orders(database, &[("o-1", "broken"), ("o-2", "paid")]);
        // Nothing moves it, but it has not waited for long.
        assert_eq!(level(&database.oncebox(&["doctor", "--json"]).ok(), "outbox"), "warning");
        database.oncebox(&["doctor"]).ok().prints("no process moves them").prints("no process runs events");
        outbox.flush().await.unwrap();
        let parked = database.oncebox(&["doctor", "--json"]);
        assert_eq!((&*level(&parked, "parked_messages"), &*level(&parked, "dead_letters")), ("warning", "ok"));
        database.oncebox(&["doctor"]).prints("1, of events").prints("`oncebox outbox parked`");

        let (stop, stopped) = oneshot::channel::<()>();
        let runner = outbox.clone();
        let running = tokio::spawn(async move { runner.run(async { drop(stopped.await) }).await });
        while database.count("process").await == 0 {
            tokio::task::yield_now().await;
        }
        let at_work = database.oncebox(&["doctor", "--json"]).ok();
        assert_eq!((&*level(&at_work, "relays_at_work"), &*level(&at_work, "outbox")), ("ok", "ok"));
        drop(stop);
        running.await.unwrap().unwrap();
        database.oncebox(&["handlers", "pause", "events"]).ok();
        publish_orders(database, &[("o-3", "paid")]);
        outbox.flush().await.unwrap();
        assert_eq!(level(&database.oncebox(&["doctor", "--json"]).ok(), "paused"), "warning");
        database.oncebox(&["handlers", "resume", "events"]).ok();
        // Now it waits, and no process sends it.
        let waiting = database.oncebox(&["doctor", "--json"]).ends_with_code(1);
        assert_eq!(level(&waiting, "relays_at_work"), "problem");
    });
}
