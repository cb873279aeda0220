//! Relays: a published message reaches the sink at least once, in the order of its ordering key, and never if its transaction rolls
//! back.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use oncebox_core::store::{ReplayFrom, Select, Upkeep};
use oncebox_core::{
    DeadHead, Envelope, Error, ErrorKind, Failure, Key, MessageId, Outbox, OutboxStore, Outgoing, Relay,
    Retry, Sink, Verdict,
};
use tokio::sync::{oneshot, watch};

use super::Fixture;
use super::outbox::{publish, stored, until};
use super::stored::{AT_ONCE, sample, with_effect};
use crate::faulty::{Faults, Faulty, Point, cut};
use crate::operator;

type Respond = dyn Fn(&Outgoing, u32) -> Verdict + Send + Sync;

/// A sink that records what it gets. It responds to a message and the number of its copy.
#[derive(Clone)]
struct Recorder {
    recorded: Arc<Mutex<Recorded>>,
    respond: Arc<Respond>,
}

#[derive(Default)]
struct Recorded {
    /// The keys of all messages that were confirmed, in that order.
    confirmed: Vec<String>,
    /// The number of copies of each key.
    copies: HashMap<String, u32>,
    messages: Vec<Outgoing>,
    in_flight: HashSet<Key>,
    /// Ordering keys of which two messages were in flight at once.
    overtaken: Vec<Key>,
}

impl Recorder {
    fn new(respond: impl Fn(&Outgoing, u32) -> Verdict + Send + Sync + 'static) -> Self {
        Self { recorded: Arc::default(), respond: Arc::new(respond) }
    }

    fn confirming() -> Self {
        Self::new(|_, _| Verdict::Confirmed)
    }

    fn confirmed(&self) -> Vec<String> {
        self.recorded.lock().unwrap().confirmed.clone()
    }

    fn copies(&self, key: &str) -> u32 {
        self.recorded.lock().unwrap().copies.get(key).copied().unwrap_or(0)
    }

    fn messages(&self) -> Vec<Outgoing> {
        self.recorded.lock().unwrap().messages.clone()
    }

    fn assert_one_in_flight_per_ordering_key(&self) {
        assert!(self.recorded.lock().unwrap().overtaken.is_empty());
    }
}

impl Sink for Recorder {
    const WAVE: usize = 7;

    async fn publish(&self, wave: &[Outgoing]) -> Vec<Verdict> {
        {
            let mut recorded = self.recorded.lock().unwrap();
            for key in wave.iter().filter_map(|message| message.order_by.clone()) {
                if !recorded.in_flight.insert(key.clone()) {
                    recorded.overtaken.push(key);
                }
            }
        }
        // Other waves start meanwhile.
        tokio::time::sleep(Duration::from_millis(1)).await;
        let mut recorded = self.recorded.lock().unwrap();
        let mut verdicts = Vec::new();
        for message in wave {
            let key = message.key.to_string();
            let copy = recorded.copies.entry(key.clone()).or_default();
            *copy += 1;
            let verdict = (self.respond)(message, *copy);
            if matches!(verdict, Verdict::Confirmed) {
                recorded.confirmed.push(key);
            }
            if let Some(key) = &message.order_by {
                recorded.in_flight.remove(key);
            }
            recorded.messages.push(message.clone());
            verdicts.push(verdict);
        }
        verdicts
    }
}

fn relay(sink: &Recorder) -> Relay {
    Relay::new("events", sink.clone()).retry(AT_ONCE)
}

/// An outbox of one lane with a relay.
async fn outbox_of<F: Fixture<Store: OutboxStore>>(fixture: &F, relay: Relay) -> Outbox<F::Store> {
    Outbox::builder(fixture.store()).lanes(1).relay(relay).build().await.unwrap()
}

fn refused(text: &'static str) -> Verdict {
    Verdict::Refused(text.into())
}

fn of_kind(kind: &str, key: &str) -> Envelope {
    Envelope::new(kind, key.as_bytes()).with_key(key)
}

fn ordered(key: &str, order_by: &str) -> Envelope {
    of_kind("k", key).with_order_by(order_by)
}

