//! Input from outside: a clear answer or exact handling, never a panic, never a changed key.

use oncebox::{Codec, Envelope, Inbox, Key, Message, Outcome, Rejection, Settlement};
use oncebox_testing::Fixture;
use serde::{Deserialize, Serialize};

use crate::every_store::{Conn, OrderPaid, envelope, on_every_store};

on_every_store!(
    bodies_that_cannot_be_decoded_are_rejected_and_leave_nothing,
    keys_of_any_bytes_are_kept_exactly,
    keys_that_identify_nothing_are_missing,
    a_key_beyond_the_limit_is_refused,
    a_codec_that_panics_is_an_undecodable_body,
);

async fn bodies_that_cannot_be_decoded_are_rejected_and_leave_nothing<F: Fixture>(fixture: F) {
    let handler = {
        let fixture = fixture.clone();
        async move |_: OrderPaid, conn: &mut Conn<F>| fixture.effect(conn, "ran").await
    };
    let inbox = Inbox::builder(fixture.store()).on("h", handler).build().await.unwrap();
    let deep = "[".repeat(200_000);
    let bodies: [&[u8]; 9] = [
        b"",
        b"null",
        b"{}",
        b"{\"order_id\": 7, \"cents\": 1}",
        b"{\"order_id\": \"a\", \"cents\": 99999999999999999999}",
        b"{\"order_id\": \"a\", \"cents\": 1",
        &[0xff, 0xfe, 0x00],
        b"{\"order_id\": \"\xff\", \"cents\": 1}",
        deep.as_bytes(),
    ];
    for body in bodies {
        let report = inbox.process(Envelope::new("order.paid", body).with_key("k")).await.unwrap();
        let undecodable = matches!(report.outcome("h"), Some(Outcome::Rejected(Rejection::Undecodable(_))));
        assert!(undecodable, "{:?}: {report:?}", String::from_utf8_lossy(&body[..body.len().min(40)]));
        assert_eq!(report.settlement(), Settlement::Reject);
    }
    // What is logged says where the body is wrong, and nothing of what it says.
    let card = Envelope::new("order.paid", r#"{"order_id":"a","cents":"4111-1111"}"#).with_key("k");
    let report = inbox.process(card).await.unwrap();
    let Some(Outcome::Rejected(rejection)) = report.outcome("h") else { panic!("{report:?}") };
    let text = rejection.to_string();
    assert!(text.contains("line 1, column") && !text.contains("4111"), "{text}");
    assert_eq!(fixture.effects("ran").await, 0);
    assert!(inbox.markers("k").await.unwrap().is_empty(), "the key is still free");
    let report = inbox.process(envelope("k")).await.unwrap();
    assert!(matches!(report.outcome("h"), Some(Outcome::Done)), "{report:?}");
}

async fn keys_of_any_bytes_are_kept_exactly<F: Fixture>(fixture: F) {
    let handler = {
        let fixture = fixture.clone();
        async move |_: Envelope, conn: &mut Conn<F>| fixture.effect(conn, "ran").await
    };
    let inbox =
        Inbox::builder(fixture.store()).on_raw("o'brien \"h\"", ["k;--"], handler).build().await.unwrap();
    let keys: [&[u8]; 8] = [
        b"a",
        b"A",
        b"a\0",
        &[0xff, 0xc0],
        b"' or 1=1 --",
        "\u{1F600}".as_bytes(),
        &[b'x'; 513],
        &[0; 65_536],
    ];
    for _ in 0..2 {
        for key in keys {
            inbox.process(Envelope::new("k;--", "").with_key(key)).await.unwrap();
        }
    }
    assert_eq!(fixture.effects("ran").await, keys.len() as u64);
    for key in keys {
        assert_eq!(inbox.markers(key).await.unwrap()[0].key.as_bytes(), key);
    }
}

async fn keys_that_identify_nothing_are_missing<F: Fixture>(fixture: F) {
    let handler = {
        let fixture = fixture.clone();
        async move |_: OrderPaid, conn: &mut Conn<F>| fixture.effect(conn, "ran").await
    };
    let inbox = Inbox::builder(fixture.store()).on("h", handler).build().await.unwrap();
    // An empty order id, and an empty key by hand: the second such message would be lost as a duplicate of the first.
    for envelope in [envelope(""), envelope("").with_key(""), envelope("").delivered_by("queue", "")] {
        let report = inbox.process(envelope).await.unwrap();
        let Some(Outcome::Rejected(rejection @ Rejection::MissingKey)) = report.outcome("h") else {
            panic!("{report:?}")
        };
        assert!(rejection.to_string().contains("with_key"), "{rejection}");
    }
    assert_eq!(fixture.effects("ran").await, 0);
}

async fn a_key_beyond_the_limit_is_refused<F: Fixture>(fixture: F) {
    let inbox = Inbox::builder(fixture.store())
        .on("h", async |_: OrderPaid, _: &mut Conn<F>| {})
        .build()
        .await
        .unwrap();
    let long = vec![b'x'; Key::MAX_BYTES + 1];
    let report = inbox.process(envelope("a").with_key(&long[..])).await.unwrap();
    assert!(matches!(report.outcome("h"), Some(Outcome::Rejected(Rejection::BadKey(_)))), "{report:?}");
    assert!(inbox.marker("h", "order.paid", &long[..]).await.is_err());
    assert!(inbox.import_processed("h", [&long[..]]).await.is_err());
}

#[derive(Serialize, Deserialize, Message)]
#[message(kind = "fragile", codec = PanickingCodec)]
struct Fragile {}

struct PanickingCodec;

impl Codec<Fragile> for PanickingCodec {
    fn encode(_: &Fragile) -> Result<Vec<u8>, oncebox::BoxError> {
        Ok(Vec::new())
    }

    fn decode(body: &[u8]) -> Result<Fragile, oncebox::BoxError> {
        panic!("at byte {}", body.len())
    }
}

async fn a_codec_that_panics_is_an_undecodable_body<F: Fixture>(fixture: F) {
    let inbox = Inbox::builder(fixture.store())
        .on("h", async |_: Fragile, _: &mut Conn<F>| {})
        .build()
        .await
        .unwrap();
    let report = inbox.process(Envelope::of(&Fragile {}).unwrap().with_key("k")).await.unwrap();
    let Some(Outcome::Rejected(Rejection::Undecodable(cause))) = report.outcome("h") else {
        panic!("{report:?}")
    };
    assert!(cause.to_string().contains("at byte 0"), "{cause}");
}
