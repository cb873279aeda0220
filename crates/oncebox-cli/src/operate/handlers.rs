//! `oncebox handlers`: lists handlers; pauses, resumes, replays, renames or removes one.

use std::process::ExitCode;
use std::time::SystemTime;

use anyhow::Result;
use clap::{Args, Subcommand};
use oncebox::store::{Place, ReplayFrom};
use oncebox::{Operator, Operators};
use serde_json::json;

use crate::cli::CommonArgs;
use crate::operate::confirm::confirm;
use crate::operate::known::{self, find_handler};
use crate::operate::place::parse_place;
use crate::operate::status::{HandlerField, handler_table};
use crate::output::CommandOutput;
use crate::store::{DatabaseTarget, OpenPurpose};
use crate::times::parse_time;

/// Options of `handlers`. Without an action it lists.
#[derive(Args, Debug)]
pub(crate) struct HandlersArgs {
    #[command(subcommand)]
    action: Option<HandlersAction>,
}

#[derive(Debug, Subcommand)]
enum HandlersAction {
    /// List the registered handlers
    List {
        /// Include removed handlers
        #[arg(long)]
        all: bool,
    },
    /// Pause a handler: it takes no messages from the log, in any process
    Pause {
        /// The handler
        name: String,
    },
    /// Resume a paused handler
    Resume {
        /// The handler
        name: String,
    },
    /// Run a handler again on stored messages
    Replay(ReplayArgs),
    /// Remove a handler: its unfinished work is dropped, and its name stays reserved
    Remove {
        /// The handler
        name: String,
        /// Confirm in advance
        #[arg(long)]
        yes: bool,
    },
    /// Rename a handler; the old name stays reserved
    Rename {
        /// The present name
        name: String,
        /// The new name
        new: String,
    },
}

#[derive(Args, Debug)]
struct ReplayArgs {
    /// The handler
    name: String,
    #[command(flatten)]
    from: ReplayStart,
}

#[derive(Args, Debug)]
#[group(required = true, multiple = false)]
pub(super) struct ReplayStart {
    /// Messages received since this time: 2026-01-31T12:00:00Z, or how long ago, for example 30m or 2d
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    since: Option<SystemTime>,
    /// All stored messages
    #[arg(long)]
    all: bool,
    /// From this message on, in its lane only
    #[arg(long, value_name = "LANE/POSITION", value_parser = parse_place)]
    at: Option<Place>,
}

impl ReplayStart {
    pub(super) fn place(&self) -> ReplayFrom {
        match (self.since, self.at) {
            (Some(time), _) => ReplayFrom::Time(time),
            (_, Some(place)) => ReplayFrom::Place(place),
            (None, None) => ReplayFrom::Beginning,
        }
    }
}

pub(crate) async fn run(common: &CommonArgs, options: &HandlersArgs) -> Result<ExitCode> {
    let reason = match options.action {
        None | Some(HandlersAction::List { .. }) => OpenPurpose::Read,
        Some(_) => OpenPurpose::Act,
    };
    let operators = DatabaseTarget::of(common)?.operators(reason).await?;
    act(&operators, common, options).await?;
    Ok(ExitCode::SUCCESS)
}

async fn act(operators: &Operators, common: &CommonArgs, options: &HandlersArgs) -> Result<()> {
    let output = common.output();
    match &options.action {
        None => list(operators, false, output).await,
        Some(HandlersAction::List { all }) => list(operators, *all, output).await,
        Some(HandlersAction::Pause { name }) => {
            // For its error only, which suggests a similar name.
            find_handler(operators, name).await?;
            let changed = operators.pause_handler(name, &common.operator()?).await?;
            let text = if changed { "is paused: its messages wait" } else { "is already paused" };
            report("pause", name, changed, text, output)
        }
        Some(HandlersAction::Resume { name }) => {
            find_handler(operators, name).await?;
            let changed = operators.resume_handler(name, &common.operator()?).await?;
            report("resume", name, changed, if changed { "is resumed" } else { "is not paused" }, output)
        }
        Some(HandlersAction::Replay(replay)) => {
            run_again(operators, replay, &common.operator()?, output).await
        }
        Some(HandlersAction::Remove { name, yes }) => {
            // The question names what would be lost.
            let status = find_handler(operators, name).await?;
            let (lag, tasks, dead) = (status.lag, status.tasks, status.dead);
            confirm(
                &format!(
                    "Remove the handler {name}, with a lag of {lag}, {tasks} tasks and {dead} dead letters"
                ),
                *yes,
            )?;
            let changed = operators.remove_handler(name, &common.operator()?).await?;
            report("remove", name, changed, "is removed: its name stays reserved", output)
        }
        Some(HandlersAction::Rename { name, new }) => {
            find_handler(operators, name).await?;
            let changed = operators.rename_handler(name, new, &common.operator()?).await?;
            let text = format!("is renamed to {new}: use the new name in programs before they restart");
            report("rename", name, changed, &text, output)
        }
    }
}

async fn list(operators: &Operators, all: bool, output: CommandOutput) -> Result<()> {
    let handlers = match all {
        true => operators.handler_statuses().await?,
        false => known::handlers(operators).await?,
    };
    for status in &handlers {
        output.object(&HandlerField::new(status))?;
    }
    match handlers.is_empty() {
        true => output.line("No handlers yet: programs register them when they start."),
        false => output.line(handler_table(&handlers)),
    }
}

async fn run_again(
    operators: &Operators,
    replay: &ReplayArgs,
    operator: &Operator,
    output: CommandOutput,
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
    output.line(format_args!(
        "{name} replays {} positions; {} of its tasks and {} of its dead letters are waiting messages again",
        replayed.positions, replayed.tasks, replayed.dead
    ))
}

fn report(action: &str, name: &str, changed: bool, text: &str, output: CommandOutput) -> Result<()> {
    output.object(&json!({ "action": action, "handler": name, "changed": changed }))?;
    output.line(format_args!("{name} {text}"))
}
