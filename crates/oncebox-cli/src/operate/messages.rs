//! `oncebox messages`: what is in the log, and what became of it.

use std::collections::HashSet;
use std::io::{Write, stdout};
use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, Subcommand};
use oncebox::Operators;
use oncebox::store::{MessageState, MessageStatus, Place, Waits};
use serde::Serialize;

use crate::cli::Common;
use crate::exit::{NotFound, Usage};
use crate::operate::bytes::{BodyField, KeyField, body_text, harmless, key_or_none, key_text, parse_key};
use crate::operate::known::find_handler;
use crate::operate::place::{parse_place, shown};
use crate::output::Output;
use crate::store::{For, Target};
use crate::table::Table;
use crate::times::{ago, rfc3339};

/// What to do; without anything: list.
#[derive(Args, Debug)]
pub(crate) struct Options {
    #[command(subcommand)]
    action: Option<Action>,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Messages that are still there, the oldest first
    List(List),
    /// One message: headers, body, and what became of it
    Show(Show),
}

#[derive(Args, Debug)]
struct List {
    /// Of one lane only
    #[arg(long, value_name = "NUMBER")]
    lane: Option<u16>,
    /// Behind this position of the lane
    #[arg(long, value_name = "POSITION", requires = "lane", default_value_t = 0)]
    behind: i64,
    /// Those that this handler is not done with: first its tasks, the next first, then what waits, by lane and position
    #[arg(long, value_name = "NAME", conflicts_with_all = ["lane", "behind"])]
    handler: Option<String>,
    /// Only those that are tasks: tried before, scheduled, or held back
    #[arg(long, conflicts_with_all = ["lane", "behind"])]
    tasks: bool,
    /// At most so many
    #[arg(long, value_name = "NUMBER", default_value_t = LIMIT, value_parser = clap::value_parser!(u32).range(1..))]
    limit: u32,
}

const LIMIT: u32 = 20;

impl Default for List {
    fn default() -> Self {
        Self { lane: None, behind: 0, handler: None, tasks: false, limit: LIMIT }
    }
}

#[derive(Args, Debug)]
struct Show {
    /// Where it sits
    #[arg(value_name = "LANE/POSITION", value_parser = parse_place, conflicts_with = "key")]
    place: Option<Place>,
    /// Its kind, with --key
    #[arg(long, requires = "key")]
    kind: Option<String>,
    /// Its key, as text, or in hexadecimal behind 0x; what a gateway has accepted has the key SOURCE/KEY
    #[arg(long, requires = "kind")]
    key: Option<String>,
    /// Write the body's bytes, and nothing else
    #[arg(long)]
    raw: bool,
}

pub(crate) async fn run(common: &Common, options: &Options) -> Result<ExitCode> {
    if let Some(Action::Show(Show { place: None, key: None, .. })) = &options.action {
        let text =
            "which message? Say `oncebox messages show LANE/POSITION`, or name it by --kind with --key";
        return Err(Usage(text.into()).into());
    }
    let operators = Target::of(common)?.operators(For::Looking).await?;
    let output = common.output();
    match &options.action {
        Some(Action::Show(options)) => show(&operators, options, output).await,
        Some(Action::List(options)) => list(&operators, options, output).await,
        None => list(&operators, &List::default(), output).await,
    }?;
    Ok(ExitCode::SUCCESS)
}

async fn list(operators: &Operators, options: &List, output: Output) -> Result<()> {
    let found = match (&options.handler, options.tasks) {
        (None, false) => in_lanes(operators, options).await?,
        _ => not_done(operators, options).await?,
    };
    let mut table = Table::new(["place", "kind", "key", "received", "bytes", "handlers"]).right([4]);
    for status in &found {
        output.object(&MessageField::new(status))?;
        let message = &status.message;
        table.row([
            shown(message.place),
            message.kind.clone(),
            key_or_none(message.key.as_ref()),
            ago(status.received_at),
            message.body.len().to_string(),
            in_short(&status.handlers),
        ]);
    }
    if table.is_empty() { output.say("No messages.") } else { output.say(table) }
}

/// Of one lane, or the oldest of all.
async fn in_lanes(operators: &Operators, options: &List) -> Result<Vec<MessageStatus>> {
    let lanes = operators.lanes().await?;
    let range = match options.lane {
        Some(lane) if lane < lanes => lane..lane + 1,
        Some(lane) => return Err(no_lane(lane, lanes)),
        None => 0..lanes,
    };
    let mut found = Vec::new();
    for lane in range {
        found.extend(operators.messages(lane, options.behind, options.limit).await?);
    }
    found.sort_by_key(|status| status.received_at);
    found.truncate(usize::try_from(options.limit).unwrap_or(usize::MAX));
    Ok(found)
}

/// What one handler is not done with, or all tasks.
async fn not_done(operators: &Operators, options: &List) -> Result<Vec<MessageStatus>> {
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
    // Several handlers may have the same one to do, and it may have become a task in between.
    for place in places.into_iter().filter(|place| seen.insert((place.lane, place.pos))) {
        if found.len() == usize::try_from(options.limit).unwrap_or(usize::MAX) {
            break;
        }
        // It may be done by now.
        found.extend(operators.message(place).await?);
    }
    Ok(found)
}

