//! `oncebox outbox`: published messages on their way to the log and to the sinks of relays.

mod list;
mod replay;
mod show;
mod status;

pub(crate) use status::movers;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, Subcommand};

use crate::cli::CommonArgs;
use crate::operate::dead::act::{self, BulkAction, DiscardArgs, LetterArgs};
use crate::operate::dead::filters::ParkedFilters;
use crate::operate::dead::list::{self as letters, ListLetters};
use crate::store::{DatabaseTarget, OpenPurpose};

/// Options of `outbox`. Without an action it shows the status.
#[derive(Args, Debug)]
pub(crate) struct OutboxArgs {
    #[command(subcommand)]
    action: Option<OutboxAction>,
}

#[derive(Debug, Subcommand)]
enum OutboxAction {
    /// Show waiting messages, who moves them, disk space and relays
    Status,
    /// List messages that the mover has not moved, or a relay has not sent, oldest first
    List(list::ListUnsent),
    /// Show a published message: where it is, and its state for each relay and handler
    Show(show::ShowPublished),
    /// List messages that relays have given up on, oldest first
    Parked(ListLetters<ParkedFilters>),
    /// Send parked messages again, with all attempts available again
    Retry(LetterArgs<ParkedFilters>),
    /// Discard parked messages: the relay never sends them
    Discard(DiscardArgs<ParkedFilters>),
    /// Send messages again that are still in the log; copies have the same ids
    Replay(replay::ReplayRelay),
}

impl OutboxAction {
    /// Checks that need no database.
    fn check(&self) -> Result<()> {
        match self {
            Self::Retry(which) => which.check("retry"),
            Self::Discard(discard) => discard.which.check("discard"),
            Self::Status | Self::List(_) | Self::Show(_) | Self::Parked(_) | Self::Replay(_) => Ok(()),
        }
    }

    fn purpose(&self) -> OpenPurpose {
        match self {
            Self::Status | Self::List(_) | Self::Show(_) | Self::Parked(_) => OpenPurpose::Read,
            Self::Retry(_) | Self::Discard(_) | Self::Replay(_) => OpenPurpose::Act,
        }
    }
}

pub(crate) async fn run(common: &CommonArgs, options: &OutboxArgs) -> Result<ExitCode> {
    let action = options.action.as_ref().unwrap_or(&OutboxAction::Status);
    action.check()?;
    let opened = DatabaseTarget::of(common)?.open_ready(action.purpose()).await?;
    let (operators, output) = (opened.operators().await?, common.output());
    match action {
        OutboxAction::Status => status::run(&opened, &operators, output).await,
        OutboxAction::List(list) => list::run(&opened, &operators, list, output).await,
        OutboxAction::Show(show) => show::run(&opened, &operators, show, output).await,
        OutboxAction::Parked(list) => letters::run(&operators, list, output).await,
        OutboxAction::Retry(which) => act::run(&operators, BulkAction::Retry, which, common).await,
        OutboxAction::Discard(discard) => act::discard(&operators, discard, common).await,
        OutboxAction::Replay(replay) => replay::run(&operators, replay, common).await,
    }?;
    Ok(ExitCode::SUCCESS)
}
