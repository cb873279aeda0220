//! `oncebox audit`: the actions of operators.

use std::process::ExitCode;

use anyhow::Result;
use oncebox::Operators;
use oncebox::store::AuditEntry;
use serde_json::json;

use crate::cli::CommonArgs;
use crate::operate::place::place_text;
use crate::output::CommandOutput;
use crate::store::{DatabaseTarget, OpenPurpose};
use crate::table::TextTable;
use crate::times::{ago, rfc3339};

/// Options of `audit`.
#[derive(clap::Args, Debug)]
pub(crate) struct AuditArgs {
    /// The maximum number of actions
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..))]
    limit: u32,
}

pub(crate) async fn run(common: &CommonArgs, options: &AuditArgs) -> Result<ExitCode> {
    let operators = DatabaseTarget::of(common)?.operators(OpenPurpose::Read).await?;
    list(&operators, options.limit, common.output()).await?;
    Ok(ExitCode::SUCCESS)
}

async fn list(operators: &Operators, limit: u32, output: CommandOutput) -> Result<()> {
    let entries = operators.audit(limit).await?;
    let mut table = TextTable::new(["when", "operator", "action", "handler", "place", "detail"]);
    for entry in &entries {
        output.object(&json_of(entry))?;
        let AuditEntry { at, operator, action, handler, place, detail } = entry;
        table.row([
            ago(*at),
            operator.clone(),
            action.clone(),
            handler.clone(),
            place.map_or_else(|| "-".to_owned(), place_text),
            detail.clone().unwrap_or_default(),
        ]);
    }
    match table.is_empty() {
        true => output.line("No actions yet."),
        false => output.line(table),
    }
}

fn json_of(entry: &AuditEntry) -> serde_json::Value {
    json!({
        "at": rfc3339(entry.at), "operator": entry.operator, "action": entry.action, "handler": entry.handler,
        "lane": entry.place.map(|place| place.lane), "position": entry.place.map(|place| place.pos),
        "detail": entry.detail,
    })
}
