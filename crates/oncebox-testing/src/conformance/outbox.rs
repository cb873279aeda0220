//! The outbox: a message is delivered once if its transaction commits, and never otherwise.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use oncebox_core::store::{Capture, Captured, End, Place, ReplayFrom, Survey};
use oncebox_core::{
    Attempt, BoxError, Envelope, Error, Inbox, InboxBuilder, Json, Key, Message, MessageId, Mode, Outbox,
    OutboxStore, Publish, Reply,
};
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;

use super::log::three_passed;
use super::stored::{AT_ONCE, Conn, sample, with_effect};
use super::{Fixture, Sample};
use crate::faulty::{Faults, Faulty, Point, crash};
use crate::one_handler::{again, untried};
use crate::operator;

/// The limit of a wait for something that happens within milliseconds.
const LIMIT: Duration = Duration::from_secs(60);

async fn outbox<F: Fixture<Store: OutboxStore>>(fixture: &F) -> Outbox<F::Store> {
    Outbox::builder(fixture.store()).build().await.unwrap()
}

pub(super) fn stored<F: Fixture<Store: OutboxStore>>(fixture: &F) -> InboxBuilder<F::Store> {
    Inbox::builder(fixture.store()).stored()
}

/// Publishes messages in a transaction of the application, which commits or rolls back.
pub(super) async fn publish<F: Fixture<Store: OutboxStore>>(
    fixture: &F,
    outbox: &Outbox<F::Store>,
    commits: bool,
    envelopes: Vec<Envelope>,
) -> Result<Vec<MessageId>, Error> {
    let (outbox, published) = (outbox.clone(), Arc::new(Mutex::new(Ok(Vec::new()))));
    let result = published.clone();
    let has_transactions = fixture.transaction(
        commits,
        Box::new(move |conn| {
            Box::pin(async move {
                let ids = outbox.publish_envelopes(conn, envelopes).await;
                *result.lock().unwrap() = ids;
            })
        }),
    );
    assert!(has_transactions.await, "an outbox needs transactions of the application");
    Arc::into_inner(published).unwrap().into_inner().unwrap()
}

/// The places of all messages in the log, with their keys, lane by lane.
async fn log<S: OutboxStore>(inbox: &Inbox<S>) -> Vec<(Place, String)> {
    let store = inbox.store();
    let mut found = Vec::new();
    for lane in 0..8 {
        for message in store.messages(lane, 0, 100_000).await.unwrap() {
            let key = message.message.key.unwrap();
            found.push((message.message.place, String::from_utf8(key.as_bytes().to_vec()).unwrap()));
        }
    }
    found
}

/// The message is in the log after the commit, not before, and only once.
pub async fn a_published_message_is_delivered_once_after_the_commit<F: Fixture<Store: OutboxStore>>(
    fixture: F,
) {
    let outbox = outbox(&fixture).await;
    let inbox = with_effect(&fixture, stored(&fixture), "ledger").build().await.unwrap();
    assert_eq!(outbox.flush().await.unwrap(), 0);
    assert_eq!(outbox.status().await.unwrap().waiting, 0);
    publish(&fixture, &outbox, true, vec![sample("a"), sample("b")]).await.unwrap();
    assert_eq!(outbox.status().await.unwrap().waiting, 2);
    assert!(outbox.status().await.unwrap().oldest.is_some());
    assert!(inbox.work_until_idle().await.unwrap().is_empty(), "no mover has run yet");
    assert_eq!(outbox.flush().await.unwrap(), 2);
    assert_eq!(outbox.flush().await.unwrap(), 0);
    assert_eq!(inbox.work_until_idle().await.unwrap().done, 2);
    assert_eq!((fixture.effects("ledger a").await, fixture.effects("ledger b").await), (1, 1));
    assert_eq!(outbox.status().await.unwrap().waiting, 0);
}

/// Not even its key remains.
pub async fn a_transaction_that_rolls_back_publishes_nothing<F: Fixture<Store: OutboxStore>>(fixture: F) {
    let outbox = outbox(&fixture).await;
    let inbox = with_effect(&fixture, stored(&fixture), "ledger").build().await.unwrap();
    publish(&fixture, &outbox, false, vec![sample("a")]).await.unwrap();
    assert_eq!(outbox.flush().await.unwrap(), 0);
    assert!(inbox.work_until_idle().await.unwrap().is_empty());
    assert!(inbox.accept(sample("a")).await.unwrap().is_new());
}

