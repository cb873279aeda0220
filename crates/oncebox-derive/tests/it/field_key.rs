//! `key = "field"`: the field's text is the key.

use oncebox::{Key, Message};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

#[test]
fn a_uuid_is_hyphenated_lower_case() {
    #[derive(Message, Serialize, Deserialize)]
    #[message(kind = "order.paid", key = "order_id")]
    struct OrderPaid {
        order_id: Uuid,
        cents: i64,
    }
    let paid = OrderPaid { order_id: Uuid::from_u128(0xABCDEF), cents: 990 };
    assert_eq!(paid.key(), Some(Key::from("00000000-0000-0000-0000-000000abcdef")));
    assert_eq!(OrderPaid::KIND, "order.paid");
    assert!(paid.content_key().is_none());
    assert_eq!(paid.order_by(), None);
    assert_eq!(paid.cents, 990);
}

#[test]
fn text_is_taken_as_it_is() {
    #[derive(Message, Serialize, Deserialize)]
    #[message(kind = "webhook", key = "id")]
    struct Webhook {
        id: String,
    }
    for id in ["evt_1", " Evt_1 ", "100%", "a:b", "{x}", "é", ""] {
        assert_eq!(Webhook { id: id.into() }.key(), Some(Key::from(id)));
    }
}

#[test]
fn integers_are_decimal() {
    #[derive(Message, Serialize, Deserialize)]
    #[message(kind = "signed", key = "n")]
    struct Signed {
        n: i64,
    }
    #[derive(Message, Serialize, Deserialize)]
    #[message(kind = "unsigned", key = "n")]
    struct Unsigned {
        n: u128,
    }
    assert_eq!(Signed { n: i64::MIN }.key(), Some(Key::from("-9223372036854775808")));
    assert_eq!(Unsigned { n: u128::MAX }.key(), Some(Key::from("340282366920938463463374607431768211455")));
}

#[test]
fn none_is_a_missing_key() {
    #[derive(Message, Serialize, Deserialize)]
    #[message(kind = "maybe", key = "id")]
    struct Maybe {
        id: Option<Uuid>,
    }
    assert_eq!(Maybe { id: None }.key(), None);
    assert_eq!(Maybe { id: Some(Uuid::nil()) }.key(), Some(Key::from(Uuid::nil())));
}

#[test]
fn a_path_reaches_into_a_field() {
    #[derive(Serialize, Deserialize)]
    struct Order {
        id: u32,
        r#type: Kind,
    }
    #[derive(Serialize, Deserialize)]
    struct Kind(u8, String);

    #[derive(Message, Serialize, Deserialize)]
    #[message(kind = "paid", key = "order.id", order_by = "order.type.1")]
    struct Paid {
        order: Box<Order>,
    }
    let paid = Paid { order: Box::new(Order { id: 7, r#type: Kind(0, "gift".into()) }) };
    assert_eq!(paid.key(), Some(Key::from("7")));
    assert_eq!(paid.order_by(), Some(Key::from("gift")));
}

#[test]
fn fields_of_a_tuple_struct_are_numbered() {
    #[derive(Message, Serialize, Deserialize)]
    #[message(kind = "pair", key = "1", order_by = "{0}/{1}")]
    struct Pair(u8, String);
    let pair = Pair(3, "b".into());
    assert_eq!(pair.key(), Some(Key::from("b")));
    assert_eq!(pair.order_by(), Some(Key::from("3/b")));
}

#[test]
fn a_raw_identifier_goes_by_its_plain_name() {
    #[derive(Message, Serialize, Deserialize)]
    #[message(kind = "typed", key = "type")]
    struct Typed {
        r#type: String,
    }
    assert_eq!(Typed { r#type: "a".into() }.key(), Some(Key::from("a")));
}

#[test]
fn an_own_identifier_type_may_be_a_key() {
    #[derive(Serialize, Deserialize)]
    struct OrderId(u64);
    impl oncebox::KeyPart for OrderId {
        fn key_part(&self) -> Option<std::borrow::Cow<'_, [u8]>> {
            self.0.key_part()
        }
    }
    #[derive(Message, Serialize, Deserialize)]
    #[message(kind = "order", key = "id")]
    struct Order {
        id: OrderId,
    }
    assert_eq!(Order { id: OrderId(5) }.key(), Some(Key::from("5")));
}

#[test]
fn without_a_key_there_is_none() {
    #[derive(Message, Serialize, Deserialize)]
    #[message(kind = "ping")]
    struct Ping;
    assert_eq!(Ping.key(), None);
    assert!(Ping.content_key().is_none());
    assert_eq!(Ping.order_by(), None);
}
