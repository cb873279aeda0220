//! `oncebox outbox list`: published messages on their way, oldest first.

use std::cmp::Reverse;
use std::time::Duration;

use anyhow::Result;
use clap::Args;
use oncebox::store::{StoredMessage, WaitingMessage};
use oncebox::{Key, MessageId, Operators, Place};
use serde::Serialize;

use crate::operate::bytes::{KeyField, key_or_none, key_text};
use crate::operate::known::{find_relay, relays};
use crate::operate::place::place_text;
use crate::operate::status::millis;
use crate::output::CommandOutput;
use crate::store::Opened;
use crate::table::TextTable;
use crate::times::rough;

#[derive(Args, Debug)]
pub(super) struct ListUnsent {
    /// Messages in the log that this relay has not sent
    #[arg(long, value_name = "NAME")]
    relay: Option<String>,
    /// The maximum number of messages
    #[arg(long, value_name = "NUMBER", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..))]
    limit: u32,
}

pub(super) async fn run(
    opened: &Opened,
    operators: &Operators,
    list: &ListUnsent,
    output: CommandOutput,
) -> Result<()> {
    let mut found = Vec::new();
    let relays = match &list.relay {
        Some(relay) => vec![find_relay(operators, relay).await?.handler],
        None => {
            let waiting = opened.waiting_messages(list.limit).await?;
            found.extend(in_order(waiting.into_iter().map(UnsentMessage::in_outbox)));
            relays(operators).await?.into_iter().map(|status| status.handler).collect()
        }
    };
    for relay in relays {
        let unsent = opened.unsent_messages(relay.id, list.limit).await?;
        found.extend(in_order(unsent.into_iter().map(|message| UnsentMessage::in_log(message, &relay.name))));
    }
    found.sort_by_key(|(age, _)| Reverse(*age));
    let mut found: Vec<UnsentMessage> = found.into_iter().map(|(_, message)| message).collect();
    let limit = usize::try_from(list.limit).unwrap_or(usize::MAX);
    let is_cut = found.len() >= limit;
    found.truncate(limit);
    print(&found, output)?;
    match is_cut {
        true => output.line(format_args!("There may be more than {limit}: raise --limit.")),
        false => Ok(()),
    }
}

/// The messages with ages by which they stay in their order: the real ones are not precise enough for neighbours.
fn in_order(
    messages: impl Iterator<Item = UnsentMessage>,
) -> impl Iterator<Item = (Duration, UnsentMessage)> {
    messages.scan(Duration::MAX, |age, message| {
        *age = message.age.min(*age);
        Some((*age, message))
    })
}

fn print(found: &[UnsentMessage], output: CommandOutput) -> Result<()> {
    let names = ["waits for", "place", "id", "kind", "key", "order by", "age"];
    let mut table = TextTable::new(names).right([6]);
    for message in found {
        output.object(&UnsentField::new(message))?;
        table.row([
            message.relay.clone().unwrap_or_else(|| "the mover".to_owned()),
            message.place.map_or_else(|| "-".to_owned(), place_text),
            message.id.map_or_else(|| "-".to_owned(), |id| id.to_string()),
            message.kind.clone(),
            key_or_none(message.key.as_ref()),
            key_or_none(message.order_by.as_ref()),
            rough(message.age),
        ]);
    }
    if table.is_empty() { output.line("No messages on their way.") } else { output.line(table) }
}

/// A message that waits for the mover or for a relay.
struct UnsentMessage {
    /// `None`: for the mover.
    relay: Option<String>,
    place: Option<Place>,
    id: Option<MessageId>,
    kind: String,
    key: Option<Key>,
    order_by: Option<Key>,
    age: Duration,
}

impl UnsentMessage {
    fn in_outbox(message: WaitingMessage) -> Self {
        let WaitingMessage { id, kind, key, order_by, waited, .. } = message;
        Self { relay: None, place: None, id, kind, key, order_by, age: waited }
    }

    fn in_log(message: StoredMessage, relay: &str) -> Self {
        let StoredMessage { place, message_id, kind, key, order_by, waited, .. } = message;
        let (relay, place) = (Some(relay.to_owned()), Some(place));
        Self { relay, place, id: message_id, kind, key, order_by, age: waited }
    }
}

/// The same in JSON.
#[derive(Debug, Serialize)]
struct UnsentField<'a> {
    /// `mover` or `relay`.
    waits_for: &'static str,
    relay: Option<&'a str>,
    place: Option<String>,
    id: Option<String>,
    kind: &'a str,
    #[serde(flatten)]
    key: KeyField,
    order_by: Option<String>,
    age_ms: u64,
}

impl<'a> UnsentField<'a> {
    fn new(message: &'a UnsentMessage) -> Self {
        Self {
            waits_for: if message.relay.is_some() { "relay" } else { "mover" },
            relay: message.relay.as_deref(),
            place: message.place.map(place_text),
            id: message.id.map(|id| id.to_string()),
            kind: &message.kind,
            key: KeyField::new(message.key.as_ref()),
            order_by: message.order_by.as_ref().map(key_text),
            age_ms: millis(message.age),
        }
    }
}