fn no_lane(lane: u16, lanes: u16) -> anyhow::Error {
    NotFound(match lanes {
        0 => "there are no lanes yet: nothing was ever accepted".to_owned(),
        _ => format!("there is no lane {lane}: the log has lanes 0 to {}", lanes - 1),
    })
    .into()
}

async fn show(operators: &Operators, options: &Show, output: Output) -> Result<()> {
    let place = match (&options.place, &options.kind, &options.key) {
        (Some(place), ..) => *place,
        (None, Some(kind), Some(key)) => place_of(operators, kind, key).await?,
        _ => return Err(Usage("name a message by LANE/POSITION, or by --kind and --key".into()).into()),
    };
    let Some(status) = operators.message(place).await? else {
        return Err(NotFound(format!(
            "there is no message at {}: it was pruned, or never there",
            shown(place)
        ))
        .into());
    };
    if options.raw {
        return Ok(stdout().lock().write_all(&status.message.body)?);
    }
    output.object(&WholeMessage::new(&status))?;
    output.say(in_full(&status))
}

async fn place_of(operators: &Operators, kind: &str, key: &str) -> Result<Place> {
    for key in parse_key(key) {
        if let Some(place) = operators.find_message(kind, key).await? {
            return Ok(place);
        }
    }
    let hint = match key.contains('/') {
        true => "",
        false => ". What a gateway has accepted has the key SOURCE/KEY",
    };
    Err(NotFound(format!(
        "there is no message of the kind {kind:?} with the key {key:?}: it was pruned, or never there{hint}"
    ))
    .into())
}

/// How many handlers are done, or what keeps the others.
fn in_short(handlers: &[(String, MessageState)]) -> String {
    if handlers.is_empty() {
        return "nobody takes it".to_owned();
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

fn in_full(status: &MessageStatus) -> String {
    let message = &status.message;
    let mut lines = vec![
        format!("place:     {}", shown(message.place)),
        format!("kind:      {}", message.kind),
        format!("key:       {}", key_or_none(message.key.as_ref())),
        format!("received:  {} ({})", rfc3339(status.received_at), ago(status.received_at)),
    ];
    lines.extend(message.order_by.as_ref().map(|key| format!("order by:  {}", key_text(key))));
    lines.extend(message.occurred_at.map(|time| format!("occurred:  {}", rfc3339(time))));
    lines.extend(message.due_at.map(|time| format!("due:       {}", rfc3339(time))));
    for (name, value) in message.headers.iter() {
        lines.push(format!("header:    {}: {}", harmless(name), harmless(value)));
    }
    lines.push(String::new());
    lines.push(body_text(&message.body));
    lines.push(String::new());
    if status.handlers.is_empty() {
        lines.push("Nobody takes this kind.".to_owned());
    }
    lines.extend(status.handlers.iter().map(|(name, state)| format!("{name}: {}", what_became(state))));
    lines.join("\n")
}

fn what_became(state: &MessageState) -> String {
    match state {
        MessageState::Waiting => "waiting, ahead of its progress".to_owned(),
        MessageState::Done => "done".to_owned(),
        MessageState::Dead { error } => format!("dead: {}", harmless(error)),
        MessageState::Task { failures, due_at, error, waits } => {
            let due = rfc3339(*due_at);
            let waits = match waits {
                Waits::Scheduled => format!("scheduled for {due}"),
                Waits::Parked => "waits behind an earlier message of its ordering key".to_owned(),
                Waits::Turn => format!("task, failed {failures} times, due {due}"),
                Waits::Running => "a process runs it now".to_owned(),
            };
            let error = error.as_deref().map(|error| format!(": {}", harmless(error)));
            format!("{waits}{}", error.unwrap_or_default())
        }
    }
}

/// A message for programs.
#[derive(Debug, Serialize)]
struct MessageField<'a> {
    place: String,
    lane: u16,
    position: i64,
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
        Self {
            place: shown(message.place),
            lane: message.place.lane,
            position: message.place.pos,
            kind: &message.kind,
            key: KeyField::new(message.key.as_ref()),
            received_at: rfc3339(status.received_at),
            body_bytes: message.body.len(),
            handlers: status.handlers.iter().map(|(name, state)| StateField::new(name, state)).collect(),
        }
    }
}

/// A message with everything that is known of it.
#[derive(Debug, Serialize)]
struct WholeMessage<'a> {
    #[serde(flatten)]
    message: MessageField<'a>,
    order_by: Option<String>,
    occurred_at: Option<String>,
    due_at: Option<String>,
    headers: Vec<(&'a str, &'a str)>,
    #[serde(flatten)]
    body: BodyField,
}

impl<'a> WholeMessage<'a> {
    fn new(status: &'a MessageStatus) -> Self {
        let message = &status.message;
        Self {
            message: MessageField::new(status),
            order_by: message.order_by.as_ref().map(key_text),
            occurred_at: message.occurred_at.map(rfc3339),
            due_at: message.due_at.map(rfc3339),
            headers: message.headers.iter().collect(),
            body: BodyField::new(&message.body),
        }
    }
}

/// What became of a message for one handler.
#[derive(Debug, Serialize)]
struct StateField<'a> {
    handler: &'a str,
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

impl<'a> StateField<'a> {
    fn new(handler: &'a str, state: &'a MessageState) -> Self {
        let plain = Self {
            handler,
            state: state_name(state),
            failures: None,
            due_at: None,
            waits: None,
            error: None,
        };
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