/// What other services accepted is not for relays, and neither are other kinds.
pub async fn a_relay_sends_published_messages_of_its_kinds<F: Fixture<Store: OutboxStore>>(fixture: F) {
    let sink = Recorder::confirming();
    let outbox = outbox_of(&fixture, relay(&sink).kinds(["order.*", "note"])).await;
    let inbox = with_effect(&fixture, stored(&fixture), "ledger").build().await.unwrap();
    assert!(inbox.accept(sample("accepted")).await.unwrap().is_new());
    let kinds = ["order.paid", "order.", "orders", "note", "notes", "order"];
    let ids = publish(&fixture, &outbox, true, kinds.map(|kind| of_kind(kind, kind)).to_vec()).await.unwrap();
    publish(&fixture, &outbox, false, vec![of_kind("note", "rolled back")]).await.unwrap();
    assert_eq!(outbox.flush().await.unwrap(), 6);
    let mut sent = sink.confirmed();
    sent.sort();
    assert_eq!(sent, ["note", "order.", "order.paid"]);
    let message = sink.messages().into_iter().find(|message| message.kind == "note").unwrap();
    assert_eq!((message.id, message.is_replay, &*message.relay), (ids[3], false, "events"));
    assert_eq!(outbox.flush().await.unwrap(), 0);
    assert_eq!(sink.messages().len(), 3, "nothing is sent twice");
}

/// Key, headers, ordering key and time. A message without a key has its id as its key.
pub async fn what_travels_with_a_published_message_reaches_the_sink<F: Fixture<Store: OutboxStore>>(
    fixture: F,
) {
    let sink = Recorder::confirming();
    let outbox = outbox_of(&fixture, relay(&sink)).await;
    let occurred_at = SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000);
    let full = Envelope::new("note", "the body")
        .with_key("k1")
        .with_order_by("customer-7")
        .with_header("trace", "a b")
        .with_occurred_at(occurred_at);
    let bare = Envelope::new("note", "no key");
    let ids = publish(&fixture, &outbox, true, vec![full, bare]).await.unwrap();
    outbox.flush().await.unwrap();
    let sent = sink.messages();
    let full = sent.iter().find(|message| message.id == ids[0]).unwrap();
    assert_eq!((full.key.clone(), full.order_by.clone()), ("k1".into(), Some("customer-7".into())));
    assert_eq!((full.headers.get("trace"), full.occurred_at), (Some("a b"), Some(occurred_at)));
    assert_eq!(full.body, b"the body");
    let bare = sent.iter().find(|message| message.id == ids[1]).unwrap();
    assert_eq!(bare.key, ids[1].to_string().into());
}

/// Also if the sink does not confirm some of them at first.
pub async fn a_relay_keeps_the_order_of_each_ordering_key<F: Fixture<Store: OutboxStore>>(fixture: F) {
    let sink = Recorder::new(|message, copy| {
        let n: u32 = message.key.to_string().parse().unwrap();
        match (n % 11, copy) {
            (3, 1) => Verdict::Unknown("the connection was lost".into()),
            (5, 1) => refused("try again"),
            _ => Verdict::Confirmed,
        }
    });
    let outbox =
        Outbox::builder(fixture.store()).lanes(3).relay(relay(&sink).in_flight(40)).build().await.unwrap();
    let message = |n: u32| ordered(&format!("{n:03}"), &format!("customer-{}", n % 7));
    for batch in 0..20 {
        publish(&fixture, &outbox, true, (batch * 10..batch * 10 + 10).map(message).collect()).await.unwrap();
    }
    until(async || {
        outbox.flush().await.unwrap();
        sink.confirmed().len() >= 200
    })
    .await;
    let confirmed = sink.confirmed();
    assert_eq!(confirmed.len(), 200, "confirmed once each");
    for customer in 0..7 {
        let mine: Vec<_> = confirmed.iter().filter(|n| n.parse::<u32>().unwrap() % 7 == customer).collect();
        assert!(mine.is_sorted(), "{mine:?}");
    }
    sink.assert_one_in_flight_per_ordering_key();
    assert_eq!(dead(&outbox).await, [""; 0]);
}

async fn dead<S: OutboxStore>(outbox: &Outbox<S>) -> Vec<String> {
    let letters = outbox.operators().dead_letters(Select::all().handler("events"), 100).await.unwrap();
    let bodies = letters.iter().map(|letter| String::from_utf8(letter.body.clone()).unwrap());
    // Those of one moment have no order.
    let mut bodies: Vec<_> = bodies.collect();
    bodies.sort();
    bodies
}

