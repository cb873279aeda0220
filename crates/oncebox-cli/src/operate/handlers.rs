//! `oncebox handlers`: pause, resume, replay, rename or remove one.

use std::process::ExitCode;
use std::time::SystemTime;

use anyhow::Result;
use clap::{Args, Subcommand};
use oncebox::store::{Place, ReplayFrom};
use oncebox::{Operator, Operators};
use serde_json::json;

use crate::cli::Common;
use crate::operate::confirm::confirm;
use crate::operate::known::{self, find_handler};
use crate::operate::place::parse_place;
use crate::operate::status::{HandlerField, handler_table};
use crate::output::Output;
use crate::store::{For, Target};
use crate::times::parse_time;

/// What to do; without anything: list.
#[derive(Args, Debug)]
pub(crate) struct Options {
    #[command(subcommand)]
    action: Option<Action>,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// The handlers that the database knows
    List {
        /// Those that were removed too
        #[arg(long)]
        all: bool,
    },
    /// Stop one for a while: it takes nothing more from the log, in no process
    Pause {
        /// The handler
        name: String,
    },
    /// Let one go on that was paused
    Resume {
        /// The handler
        name: String,
    },
    /// Run one again on messages that are still there
    Replay(Replay),
    /// End one for good: what it has not done is dropped, and its name stays taken
    Remove {
        /// The handler
        name: String,
        /// Ask no questions
        #[arg(long)]
        yes: bool,
    },
    /// Give one another name; the old one stays taken
    Rename {
        /// The name that it has
        name: String,
        /// The name that it gets
        new: String,
    },
}

#[derive(Args, Debug)]
struct Replay {
    /// The handler
    name: String,
    #[command(flatten)]
    from: From,
}

#[derive(Args, Debug)]
#[group(required = true, multiple = false)]
struct From {
    /// What was received since then: how long ago, as in 30m or 2d, or a time as in 2026-01-31T12:00:00Z
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    since: Option<SystemTime>,
    /// Everything that is still there
    #[arg(long)]
    all: bool,
    /// From this message on, in its lane only
    #[arg(long, value_name = "LANE/POSITION", value_parser = parse_place)]
    at: Option<Place>,
}

impl From {
    fn place(&self) -> ReplayFrom {
        match (self.since, self.at) {
            (Some(time), _) => ReplayFrom::Time(time),
            (_, Some(place)) => ReplayFrom::Place(place),
            (None, None) => ReplayFrom::Beginning,
        }
    }
}

pub(crate) async fn run(common: &Common, options: &Options) -> Result<ExitCode> {
    let reason = match options.action {
        None | Some(Action::List { .. }) => For::Looking,
        Some(_) => For::Acting,
    };
    let operators = Target::of(common)?.operators(reason).await?;
    act(&operators, common, options).await?;
    Ok(ExitCode::SUCCESS)
}

async fn act(operators: &Operators, common: &Common, options: &Options) -> Result<()> {
    let output = common.output();
    match &options.action {
        None => list(operators, false, output).await,
        Some(Action::List { all }) => list(operators, *all, output).await,
        Some(Action::Pause { name }) => {
            find_handler(operators, name).await?;
            let changed = operators.pause_handler(name, &common.operator()?).await?;
            let text = if changed { "is paused: its messages wait" } else { "was paused already" };
            report("pause", name, changed, text, output)
        }
        Some(Action::Resume { name }) => {
            find_handler(operators, name).await?;
            let changed = operators.resume_handler(name, &common.operator()?).await?;
            report("resume", name, changed, if changed { "goes on" } else { "was not paused" }, output)
        }
        Some(Action::Replay(replay)) => run_again(operators, replay, &common.operator()?, output).await,
        Some(Action::Remove { name, yes }) => {
            let status = find_handler(operators, name).await?;
            let (lag, tasks, dead) = (status.lag, status.tasks, status.dead);
            confirm(
                &format!(
                    "Remove the handler {name}, with a lag of {lag}, {tasks} tasks and {dead} dead letters"
                ),
                *yes,
            )?;
            let changed = operators.remove_handler(name, &common.operator()?).await?;
            report("remove", name, changed, "is removed: its name stays taken", output)
        }
        Some(Action::Rename { name, new }) => {
            find_handler(operators, name).await?;
            let changed = operators.rename_handler(name, new, &common.operator()?).await?;
            let text = format!("is {new} from now on: programs need the new name when they start again");
            report("rename", name, changed, &text, output)
        }
    }
}

async fn list(operators: &Operators, all: bool, output: Output) -> Result<()> {
    let handlers = match all {
        true => operators.handler_statuses().await?,
        false => known::handlers(operators).await?,
    };
    for status in &handlers {
        output.object(&HandlerField::new(status))?;
    }
    match handlers.is_empty() {
        true => output.say("No handlers yet: a program registers them when it starts."),
        false => output.say(handler_table(&handlers)),
    }
}

async fn run_again(
    operators: &Operators,
    replay: &Replay,
    operator: &Operator,
    output: Output,
) -> Result<()> {
    let name = &replay.name;
    find_handler(operators, name).await?;
    let replayed = operators.replay(name, replay.from.place(), operator).await?;
    output.object(&json!({
        "action": "replay",
        "handler": name,
        "positions": replayed.positions,
        "tasks": replayed.tasks,
        "dead": replayed.dead,
    }))?;
    output.say(format_args!(
        "{name} goes over {} positions again; {} of its tasks and {} of its dead letters wait as messages again",
        replayed.positions, replayed.tasks, replayed.dead
    ))
}

fn report(action: &str, name: &str, changed: bool, text: &str, output: Output) -> Result<()> {
    output.object(&json!({ "action": action, "handler": name, "changed": changed }))?;
    output.say(format_args!("{name} {text}"))
}
