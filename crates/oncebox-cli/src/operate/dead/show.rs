//! `oncebox dead show`: a dead letter with everything that is known about it.

use anyhow::Result;
use clap::Args;
use oncebox::Operators;
use oncebox::store::{DeadLetter, Place, Select};

use super::letter::LetterField;
use crate::exit::NotFound;
use crate::operate::bytes::{body_text, escaped, key_or_none};
use crate::operate::known::find_handler;
use crate::operate::place::{parse_place, place_text};
use crate::output::CommandOutput;
use crate::store::{DEFAULT_URL, DatabaseTarget};
use crate::times::{ago, rfc3339};

#[derive(Args, Debug)]
pub(super) struct ShowDead {
    /// The place of the message
    #[arg(value_name = "LANE/POSITION", value_parser = parse_place)]
    place: Place,
    /// The handler, if several have given up on the message
    #[arg(long, value_name = "NAME")]
    handler: Option<String>,
}

/// The maximum number of dead letters of one message: more than any kind has handlers.
const LIMIT: u32 = 1_000;

pub(super) async fn run(
    operators: &Operators,
    show: &ShowDead,
    target: &DatabaseTarget,
    output: CommandOutput,
) -> Result<()> {
    let mut select = Select::all().at(show.place);
    if let Some(handler) = &show.handler {
        find_handler(operators, handler).await?;
        select = select.handler(handler);
    }
    let letters = operators.dead_letters(select, LIMIT).await?;
    if letters.is_empty() {
        return Err(none_at(show.place, show.handler.as_deref()));
    }
    for (n, letter) in letters.iter().enumerate() {
        output.object(&LetterField::whole(letter))?;
        if n > 0 {
            output.line("")?;
        }
        output.line(full_text(letter, target))?;
    }
    Ok(())
}

/// The error for a missing dead letter.
pub(super) fn none_at(place: Place, handler: Option<&str>) -> anyhow::Error {
    let of = handler.map(|name| format!(" of the handler {name}")).unwrap_or_default();
    NotFound(format!("there is no dead letter{of} at {}: `oncebox dead list` lists them", place_text(place)))
        .into()
}

fn full_text(letter: &DeadLetter, target: &DatabaseTarget) -> String {
    let mut lines = vec![
        format!("place:     {}", place_text(letter.place)),
        format!("handler:   {}", letter.handler),
        format!("kind:      {}", letter.kind),
        format!("key:       {}", key_or_none(letter.key.as_ref())),
        format!("received:  {}", rfc3339(letter.received_at)),
        format!("died:      {} ({})", rfc3339(letter.died_at), ago(letter.died_at)),
        format!("error:     {}", escaped(&letter.error)),
        String::new(),
    ];
    for failed in &letter.attempts {
        if failed.omitted > 0 {
            lines.push(format!("({} attempts are not stored)", failed.omitted));
        }
        lines.push(format!("attempt {}: {}  {}", failed.attempt, rfc3339(failed.at), escaped(&failed.error)));
    }
    lines.extend([String::new(), body_text(&letter.body), String::new()]);
    lines.push("Next steps:".to_owned());
    lines.extend(next_steps(letter, target));
    lines.join("\n")
}

/// Commands to copy into a shell.
fn next_steps(letter: &DeadLetter, target: &DatabaseTarget) -> Vec<String> {
    // With the handler, because several handlers may have a dead letter at this place.
    let which = format!("--at {} --handler {}", place_text(letter.place), quoted(&letter.handler));
    let edit = format!("{} --handler {}", place_text(letter.place), quoted(&letter.handler));
    let rest = connection(target);
    vec![
        format!("  oncebox dead retry {which}{rest}"),
        format!("  oncebox dead edit {edit} --body corrected.json{rest}"),
        format!("  oncebox dead resolve {which}{rest}"),
        format!("  oncebox dead discard {which}{rest}"),
    ]
}

/// The options that select the same database. A URL with a password is left out; it can be in ONCEBOX_STORE.
fn connection(target: &DatabaseTarget) -> String {
    let mut options = String::new();
    if target.url != DEFAULT_URL && target.redacted_url() == target.url {
        options.push_str(&format!(" --store {}", quoted(&target.url)));
    }
    if let Some(schema) = &target.schema {
        options.push_str(&format!(" --schema {}", quoted(schema)));
    }
    options
}

/// Quotes a word for a shell.
fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./:@%+=,".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shell_reads_a_quoted_word_unchanged() {
        assert_eq!(quoted("ledger"), "ledger");
        assert_eq!(quoted("it's $HOME"), r"'it'\''s $HOME'");
        assert_eq!(quoted(""), "''");
    }

    #[test]
    fn next_steps_have_no_password() {
        let target = |url: &str, schema: Option<&str>| DatabaseTarget {
            url: url.into(),
            schema: schema.map(Into::into),
        };
        assert_eq!(connection(&target(DEFAULT_URL, None)), "");
        assert_eq!(connection(&target("postgres://ann:secret@db/x", Some("a"))), " --schema a");
        assert_eq!(connection(&target("sqlite://a b.db", None)), " --store 'sqlite://a b.db'");
    }
}