/// It holds its ordering key back, and nothing else. An operator decides what becomes of it.
pub async fn a_message_that_the_sink_refuses_becomes_a_dead_letter<F: Fixture<Store: OutboxStore>>(
    fixture: F,
) {
    let is_mended = Arc::new(AtomicBool::new(false));
    let mended = is_mended.clone();
    let sink = Recorder::new(move |message, _| match &*message.key.to_string() {
        "bad" | "worse" if !mended.load(Ordering::SeqCst) => refused("no such queue"),
        _ => Verdict::Confirmed,
    });
    let outbox = outbox_of(&fixture, relay(&sink)).await;
    let messages = [
        ordered("bad", "a"),
        ordered("behind", "a"),
        ordered("free", "b"),
        of_kind("k", "worse"),
        ordered("last", "c"),
    ];
    publish(&fixture, &outbox, true, messages.to_vec()).await.unwrap();
    outbox.flush().await.unwrap();
    let mut sent = sink.confirmed();
    sent.sort();
    assert_eq!(sent, ["free", "last"]);
    assert_eq!(
        (sink.copies("bad"), sink.copies("behind")),
        (3, 0),
        "its three attempts, and nothing behind it"
    );
    assert_eq!(dead(&outbox).await, ["bad", "worse"]);
    let letters = outbox.operators().dead_letters(Select::all(), 10).await.unwrap();
    assert!(letters.iter().all(|letter| letter.error.contains("no such queue")), "{letters:?}");
    is_mended.store(true, Ordering::SeqCst);
    assert_eq!(outbox.operators().retry_dead(Select::all(), &operator("ann")).await.unwrap(), 2);
    outbox.flush().await.unwrap();
    let confirmed = sink.confirmed();
    assert_eq!(confirmed.len(), 5);
    let at = |key: &str| confirmed.iter().position(|sent| sent == key).unwrap();
    assert!(at("bad") < at("behind"));
    let sent = sink.messages();
    let ids: HashSet<MessageId> = sent.iter().filter(|m| m.key == "bad".into()).map(|m| m.id).collect();
    assert_eq!(ids.len(), 1, "each copy has the same id");
}

/// The messages behind it go on, where the relay is told so.
pub async fn a_dead_letter_of_a_relay_can_be_skipped_or_discarded<F: Fixture<Store: OutboxStore>>(
    fixture: F,
) {
    let sink = Recorder::new(|message, _| match &*message.key.to_string() {
        "bad" => Verdict::Refused(Failure::permanent("too large")),
        _ => Verdict::Confirmed,
    });
    let outbox = outbox_of(&fixture, relay(&sink)).await;
    publish(&fixture, &outbox, true, vec![ordered("bad", "a"), ordered("behind", "a")]).await.unwrap();
    outbox.flush().await.unwrap();
    assert_eq!(sink.confirmed(), [""; 0]);
    assert_eq!(outbox.operators().discard_dead(Select::all(), &operator("ann")).await.unwrap(), 1);
    outbox.flush().await.unwrap();
    assert_eq!(sink.confirmed(), ["behind"]);
    let skipping = outbox_of(&fixture, relay(&sink).dead_head(DeadHead::Skip)).await;
    publish(&fixture, &skipping, true, vec![of_kind("x", "bad").with_order_by("a"), ordered("next", "a")])
        .await
        .unwrap();
    skipping.flush().await.unwrap();
    assert_eq!(sink.confirmed(), ["behind", "next"]);
    assert_eq!(dead(&skipping).await, ["bad"]);
}

/// An outage of the other side spends no attempts, and nothing is lost.
pub async fn an_outage_of_the_sink_spends_no_attempts<F: Fixture<Store: OutboxStore>>(fixture: F) {
    let is_up = Arc::new(AtomicBool::new(false));
    let up = is_up.clone();
    let sink = Recorder::new(move |_, _| match up.load(Ordering::SeqCst) {
        true => Verdict::Confirmed,
        false => Verdict::Unknown("connection refused".into()),
    });
    let relay = relay(&sink).retry(AT_ONCE.max_attempts(1));
    let outbox = outbox_of(&fixture, relay).await;
    publish(&fixture, &outbox, true, (0..50).map(|n| of_kind("k", &format!("{n}"))).collect()).await.unwrap();
    until(async || {
        outbox.flush().await.unwrap();
        sink.messages().len() > 200
    })
    .await;
    let waits = outbox.health().unwrap_err();
    assert!(
        waits.kind() == ErrorKind::Unavailable && waits.to_string().contains("connection refused"),
        "{waits}"
    );
    assert!(outbox.operators().tasks(Some("events"), 10).await.unwrap().is_empty());
    is_up.store(true, Ordering::SeqCst);
    until(async || {
        outbox.flush().await.unwrap();
        sink.confirmed().len() >= 50
    })
    .await;
    outbox.health().unwrap();
    assert_eq!(sink.confirmed().len(), 50);
    assert_eq!(dead(&outbox).await, [""; 0]);
}