/// In one call, in one transaction, and from one transaction to the next.
pub async fn published_messages_keep_their_order<F: Fixture<Store: OutboxStore>>(fixture: F) {
    let outbox = outbox(&fixture).await;
    let inbox = with_effect(&fixture, stored(&fixture), "ledger").build().await.unwrap();
    let ordered = |n: u32| sample(&format!("{n:03}")).with_order_by(format!("customer-{}", n % 3));
    for batch in 0..10 {
        publish(&fixture, &outbox, true, (batch * 12..batch * 12 + 12).map(ordered).collect()).await.unwrap();
        if batch % 4 == 3 {
            outbox.flush().await.unwrap();
        }
    }
    outbox.flush().await.unwrap();
    let log = log(&inbox).await;
    assert_eq!(log.len(), 120);
    for customer in 0..3 {
        let mine: Vec<&(Place, String)> =
            log.iter().filter(|(_, key)| key.parse::<u32>().unwrap() % 3 == customer).collect();
        assert!(mine.iter().all(|(place, _)| place.lane == mine[0].0.lane), "{mine:?}");
        assert!(mine.is_sorted_by_key(|(_, key)| key), "{mine:?}");
    }
    assert_eq!(inbox.work_until_idle().await.unwrap().done, 120);
}

/// Headers, times and keys.
pub async fn what_travels_with_a_published_message_reaches_its_handler<F: Fixture<Store: OutboxStore>>(
    fixture: F,
) {
    let outbox = outbox(&fixture).await;
    let seen: Arc<Mutex<Vec<Envelope>>> = Arc::default();
    let handler = {
        let seen = seen.clone();
        async move |envelope: Envelope, _: &mut Conn<F>| -> Result<(), BoxError> {
            seen.lock().unwrap().push(envelope);
            Ok(())
        }
    };
    let inbox = stored(&fixture).on_raw("all", [Sample::KIND], handler).build().await.unwrap();
    let now = SystemTime::UNIX_EPOCH + Duration::from_millis(1_700_000_000_123);
    let soon = SystemTime::now() + Duration::from_secs(3600);
    let long_key = "k".repeat(2_000);
    let sent = sample("a")
        .with_key(long_key.as_str())
        .with_header("x-one", "1")
        .with_header("x-one", "2")
        .with_occurred_at(now)
        .with_order_by("customer-1");
    publish(&fixture, &outbox, true, vec![sent.clone(), sample("later").with_due_at(soon)]).await.unwrap();
    outbox.flush().await.unwrap();
    assert_eq!(inbox.work_until_idle().await.unwrap().done, 1, "the other one is not due");
    {
        let seen = seen.lock().unwrap();
        assert_eq!(seen[0].body(), sent.body());
        assert_eq!(seen[0].headers().get_all("x-one").collect::<Vec<_>>(), ["1", "2"]);
        assert_eq!((seen[0].occurred_at(), seen[0].order_by()), (Some(now), sent.order_by()));
        assert_eq!(seen[0].key(), Some(&long_key.as_str().into()));
    }
    fixture.travel(Duration::from_secs(3601));
    assert_eq!(inbox.work_until_idle().await.unwrap().done, 1);
}

/// A copy that was accepted before, one that is accepted later, and one in the same transaction.
pub async fn a_published_copy_of_a_known_key_is_delivered_once<F: Fixture<Store: OutboxStore>>(fixture: F) {
    let outbox = outbox(&fixture).await;
    let inbox = with_effect(&fixture, stored(&fixture), "ledger").build().await.unwrap();
    assert!(inbox.accept(sample("before")).await.unwrap().is_new());
    let published = ["before", "after", "twice", "twice"].map(sample).to_vec();
    publish(&fixture, &outbox, true, published).await.unwrap();
    assert_eq!(outbox.flush().await.unwrap(), 4, "all of them leave the outbox");
    publish(&fixture, &outbox, true, vec![sample("twice")]).await.unwrap();
    outbox.flush().await.unwrap();
    assert!(inbox.accept(sample("after")).await.unwrap().is_duplicate());
    assert_eq!(inbox.work_until_idle().await.unwrap().done, 3);
    for id in ["before", "after", "twice"] {
        assert_eq!(fixture.effects(&format!("ledger {id}")).await, 1, "{id}");
    }
}

