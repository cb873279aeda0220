//! `oncebox dead`: messages that a handler or a relay has given up on.

pub(super) mod act;
mod edit;
pub(super) mod filters;
mod letter;
pub(super) mod list;
mod show;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, Subcommand};
use oncebox::Operators;

use act::BulkAction;
use filters::DeadFilters;

use crate::cli::CommonArgs;
use crate::store::{DatabaseTarget, OpenPurpose};

/// Options of `dead`. Without an action it lists.
#[derive(Args, Debug)]
pub(crate) struct DeadArgs {
    #[command(subcommand)]
    action: Option<DeadAction>,
}

#[derive(Debug, Subcommand)]
enum DeadAction {
    /// List dead letters, oldest first
    List(list::ListLetters<DeadFilters>),
    /// Show a dead letter: its error, every stored attempt, its body, and next steps
    Show(show::ShowDead),
    /// Retry dead letters, with all attempts available again
    Retry(act::LetterArgs<DeadFilters>),
    /// Discard dead letters: the handler never runs for them
    Discard(act::DiscardArgs<DeadFilters>),
    /// Count dead letters as done, because an operator has handled them
    Resolve(act::LetterArgs<DeadFilters>),
    /// Retry a dead letter with a corrected body; the log keeps the original
    Edit(edit::EditDead),
}

pub(crate) async fn run(common: &CommonArgs, options: &DeadArgs) -> Result<ExitCode> {
    let target = DatabaseTarget::of(common)?;
    if let Some(action) = &options.action {
        action.check()?;
    }
    let reason = match options.action {
        None | Some(DeadAction::List(_) | DeadAction::Show(_)) => OpenPurpose::Read,
        Some(_) => OpenPurpose::Act,
    };
    let operators = target.operators(reason).await?;
    act_on(&operators, &target, common, options).await?;
    Ok(ExitCode::SUCCESS)
}

impl DeadAction {
    /// Checks that need no database.
    fn check(&self) -> Result<()> {
        match self {
            Self::Retry(which) => which.check("retry"),
            Self::Resolve(which) => which.check("resolve"),
            Self::Discard(discard) => discard.which.check("discard"),
            Self::List(_) | Self::Show(_) | Self::Edit(_) => Ok(()),
        }
    }
}

async fn act_on(
    operators: &Operators,
    target: &DatabaseTarget,
    common: &CommonArgs,
    options: &DeadArgs,
) -> Result<()> {
    match &options.action {
        None => list::run(operators, &list::ListLetters::<DeadFilters>::default(), common.output()).await,
        Some(DeadAction::List(list)) => list::run(operators, list, common.output()).await,
        Some(DeadAction::Show(show)) => show::run(operators, show, target, common.output()).await,
        Some(DeadAction::Retry(which)) => act::run(operators, BulkAction::Retry, which, common).await,
        Some(DeadAction::Resolve(which)) => act::run(operators, BulkAction::Resolve, which, common).await,
        Some(DeadAction::Discard(discard)) => act::discard(operators, discard, common).await,
        Some(DeadAction::Edit(edit)) => edit::run(operators, edit, common).await,
    }
}