/// A message without a verdict, while all others are confirmed, does not stop its lane.
pub async fn one_message_without_a_verdict_does_not_stop_its_lane<F: Fixture<Store: OutboxStore>>(
    fixture: F,
) {
    let sink = Recorder::new(|message, copy| match &*message.key.to_string() {
        "lost" if copy < 20 => Verdict::Unknown("no response".into()),
        _ => Verdict::Confirmed,
    });
    let outbox = outbox_of(&fixture, relay(&sink).in_flight(5)).await;
    let mut messages = vec![ordered("lost", "a"), ordered("behind", "a")];
    messages.extend((0..40).map(|n| of_kind("k", &format!("{n}"))));
    publish(&fixture, &outbox, true, messages).await.unwrap();
    until(async || {
        outbox.flush().await.unwrap();
        sink.confirmed().len() >= 40
    })
    .await;
    assert!(sink.copies("lost") < 20 && sink.copies("behind") == 0);
    until(async || {
        // A task without a verdict has a pause of its own.
        fixture.travel(Duration::from_secs(60));
        outbox.flush().await.unwrap();
        sink.confirmed().len() >= 42
    })
    .await;
    assert_eq!(sink.confirmed()[40..], ["lost", "behind"]);
    assert_eq!(dead(&outbox).await, [""; 0]);
}

/// A sink that panics, or returns too few verdicts, has not confirmed.
struct Broken(AtomicU32, Recorder);

impl Sink for Broken {
    async fn publish(&self, wave: &[Outgoing]) -> Vec<Verdict> {
        match self.0.fetch_add(1, Ordering::SeqCst) {
            0 => panic!("for the sake of the test"),
            1 => Vec::new(),
            _ => self.1.publish(wave).await,
        }
    }
}

/// Nothing is lost, and no attempt is spent.
pub async fn a_broken_sink_has_confirmed_nothing<F: Fixture<Store: OutboxStore>>(fixture: F) {
    let sink = Recorder::confirming();
    let relay = Relay::new("events", Broken(Default::default(), sink.clone())).retry(AT_ONCE.max_attempts(1));
    let outbox = outbox_of(&fixture, relay).await;
    publish(&fixture, &outbox, true, (0..9).map(|n| ordered(&format!("{n}"), "a")).collect()).await.unwrap();
    until(async || {
        outbox.flush().await.unwrap();
        sink.confirmed().len() >= 9
    })
    .await;
    assert!(sink.confirmed().is_sorted());
    assert_eq!(dead(&outbox).await, [""; 0]);
}

/// A message that is due later is sent then. It holds nothing back.
pub async fn a_scheduled_message_is_sent_when_it_is_due<F: Fixture<Store: OutboxStore>>(fixture: F) {
    let sink = Recorder::confirming();
    let outbox = outbox_of(&fixture, relay(&sink)).await;
    let later = ordered("later", "a").with_due_at(SystemTime::now() + Duration::from_secs(3_600));
    publish(&fixture, &outbox, true, vec![later, ordered("now", "a")]).await.unwrap();
    outbox.flush().await.unwrap();
    assert_eq!(sink.confirmed(), ["now"]);
    fixture.travel(Duration::from_secs(3_700));
    outbox.flush().await.unwrap();
    assert_eq!(sink.confirmed(), ["now", "later"]);
}

