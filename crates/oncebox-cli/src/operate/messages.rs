//! `oncebox messages`: stored messages, and their state for each handler.

use std::collections::HashSet;
use std::io::{Write, stdout};
use std::process::ExitCode;
use std::time::SystemTime;

use anyhow::Result;
use clap::{Args, Subcommand};
use oncebox::store::{MessageState, MessageStatus, Place, StoredMessage, WaitingMessage, Waits};
use oncebox::{Headers, Key, Operators};
use serde::Serialize;

use crate::cli::CommonArgs;
use crate::exit::{NotFound, Usage};
use crate::operate::bytes::{BodyField, KeyField, body_text, escaped, key_or_none, key_text, parse_key};
use crate::operate::known::find_handler;
use crate::operate::place::{parse_place, place_text};
use crate::output::CommandOutput;
use crate::store::{DatabaseTarget, OpenPurpose};
use crate::table::TextTable;
use crate::times::{ago, rfc3339};

/// Options of `messages`. Without an action it lists.
#[derive(Args, Debug)]
pub(crate) struct MessagesArgs {
    #[command(subcommand)]
    action: Option<MessagesAction>,
}

#[derive(Debug, Subcommand)]
enum MessagesAction {
    /// List stored messages, oldest first
    List(ListMessages),
    /// Show a message: headers, body, and its state for each handler
    Show(ShowMessage),
}

#[derive(Args, Debug)]
struct ListMessages {
    /// Messages of one lane
    #[arg(long, value_name = "NUMBER")]
    lane: Option<u16>,
    /// Messages behind this position of the lane
    #[arg(long, value_name = "POSITION", requires = "lane", default_value_t = 0)]
    behind: i64,
    /// Messages that this handler has not finished: first its tasks by due time, then waiting messages by place
    #[arg(long, value_name = "NAME", conflicts_with_all = ["lane", "behind"])]
    handler: Option<String>,
    /// Tasks only: attempted, scheduled or held back
    #[arg(long, conflicts_with_all = ["lane", "behind"])]
    tasks: bool,
    /// The maximum number of messages
    #[arg(long, value_name = "NUMBER", default_value_t = LIMIT, value_parser = clap::value_parser!(u32).range(1..))]
    limit: u32,
}

const LIMIT: u32 = 20;
const NO_SELECTION: &str = "no message selected: add LANE/POSITION, or --kind KIND with --key KEY";

impl Default for ListMessages {
    fn default() -> Self {
        Self { lane: None, behind: 0, handler: None, tasks: false, limit: LIMIT }
    }
}

#[derive(Args, Debug)]
struct ShowMessage {
    /// The place of the message
    #[arg(value_name = "LANE/POSITION", value_parser = parse_place, conflicts_with = "key")]
    place: Option<Place>,
    /// The kind, with --key
    #[arg(long, requires = "key")]
    kind: Option<String>,
    /// The key, as text or in hexadecimal after 0x; the gateway stores keys as SOURCE/KEY
    #[arg(long, requires = "kind")]
    key: Option<String>,
    /// Write the body's bytes and nothing else
    #[arg(long)]
    raw: bool,
}

pub(crate) async fn run(common: &CommonArgs, options: &MessagesArgs) -> Result<ExitCode> {
    // Before the database is opened, because an outage would hide the usage error.
    if let Some(MessagesAction::Show(ShowMessage { place: None, key: None, .. })) = &options.action {
        return Err(Usage(NO_SELECTION.into()).into());
    }
    let operators = DatabaseTarget::of(common)?.operators(OpenPurpose::Read).await?;
    let output = common.output();
    match &options.action {
        Some(MessagesAction::Show(options)) => show(&operators, options, output).await,
        Some(MessagesAction::List(options)) => list(&operators, options, output).await,
        None => list(&operators, &ListMessages::default(), output).await,
    }?;
    Ok(ExitCode::SUCCESS)
}

