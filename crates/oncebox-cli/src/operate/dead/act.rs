//! `oncebox dead retry`, `discard` and `resolve`.

use std::collections::BTreeSet;

use anyhow::Result;
use clap::Args;
use oncebox::Operators;
use oncebox::store::DeadLetter;
use serde_json::json;

use super::filters::DeadFilters;
use crate::cli::CommonArgs;
use crate::exit::{NotFound, Usage};
use crate::operate::confirm::confirm;

/// The selected dead letters: by filters, or all.
#[derive(Args, Debug)]
pub(super) struct DeadSelection {
    #[command(flatten)]
    filters: DeadFilters,
    /// Select all dead letters
    #[arg(long)]
    all: bool,
}

#[derive(Args, Debug)]
pub(super) struct DiscardDead {
    #[command(flatten)]
    pub(super) which: DeadSelection,
    /// Confirm in advance
    #[arg(long)]
    yes: bool,
}

/// An action on all selected dead letters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BulkAction {
    Retry,
    Discard,
    Resolve,
}

impl BulkAction {
    fn name(self) -> &'static str {
        match self {
            Self::Retry => "retry",
            Self::Discard => "discard",
            Self::Resolve => "resolve",
        }
    }

    fn done(self) -> &'static str {
        match self {
            Self::Retry => "will be retried",
            Self::Discard => "discarded",
            Self::Resolve => "resolved, counted as done",
        }
    }
}

impl DeadSelection {
    /// Requires `--all` for all dead letters, because a forgotten filter must not select them.
    pub(super) fn check(&self, command: &str) -> Result<()> {
        match (self.filters.is_empty(), self.all) {
            (true, false) => Err(Usage(format!(
                "no dead letters selected: add --at LANE/POSITION, --handler NAME, --kind KIND, --error TEXT, --since TIME, \
                 --before TIME or --all to `oncebox dead {command}`"
            ))
            .into()),
            (false, true) => Err(Usage("--all selects all dead letters: remove it, or the other filters".into()).into()),
            _ => Ok(()),
        }
    }
}

/// The maximum number of dead letters that the question counts.
const COUNT_MAX: u32 = 100;

/// The question before discarding: how many dead letters, of which handlers.
fn question(letters: &[DeadLetter], filters: &DeadFilters) -> String {
    let handlers: BTreeSet<&str> = letters.iter().map(|letter| &*letter.handler).collect();
    let handlers = handlers.into_iter().collect::<Vec<_>>().join(", ");
    let count = match u32::try_from(letters.len()) {
        Ok(count) if count <= COUNT_MAX => counted(count.into()),
        _ => format!("more than {COUNT_MAX} dead letters"),
    };
    format!("Discard {count} of {handlers} permanently ({})", filters.described())
}

/// Discards after a confirmation.
pub(super) async fn discard(operators: &Operators, discard: &DiscardDead, common: &CommonArgs) -> Result<()> {
    let filters = &discard.which.filters;
    filters.check(operators).await?;
    // One more than counted, to know whether there are more.
    let letters = operators.dead_letters(filters.select(), COUNT_MAX + 1).await?;
    if letters.is_empty() {
        return Err(none_matches(filters));
    }
    confirm(&question(&letters, filters), discard.yes)?;
    run(operators, BulkAction::Discard, &discard.which, common).await
}

pub(super) async fn run(
    operators: &Operators,
    action: BulkAction,
    which: &DeadSelection,
    common: &CommonArgs,
) -> Result<()> {
    let filters = &which.filters;
    filters.check(operators).await?;
    let (select, operator) = (filters.select(), common.operator()?);
    let letters = match action {
        BulkAction::Retry => operators.retry_dead(select, &operator).await?,
        BulkAction::Discard => operators.discard_dead(select, &operator).await?,
        BulkAction::Resolve => operators.resolve_dead(select, &operator).await?,
    };
    // An error, so that scripts notice a misspelt filter.
    if letters == 0 {
        return Err(none_matches(filters));
    }
    let output = common.output();
    output.object(&json!({ "action": action.name(), "letters": letters }))?;
    output.line(format_args!("{}: {}", counted(letters), action.done()))
}

fn none_matches(filters: &DeadFilters) -> anyhow::Error {
    NotFound(match filters.is_empty() {
        true => "there are no dead letters".to_owned(),
        false => format!("no dead letter matches {}", filters.described()),
    })
    .into()
}

fn counted(letters: u64) -> String {
    if letters == 1 { "1 dead letter".to_owned() } else { format!("{letters} dead letters") }
}
