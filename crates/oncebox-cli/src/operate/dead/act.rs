//! `oncebox dead retry`, `discard` and `resolve`.

use std::collections::BTreeSet;

use anyhow::Result;
use clap::Args;
use oncebox::Operators;
use oncebox::store::DeadLetter;
use serde_json::json;

use super::filters::Filters;
use crate::cli::Common;
use crate::exit::{NotFound, Usage};
use crate::operate::confirm::confirm;

/// Some of them, or all.
#[derive(Args, Debug)]
pub(super) struct Which {
    #[command(flatten)]
    filters: Filters,
    /// All of them
    #[arg(long)]
    all: bool,
}

#[derive(Args, Debug)]
pub(super) struct Discard {
    #[command(flatten)]
    pub(super) which: Which,
    /// Ask no questions
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
            Self::Retry => "will be tried again",
            Self::Discard => "discarded",
            Self::Resolve => "counted as done",
        }
    }
}

impl Which {
    /// Nobody means all by saying nothing.
    pub(super) fn check(&self, command: &str) -> Result<()> {
        match (self.filters.is_empty(), self.all) {
            (true, false) => Err(Usage(format!(
                "which dead letters? Say `oncebox dead {command} --at LANE/POSITION`, --handler NAME, --kind KIND, \
                 --error TEXT, --since TIME or --before TIME; or --all for all of them"
            ))
            .into()),
            (false, true) => Err(Usage("--all means all: leave it out, or the conditions".into()).into()),
            _ => Ok(()),
        }
    }
}

/// More than that are not counted for a question.
const COUNTED: u32 = 100;

/// How many, of whom.
fn question(letters: &[DeadLetter], filters: &Filters) -> String {
    let handlers: BTreeSet<&str> = letters.iter().map(|letter| &*letter.handler).collect();
    let handlers = handlers.into_iter().collect::<Vec<_>>().join(", ");
    let count = match u32::try_from(letters.len()) {
        Ok(count) if count <= COUNTED => counted(count.into()),
        _ => format!("more than {COUNTED} dead letters"),
    };
    format!("Discard {count} of {handlers} (all that match {}), for good", filters.described())
}

/// Asks first.
pub(super) async fn discard(operators: &Operators, discard: &Discard, common: &Common) -> Result<()> {
    let filters = &discard.which.filters;
    filters.check(operators).await?;
    let letters = operators.dead_letters(filters.select(), COUNTED + 1).await?;
    if letters.is_empty() {
        return Err(none_matches(filters));
    }
    confirm(&question(&letters, filters), discard.yes)?;
    run(operators, BulkAction::Discard, &discard.which, common).await
}

pub(super) async fn run(
    operators: &Operators,
    action: BulkAction,
    which: &Which,
    common: &Common,
) -> Result<()> {
    let filters = &which.filters;
    filters.check(operators).await?;
    let (select, operator) = (filters.select(), common.operator()?);
    let letters = match action {
        BulkAction::Retry => operators.retry_dead(select, &operator).await?,
        BulkAction::Discard => operators.discard_dead(select, &operator).await?,
        BulkAction::Resolve => operators.resolve_dead(select, &operator).await?,
    };
    if letters == 0 {
        return Err(none_matches(filters));
    }
    let output = common.output();
    output.object(&json!({ "action": action.name(), "letters": letters }))?;
    output.say(format_args!("{}: {}", counted(letters), action.done()))
}

fn none_matches(filters: &Filters) -> anyhow::Error {
    NotFound(match filters.is_empty() {
        true => "there are no dead letters".to_owned(),
        false => format!("no dead letter matches {}", filters.described()),
    })
    .into()
}

fn counted(letters: u64) -> String {
    if letters == 1 { "1 dead letter".to_owned() } else { format!("{letters} dead letters") }
}