async fn list(operators: &Operators, options: &ListMessages, output: CommandOutput) -> Result<()> {
    let found = match (&options.handler, options.tasks) {
        (None, false) => in_lanes(operators, options).await?,
        _ => unfinished(operators, options).await?,
    };
    let mut table = TextTable::new(["place", "kind", "key", "received", "bytes", "handlers"]).right([4]);
    for status in &found {
        output.object(&MessageField::new(status))?;
        let message = &status.message;
        table.row([
            place_text(message.place),
            message.kind.clone(),
            key_or_none(message.key.as_ref()),
            ago(status.received_at),
            message.body.len().to_string(),
            summary(&status.handlers),
        ]);
    }
    if table.is_empty() { output.line("No messages.") } else { output.line(table) }
}

/// The oldest messages of one lane, or of all lanes.
async fn in_lanes(operators: &Operators, options: &ListMessages) -> Result<Vec<MessageStatus>> {
    let lanes = operators.lanes().await?;
    let range = match options.lane {
        Some(lane) if lane < lanes => lane..lane + 1,
        Some(lane) => return Err(no_lane(lane, lanes)),
        None => 0..lanes,
    };
    let mut found = Vec::new();
    for lane in range {
        // The limit of each lane is the whole limit: all of the oldest may be in one lane.
        found.extend(operators.messages(lane, options.behind, options.limit).await?);
    }
    // By time, because positions of different lanes have no common order.
    found.sort_by_key(|status| status.received_at);
    found.truncate(usize::try_from(options.limit).unwrap_or(usize::MAX));
    Ok(found)
}

/// The messages that one handler has not finished, or all tasks.
async fn unfinished(operators: &Operators, options: &ListMessages) -> Result<Vec<MessageStatus>> {
    let handler = match &options.handler {
        Some(name) => Some(find_handler(operators, name).await?.handler),
        None => None,
    };
    let tasks = operators.tasks(handler.as_ref().map(|handler| &*handler.name), options.limit).await?;
    let mut places: Vec<Place> = tasks.into_iter().map(|task| task.place).collect();
    if let Some(handler) = handler.filter(|handler| !options.tasks && handler.mode.reads_log()) {
        let pending = operators.pending(&handler.name, options.limit).await?;
        places.extend(pending.into_iter().map(|message| message.place));
    }
    let (mut found, mut seen) = (Vec::new(), HashSet::new());
    // Several handlers may have the same message, and a waiting message may have become a task between the two queries.
    for place in places.into_iter().filter(|place| seen.insert((place.lane, place.pos))) {
        if found.len() == usize::try_from(options.limit).unwrap_or(usize::MAX) {
            break;
        }
        // `None` if the message was finished and pruned since the query.
        found.extend(operators.message(place).await?);
    }
    Ok(found)
}

fn no_lane(lane: u16, lanes: u16) -> anyhow::Error {
    NotFound(match lanes {
        0 => "there are no lanes yet: no message was ever accepted".to_owned(),
        _ => format!("there is no lane {lane}: the log has the lanes 0 to {}", lanes - 1),
    })
    .into()
}

async fn show(operators: &Operators, options: &ShowMessage, output: CommandOutput) -> Result<()> {
    let place = match (&options.place, &options.kind, &options.key) {
        (Some(place), ..) => *place,
        (None, Some(kind), Some(key)) => place_of(operators, kind, key).await?,
        _ => return Err(Usage(NO_SELECTION.into()).into()),
    };
    let Some(status) = operators.message(place).await? else {
        return Err(NotFound(format!(
            "there is no message at {}: it was pruned, or never stored",
            place_text(place)
        ))
        .into());
    };
    // No escaping and no line break: the bytes may be the input of another program.
    if options.raw {
        return Ok(stdout().lock().write_all(&status.message.body)?);
    }
    output.object(&WholeMessage::new(&status))?;
    output.line(full_text(&status))
}

async fn place_of(operators: &Operators, kind: &str, key: &str) -> Result<Place> {
    for key in parse_key(key) {
        if let Some(place) = operators.find_message(kind, key).await? {
            return Ok(place);
        }
    }
    let hint = match key.contains('/') {
        true => "",
        false => ". The gateway stores keys as SOURCE/KEY",
    };
    Err(NotFound(format!(
        "there is no message of the kind {kind:?} with the key {key:?}: it was pruned, or never stored{hint}"
    ))
    .into())
}

