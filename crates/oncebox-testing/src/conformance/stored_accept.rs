//! Accepting: the messages in the log, their keys and their places.

use std::collections::HashMap;
use std::time::{Duration, SystemTime};

use oncebox_core::store::Place;
use oncebox_core::{
    Accept, BoxError, Delivery, Envelope, ErrorKind, Headers, Inbox, InboxBuilder, Key, KeyReuse, LogStore,
    MissingKey,
};

use super::stored::{Conn, accept_new, one_lane, sample, with_effect};
use super::{Fixture, Sample};

fn another_body(id: &str) -> Envelope {
    Envelope::of(&Sample { id: id.to_owned(), text: "another".to_owned() }).unwrap()
}

/// A builder with a handler of undecoded messages that writes one effect, named after kind and length of the body.
fn with_lengths<F: Fixture>(fixture: &F, builder: InboxBuilder<F::Store>) -> InboxBuilder<F::Store> {
    let fixture = fixture.clone();
    let handler = async move |envelope: Envelope, conn: &mut Conn<F>| -> Result<(), BoxError> {
        fixture.effect(conn, &format!("{} {}", envelope.kind(), envelope.body().len())).await
    };
    builder.on_raw("lengths", ["note", "memo"], handler)
}

/// A key with another body is no silent duplicate.
pub async fn another_body_under_an_accepted_key_is_reported<F: Fixture<Store: LogStore>>(fixture: F) {
    let inbox = with_effect(&fixture, one_lane(&fixture), "ledger").build().await.unwrap();
    let strict = with_effect(&fixture, one_lane(&fixture), "ledger").key_reuse(KeyReuse::Reject);
    let strict = strict.build().await.unwrap();
    let place = Some(accept_new(&inbox, sample("a")).await);
    assert_eq!(inbox.accept(another_body("a")).await.unwrap(), Accept::KeyReuse { place });
    assert_eq!(strict.accept(another_body("a")).await.unwrap_err().kind(), ErrorKind::KeyReuse);
    assert_eq!(strict.accept(sample("a")).await.unwrap(), Accept::Duplicate { place });

    let both = inbox.accept_all([sample("b"), another_body("b")]).await;
    let both: Vec<Accept> = both.into_iter().map(Result::unwrap).collect();
    assert_eq!(both.iter().filter(|accept| accept.is_new()).count(), 1, "{both:?}");
    assert_eq!(both.iter().filter(|accept| matches!(accept, Accept::KeyReuse { .. })).count(), 1, "{both:?}");
    assert_eq!(inbox.work_until_idle().await.unwrap().done, 2);
}

/// The same key in another kind is another message.
pub async fn an_accepted_key_counts_for_its_kind_only<F: Fixture<Store: LogStore>>(fixture: F) {
    let inbox = with_lengths(&fixture, one_lane(&fixture)).build().await.unwrap();
    for kind in ["note", "memo"] {
        accept_new(&inbox, Envelope::new(kind, "123").with_key("k")).await;
        let again = inbox.accept(Envelope::new(kind, "123").with_key("k")).await.unwrap();
        assert!(again.is_duplicate());
    }
    assert_eq!(inbox.work_until_idle().await.unwrap().done, 2);
    assert_eq!((fixture.effects("note 3").await, fixture.effects("memo 3").await), (1, 1));
}

/// Without a key there is nothing to deduplicate by: the policy decides.
pub async fn a_message_without_a_key_is_refused_or_taken_each_time<F: Fixture<Store: LogStore>>(fixture: F) {
    let inbox = with_lengths(&fixture, one_lane(&fixture)).build().await.unwrap();
    for envelope in [Envelope::new("note", "12"), Envelope::new("note", "12").with_key("")] {
        assert_eq!(inbox.accept(envelope).await.unwrap_err().kind(), ErrorKind::Key);
    }
    assert!(inbox.operators().messages(0, 0, 10).await.unwrap().is_empty());

    let lenient = with_lengths(&fixture, one_lane(&fixture)).missing_key(MissingKey::RunWithoutDedup);
    let lenient = lenient.build().await.unwrap();
    let first = accept_new(&lenient, Envelope::new("note", "12")).await;
    let second = accept_new(&lenient, Envelope::new("note", "12")).await;
    assert_eq!((first.pos, second.pos), (1, 2));
    assert_eq!(lenient.work_until_idle().await.unwrap().done, 2);
    assert_eq!(fixture.effects("note 2").await, 2);
}

