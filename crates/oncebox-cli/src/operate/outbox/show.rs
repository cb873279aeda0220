//! `oncebox outbox show`: one published message, wherever it is.

use std::collections::HashSet;
use std::time::SystemTime;

use anyhow::Result;
use clap::Args;
use oncebox::store::{MessageState, MessageStatus, WaitingMessage};
use oncebox::{MessageId, Operators, Place};
use serde::Serialize;

use crate::exit::NotFound;
use crate::operate::bytes::body_text;
use crate::operate::known::relays;
use crate::operate::messages::{MessageParts, PartsField, StateDetail, describe};
use crate::operate::place::{parse_place, place_text};
use crate::output::CommandOutput;
use crate::store::Opened;
use crate::times::{ago, rfc3339};

#[derive(Args, Debug)]
pub(super) struct ShowPublished {
    /// The id of the message, or its place in the log
    #[arg(value_name = "ID|LANE/POSITION", value_parser = parse_which)]
    which: Which,
}

/// What names a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Which {
    Id(MessageId),
    Place(Place),
}

fn parse_which(text: &str) -> Result<Which, String> {
    if let Some(id) = MessageId::from_text(text) {
        return Ok(Which::Id(id));
    }
    parse_place(text).map(Which::Place).map_err(|_| {
        format!("invalid message {text:?}: write its id, a UUID, or LANE/POSITION, for example 3/17")
    })
}

pub(super) async fn run(
    opened: &Opened,
    operators: &Operators,
    show: &ShowPublished,
    output: CommandOutput,
) -> Result<()> {
    let place = match show.which {
        Which::Place(place) => place,
        // First in the outbox, then in the log: it moves in this direction.
        Which::Id(id) => match opened.waiting_message(id).await? {
            Some(waiting) => return show_waiting(&waiting, output),
            None => opened.find_published(id).await?.ok_or_else(|| no_message(id))?,
        },
    };
    let Some(status) = operators.message(place).await? else {
        let text = format!("there is no message at {}: it was pruned, or never stored", place_text(place));
        return Err(NotFound(text).into());
    };
    let Some(id) = status.message.message_id else {
        let place = place_text(place);
        let text =
            format!("the message at {place} was accepted, not published: `oncebox messages show {place}`");
        return Err(NotFound(text).into());
    };
    let relays = relays(operators).await?.into_iter().map(|status| status.handler.name).collect();
    show_stored(id, &status, &relays, output)
}

fn no_message(id: MessageId) -> NotFound {
    NotFound(format!(
        "there is no published message {id}: its transaction rolled back, its key was known, or it was pruned"
    ))
}

fn show_waiting(waiting: &WaitingMessage, output: CommandOutput) -> Result<()> {
    let parts = MessageParts::from(waiting);
    let id = waiting.id.map(|id| id.to_string());
    output.object(&PublishedField {
        id: id.clone(),
        stage: "outbox",
        place: None,
        published_at: rfc3339(waiting.captured_at),
        parts: PartsField::new(&parts),
        receivers: Vec::new(),
    })?;
    let mut lines = head(&id.unwrap_or_default(), "the outbox: it waits for the mover");
    lines.extend(parts.lines(published(waiting.captured_at)));
    lines.extend([String::new(), body_text(parts.body)]);
    output.line(lines.join("\n"))
}

fn show_stored(
    id: MessageId,
    status: &MessageStatus,
    relays: &HashSet<String>,
    output: CommandOutput,
) -> Result<()> {
    let parts = MessageParts::from(&status.message);
    let place = place_text(status.message.place);
    let receivers = status.handlers.iter().map(|(name, state)| Receiver {
        name,
        role: if relays.contains(name) { "relay" } else { "handler" },
        state,
    });
    let receivers: Vec<Receiver<'_>> = receivers.collect();
    output.object(&PublishedField {
        id: Some(id.to_string()),
        stage: "log",
        place: Some(place.clone()),
        published_at: rfc3339(status.received_at),
        parts: PartsField::new(&parts),
        receivers: receivers.iter().map(Receiver::field).collect(),
    })?;
    let mut lines = head(&id.to_string(), &format!("the log, at {place}"));
    lines.extend(parts.lines(published(status.received_at)));
    lines.extend([String::new(), body_text(parts.body), String::new()]);
    if receivers.is_empty() {
        lines.push("No relay and no handler for this kind.".to_owned());
    }
    lines.extend(receivers.iter().map(Receiver::text));
    output.line(lines.join("\n"))
}

fn head(id: &str, stage: &str) -> Vec<String> {
    vec![format!("id:        {id}"), format!("where:     {stage}")]
}

fn published(at: SystemTime) -> String {
    format!("published: {} ({})", rfc3339(at), ago(at))
}

/// A relay or a handler that receives the message.
struct Receiver<'a> {
    name: &'a str,
    role: &'static str,
    state: &'a MessageState,
}

impl<'a> Receiver<'a> {
    fn text(&self) -> String {
        let state = match (self.role, self.state) {
            ("relay", MessageState::Done) => "sent".to_owned(),
            _ => describe(self.state),
        };
        format!("{} {}: {state}", self.role, self.name)
    }

    fn field(&self) -> ReceiverField<'a> {
        ReceiverField { name: self.name, role: self.role, state: StateDetail::new(self.state) }
    }
}

/// A published message in JSON.
#[derive(Debug, Serialize)]
struct PublishedField<'a> {
    id: Option<String>,
    /// `outbox` or `log`.
    #[serde(rename = "where")]
    stage: &'static str,
    place: Option<String>,
    published_at: String,
    #[serde(flatten)]
    parts: PartsField<'a>,
    receivers: Vec<ReceiverField<'a>>,
}

/// The state of a message for one relay or handler, in JSON.
#[derive(Debug, Serialize)]
struct ReceiverField<'a> {
    name: &'a str,
    role: &'static str,
    #[serde(flatten)]
    state: StateDetail<'a>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_named_by_its_id_or_its_place() {
        let id = "019a9d2c-8c1e-7cc3-98c4-dc0c0c07398f";
        assert_eq!(parse_which(id), Ok(Which::Id(MessageId::from_text(id).unwrap())));
        assert_eq!(parse_which("3/17"), Ok(Which::Place(Place { lane: 3, pos: 17 })));
        assert!(parse_which("o-1").unwrap_err().contains("a UUID, or LANE/POSITION"));
    }
}