/// Two messages with equal bodies and no keys are two messages.
pub async fn a_published_message_without_a_key_has_its_id<F: Fixture<Store: OutboxStore>>(fixture: F) {
    let outbox = outbox(&fixture).await;
    let inbox = stored(&fixture).build().await.unwrap();
    let notes = vec![Envelope::new("note", "same"), Envelope::new("note", "same")];
    let ids = publish(&fixture, &outbox, true, notes).await.unwrap();
    outbox.flush().await.unwrap();
    let mut keys: Vec<String> = log(&inbox).await.into_iter().map(|(_, key)| key).collect();
    keys.sort();
    assert_eq!(keys, ids.iter().map(ToString::to_string).collect::<Vec<_>>());
}

/// The error comes before anything is written, so the transaction can go on.
pub async fn a_message_that_cannot_be_published_is_refused<F: Fixture<Store: OutboxStore>>(fixture: F) {
    let outbox = Outbox::builder(fixture.store()).max_body_bytes(10).build().await.unwrap();
    let refused = [
        Envelope::new("", "x"),
        Envelope::new("@accept", "x"),
        Envelope::new("kind", "eleven byte"),
        Envelope::new("kind", "x").with_key(""),
        Envelope::new("kind", "x").with_order_by("k".repeat(65_537)),
    ];
    for envelope in refused {
        let fine = Envelope::new("kind", "fine");
        publish(&fixture, &outbox, true, vec![fine, envelope.clone()]).await.expect_err(envelope.kind());
    }
    assert_eq!(outbox.status().await.unwrap().waiting, 0, "none of a call is written if one is refused");
    publish(&fixture, &outbox, true, vec![Envelope::new("kind", "fine")]).await.unwrap();
    assert_eq!(outbox.flush().await.unwrap(), 1);
}

