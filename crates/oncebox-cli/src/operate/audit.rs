//! `oncebox audit`: what operators did.

use std::process::ExitCode;

use anyhow::Result;
use oncebox::Operators;
use oncebox::store::AuditEntry;
use serde_json::json;

use crate::cli::Common;
use crate::operate::place::shown;
use crate::output::Output;
use crate::store::{For, Target};
use crate::table::Table;
use crate::times::{ago, rfc3339};

/// How much of it.
#[derive(clap::Args, Debug)]
pub(crate) struct Options {
    /// So many actions at most
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..))]
    limit: u32,
}

pub(crate) async fn run(common: &Common, options: &Options) -> Result<ExitCode> {
    let operators = Target::of(common)?.operators(For::Looking).await?;
    list(&operators, options.limit, common.output()).await?;
    Ok(ExitCode::SUCCESS)
}

async fn list(operators: &Operators, limit: u32, output: Output) -> Result<()> {
    let entries = operators.audit(limit).await?;
    let mut table = Table::new(["when", "operator", "action", "handler", "place", "detail"]);
    for entry in &entries {
        output.object(&for_programs(entry))?;
        let AuditEntry { at, operator, action, handler, place, detail } = entry;
        table.row([
            ago(*at),
            operator.clone(),
            action.clone(),
            handler.clone(),
            place.map_or_else(|| "-".to_owned(), shown),
            detail.clone().unwrap_or_default(),
        ]);
    }
    match table.is_empty() {
        true => output.say("No operator has done anything yet."),
        false => output.say(table),
    }
}

fn for_programs(entry: &AuditEntry) -> serde_json::Value {
    json!({
        "at": rfc3339(entry.at), "operator": entry.operator, "action": entry.action, "handler": entry.handler,
        "lane": entry.place.map(|place| place.lane), "position": entry.place.map(|place| place.pos),
        "detail": entry.detail,
    })
}