/// The number of refused messages that wait for a retry has a limit.
pub async fn refused_messages_stop_their_lane_at_a_limit<F: Fixture<Store: OutboxStore>>(fixture: F) {
    let sink = Recorder::new(|_, _| Verdict::Refused(Failure::after(Duration::from_secs(3_600), "full")));
    let outbox = outbox_of(&fixture, relay(&sink).in_flight(4).max_open_tasks(10)).await;
    publish(&fixture, &outbox, true, (0..100).map(|n| of_kind("k", &format!("{n}"))).collect())
        .await
        .unwrap();
    outbox.flush().await.unwrap();
    outbox.flush().await.unwrap();
    let waiting = outbox.operators().tasks(Some("events"), 100).await.unwrap().len();
    assert!((10..14).contains(&waiting), "{waiting}");
    let status = &outbox.operators().handler_statuses().await.unwrap()[0];
    assert_eq!(status.lag, 100 - waiting as u64);
}

/// Sent messages stay for a while, and are sent again on request with the same ids, marked as a replay.
pub async fn sent_messages_can_be_replayed_while_they_are_kept<F: Fixture<Store: OutboxStore>>(fixture: F) {
    let sink = Recorder::confirming();
    let kept = Duration::from_secs(2 * 3_600);
    let outbox = outbox_of(&fixture, relay(&sink).keep_sent(kept)).await;
    let inbox = stored(&fixture).keep_messages(Duration::from_secs(60)).build().await.unwrap();
    publish(&fixture, &outbox, true, vec![of_kind("k", "a")]).await.unwrap();
    outbox.flush().await.unwrap();
    live_for(&fixture, Duration::from_secs(3_600)).await;
    publish(&fixture, &outbox, true, vec![of_kind("k", "b"), of_kind("k", "c")]).await.unwrap();
    outbox.flush().await.unwrap();
    assert_eq!(inbox.prune().await.unwrap().messages, 0);
    let hour_ago = outbox.operators().database_time().await.unwrap() - Duration::from_secs(60);
    let replay = async |from| outbox.operators().replay("events", from, &operator("ann")).await.unwrap();
    replay(ReplayFrom::Time(hour_ago)).await;
    outbox.flush().await.unwrap();
    assert_eq!(sink.confirmed(), ["a", "b", "c", "b", "c"]);
    let sent = sink.messages();
    assert_eq!((sent[1].id, sent[1].is_replay), (sent[3].id, false));
    assert!(sent[3].is_replay && sent[4].is_replay);
    // Longer than the relay keeps them. The newest message of a lane stays.
    live_for(&fixture, 2 * kept).await;
    assert_eq!(inbox.prune().await.unwrap().messages, 2);
    replay(ReplayFrom::Beginning).await;
    outbox.flush().await.unwrap();
    assert_eq!(sink.confirmed()[5..], ["c"]);
}

/// Time in which some process was alive.
async fn live_for<F: Fixture<Store: OutboxStore>>(fixture: &F, time: Duration) {
    let store = fixture.store();
    for _ in 0..4 {
        store.beat(time).await.unwrap();
        fixture.travel(time / 4);
    }
    store.beat(time).await.unwrap();
}

/// A database that only publishes does not grow for ever.
pub async fn an_outbox_without_an_inbox_deletes_what_it_has_sent<F: Fixture<Store: OutboxStore>>(fixture: F) {
    let sink = Recorder::confirming();
    let outbox = outbox_of(&fixture, relay(&sink).keep_sent(Duration::from_secs(60))).await;
    let messages = async || outbox.operators().messages(0, 0, 100).await.unwrap().len();
    publish(&fixture, &outbox, true, (0..10).map(|n| of_kind("k", &format!("{n}"))).collect()).await.unwrap();
    outbox.flush().await.unwrap();
    assert_eq!((sink.confirmed().len(), messages().await), (10, 10));
    live_for(&fixture, Duration::from_secs(3_600)).await;
    let (stop, stopped) = oneshot::channel::<()>();
    let running = {
        let outbox = outbox.clone();
        tokio::spawn(async move { outbox.run(async { drop(stopped.await) }).await })
    };
    until(async || messages().await == 1).await;
    drop(stop);
    running.await.unwrap().unwrap();
}