/// Several movers and publishers at the same time.
pub async fn movers_at_once_move_each_message_once<F: Fixture<Store: OutboxStore>>(fixture: F) {
    let inbox = with_effect(&fixture, stored(&fixture), "ledger").build().await.unwrap();
    let outboxes = [outbox(&fixture).await, outbox(&fixture).await, outbox(&fixture).await];
    let publishers = (0..3).map(|publisher| {
        let (fixture, outbox) = (fixture.clone(), outboxes[publisher].clone());
        tokio::spawn(async move {
            for n in 0..20 {
                let messages =
                    vec![sample(&format!("{publisher}-{n}-a")), sample(&format!("{publisher}-{n}-b"))];
                publish(&fixture, &outbox, n % 5 != 4, messages).await.unwrap();
            }
        })
    });
    let publishers: Vec<_> = publishers.collect();
    let is_all_published = Arc::new(AtomicBool::new(false));
    let movers = outboxes.each_ref().map(|outbox| {
        let (outbox, is_published) = (outbox.clone(), is_all_published.clone());
        tokio::spawn(async move {
            // Until all is published, so that movers and publishers run at the same time.
            while !is_published.load(Ordering::SeqCst) {
                outbox.flush().await.unwrap();
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        })
    });
    for publisher in publishers {
        publisher.await.unwrap();
    }
    is_all_published.store(true, Ordering::SeqCst);
    for mover in movers {
        mover.await.unwrap();
    }
    outboxes[0].flush().await.unwrap();
    assert_eq!(log(&inbox).await.len(), 3 * 16 * 2);
    assert_eq!(inbox.work_until_idle().await.unwrap().done, 3 * 16 * 2);
    assert_eq!(fixture.effects("ledger 1-3-a").await, 1);
    assert_eq!(fixture.effects("ledger 1-4-a").await, 0, "its transaction was rolled back");
}

/// Each key comes both ways at the same time. No move fails because of that.
pub async fn copies_published_and_accepted_at_once_take_effect_once<F: Fixture<Store: OutboxStore>>(
    fixture: F,
) {
    let outbox = outbox(&fixture).await;
    let inbox = with_effect(&fixture, stored(&fixture), "ledger").build().await.unwrap();
    const KEYS: usize = 60;
    let accepting = {
        let inbox = inbox.clone();
        tokio::spawn(async move {
            for n in 0..KEYS {
                inbox.accept(sample(&format!("{n}"))).await.unwrap();
            }
        })
    };
    for n in 0..KEYS {
        publish(&fixture, &outbox, true, vec![sample(&format!("{n}"))]).await.unwrap();
        outbox.flush().await.unwrap();
    }
    accepting.await.unwrap();
    assert_eq!(inbox.work_until_idle().await.unwrap().done, KEYS as u64);
    for n in 0..KEYS {
        assert_eq!(fixture.effects(&format!("ledger {n}")).await, 1, "{n}");
    }
}

/// Every second move fails: before its commit, or after it.
#[derive(Clone, Default)]
struct LostAnswers(Arc<AtomicU32>);

impl Faults for LostAnswers {
    async fn at(&self, _: Point) -> Result<(), Error> {
        match self.0.fetch_add(1, Ordering::SeqCst) % 5 {
            1 | 3 => Err(crash()),
            _ => Ok(()),
        }
    }
}

/// A mover that runs on goes back to where it was sure.
pub async fn a_move_whose_answer_was_lost_loses_and_doubles_nothing<F: Fixture<Store: OutboxStore>>(
    fixture: F,
) {
    let inbox = with_effect(&fixture, stored(&fixture), "ledger").build().await.unwrap();
    let faulty = Faulty::new(fixture.store(), LostAnswers::default());
    let mover = Outbox::builder(faulty).build().await.unwrap();
    let publisher = outbox(&fixture).await;
    let (stop, stopped) = oneshot::channel::<()>();
    let running = {
        let mover = mover.clone();
        tokio::spawn(async move {
            mover.run(async { drop(stopped.await) }).await.unwrap();
        })
    };
    for n in 0..20 {
        publish(&fixture, &publisher, true, vec![sample(&format!("{n}"))]).await.unwrap();
        mover.wake();
        // One at a time, so that moves of every outcome have a message to lose.
        until(async || publisher.status().await.unwrap().waiting == 0).await;
    }
    drop(stop);
    running.await.unwrap();
    assert_eq!(log(&inbox).await.len(), 20);
    assert_eq!(inbox.work_until_idle().await.unwrap().done, 20);
}

/// Without a call of `flush` or `wake`.
pub async fn the_mover_of_an_inbox_runs_beside_its_workers<F: Fixture<Store: OutboxStore>>(fixture: F) {
    let outbox = outbox(&fixture).await;
    let inbox = with_effect(&fixture, stored(&fixture), "ledger").outbox(&outbox).build().await.unwrap();
    let (stop, stopped) = oneshot::channel::<()>();
    let running = {
        let inbox = inbox.clone();
        tokio::spawn(async move { inbox.run(async { drop(stopped.await) }).await })
    };
    for n in 0..5 {
        publish(&fixture, &outbox, true, vec![sample(&format!("{n}"))]).await.unwrap();
        until(async || fixture.effects(&format!("ledger {n}")).await == 1).await;
    }
    outbox.health().unwrap();
    drop(stop);
    assert_eq!(running.await.unwrap().unwrap().done, 5);
}

/// A move has a limit of messages, and of bytes.
pub async fn more_messages_than_one_move_takes_are_moved_in_order<F: Fixture<Store: OutboxStore>>(
    fixture: F,
) {
    let outbox = outbox(&fixture).await;
    let inbox = stored(&fixture).build().await.unwrap();
    let small = (0..10_100).map(|n| Envelope::new("small", format!("{n:05}")).with_order_by("one"));
    publish(&fixture, &outbox, true, small.collect()).await.unwrap();
    let large = (0..20).map(|n| Envelope::new("large", vec![n; 1024 * 1024]).with_order_by("one"));
    publish(&fixture, &outbox, true, large.collect()).await.unwrap();
    assert_eq!(outbox.flush().await.unwrap(), 10_120);
    let (mut small, mut large) = (Vec::new(), Vec::new());
    for lane in 0..8 {
        for message in inbox.store().messages(lane, 0, 100_000).await.unwrap() {
            match &*message.message.kind {
                "small" => small.push(message.message.body),
                _ => large.push(message.message.body[0]),
            }
        }
    }
    assert_eq!((small.len(), large.len()), (10_100, 20));
    assert!(small.is_sorted() && large.is_sorted());
}

/// What the handlers below publish.
#[derive(Serialize, Deserialize)]
struct Note {
    id: String,
}

impl Message for Note {
    const KIND: &'static str = "note";
    type Codec = Json;

    fn key(&self) -> Option<Key> {
        Some(Key::from(&*self.id))
    }
}

fn note(id: &str) -> Publish<Note> {
    Publish::new(&Note { id: id.to_owned() })
}

/// The keys of the notes in the log.
async fn notes<S: OutboxStore>(store: &S) -> Vec<String> {
    let mut found = Vec::new();
    for lane in 0..8 {
        for message in store.messages(lane, 0, 100_000).await.unwrap() {
            if message.message.kind == Note::KIND {
                found.push(message.message.key.unwrap().to_string());
            }
        }
    }
    found.sort();
    found
}

/// A duplicate runs nothing and publishes nothing. A failure publishes nothing, and neither do its neighbours twice.
pub async fn an_inline_handler_publishes_with_its_effect<F: Fixture<Store: OutboxStore>>(fixture: F) {
    let outbox = outbox(&fixture).await;
    let effects = fixture.clone();
    let handler =
        async move |sample: Sample, conn: &mut Conn<F>| -> Result<(Reply<u32>, Publish<Note>), BoxError> {
            effects.effect(conn, &sample.id).await?;
            match sample.id.as_str() {
                "fails" => Err("after its effect".into()),
                id => Ok((Reply(1), note(id))),
            }
        };
    let inbox = Inbox::builder(fixture.store()).on("ship", handler).mode(Mode::inline()).outbox(&outbox);
    let inbox = inbox.build().await.unwrap();
    let ids = ["a", "b", "fails", "c", "a", "b", "c", "d"];
    let delivered = ids.map(|id| {
        let inbox = inbox.clone();
        tokio::spawn(async move { inbox.process(sample(id)).await.unwrap() })
    });
    for delivered in delivered {
        delivered.await.unwrap();
    }
    assert_eq!(outbox.flush().await.unwrap(), 4);
    assert_eq!(notes(inbox.store()).await, ["a", "b", "c", "d"]);
    for id in ids {
        assert_eq!(fixture.effects(id).await, u64::from(id != "fails"), "{id}");
        inbox.process(sample(id)).await.unwrap();
    }
    assert_eq!(outbox.flush().await.unwrap(), 0);
}

/// One attempt fails, a neighbour always fails, and a set fails as a whole before it is halved. A replay publishes again, under the
/// same key.
pub async fn a_stored_handler_publishes_with_its_effect<F: Fixture<Store: OutboxStore>>(fixture: F) {
    let outbox = Outbox::builder(fixture.store()).lanes(1).build().await.unwrap();
    let handler = async move |sample: Sample, attempt: Attempt, _: &mut Conn<F>| -> Result<_, BoxError> {
        match (&*sample.id, attempt.0) {
            ("second", 1) | ("never", _) => Err("not now".into()),
            (id, _) => Ok(Some(note(id))),
        }
    };
    let set = async move |samples: Vec<Sample>, _: &mut Conn<F>| -> Result<Vec<Publish<Note>>, BoxError> {
        match samples.iter().any(|sample| sample.id == "never") {
            true => Err("one of them fails".into()),
            false => Ok(samples.iter().map(|sample| note(&format!("set-{}", sample.id))).collect()),
        }
    };
    let builder = stored(&fixture).lanes(1).retry(AT_ONCE).on("ship", handler).on("set", set);
    let inbox = builder.outbox(&outbox).build().await.unwrap();
    for id in ["first", "second", "never", "third"] {
        inbox.accept(sample(id)).await.unwrap();
    }
    inbox.work_until_idle().await.unwrap();
    let expected = ["first", "second", "set-first", "set-second", "set-third", "third"];
    assert_eq!(notes(inbox.store()).await, expected);

    inbox.operators().replay("ship", ReplayFrom::Beginning, &operator("ada")).await.unwrap();
    inbox.work_until_idle().await.unwrap();
    assert_eq!(notes(inbox.store()).await, expected, "the handlers of this database know these keys");
}

/// The messages of a detached run are written with its outcome. A run whose lease was lost publishes nothing.
pub async fn a_detached_handler_publishes_with_its_outcome<F: Fixture<Store: OutboxStore>>(fixture: F) {
    let outbox = outbox(&fixture).await;
    let handler = async move |sample: Sample, attempt: Attempt| -> Result<Publish<Note>, BoxError> {
        match attempt.0 {
            1 if sample.id == "second" => Err("not now".into()),
            _ => Ok(note(&sample.id)),
        }
    };
    let builder = stored(&fixture).retry(AT_ONCE).on_with("call", handler, |options| options.detached());
    let inbox = builder.outbox(&outbox).build().await.unwrap();
    for id in ["first", "second"] {
        inbox.accept(sample(id)).await.unwrap();
    }
    inbox.work_until_idle().await.unwrap();
    assert_eq!(notes(inbox.store()).await, ["first", "second"]);
}

/// Inline, stored and detached. A handler can set another trace.
pub async fn published_messages_continue_the_trace_of_their_cause<F: Fixture<Store: OutboxStore>>(
    fixture: F,
) {
    const TRACE: (&str, &str) = ("traceparent", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01");
    let outbox = outbox(&fixture).await;
    let own = |id: &str| match id {
        "own" => note(id).with_header(TRACE.0, "own"),
        id => note(id),
    };
    let stored_handler = async move |sample: Sample, _: &mut Conn<F>| Ok::<_, BoxError>(own(&sample.id));
    let detached = async move |sample: Sample| Ok::<_, BoxError>(note(&format!("{}-detached", sample.id)));
    let builder = stored(&fixture).outbox(&outbox).on("ship", stored_handler);
    let inbox = builder.on_with("call", detached, |options| options.detached()).build().await.unwrap();
    for id in ["a", "own"] {
        let traced = sample(id).with_header(TRACE.0, TRACE.1).with_header("tracestate", "vendor=1");
        inbox.accept(traced).await.unwrap();
    }
    inbox.accept(sample("untraced")).await.unwrap();
    inbox.work_until_idle().await.unwrap();
    let mut traces = Vec::new();
    for lane in 0..8 {
        for found in inbox.store().messages(lane, 0, 100_000).await.unwrap() {
            let message = found.message;
            if message.kind == Note::KIND {
                let read = |name| message.headers.get(name).map(str::to_owned);
                traces.push((message.key.unwrap().to_string(), read(TRACE.0), read("tracestate")));
            }
        }
    }
    traces.sort();
    let continued = |key: &str| (key.to_owned(), Some(TRACE.1.to_owned()), Some("vendor=1".to_owned()));
    let untraced = |key: &str| (key.to_owned(), None, None);
    let expected = [
        continued("a"),
        continued("a-detached"),
        ("own".to_owned(), Some("own".to_owned()), None),
        continued("own-detached"),
        untraced("untraced"),
        untraced("untraced-detached"),
    ];
    assert_eq!(traces, expected);
}

/// Another process runs the message again, and publishes.
pub async fn a_detached_run_without_its_lease_publishes_nothing<F: Fixture<Store: OutboxStore>>(fixture: F) {
    let store = fixture.store();
    let log = three_passed(fixture).await;
    let (slow, quick) = (log.enter().await, log.enter().await);
    let old = log.lease(slow, &[untried(1)]).await.unwrap();
    log.leave(slow).await;
    let new = log.lease_tasks(quick, 10, again).await;
    let done = |body: &str| {
        let envelope = Envelope::new("note", body);
        let message = Captured {
            id: MessageId::from_bytes(*uuid::Uuid::now_v7().as_bytes()),
            kind: "note".to_owned(),
            key: None,
            fingerprint: envelope.fingerprint(),
            order_by: None,
            headers: envelope.headers().clone(),
            body: body.into(),
            occurred_at: None,
            due_at: None,
        };
        End::Done { marker: None, result: None, published: vec![message] }
    };
    assert_eq!(log.complete_all(&[(1, old, done("old")), (1, new, done("new"))]).await, [false, true]);
    assert_eq!(store.outbox_status().await.unwrap().waiting, 1);
    let outbox = Outbox::builder(store.clone()).build().await.unwrap();
    outbox.flush().await.unwrap();
    let mut bodies = Vec::new();
    for lane in 0..8 {
        let messages = store.messages(lane, 0, 100).await.unwrap();
        bodies.extend(
            messages.into_iter().filter(|one| one.message.kind == "note").map(|one| one.message.body),
        );
    }
    assert_eq!(bodies, [b"new"]);
}

/// Without an outbox its messages would be lost.
pub async fn a_handler_that_publishes_needs_an_outbox<F: Fixture<Store: OutboxStore>>(fixture: F) {
    let publishes = async |sample: Sample, _: &mut Conn<F>| note(&sample.id);
    let error = stored(&fixture).on("ship", publishes).build().await.unwrap_err();
    assert!(error.to_string().contains("the inbox has no outbox: call .outbox(&outbox)"), "{error}");
    let detached = async |sample: Sample| note(&sample.id);
    let outbox = outbox(&fixture).await;
    let builder = stored(&fixture).outbox(&outbox);
    let builder = builder.on_with("call", detached, |options| options.detached().at_most_once());
    let error = builder.build().await.unwrap_err();
    assert!(error.to_string().contains("at_most_once"), "{error}");
}

/// Operators find a message wherever it is.
pub async fn a_published_message_is_found_by_its_id<F: Fixture<Store: OutboxStore>>(fixture: F) {
    let outbox = outbox(&fixture).await;
    let now = SystemTime::UNIX_EPOCH + Duration::from_millis(1_700_000_000_123);
    let sent = sample("a").with_header("x-one", "1").with_occurred_at(now).with_order_by("customer-1");
    let without_key = Envelope::new("note", "text");
    let ids = publish(&fixture, &outbox, true, vec![sent.clone(), without_key]).await.unwrap();
    let rolled_back = publish(&fixture, &outbox, false, vec![sample("b")]).await.unwrap();
    let waiting = outbox.waiting_messages(10).await.unwrap();
    assert_eq!(waiting.iter().map(|message| message.id).collect::<Vec<_>>(), [Some(ids[0]), Some(ids[1])]);
    let first = &waiting[0];
    assert_eq!(
        (&*first.kind, first.key.as_ref(), first.order_by.as_ref()),
        (Sample::KIND, sent.key(), sent.order_by())
    );
    assert_eq!((&first.body[..], first.occurred_at, first.due_at), (sent.body(), Some(now), None));
    assert_eq!(first.headers.get("x-one"), Some("1"));
    assert!(first.waited < LIMIT && first.captured_at > now, "{first:?}");
    assert_eq!(waiting[1].key, None);
    let one = outbox.waiting_messages(1).await.unwrap();
    assert_eq!((one.len(), one[0].id), (1, Some(ids[0])));
    assert_eq!(outbox.waiting_message(ids[1]).await.unwrap().unwrap().body, b"text");
    assert_eq!(outbox.waiting_message(rolled_back[0]).await.unwrap(), None);
    assert_eq!(outbox.find(ids[0]).await.unwrap(), None, "it is not in the log yet");
    let size = outbox.size().await.unwrap();
    assert!(size.outbox.or(size.database).is_some_and(|bytes| bytes > 0), "{size:?}");

    outbox.flush().await.unwrap();
    assert_eq!(outbox.waiting_messages(10).await.unwrap(), []);
    assert_eq!(outbox.waiting_message(ids[0]).await.unwrap(), None);
    for id in &ids {
        let place = outbox.find(*id).await.unwrap().expect("it is in the log");
        let found = outbox.operators().message(place).await.unwrap().unwrap();
        assert_eq!(found.message.message_id, Some(*id));
    }
    assert_eq!(outbox.find(rolled_back[0]).await.unwrap(), None);
}

/// Also one that has neither handlers nor relays.
pub async fn a_process_that_moves_is_known_as_such<F: Fixture<Store: OutboxStore>>(fixture: F) {
    let outbox = outbox(&fixture).await;
    let inbox = || with_effect(&fixture, stored(&fixture), "ledger");
    let without = inbox().build().await.unwrap();
    let with = inbox().outbox(&outbox).build().await.unwrap();
    let operators = outbox.operators();
    for (n, moves) in [true, false, true].into_iter().enumerate() {
        let (stop, stopped) = oneshot::channel::<()>();
        let (outbox, without, with) = (outbox.clone(), without.clone(), with.clone());
        let running = tokio::spawn(async move {
            let stopped = async { drop(stopped.await) };
            match n {
                0 => outbox.run(stopped).await,
                1 => without.run(stopped).await,
                _ => with.run(stopped).await,
            }
        });
        until(async || !operators.processes().await.unwrap().is_empty()).await;
        let processes = operators.processes().await.unwrap();
        assert!(processes.iter().all(|process| process.moves == moves), "{n}: {processes:?}");
        drop(stop);
        running.await.unwrap().unwrap();
        assert_eq!(operators.processes().await.unwrap(), []);
    }
}

pub(super) async fn until(is_so: impl AsyncFn() -> bool) {
    let waited = tokio::time::timeout(LIMIT, async {
        while !is_so().await {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    });
    waited.await.expect("it happens within a minute");
}
