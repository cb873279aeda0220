//! `key = content`: the whole content identifies the message.

use std::collections::HashMap;

use oncebox::{Codec, Json, Message};
use serde::{Deserialize, Serialize};

#[derive(Message, Serialize, Deserialize)]
#[message(kind = "import", key = content)]
struct Import {
    source: String,
    batch: u64,
    tags: HashMap<String, u8>,
}

fn key(body: &str) -> oncebox::Key {
    let import: Import = Json::decode(body.as_bytes()).unwrap();
    assert_eq!(import.key(), None);
    import.content_key().unwrap().unwrap()
}

#[test]
fn member_order_and_white_space_do_not_matter() {
    assert_eq!(
        key(r#"{"source":"crm","batch":7,"tags":{"a":1,"b":2}}"#),
        key(r#"{ "tags": {"b": 2, "a": 1}, "batch": 7, "source": "crm" }"#),
    );
}

#[test]
fn another_value_is_another_key() {
    assert_ne!(
        key(r#"{"source":"crm","batch":9007199254740992,"tags":{}}"#),
        key(r#"{"source":"crm","batch":9007199254740993,"tags":{}}"#),
    );
}

#[test]
fn the_same_value_under_another_kind_is_another_key() {
    #[derive(Message, Serialize, Deserialize)]
    #[message(kind = "a", key = content)]
    struct A(u8);
    #[derive(Message, Serialize, Deserialize)]
    #[message(kind = "b", key = content)]
    struct B(u8);
    assert_ne!(A(1).content_key().unwrap().unwrap(), B(1).content_key().unwrap().unwrap());
}

#[test]
fn an_enum_has_a_content_key() {
    #[derive(Message, Serialize, Deserialize)]
    #[message(kind = "event", key = content)]
    enum Event {
        Opened { id: u32 },
        Closed(u32),
        Idle,
    }
    let keys = [Event::Opened { id: 1 }, Event::Closed(1), Event::Idle]
        .map(|event| event.content_key().unwrap().unwrap());
    assert_ne!(keys[0], keys[1]);
    assert_ne!(keys[1], keys[2]);
    assert_eq!(keys[2], Event::Idle.content_key().unwrap().unwrap());
}

#[test]
fn a_field_may_be_called_content() {
    #[derive(Message, Serialize, Deserialize)]
    #[message(kind = "note", key = "content")]
    struct Note {
        content: String,
    }
    let note = Note { content: "hello".into() };
    assert_eq!(note.key(), Some(oncebox::Key::from("hello")));
    assert!(note.content_key().is_none());
}