/// Each has its own progress, and its own dead letters.
pub async fn several_relays_and_handlers_read_the_same_messages<F: Fixture<Store: OutboxStore>>(fixture: F) {
    let (one, two) =
        (Recorder::confirming(), Recorder::new(|_, _| Verdict::Refused(Failure::permanent("no"))));
    let outbox = Outbox::builder(fixture.store())
        .relay(Relay::new("one", one.clone()))
        .relay(Relay::new("two", two.clone()))
        .build()
        .await
        .unwrap();
    let inbox = with_effect(&fixture, stored(&fixture), "ledger").outbox(&outbox).build().await.unwrap();
    let (stop, stopped) = oneshot::channel::<()>();
    let running = {
        let inbox = inbox.clone();
        tokio::spawn(async move { inbox.run(async { drop(stopped.await) }).await })
    };
    let messages: Vec<_> =
        (0..20).map(|n| sample(&format!("{n}")).with_order_by(format!("{}", n % 3))).collect();
    publish(&fixture, &outbox, true, messages).await.unwrap();
    until(async || one.confirmed().len() == 20 && fixture.effects("ledger 19").await == 1).await;
    until(async || {
        let statuses = outbox.operators().handler_statuses().await.unwrap();
        statuses.iter().all(|status| status.lag == 0)
    })
    .await;
    drop(stop);
    assert_eq!(running.await.unwrap().unwrap().done, 40);
    for status in outbox.operators().handler_statuses().await.unwrap() {
        let exceptions = (status.dead, status.tasks);
        match &*status.handler.name {
            // The first message of each ordering key, with all others behind it.
            "two" => assert_eq!(exceptions, (3, 17)),
            _ => assert_eq!(exceptions, (0, 0)),
        }
    }
}

/// Two processes with the same relay share its lanes. Each message is sent once while neither fails.
pub async fn processes_share_the_lanes_of_a_relay<F: Fixture<Store: OutboxStore>>(fixture: F) {
    let sink = Recorder::confirming();
    let build = async || Outbox::builder(fixture.store()).lanes(4).relay(relay(&sink)).build().await.unwrap();
    let outboxes = [build().await, build().await];
    let stops = outboxes.clone().map(|outbox| {
        let (stop, stopped) = oneshot::channel::<()>();
        (stop, tokio::spawn(async move { outbox.run(async { drop(stopped.await) }).await }))
    });
    for batch in 0..20 {
        let messages = (0..10).map(|n| ordered(&format!("{:03}", batch * 10 + n), &format!("{}", n % 5)));
        publish(&fixture, &outboxes[batch % 2], true, messages.collect()).await.unwrap();
    }
    until(async || sink.confirmed().len() >= 200).await;
    for (stop, running) in stops {
        drop(stop);
        running.await.unwrap().unwrap();
    }
    let confirmed = sink.confirmed();
    assert_eq!(confirmed.iter().collect::<HashSet<_>>().len(), 200);
    for key in 0..5 {
        let mut mine = confirmed.iter().filter(|n| n.parse::<u32>().unwrap() % 5 == key);
        assert!(mine.by_ref().is_sorted());
    }
    sink.assert_one_in_flight_per_ordering_key();
}

/// Cuts the connection around commits: before some of them, and after others, so that their outcome is unknown.
#[derive(Clone, Default)]
struct CutCommits(Arc<AtomicU32>);

impl Faults for CutCommits {
    async fn at(&self, _: Point) -> Result<(), Error> {
        // No pattern that steps of a fixed order could meet again and again.
        let draw = self.0.fetch_add(1, Ordering::SeqCst).wrapping_mul(0x9E37_79B9) >> 30;
        if draw == 0 { Err(cut()) } else { Ok(()) }
    }
}

