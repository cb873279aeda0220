//! `oncebox dead show`.

use anyhow::Result;
use clap::Args;
use oncebox::Operators;
use oncebox::store::{DeadLetter, Place, Select};

use super::letter::LetterField;
use crate::exit::NotFound;
use crate::operate::bytes::{body_text, harmless, key_or_none};
use crate::operate::known::find_handler;
use crate::operate::place::{parse_place, shown};
use crate::output::Output;
use crate::store::{DEFAULT_URL, Target};
use crate::times::{ago, rfc3339};

#[derive(Args, Debug)]
pub(super) struct Show {
    /// Where its message sits
    #[arg(value_name = "LANE/POSITION", value_parser = parse_place)]
    place: Place,
    /// That of one handler only
    #[arg(long, value_name = "NAME")]
    handler: Option<String>,
}

/// No message has more handlers than that.
const MANY: u32 = 1_000;

pub(super) async fn run(operators: &Operators, show: &Show, target: &Target, output: Output) -> Result<()> {
    let mut select = Select::all().at(show.place);
    if let Some(handler) = &show.handler {
        find_handler(operators, handler).await?;
        select = select.handler(handler);
    }
    let letters = operators.dead_letters(select, MANY).await?;
    if letters.is_empty() {
        return Err(none_at(show.place, show.handler.as_deref()));
    }
    for (n, letter) in letters.iter().enumerate() {
        output.object(&LetterField::whole(letter))?;
        if n > 0 {
            output.say("")?;
        }
        output.say(in_full(letter, target))?;
    }
    Ok(())
}

/// There is no such dead letter.
pub(super) fn none_at(place: Place, handler: Option<&str>) -> anyhow::Error {
    let of = handler.map(|name| format!(" of the handler {name}")).unwrap_or_default();
    NotFound(format!(
        "there is no dead letter{of} at {}: `oncebox dead list` shows those that there are",
        shown(place)
    ))
    .into()
}

fn in_full(letter: &DeadLetter, target: &Target) -> String {
    let mut lines = vec![
        format!("place:     {}", shown(letter.place)),
        format!("handler:   {}", letter.handler),
        format!("kind:      {}", letter.kind),
        format!("key:       {}", key_or_none(letter.key.as_ref())),
        format!("received:  {}", rfc3339(letter.received_at)),
        format!("died:      {} ({})", rfc3339(letter.died_at), ago(letter.died_at)),
        format!("error:     {}", harmless(&letter.error)),
        String::new(),
    ];
    for past in &letter.attempts {
        if past.omitted > 0 {
            lines.push(format!("({} attempts in between are not kept)", past.omitted));
        }
        lines.push(format!("attempt {}: {}  {}", past.attempt, rfc3339(past.at), harmless(&past.error)));
    }
    lines.extend([String::new(), body_text(&letter.body), String::new()]);
    lines.push("What can be done:".to_owned());
    lines.extend(next_steps(letter, target));
    lines.join("\n")
}

/// To be copied into a shell.
fn next_steps(letter: &DeadLetter, target: &Target) -> Vec<String> {
    let which = format!("--at {} --handler {}", shown(letter.place), quoted(&letter.handler));
    let edit = format!("{} --handler {}", shown(letter.place), quoted(&letter.handler));
    let rest = connection(target);
    vec![
        format!("  oncebox dead retry {which}{rest}"),
        format!("  oncebox dead edit {edit} --body corrected.json{rest}"),
        format!("  oncebox dead resolve {which}{rest}"),
        format!("  oncebox dead discard {which}{rest}"),
    ]
}

/// How to get to the same database. A password is not shown: whoever needs one has it in ONCEBOX_STORE.
fn connection(target: &Target) -> String {
    let mut options = String::new();
    if target.url != DEFAULT_URL && target.shown() == target.url {
        options.push_str(&format!(" --store {}", quoted(&target.url)));
    }
    if let Some(schema) = &target.schema {
        options.push_str(&format!(" --schema {}", quoted(schema)));
    }
    options
}

/// For a shell.
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
    fn a_shell_reads_names_as_they_are() {
        assert_eq!(quoted("ledger"), "ledger");
        assert_eq!(quoted("it's $HOME"), r"'it'\''s $HOME'");
        assert_eq!(quoted(""), "''");
    }

    #[test]
    fn no_password_is_copied() {
        let target =
            |url: &str, schema: Option<&str>| Target { url: url.into(), schema: schema.map(Into::into) };
        assert_eq!(connection(&target(DEFAULT_URL, None)), "");
        assert_eq!(connection(&target("postgres://ann:secret@db/x", Some("a"))), " --schema a");
        assert_eq!(connection(&target("sqlite://a b.db", None)), " --store 'sqlite://a b.db'");
    }
}
