//! The generated `impl` compiles wherever the type does.

use oncebox::{Key, KeyPart, Message};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

#[test]
fn a_generic_message_keeps_its_bounds() {
    #[derive(Message, Serialize, Deserialize)]
    #[serde(bound = "")]
    #[message(kind = "changed", key = "{id}/{version}")]
    struct Changed<Id: KeyPart, T = (), const VERSIONS: usize = 1>
    where
        Id: Serialize + DeserializeOwned + Send + Sync + 'static,
        T: Serialize + DeserializeOwned + Send + Sync + 'static,
    {
        id: Id,
        version: u8,
        value: T,
    }
    let changed: Changed<String, u8, 3> = Changed { id: "a".into(), version: 2, value: 1 };
    assert_eq!(changed.key(), Some(Key::from("a/2")));
    assert_eq!(changed.value, 1);
    let changed: Changed<u64> = Changed { id: 5, version: 2, value: () };
    assert_eq!(changed.key(), Some(Key::from("5/2")));
}

mod inbox {
    //! Represents a crate that re-exports Oncebox under another name.
    pub(crate) mod re_exported {
        pub(crate) use oncebox::*;
    }
}

#[test]
fn the_crate_may_have_another_name() {
    use inbox::re_exported as renamed;

    #[derive(renamed::Message, Serialize, Deserialize)]
    #[message(crate = renamed, kind = "renamed", key = "{a}:{b}", order_by = "a")]
    struct Renamed {
        a: u8,
        b: u8,
    }
    #[derive(renamed::Message, Serialize, Deserialize)]
    #[message(crate = crate::generated::inbox::re_exported, kind = "absolute", key = content)]
    struct Absolute;

    assert_eq!(Renamed { a: 1, b: 2 }.key(), Some(Key::from("1:2")));
    assert!(Absolute.content_key().unwrap().is_ok());
}

#[test]
fn settings_may_be_spread_over_several_attributes() {
    #[derive(Message, Serialize, Deserialize)]
    #[message(kind = "spread")]
    #[message(key = "id")]
    struct Spread {
        id: u8,
    }
    assert_eq!(Spread::KIND, "spread");
    assert_eq!(Spread { id: 1 }.key(), Some(Key::from("1")));
}

#[test]
fn a_macro_may_write_the_struct() {
    macro_rules! message {
        ($name:ident, $kind:literal, $field:ident: $ty:ty, $key:literal) => {
            #[derive(Message, Serialize, Deserialize)]
            #[message(kind = $kind, key = $key, order_by = "{own}:{own}")]
            struct $name {
                $field: $ty,
                own: u8,
            }
        };
    }
    message!(Written, "written", id: Option<String>, "{id}:{own}");
    let written = Written { id: Some("a".into()), own: 1 };
    assert_eq!(written.key(), Some(Key::from("a:1")));
    assert_eq!(written.order_by(), Some(Key::from("1:1")));
}

#[test]
fn names_in_scope_do_not_disturb_it() {
    #![allow(dead_code, non_camel_case_types)]
    struct Option;
    struct Result;
    struct Key;
    struct Piece;
    struct str;
    mod core {}
    mod std {}
    fn compose() {}

    #[derive(oncebox::Message)]
    #[message(kind = "shadowed", key = "{a}:{b}", order_by = "a", codec = Never)]
    struct Shadowed {
        a: u8,
        b: u8,
    }
    impl Shadowed {
        const KIND: &'static ::core::primitive::str = "not this one";
        fn key_part(&self) {}
    }
    struct Never;
    impl oncebox::Codec<Shadowed> for Never {
        fn encode(
            _: &Shadowed,
        ) -> ::std::result::Result<Vec<u8>, Box<dyn ::std::error::Error + Send + Sync>> {
            Ok(Vec::new())
        }
        fn decode(_: &[u8]) -> ::std::result::Result<Shadowed, Box<dyn ::std::error::Error + Send + Sync>> {
            Ok(Shadowed { a: 0, b: 0 })
        }
    }
    assert_eq!(<Shadowed as oncebox::Message>::KIND, "shadowed");
    assert_eq!(Shadowed { a: 1, b: 2 }.key(), Some(oncebox::Key::from("1:2")));
}

#[test]
fn a_deprecated_message_does_not_warn_where_it_is_defined() {
    #![deny(deprecated)]
    #[derive(Message, Serialize, Deserialize)]
    #[message(kind = "old", key = "id")]
    #[deprecated]
    struct Old {
        #[deprecated]
        id: u8,
    }
    #[allow(deprecated)]
    let old = Old { id: 1 };
    assert_eq!(old.key(), Some(Key::from("1")));
}