/// Commits that fail before and after: messages are sent again, none is missing, and order is kept.
pub async fn a_relay_whose_progress_was_lost_sends_again<F: Fixture<Store: OutboxStore>>(fixture: F) {
    let sink = Recorder::new(|message, copy| match &*message.key.to_string() {
        "07" if copy == 1 => refused("try again"),
        _ => Verdict::Confirmed,
    });
    let faulty = Faulty::new(fixture.store(), CutCommits::default());
    let outbox = Outbox::builder(faulty).lanes(2).relay(relay(&sink).in_flight(3)).build().await.unwrap();
    let publisher = Outbox::builder(fixture.store()).build().await.unwrap();
    let (stop, stopped) = oneshot::channel::<()>();
    let running = {
        let outbox = outbox.clone();
        tokio::spawn(async move { outbox.run(async { drop(stopped.await) }).await })
    };
    for n in 0..40 {
        publish(&fixture, &publisher, true, vec![ordered(&format!("{n:02}"), &format!("{}", n % 4))])
            .await
            .unwrap();
        outbox.wake();
    }
    let is_done = async || {
        // The outbox first: what it no longer holds is in the log.
        publisher.status().await.unwrap().waiting == 0
            && publisher
                .operators()
                .handler_statuses()
                .await
                .unwrap()
                .iter()
                .all(|s| s.lag == 0 && s.tasks == 0)
    };
    until(is_done).await;
    drop(stop);
    running.await.unwrap().unwrap();
    let mut seen = HashSet::new();
    let first: Vec<String> = sink.confirmed().into_iter().filter(|key| seen.insert(key.clone())).collect();
    assert_eq!(first.len(), 40);
    for key in 0..4 {
        let mine: Vec<_> = first.iter().filter(|n| n.parse::<u32>().unwrap() % 4 == key).collect();
        assert!(mine.is_sorted(), "{mine:?}");
    }
    sink.assert_one_in_flight_per_ordering_key();
}

/// An outage: heartbeats fail, and commits wait for its end. It begins when it is told to, and ends after this number of heartbeats,
/// which is more than a lease has.
#[derive(Clone)]
struct Outage {
    is_out: watch::Sender<bool>,
    heartbeats_left: Arc<AtomicU32>,
}

impl Outage {
    fn new() -> Self {
        Self { is_out: watch::Sender::new(false), heartbeats_left: Arc::new(AtomicU32::new(12)) }
    }
}

impl Faults for Outage {
    async fn at(&self, point: Point) -> Result<(), Error> {
        if point == Point::BeforeCommit {
            self.is_out.subscribe().wait_for(|is_out| !is_out).await.unwrap();
        }
        Ok(())
    }

    async fn at_heartbeat(&self) -> Result<(), Error> {
        if !*self.is_out.borrow() {
            return Ok(());
        }
        if self.heartbeats_left.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.is_out.send_replace(false);
        }
        Err(cut())
    }
}

/// Its process continues under the same id, because no other one has removed it. Lanes that it had leased must be free again.
pub async fn a_relay_continues_after_an_outage_longer_than_its_lease<F: Fixture<Store: OutboxStore>>(
    fixture: F,
) {
    let outage = Outage::new();
    let is_out = outage.is_out.clone();
    let sink = Recorder::new(move |message, copy| {
        if message.key == "a".into() && copy == 1 {
            is_out.send_replace(true);
        }
        Verdict::Confirmed
    });
    let faulty = Faulty::new(fixture.store(), outage.clone());
    let builder = Outbox::builder(faulty).lanes(1).lease(Duration::from_millis(500));
    let outbox = builder.relay(relay(&sink)).build().await.unwrap();
    let publisher = Outbox::builder(fixture.store()).build().await.unwrap();
    let (stop, stopped) = oneshot::channel::<()>();
    let running = {
        let outbox = outbox.clone();
        tokio::spawn(async move { outbox.run(async { drop(stopped.await) }).await })
    };
    publish(&fixture, &publisher, true, vec![of_kind("k", "a")]).await.unwrap();
    until(async || outage.heartbeats_left.load(Ordering::SeqCst) == 0).await;
    publish(&fixture, &publisher, true, vec![of_kind("k", "b")]).await.unwrap();
    until(async || sink.confirmed().contains(&"b".to_owned())).await;
    drop(stop);
    running.await.unwrap().unwrap();
}

/// Pausing, removing and renaming are those of handlers.
pub async fn a_relay_can_be_paused_and_removed<F: Fixture<Store: OutboxStore>>(fixture: F) {
    let sink = Recorder::confirming();
    let outbox = outbox_of(&fixture, relay(&sink)).await;
    let (ann, operators) = (operator("ann"), outbox.operators());
    assert!(operators.pause_handler("events", &ann).await.unwrap());
    publish(&fixture, &outbox, true, vec![of_kind("k", "a")]).await.unwrap();
    outbox.flush().await.unwrap();
    assert_eq!(sink.messages().len(), 0);
    assert!(operators.resume_handler("events", &ann).await.unwrap());
    outbox.flush().await.unwrap();
    assert_eq!(sink.confirmed(), ["a"]);
    assert!(operators.remove_handler("events", &ann).await.unwrap());
    publish(&fixture, &outbox, true, vec![of_kind("k", "b")]).await.unwrap();
    outbox.flush().await.unwrap();
    assert_eq!(sink.confirmed(), ["a"]);
    let removed = Outbox::builder(fixture.store()).relay(relay(&sink)).build().await.unwrap_err();
    assert_eq!(removed.kind(), ErrorKind::Configuration);
    let revived = outbox_of(&fixture, relay(&sink).revive()).await;
    revived.flush().await.unwrap();
    assert_eq!(sink.confirmed(), ["a", "a", "b"], "a revived relay begins at the oldest message");
}