/// The states of all handlers on one line.
fn summary(handlers: &[(String, MessageState)]) -> String {
    if handlers.is_empty() {
        return "no handler".to_owned();
    }
    if handlers.iter().all(|(_, state)| *state == MessageState::Done) {
        return "done".to_owned();
    }
    let short = handlers.iter().map(|(name, state)| format!("{name}: {}", state_name(state)));
    short.collect::<Vec<_>>().join(", ")
}

fn state_name(state: &MessageState) -> &'static str {
    match state {
        MessageState::Waiting => "waiting",
        MessageState::Task { .. } => "task",
        MessageState::Done => "done",
        MessageState::Dead { .. } => "dead",
    }
}

fn waits_name(waits: Waits) -> &'static str {
    match waits {
        Waits::Scheduled => "scheduled",
        Waits::Parked => "parked",
        Waits::Turn => "turn",
        Waits::Running => "running",
    }
}

fn full_text(status: &MessageStatus) -> String {
    let parts = MessageParts::from(&status.message);
    let mut lines = vec![format!("place:     {}", place_text(status.message.place))];
    lines.extend(status.message.message_id.map(|id| format!("id:        {id}")));
    let received = format!("received:  {} ({})", rfc3339(status.received_at), ago(status.received_at));
    lines.extend(parts.lines(received));
    lines.extend([String::new(), body_text(parts.body), String::new()]);
    if status.handlers.is_empty() {
        lines.push("No handler for this kind.".to_owned());
    }
    lines.extend(status.handlers.iter().map(|(name, state)| format!("{name}: {}", describe(state))));
    lines.join("\n")
}

/// The parts of a message that its sender has chosen.
pub(super) struct MessageParts<'a> {
    kind: &'a str,
    key: Option<&'a Key>,
    order_by: Option<&'a Key>,
    occurred_at: Option<SystemTime>,
    due_at: Option<SystemTime>,
    headers: &'a Headers,
    pub(super) body: &'a [u8],
}

impl<'a> From<&'a StoredMessage> for MessageParts<'a> {
    fn from(message: &'a StoredMessage) -> Self {
        Self {
            kind: &message.kind,
            key: message.key.as_ref(),
            order_by: message.order_by.as_ref(),
            occurred_at: message.occurred_at,
            due_at: message.due_at,
            headers: &message.headers,
            body: &message.body,
        }
    }
}

impl<'a> From<&'a WaitingMessage> for MessageParts<'a> {
    fn from(message: &'a WaitingMessage) -> Self {
        Self {
            kind: &message.kind,
            key: message.key.as_ref(),
            order_by: message.order_by.as_ref(),
            occurred_at: message.occurred_at,
            due_at: message.due_at,
            headers: &message.headers,
            body: &message.body,
        }
    }
}

impl MessageParts<'_> {
    /// A line for each part but the body, and the line with its time.
    pub(super) fn lines(&self, time: String) -> Vec<String> {
        let mut lines =
            vec![format!("kind:      {}", self.kind), format!("key:       {}", key_or_none(self.key)), time];
        lines.extend(self.order_by.map(|key| format!("order by:  {}", key_text(key))));
        lines.extend(self.occurred_at.map(|time| format!("occurred:  {}", rfc3339(time))));
        lines.extend(self.due_at.map(|time| format!("due:       {}", rfc3339(time))));
        for (name, value) in self.headers.iter() {
            lines.push(format!("header:    {}: {}", escaped(name), escaped(value)));
        }
        lines
    }
}

pub(super) fn describe(state: &MessageState) -> String {
    match state {
        MessageState::Waiting => "waiting in the log".to_owned(),
        MessageState::Done => "done".to_owned(),
        MessageState::Dead { error } => format!("dead: {}", escaped(error)),
        MessageState::Task { failures, due_at, error, waits } => {
            let due = rfc3339(*due_at);
            let waits = match waits {
                Waits::Scheduled => format!("scheduled for {due}"),
                Waits::Parked => "held back by an earlier message of its ordering key".to_owned(),
                Waits::Turn => format!("due {due}, after {failures} failed attempts"),
                Waits::Running => "in flight".to_owned(),
            };
            let error = error.as_deref().map(|error| format!(": {}", escaped(error)));
            format!("{waits}{}", error.unwrap_or_default())
        }
    }
}

