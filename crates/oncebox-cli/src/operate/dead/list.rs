//! `oncebox dead list`.

use anyhow::Result;
use clap::Args;
use oncebox::Operators;

use super::filters::Filters;
use super::letter::LetterField;
use crate::operate::bytes::{harmless, key_or_none};
use crate::operate::place::shown;
use crate::output::Output;
use crate::table::{Table, shortened};
use crate::times::ago;

#[derive(Args, Debug)]
pub(super) struct List {
    #[command(flatten)]
    filters: Filters,
    /// At most so many
    #[arg(long, value_name = "NUMBER", default_value_t = LIMIT, value_parser = clap::value_parser!(u32).range(1..))]
    limit: u32,
}

const LIMIT: u32 = 20;

/// Errors are as long as they like; a table is not.
const ERROR_LETTERS: usize = 80;

impl Default for List {
    fn default() -> Self {
        Self { filters: Filters::default(), limit: LIMIT }
    }
}

pub(super) async fn run(operators: &Operators, list: &List, output: Output) -> Result<()> {
    list.filters.check(operators).await?;
    let letters = operators.dead_letters(list.filters.select(), list.limit).await?;
    let mut table = Table::new(["place", "handler", "kind", "key", "died", "tries", "error"]).right([5]);
    for letter in &letters {
        output.object(&LetterField::new(letter))?;
        table.row([
            shown(letter.place),
            letter.handler.clone(),
            letter.kind.clone(),
            key_or_none(letter.key.as_ref()),
            ago(letter.died_at),
            letter.attempt_count().to_string(),
            shortened(&harmless(&letter.error), ERROR_LETTERS),
        ]);
    }
    if letters.is_empty() {
        return output.say("No dead letters.");
    }
    output.say(table)?;
    if letters.len() == usize::try_from(list.limit).unwrap_or(usize::MAX) {
        output.say(format_args!("There may be more: --limit shows more than {}.", list.limit))?;
    }
    Ok(())
}