/// Retries and messages ahead of the progress, whichever lane they are in.
pub async fn unsent_messages_of_a_relay_are_listed_oldest_first<F: Fixture<Store: OutboxStore>>(fixture: F) {
    let sink = Recorder::new(|message, _| match message.key == Key::from("b") {
        true => refused("no route"),
        false => Verdict::Confirmed,
    });
    let hour = Duration::from_secs(3_600);
    let later = Retry::new().first_delay(hour).max_delay(hour);
    let relay = Relay::new("events", sink.clone()).kinds(["k"]).retry(later);
    let outbox = Outbox::builder(fixture.store()).lanes(4).relay(relay).build().await.unwrap();
    let inbox = with_effect(&fixture, stored(&fixture).lanes(4), "ledger").build().await.unwrap();
    let (ann, operators) = (operator("ann"), outbox.operators());
    operators.pause_handler("events", &ann).await.unwrap();
    let mut ids = Vec::new();
    for key in ["a", "b", "c", "d", "e", "f"] {
        let envelopes = vec![ordered(key, key), of_kind("other", key)];
        ids.push(publish(&fixture, &outbox, true, envelopes).await.unwrap()[0]);
        outbox.flush().await.unwrap();
        fixture.travel(Duration::from_secs(10));
    }
    inbox.accept(of_kind("k", "accepted")).await.unwrap();
    let unsent = async |limit| {
        let found = outbox.unsent("events", limit).await.unwrap();
        found.into_iter().map(|message| message.message_id.unwrap()).collect::<Vec<_>>()
    };
    assert_eq!(unsent(100).await, ids);
    assert_eq!(unsent(2).await, ids[..2]);
    operators.resume_handler("events", &ann).await.unwrap();
    outbox.flush().await.unwrap();
    assert_eq!(unsent(100).await, [ids[1]], "it waits for its retry");
    for name in ["ledger", "nobody"] {
        assert_eq!(outbox.unsent(name, 1).await.unwrap_err().kind(), ErrorKind::Configuration, "{name}");
    }
}

/// A name belongs to a handler or to a relay. Kinds of a relay can change.
pub async fn a_relay_and_a_handler_have_different_names<F: Fixture<Store: OutboxStore>>(fixture: F) {
    let sink = Recorder::confirming();
    let outbox = outbox_of(&fixture, relay(&sink).kinds(["a"])).await;
    let handler = with_effect(&fixture, stored(&fixture), "events").build().await.unwrap_err();
    assert!(handler.to_string().contains("relay"), "{handler}");
    publish(&fixture, &outbox, true, vec![of_kind("a", "a"), of_kind("b", "b")]).await.unwrap();
    outbox.flush().await.unwrap();
    let outbox = outbox_of(&fixture, relay(&sink).kinds(["b", "a"])).await;
    publish(&fixture, &outbox, true, vec![of_kind("b", "b2")]).await.unwrap();
    outbox.flush().await.unwrap();
    assert_eq!(sink.confirmed(), ["a", "b2"], "what it has passed it does not send");
    with_effect(&fixture, stored(&fixture), "ledger").build().await.unwrap();
    let clash =
        Outbox::builder(fixture.store()).relay(Relay::new("ledger", sink.clone())).build().await.unwrap_err();
    assert!(clash.to_string().contains("handler"), "{clash}");
    for (relay, says) in [
        (relay(&sink).kinds(["a*b"]), "*"),
        (relay(&sink).kinds([""; 0]), "kinds"),
        (relay(&sink).in_flight(0), "in_flight"),
    ] {
        let refused = Outbox::builder(fixture.store()).relay(relay).build().await.unwrap_err();
        assert!(
            refused.kind() == ErrorKind::Configuration && refused.to_string().contains(says),
            "{refused}"
        );
    }
}
