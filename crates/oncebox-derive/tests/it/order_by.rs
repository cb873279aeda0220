//! `order_by`: the ordering key has the same syntax as the key, and is independent of it.

use oncebox::{Key, Message};
use serde::{Deserialize, Serialize};

#[test]
fn the_ordering_key_stands_beside_the_key() {
    #[derive(Message, Serialize, Deserialize)]
    #[message(kind = "moved", key = "id", order_by = "customer")]
    struct Moved {
        id: u32,
        customer: Option<String>,
    }
    let moved = Moved { id: 1, customer: Some("c:1".into()) };
    assert_eq!(moved.key(), Some(Key::from("1")));
    assert_eq!(moved.order_by(), Some(Key::from("c:1")));
    assert_eq!(Moved { id: 1, customer: None }.order_by(), None);
}

#[test]
fn it_may_be_a_template_and_needs_no_key() {
    #[derive(Message, Serialize, Deserialize)]
    #[message(kind = "moved", order_by = "{tenant}:{customer}")]
    struct Moved {
        tenant: String,
        customer: u8,
    }
    let moved = Moved { tenant: "a:b".into(), customer: 2 };
    assert_eq!(moved.key(), None);
    assert_eq!(moved.order_by(), Some(Key::from("a%3Ab:2")));
}