/// A message in JSON.
#[derive(Debug, Serialize)]
struct MessageField<'a> {
    place: String,
    lane: u16,
    position: i64,
    /// Only of a published message.
    #[serde(skip_serializing_if = "Option::is_none")]
    message_id: Option<String>,
    kind: &'a str,
    #[serde(flatten)]
    key: KeyField,
    received_at: String,
    body_bytes: usize,
    handlers: Vec<StateField<'a>>,
}

impl<'a> MessageField<'a> {
    fn new(status: &'a MessageStatus) -> Self {
        let message = &status.message;
        let state = |(name, state): &'a (String, MessageState)| StateField {
            handler: name,
            state: StateDetail::new(state),
        };
        Self {
            place: place_text(message.place),
            lane: message.place.lane,
            position: message.place.pos,
            message_id: message.message_id.map(|id| id.to_string()),
            kind: &message.kind,
            key: KeyField::new(message.key.as_ref()),
            received_at: rfc3339(status.received_at),
            body_bytes: message.body.len(),
            handlers: status.handlers.iter().map(state).collect(),
        }
    }
}

/// A message with headers and body, in JSON.
#[derive(Debug, Serialize)]
struct WholeMessage<'a> {
    #[serde(flatten)]
    message: MessageField<'a>,
    #[serde(flatten)]
    rest: RestField<'a>,
}

impl<'a> WholeMessage<'a> {
    fn new(status: &'a MessageStatus) -> Self {
        let rest = RestField::new(&MessageParts::from(&status.message));
        Self { message: MessageField::new(status), rest }
    }
}

/// The parts of a message in JSON.
#[derive(Debug, Serialize)]
pub(super) struct PartsField<'a> {
    kind: &'a str,
    #[serde(flatten)]
    key: KeyField,
    #[serde(flatten)]
    rest: RestField<'a>,
}

impl<'a> PartsField<'a> {
    pub(super) fn new(parts: &MessageParts<'a>) -> Self {
        Self { kind: parts.kind, key: KeyField::new(parts.key), rest: RestField::new(parts) }
    }
}

/// What a list leaves out, in JSON.
#[derive(Debug, Serialize)]
struct RestField<'a> {
    order_by: Option<String>,
    occurred_at: Option<String>,
    due_at: Option<String>,
    headers: Vec<(&'a str, &'a str)>,
    #[serde(flatten)]
    body: BodyField,
}

impl<'a> RestField<'a> {
    fn new(parts: &MessageParts<'a>) -> Self {
        Self {
            order_by: parts.order_by.map(key_text),
            occurred_at: parts.occurred_at.map(rfc3339),
            due_at: parts.due_at.map(rfc3339),
            headers: parts.headers.iter().collect(),
            body: BodyField::new(parts.body),
        }
    }
}

/// The state of a message for one handler, in JSON.
#[derive(Debug, Serialize)]
struct StateField<'a> {
    handler: &'a str,
    #[serde(flatten)]
    state: StateDetail<'a>,
}

/// The state itself.
#[derive(Debug, Serialize)]
pub(super) struct StateDetail<'a> {
    state: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    failures: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    due_at: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    waits: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'a str>,
}

impl<'a> StateDetail<'a> {
    pub(super) fn new(state: &'a MessageState) -> Self {
        let plain = Self { state: state_name(state), failures: None, due_at: None, waits: None, error: None };
        match state {
            MessageState::Waiting | MessageState::Done => plain,
            MessageState::Dead { error } => Self { error: Some(error), ..plain },
            MessageState::Task { failures, due_at, error, waits } => Self {
                failures: Some(*failures),
                due_at: Some(rfc3339(*due_at)),
                waits: Some(waits_name(*waits)),
                error: error.as_deref(),
                ..plain
            },
        }
    }
}
