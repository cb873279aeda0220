//! `key_fn = path`: a function returns the key.

use oncebox::{Key, Message};
use serde::{Deserialize, Serialize};

mod keys {
    pub(super) fn of_webhook(webhook: &super::Webhook) -> Option<oncebox::Key> {
        let (source, id) = webhook.reference.split_once('/')?;
        Some(oncebox::Key::from(format!("{source}|{id}")))
    }
}

#[derive(Message, Serialize, Deserialize)]
#[message(kind = "webhook", key_fn = keys::of_webhook)]
struct Webhook {
    reference: String,
}

#[test]
fn a_function_makes_the_key_or_says_that_there_is_none() {
    assert_eq!(Webhook { reference: "stripe/evt_1".into() }.key(), Some(Key::from("stripe|evt_1")));
    assert_eq!(Webhook { reference: "lost".into() }.key(), None);
}

#[test]
fn an_enum_may_use_a_method_of_its_own() {
    #[derive(Message, Serialize, Deserialize)]
    #[message(kind = "event", key_fn = Self::id)]
    enum Event {
        Opened { id: u32 },
        Idle,
    }
    impl Event {
        fn id(&self) -> Option<Key> {
            match self {
                Event::Opened { id } => Some(Key::from(*id)),
                Event::Idle => None,
            }
        }
    }
    assert_eq!(Event::Opened { id: 3 }.key(), Some(Key::from("3")));
    assert_eq!(Event::Idle.key(), None);
}
