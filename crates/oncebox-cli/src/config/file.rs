//! The configuration file, as `serde` reads it.

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
// A misspelt key must be an error, not a silent default.
#[serde(deny_unknown_fields, default)]
pub(super) struct ConfigFile {
    pub(super) store: StoreSection,
    pub(super) http: HttpSection,
    pub(super) retention: RetentionSection,
    pub(super) brokers: BTreeMap<Spanned<String>, BrokerSection>,
    pub(super) sources: BTreeMap<Spanned<String>, SourceSection>,
    pub(super) handlers: BTreeMap<Spanned<String>, HandlerSection>,
    pub(super) relays: BTreeMap<Spanned<String>, RelaySection>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct StoreSection {
    pub(super) url: Option<Spanned<String>>,
    pub(super) schema: Option<Spanned<String>>,
    /// Whether `serve` creates and upgrades the tables.
    pub(super) migrate: bool,
    pub(super) lanes: Option<Spanned<u16>>,
    pub(super) workers: Option<Spanned<usize>>,
    /// Whether workers of other processes are notified immediately, on PostgreSQL.
    pub(super) notify: bool,
}

impl Default for StoreSection {
    fn default() -> Self {
        Self { url: None, schema: None, migrate: true, lanes: None, workers: None, notify: false }
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct HttpSection {
    pub(super) listen: Option<Spanned<String>>,
    pub(super) token: Option<Spanned<String>>,
    pub(super) max_body_bytes: Option<usize>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct RetentionSection {
    /// How long duplicates are recognised.
    pub(super) markers: Option<DurationSetting>,
    /// How long a message is kept after all its handlers have passed it.
    pub(super) messages: Option<DurationSetting>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct BrokerSection {
    pub(super) url: Spanned<String>,
    #[serde(default)]
    pub(super) tls: TlsSection,
    /// Whether a broker on another machine may be reached without TLS.
    #[serde(default)]
    pub(super) allow_plaintext: bool,
}

/// Files in PEM format.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct TlsSection {
    pub(super) ca: Option<Spanned<PathBuf>>,
    pub(super) cert: Option<Spanned<PathBuf>>,
    pub(super) key: Option<Spanned<PathBuf>>,
}

/// The protocol of a source.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub(super) enum SourceType {
    #[default]
    Http,
    Rabbitmq,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum DeclareSetting {
    #[default]
    Check,
    Create,
    Nothing,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct SourceSection {
    #[serde(rename = "type")]
    pub(super) protocol: SourceType,
    pub(super) broker: Option<Spanned<String>>,
    pub(super) queue: Option<Spanned<String>>,
    /// The maximum number of messages in flight.
    pub(super) prefetch: Option<Spanned<u16>>,
    /// Whether queues are checked or created.
    pub(super) declare: Option<Spanned<DeclareSetting>>,
    /// The exchange for fault messages.
    pub(super) fault: Option<Spanned<String>>,
    pub(super) kind: Option<Spanned<String>>,
    pub(super) kind_header: Option<Spanned<String>>,
    pub(super) kind_pointer: Option<Spanned<String>>,
    pub(super) key_header: Option<Spanned<String>>,
    pub(super) key_pointer: Option<Spanned<String>>,
    pub(super) order_header: Option<Spanned<String>>,
    pub(super) order_pointer: Option<Spanned<String>>,
    /// The maximum time after which the source redelivers a message. `doctor` compares it with `markers`.
    pub(super) redelivers_for: Option<Spanned<DurationSetting>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct HandlerSection {
    pub(super) kinds: Spanned<StringList>,
    pub(super) url: Option<Spanned<String>>,
    pub(super) command: Option<Spanned<StringList>>,
    /// The working folder of the command.
    pub(super) folder: Option<Spanned<PathBuf>>,
    #[serde(default)]
    pub(super) headers: BTreeMap<Spanned<String>, Spanned<String>>,
    #[serde(default)]
    pub(super) allow_private: bool,
    pub(super) timeout: Option<DurationSetting>,
    pub(super) concurrency: Option<Spanned<usize>>,
    pub(super) max_open_tasks: Option<Spanned<u32>>,
    #[serde(default)]
    pub(super) ordered: bool,
    pub(super) dead_head: Option<Spanned<DeadHeadSetting>>,
    #[serde(default)]
    pub(super) start: StartSetting,
    #[serde(default)]
    pub(super) revive: bool,
    #[serde(default)]
    pub(super) retry: RetrySection,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct RelaySection {
    pub(super) url: Option<Spanned<String>>,
    pub(super) broker: Option<Spanned<String>>,
    pub(super) exchange: Option<Spanned<String>>,
    pub(super) routing_key: Option<Spanned<String>>,
    pub(super) headers: BTreeMap<Spanned<String>, Spanned<String>>,
    pub(super) allow_private: bool,
    /// Kinds, or beginnings of kinds such as `order.*`. Without them the relay sends all kinds.
    pub(super) kinds: Option<Spanned<StringList>>,
    pub(super) ordered: bool,
    pub(super) dead_head: Option<Spanned<DeadHeadSetting>>,
    pub(super) in_flight: Option<Spanned<usize>>,
    pub(super) max_open_tasks: Option<Spanned<u32>>,
    /// How long sent messages can be replayed.
    pub(super) keep_sent: Option<DurationSetting>,
    pub(super) start: StartSetting,
    pub(super) revive: bool,
    pub(super) retry: RetrySection,
}

impl Default for RelaySection {
    fn default() -> Self {
        Self {
            url: None,
            broker: None,
            exchange: None,
            routing_key: None,
            headers: BTreeMap::new(),
            allow_private: false,
            kinds: None,
            // Unlike handlers: other services rely on the order in which messages were published.
            ordered: true,
            dead_head: None,
            in_flight: None,
            max_open_tasks: None,
            keep_sent: None,
            start: StartSetting::default(),
            revive: false,
            retry: RetrySection::default(),
        }
    }
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum DeadHeadSetting {
    Hold,
    Skip,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum StartSetting {
    #[default]
    Beginning,
    Now,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct RetrySection {
    pub(super) max_attempts: Option<Spanned<u32>>,
    pub(super) first_delay: Option<Spanned<DurationSetting>>,
    pub(super) max_delay: Option<Spanned<DurationSetting>>,
}

/// A duration such as `"30s"`.
#[derive(Clone, Copy, Debug)]
pub(super) struct DurationSetting(pub(super) Duration);

impl<'de> Deserialize<'de> for DurationSetting {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct DurationVisitor;

        impl Visitor<'_> for DurationVisitor {
            type Value = DurationSetting;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a duration in quotes, for example \"5s\"")
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<DurationSetting, E> {
                // As text with a unit: a number would not say whether it means seconds or milliseconds.
                match parse_duration(text) {
                    Ok(Duration::ZERO) => {
                        Err(E::custom(format!("invalid duration {text:?}: it must be greater than 0")))
                    }
                    Ok(time) => Ok(DurationSetting(time)),
                    Err(error) => Err(E::custom(error)),
                }
            }
        }

        deserializer.deserialize_str(DurationVisitor)
    }
}

/// A list such as `["order.paid", "order.refunded"]`. Serde's own error for a single string does not say what to write.
#[derive(Clone, Debug)]
pub(super) struct StringList(pub(super) Vec<String>);

impl<'de> Deserialize<'de> for StringList {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ListVisitor;

        impl<'de> Visitor<'de> for ListVisitor {
            type Value = StringList;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of strings, for example [\"one\", \"two\"]")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<StringList, A::Error> {
                let mut strings = Vec::new();
                while let Some(string) = list.next_element()? {
                    strings.push(string);
                }
                Ok(StringList(strings))
            }
        }

        deserializer.deserialize_seq(ListVisitor)
    }
}