/// A delivery's id is unique within its source.
pub async fn the_source_s_id_is_a_key<F: Fixture<Store: LogStore>>(fixture: F) {
    let inbox = with_lengths(&fixture, one_lane(&fixture)).build().await.unwrap();
    let delivered = |source: &str| Envelope::new("note", "1").delivered_by(source, "m-1");
    accept_new(&inbox, delivered("rabbit")).await;
    assert!(inbox.accept(delivered("rabbit")).await.unwrap().is_duplicate());
    accept_new(&inbox, delivered("kafka")).await;
    assert_eq!(inbox.work_until_idle().await.unwrap().done, 2);
}

/// The limit itself is still let through, to the handler and back.
pub async fn a_body_that_is_too_large_is_refused_and_the_largest_goes_through<F: Fixture<Store: LogStore>>(
    fixture: F,
) {
    const LARGEST: usize = 1024 * 1024;
    let inbox = with_lengths(&fixture, one_lane(&fixture)).build().await.unwrap();
    let too_large = Envelope::new("note", vec![7; LARGEST + 1]).with_key("large");
    assert_eq!(inbox.accept(too_large).await.unwrap_err().kind(), ErrorKind::TooLarge);
    // The key is still free.
    accept_new(&inbox, Envelope::new("note", vec![7; LARGEST]).with_key("large")).await;
    assert_eq!(inbox.work_until_idle().await.unwrap().done, 1);
    assert_eq!(fixture.effects(&format!("note {LARGEST}")).await, 1);
}

/// The error says not to send it again, and the message behind it is accepted.
pub async fn what_is_beyond_a_limit_is_rejected<F: Fixture<Store: LogStore>>(fixture: F) {
    let inbox = with_lengths(&fixture, one_lane(&fixture)).build().await.unwrap();
    let note = || Envelope::new("note", "1").with_key("note");
    let far = SystemTime::UNIX_EPOCH + Duration::from_secs(400_000_000_000_000);
    let beyond = [
        note().with_order_by(vec![b'x'; Key::MAX_BYTES + 1]),
        note().with_header("x", "y".repeat(Headers::MAX_BYTES)),
        note().with_due_at(far),
        note().with_occurred_at(far),
    ];
    for envelope in beyond {
        let error = inbox.accept(envelope).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Envelope, "{error}");
    }
    let within = note()
        .with_order_by(vec![b'x'; Key::MAX_BYTES])
        .with_header("x", "y".repeat(Headers::MAX_BYTES - 1))
        // The first second of the year 1, the earliest time that is accepted.
        .with_occurred_at(SystemTime::UNIX_EPOCH - Duration::from_secs(62_135_596_800))
        .with_due_at(SystemTime::UNIX_EPOCH);
    accept_new(&inbox, within).await;
    assert_eq!(inbox.work_until_idle().await.unwrap().done, 1);
}

/// Equal keys in one batch are one message, and positions have no gaps.
pub async fn equal_keys_in_one_call_are_accepted_once<F: Fixture<Store: LogStore>>(fixture: F) {
    const LANES: u16 = 4;
    let builder = Inbox::builder(fixture.store()).stored().lanes(LANES);
    let inbox = with_effect(&fixture, builder, "ledger").build().await.unwrap();
    let ids: Vec<String> = (0..60).map(|n| format!("m-{}", n % 20)).collect();
    let mut accepted: HashMap<&str, u32> = HashMap::new();
    let answers = inbox.accept_all(ids.iter().map(|id| sample(id))).await;
    for (id, answer) in ids.iter().zip(answers) {
        match answer.unwrap() {
            Accept::Accepted(_) => *accepted.entry(id.as_str()).or_default() += 1,
            other => assert!(other.is_duplicate(), "{id}: {other:?}"),
        }
    }
    assert_eq!(accepted.len(), 20);
    assert!(accepted.values().all(|times| *times == 1), "{accepted:?}");

    let mut messages = 0;
    for lane in 0..LANES {
        let found = inbox.operators().messages(lane, 0, 100).await.unwrap();
        let positions: Vec<i64> = found.iter().map(|found| found.message.place.pos).collect();
        assert_eq!(positions, (1..).take(positions.len()).collect::<Vec<i64>>(), "lane {lane}");
        messages += positions.len();
    }
    assert_eq!(messages, 20);
    assert_eq!(inbox.work_until_idle().await.unwrap().done, 20);
}

