//! `oncebox dead retry`, `discard` and `resolve`.

use std::collections::BTreeSet;

use anyhow::Result;
use clap::Args;
use oncebox::Operators;
use oncebox::store::DeadLetter;
use serde_json::json;

use super::filters::{LetterOwner, LetterSelection, LetterWords};
use crate::cli::CommonArgs;
use crate::exit::{NotFound, Usage};
use crate::operate::confirm::confirm;

/// The selected dead letters: by filters, or all.
#[derive(Args, Debug)]
pub(crate) struct LetterArgs<F: LetterOwner> {
    #[command(flatten)]
    filters: F,
    /// Select all of them
    #[arg(long)]
    all: bool,
}

#[derive(Args, Debug)]
pub(crate) struct DiscardArgs<F: LetterOwner> {
    #[command(flatten)]
    pub(crate) which: LetterArgs<F>,
    /// Confirm in advance
    #[arg(long)]
    yes: bool,
}

/// An action on all selected dead letters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BulkAction {
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

impl<F: LetterOwner> LetterArgs<F> {
    /// Requires `--all` for all dead letters, because a forgotten filter must not select them.
    pub(crate) fn check(&self, command: &str) -> Result<()> {
        let (words, owner) = (F::WORDS, F::OPTION);
        match (self.filters.is_empty(), self.all) {
            (true, false) => Err(Usage(format!(
                "no {} selected: add --at LANE/POSITION, {owner}, --kind KIND, --error TEXT, --since TIME, --before TIME or --all \
                 to `oncebox {} {command}`",
                words.several(),
                words.command
            ))
            .into()),
            (false, true) => Err(Usage(format!(
                "--all selects all {}: remove it, or the other filters",
                words.several()
            ))
            .into()),
            _ => Ok(()),
        }
    }
}

/// The maximum number of dead letters that the question counts.
const COUNT_MAX: u32 = 100;

/// The question before discarding: how many dead letters, of which handlers.
fn question(letters: &[DeadLetter], words: LetterWords, described: &str) -> String {
    let handlers: BTreeSet<&str> = letters.iter().map(|letter| &*letter.handler).collect();
    let handlers = handlers.into_iter().collect::<Vec<_>>().join(", ");
    let count = match u32::try_from(letters.len()) {
        Ok(count) if count <= COUNT_MAX => words.counted(count.into()),
        _ => format!("more than {COUNT_MAX} {}", words.several()),
    };
    format!("Discard {count} of {handlers} permanently ({described})")
}

/// Discards after a confirmation.
pub(crate) async fn discard<F: LetterOwner>(
    operators: &Operators,
    discard: &DiscardArgs<F>,
    common: &CommonArgs,
) -> Result<()> {
    let selection = discard.which.filters.selection(operators).await?;
    // One more than counted, to know whether there are more.
    let letters = selection.letters(operators, COUNT_MAX + 1).await?;
    if letters.is_empty() {
        return Err(none_matches::<F>(&selection));
    }
    confirm(&question(&letters, F::WORDS, &selection.described), discard.yes)?;
    run(operators, BulkAction::Discard, &discard.which, common).await
}

pub(crate) async fn run<F: LetterOwner>(
    operators: &Operators,
    action: BulkAction,
    which: &LetterArgs<F>,
    common: &CommonArgs,
) -> Result<()> {
    let selection = which.filters.selection(operators).await?;
    let operator = common.operator()?;
    let mut letters = 0;
    for select in selection.selects.iter().cloned() {
        letters += match action {
            BulkAction::Retry => operators.retry_dead(select, &operator).await?,
            BulkAction::Discard => operators.discard_dead(select, &operator).await?,
            BulkAction::Resolve => operators.resolve_dead(select, &operator).await?,
        };
    }
    // An error, so that scripts notice a misspelt filter.
    if letters == 0 {
        return Err(none_matches::<F>(&selection));
    }
    let output = common.output();
    output.object(&json!({ "action": action.name(), "letters": letters }))?;
    output.line(format_args!("{}: {}", F::WORDS.counted(letters), action.done()))
}

fn none_matches<F: LetterOwner>(selection: &LetterSelection) -> anyhow::Error {
    NotFound(match selection.has_filters {
        false => format!("there are no {}", F::WORDS.several()),
        true => format!("no {} matches {}", F::WORDS.one(), selection.described),
    })
    .into()
}
