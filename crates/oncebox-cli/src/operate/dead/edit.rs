//! `oncebox dead edit`.

use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::Args;
use oncebox::Operators;
use oncebox::store::{Place, Select};
use serde_json::json;

use super::show::none_at;
use crate::cli::Common;
use crate::operate::known::find_handler;
use crate::operate::place::{parse_place, shown};

#[derive(Args, Debug)]
pub(super) struct Edit {
    /// Where its message sits
    #[arg(value_name = "LANE/POSITION", value_parser = parse_place)]
    place: Place,
    /// Whose dead letter it is
    #[arg(long, value_name = "NAME")]
    handler: String,
    /// The corrected body; - reads it from standard input
    #[arg(long, value_name = "FILE")]
    body: PathBuf,
}

pub(super) async fn run(operators: &Operators, edit: &Edit, common: &Common) -> Result<()> {
    let Edit { place, handler, body } = edit;
    find_handler(operators, handler).await?;
    let select = Select::all().at(*place).handler(handler);
    if operators.dead_letters(select.clone(), 1).await?.is_empty() {
        return Err(none_at(*place, Some(handler)));
    }
    let body = read(body)?;
    let bytes = body.len();
    if operators.edit_dead(select, body, &common.operator()?).await? == 0 {
        // Another operator was faster.
        return Err(none_at(*place, Some(handler)));
    }
    let output = common.output();
    output.object(&json!({
        "action": "edit",
        "handler": handler,
        "place": shown(*place),
        "letters": 1,
        "body_bytes": bytes,
    }))?;
    output.say(format_args!("{handler} will try {} again, with a body of {bytes} bytes", shown(*place)))
}

fn read(file: &Path) -> Result<Vec<u8>> {
    if file != Path::new("-") {
        return std::fs::read(file).with_context(|| format!("reading the body from {}", file.display()));
    }
    let mut body = Vec::new();
    std::io::stdin().read_to_end(&mut body).context("reading the body from standard input")?;
    Ok(body)
}