/// The order of the calls is the order of the log.
pub async fn messages_of_one_ordering_key_sit_in_one_lane_in_order<F: Fixture<Store: LogStore>>(fixture: F) {
    let builder = Inbox::builder(fixture.store()).stored().lanes(4);
    let inbox = with_effect(&fixture, builder, "ledger").build().await.unwrap();
    const CUSTOMERS: usize = 6;
    let numbered =
        |n: usize| sample(&format!("o-{n:03}")).with_order_by(format!("customer-{}", n % CUSTOMERS));
    // Messages without an ordering key in between: they go to any lane, and must not disturb the order.
    let mut envelopes = Vec::new();
    for n in 0..120 {
        envelopes.extend([numbered(n), sample(&format!("any-{n}"))]);
    }
    let answers = inbox.accept_all(envelopes).await;
    let mut lanes: HashMap<usize, Vec<(u16, i64)>> = HashMap::new();
    for (n, answer) in answers.into_iter().step_by(2).enumerate() {
        let Accept::Accepted(Place { lane, pos }) = answer.unwrap() else { panic!("o-{n:03} is known") };
        lanes.entry(n % CUSTOMERS).or_default().push((lane, pos));
    }
    for (customer, places) in lanes {
        assert_eq!(places.len(), 20);
        assert!(places.iter().all(|place| place.0 == places[0].0), "customer {customer}: {places:?}");
        assert!(places.is_sorted_by(|a, b| a.1 < b.1), "customer {customer}: {places:?}");
    }
}

/// Headers, times and keys come back as they went in.
pub async fn what_travels_with_a_message_reaches_its_handler<F: Fixture<Store: LogStore>>(fixture: F) {
    let effects = fixture.clone();
    let handler = async move |_: Sample, delivery: Delivery, conn: &mut Conn<F>| -> Result<(), BoxError> {
        let envelope = delivery.envelope();
        let occurred = envelope.occurred_at().and_then(|at| at.duration_since(SystemTime::UNIX_EPOCH).ok());
        let order_by = envelope.order_by().map(ToString::to_string);
        let names: Vec<&str> = envelope.headers().get_all("Tenant").collect();
        let key = delivery.key().map(ToString::to_string);
        effects.effect(conn, &format!("{key:?} {order_by:?} {names:?} {occurred:?}")).await
    };
    let inbox = one_lane(&fixture).on("ledger", handler).build().await.unwrap();
    let occurred_at = SystemTime::UNIX_EPOCH + Duration::from_millis(1_700_000_000_123);
    let envelope = sample("a")
        .with_order_by("customer-1")
        .with_header("tenant", "acme \"quoted\"")
        .with_header("tenant", "zoë")
        .with_occurred_at(occurred_at);
    accept_new(&inbox, envelope).await;
    assert_eq!(inbox.work_until_idle().await.unwrap().done, 1);
    let expected = r#"Some("a") Some("customer-1") ["acme \"quoted\"", "zoë"] Some(1700000000.123s)"#;
    assert_eq!(fixture.effects(expected).await, 1);
}

/// Keys of another system's inbox are known here.
pub async fn imported_keys_are_accepted_already<F: Fixture<Store: LogStore>>(fixture: F) {
    let inbox = with_effect(&fixture, one_lane(&fixture), "ledger").build().await.unwrap();
    accept_new(&inbox, sample("here")).await;
    assert_eq!(inbox.import_accepted("sample", ["here", "there", "there"]).await.unwrap(), 1);
    assert!(inbox.accept(sample("there")).await.unwrap().is_duplicate());
    assert_eq!(inbox.work_until_idle().await.unwrap().done, 1);
    assert_eq!((fixture.effects("ledger here").await, fixture.effects("ledger there").await), (1, 0));
}

/// It would wait for the transaction that it holds.
pub async fn a_stored_handler_cannot_call_its_own_inbox<F: Fixture<Store: LogStore>>(fixture: F) {
    let own: std::sync::Arc<std::sync::OnceLock<Inbox<F::Store>>> = std::sync::Arc::default();
    let (inside, effects) = (own.clone(), fixture.clone());
    let handler = async move |_: Sample, conn: &mut Conn<F>| -> Result<(), BoxError> {
        let inbox = inside.get().ok_or("no inbox yet")?;
        let accepted = inbox.accept(sample("inner")).await.unwrap_err().kind();
        let worked = inbox.work_once().await.unwrap_err().kind();
        effects.effect(conn, &format!("{accepted:?} {worked:?}")).await
    };
    let inbox = one_lane(&fixture).on("ledger", handler).build().await.unwrap();
    assert!(own.set(inbox.clone()).is_ok());
    accept_new(&inbox, sample("outer")).await;
    assert_eq!(inbox.work_until_idle().await.unwrap().done, 1);
    assert_eq!(fixture.effects("Nested Nested").await, 1);
}
