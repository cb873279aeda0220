//! The configuration as it is written.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use serde::de::{SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use toml::Spanned;

use crate::times::parse_duration;

/// `oncebox.toml`.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct File {
    pub(super) store: Store,
    pub(super) http: Http,
    pub(super) retention: Retention,
    pub(super) sources: BTreeMap<Spanned<String>, Source>,
    pub(super) handlers: BTreeMap<Spanned<String>, Handler>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Store {
    pub(super) url: Option<Spanned<String>>,
    pub(super) schema: Option<Spanned<String>>,
    /// Whether `serve` brings the tables to its version.
    pub(super) migrate: bool,
    pub(super) lanes: Option<Spanned<u16>>,
    pub(super) workers: Option<Spanned<usize>>,
    /// Whether workers of other processes are told at once, on PostgreSQL.
    pub(super) notify: bool,
}

impl Default for Store {
    fn default() -> Self {
        Self { url: None, schema: None, migrate: true, lanes: None, workers: None, notify: false }
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Http {
    pub(super) listen: Option<Spanned<String>>,
    pub(super) token: Option<Spanned<String>>,
    pub(super) max_body_bytes: Option<usize>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Retention {
    /// How long copies are recognised.
    pub(super) markers: Option<Time>,
    /// How long messages stay that everybody has handled.
    pub(super) messages: Option<Time>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Source {
    pub(super) kind: Option<Spanned<String>>,
    pub(super) kind_header: Option<Spanned<String>>,
    pub(super) kind_pointer: Option<Spanned<String>>,
    pub(super) key_header: Option<Spanned<String>>,
    pub(super) key_pointer: Option<Spanned<String>>,
    pub(super) order_header: Option<Spanned<String>>,
    pub(super) order_pointer: Option<Spanned<String>>,
    /// For how long the source delivers again; `doctor` compares.
    pub(super) redelivers_for: Option<Spanned<Time>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Handler {
    pub(super) kinds: Spanned<Words>,
    pub(super) url: Option<Spanned<String>>,
    pub(super) command: Option<Spanned<Words>>,
    /// The folder in which the command runs.
    pub(super) folder: Option<Spanned<PathBuf>>,
    #[serde(default)]
    pub(super) headers: BTreeMap<Spanned<String>, Spanned<String>>,
    #[serde(default)]
    pub(super) allow_private: bool,
    pub(super) timeout: Option<Time>,
    pub(super) concurrency: Option<Spanned<usize>>,
    pub(super) max_open_tasks: Option<Spanned<u32>>,
    #[serde(default)]
    pub(super) ordered: bool,
    pub(super) dead_head: Option<Spanned<DeadHead>>,
    #[serde(default)]
    pub(super) start: Start,
    #[serde(default)]
    pub(super) revive: bool,
    #[serde(default)]
    pub(super) retry: Retry,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum DeadHead {
    Hold,
    Skip,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Start {
    #[default]
    Beginning,
    Now,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Retry {
    pub(super) max_attempts: Option<Spanned<u32>>,
    pub(super) first_delay: Option<Spanned<Time>>,
    pub(super) max_delay: Option<Spanned<Time>>,
}

/// `30s`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Time(pub(super) Duration);

impl<'de> Deserialize<'de> for Time {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Written;

        impl Visitor<'_> for Written {
            type Value = Time;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a duration as text, as in \"5s\"")
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Time, E> {
                match parse_duration(text) {
                    Ok(Duration::ZERO) => Err(E::custom("a time of more than nothing is needed here")),
                    Ok(time) => Ok(Time(time)),
                    Err(error) => Err(E::custom(error)),
                }
            }
        }

        deserializer.deserialize_str(Written)
    }
}

/// `["order.paid", "order.refunded"]`.
#[derive(Clone, Debug)]
pub(super) struct Words(pub(super) Vec<String>);

impl<'de> Deserialize<'de> for Words {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Written;

        impl<'de> Visitor<'de> for Written {
            type Value = Words;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of texts in brackets, as in [\"one\", \"two\"]")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut written: A) -> Result<Words, A::Error> {
                let mut words = Vec::new();
                while let Some(word) = written.next_element()? {
                    words.push(word);
                }
                Ok(Words(words))
            }
        }

        deserializer.deserialize_seq(Written)
    }
}
