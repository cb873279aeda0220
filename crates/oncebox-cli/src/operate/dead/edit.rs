//! `oncebox dead edit`: retries a dead letter with a corrected body.

use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::Args;
use oncebox::Operators;
use oncebox::store::{Place, Select};
use serde_json::json;

use super::show::none_at;
use crate::cli::CommonArgs;
use crate::operate::known::find_handler;
use crate::operate::place::{parse_place, place_text};

#[derive(Args, Debug)]
pub(super) struct EditDead {
    /// The place of the message
    #[arg(value_name = "LANE/POSITION", value_parser = parse_place)]
    place: Place,
    /// The handler of the dead letter
    #[arg(long, value_name = "NAME")]
    handler: String,
    /// The file with the corrected body; - is standard input
    #[arg(long, value_name = "FILE")]
    body: PathBuf,
}

pub(super) async fn run(operators: &Operators, edit: &EditDead, common: &CommonArgs) -> Result<()> {
    let EditDead { place, handler, body } = edit;
    find_handler(operators, handler).await?;
    let select = Select::all().at(*place).handler(handler);
    if operators.dead_letters(select.clone(), 1).await?.is_empty() {
        return Err(none_at(*place, Some(handler)));
    }
    // Only now, so that a wrong place is reported before standard input is read.
    let body = read(body)?;
    let bytes = body.len();
    if operators.edit_dead(select, body, &common.operator()?).await? == 0 {
        // Another operator has acted on it since the query.
        return Err(none_at(*place, Some(handler)));
    }
    let output = common.output();
    output.object(&json!({
        "action": "edit",
        "handler": handler,
        "place": place_text(*place),
        "letters": 1,
        "body_bytes": bytes,
    }))?;
    output.line(format_args!("{handler} will retry {} with a body of {bytes} bytes", place_text(*place)))
}

fn read(file: &Path) -> Result<Vec<u8>> {
    if file != Path::new("-") {
        return std::fs::read(file).with_context(|| format!("cannot read the body from {}", file.display()));
    }
    let mut body = Vec::new();
    std::io::stdin().read_to_end(&mut body).context("cannot read the body from standard input")?;
    Ok(body)
}
