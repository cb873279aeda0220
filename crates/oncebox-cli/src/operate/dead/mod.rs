//! `oncebox dead`: the letters that handlers gave up on.

mod act;
mod edit;
mod filters;
mod letter;
mod list;
mod show;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, Subcommand};
use oncebox::Operators;

use act::BulkAction;

use crate::cli::Common;
use crate::store::{For, Target};

/// What to do; without anything: list.
#[derive(Args, Debug)]
pub(crate) struct Options {
    #[command(subcommand)]
    action: Option<Action>,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Dead letters, the oldest first
    List(list::List),
    /// One dead letter: its error, every attempt, its body
    Show(show::Show),
    /// Run them again, with all attempts ahead of them
    Retry(act::Which),
    /// Drop them: their handlers will never run for them
    Discard(act::Discard),
    /// Count them as done, because somebody saw to it
    Resolve(act::Which),
    /// Run one again with a corrected body; the log keeps the original
    Edit(edit::Edit),
}

pub(crate) async fn run(common: &Common, options: &Options) -> Result<ExitCode> {
    let target = Target::of(common)?;
    if let Some(action) = &options.action {
        action.check()?;
    }
    let reason = match options.action {
        None | Some(Action::List(_) | Action::Show(_)) => For::Looking,
        Some(_) => For::Acting,
    };
    let operators = target.operators(reason).await?;
    act_on(&operators, &target, common, options).await?;
    Ok(ExitCode::SUCCESS)
}

impl Action {
    /// What can be wrong without a look at the database.
    fn check(&self) -> Result<()> {
        match self {
            Self::Retry(which) => which.check("retry"),
            Self::Resolve(which) => which.check("resolve"),
            Self::Discard(discard) => discard.which.check("discard"),
            Self::List(_) | Self::Show(_) | Self::Edit(_) => Ok(()),
        }
    }
}

async fn act_on(operators: &Operators, target: &Target, common: &Common, options: &Options) -> Result<()> {
    match &options.action {
        None => list::run(operators, &list::List::default(), common.output()).await,
        Some(Action::List(list)) => list::run(operators, list, common.output()).await,
        Some(Action::Show(show)) => show::run(operators, show, target, common.output()).await,
        Some(Action::Retry(which)) => act::run(operators, BulkAction::Retry, which, common).await,
        Some(Action::Resolve(which)) => act::run(operators, BulkAction::Resolve, which, common).await,
        Some(Action::Discard(discard)) => act::discard(operators, discard, common).await,
        Some(Action::Edit(edit)) => edit::run(operators, edit, common).await,
    }
}
