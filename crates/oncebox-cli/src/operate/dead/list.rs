//! `oncebox dead list`: dead letters, oldest first.

use anyhow::Result;
use clap::Args;
use oncebox::Operators;

use super::filters::LetterOwner;
use super::letter::LetterField;
use crate::operate::bytes::{escaped, key_or_none};
use crate::operate::place::place_text;
use crate::output::CommandOutput;
use crate::table::{TextTable, shortened};
use crate::times::ago;

#[derive(Args, Debug)]
pub(crate) struct ListLetters<F: LetterOwner> {
    #[command(flatten)]
    filters: F,
    /// The maximum number of them
    #[arg(long, value_name = "NUMBER", default_value_t = LIMIT, value_parser = clap::value_parser!(u32).range(1..))]
    limit: u32,
}

const LIMIT: u32 = 20;

/// Services choose the length of their errors, so a table cuts them.
const ERROR_MAX_CHARS: usize = 80;

impl<F: LetterOwner> Default for ListLetters<F> {
    fn default() -> Self {
        Self { filters: F::default(), limit: LIMIT }
    }
}

pub(crate) async fn run<F: LetterOwner>(
    operators: &Operators,
    list: &ListLetters<F>,
    output: CommandOutput,
) -> Result<()> {
    let letters = list.filters.selection(operators).await?.letters(operators, list.limit).await?;
    let names = ["place", F::WORDS.owner, "kind", "key", "died", "attempts", "error"];
    let mut table = TextTable::new(names).right([5]);
    for letter in &letters {
        output.object(&LetterField::new(letter))?;
        table.row([
            place_text(letter.place),
            letter.handler.clone(),
            letter.kind.clone(),
            key_or_none(letter.key.as_ref()),
            ago(letter.died_at),
            letter.attempt_count().to_string(),
            shortened(&escaped(&letter.error), ERROR_MAX_CHARS),
        ]);
    }
    if letters.is_empty() {
        return output.line(format_args!("No {}.", F::WORDS.several()));
    }
    output.line(table)?;
    if letters.len() == usize::try_from(list.limit).unwrap_or(usize::MAX) {
        output.line(format_args!("There may be more than {}: raise --limit.", list.limit))?;
    }
    Ok(())
}
