//! `key = "{a}:{b}"`: several fields make the key, and different values never make the same key.

use oncebox::{Key, Message};
use serde::{Deserialize, Serialize};

#[derive(Message, Serialize, Deserialize)]
#[message(kind = "pair", key = "{a}:{b}")]
struct Pair {
    a: String,
    b: Option<String>,
}

fn pair(a: &str, b: &str) -> Key {
    Pair { a: a.into(), b: Some(b.into()) }.key().unwrap()
}

#[test]
fn parts_stand_between_the_text() {
    assert_eq!(pair("acme", "7"), Key::from("acme:7"));
}

#[test]
fn a_separator_inside_a_part_is_escaped() {
    assert_eq!(pair("a:b", "c"), Key::from("a%3Ab:c"));
    assert_ne!(pair("a:b", "c"), pair("a", "b:c"));
    assert_ne!(pair("a%3A", "c"), pair("a:", "c"));
}

#[test]
fn one_missing_part_makes_the_key_missing() {
    assert_eq!(Pair { a: "acme".into(), b: None }.key(), None);
    // An empty part counts as missing too.
    assert_eq!(Pair { a: "acme".into(), b: Some(String::new()) }.key(), None);
    assert_eq!(Pair { a: String::new(), b: Some("7".into()) }.key(), None);
}

#[test]
fn one_part_may_carry_a_prefix() {
    #[derive(Message, Serialize, Deserialize)]
    #[message(kind = "prefixed", key = "order:{id}")]
    struct Prefixed {
        id: u64,
    }
    assert_eq!(Prefixed { id: 9 }.key(), Some(Key::from("order:9")));

    // A single part is not ambiguous: it stays unescaped, so that support staff recognise it.
    #[derive(Message, Serialize, Deserialize)]
    #[message(kind = "prefixed.text", key = "stripe:{id}")]
    struct Text {
        id: String,
    }
    let key = |id: &str| Text { id: id.into() }.key();
    assert_eq!(key("evt_1:100%"), Some(Key::from("stripe:evt_1:100%")));
    assert_eq!(key(""), None);
}

#[test]
fn a_lone_part_is_the_field_itself() {
    #[derive(Message, Serialize, Deserialize)]
    #[message(kind = "lone", key = "{id}")]
    struct Lone {
        id: String,
    }
    assert_eq!(Lone { id: "100%".into() }.key(), Some(Key::from("100%")));
}

#[test]
fn doubled_braces_are_braces() {
    #[derive(Message, Serialize, Deserialize)]
    #[message(kind = "braced", key = "{{{id}}}")]
    struct Braced {
        id: String,
    }
    assert_eq!(Braced { id: "a".into() }.key(), Some(Key::from("{a}")));
    assert_eq!(Braced { id: "}".into() }.key(), Some(Key::from("{}}")));
}

#[test]
fn paths_and_numbers_may_be_parts() {
    #[derive(Serialize, Deserialize)]
    struct Tenant {
        id: u32,
    }
    #[derive(Message, Serialize, Deserialize)]
    #[message(kind = "nested", key = "{0.id}-{1}")]
    struct Nested(Tenant, i8);
    assert_eq!(Nested(Tenant { id: 4 }, 2).key(), Some(Key::from("4-2")));
    // The sign of a number is escaped like any other character.
    assert_eq!(Nested(Tenant { id: 4 }, -2).key(), Some(Key::from("4-%2D2")));
}
