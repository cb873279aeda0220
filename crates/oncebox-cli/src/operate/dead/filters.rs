//! Which dead letters are meant.

use std::time::SystemTime;

use anyhow::Result;
use clap::Args;
use oncebox::Operators;
use oncebox::store::{Place, Select};

use crate::operate::known::find_handler;
use crate::operate::place::{parse_place, shown};
use crate::times::{parse_time, rfc3339};

#[derive(Args, Debug, Default)]
pub(super) struct Filters {
    /// Those of one handler
    #[arg(long, value_name = "NAME")]
    pub(super) handler: Option<String>,
    /// Those of one kind of message
    #[arg(long)]
    kind: Option<String>,
    /// Those whose last error contains this, in any case
    #[arg(long, value_name = "TEXT")]
    error: Option<String>,
    /// Those that died since then: how long ago, as in 30m or 2d, or a time as in 2026-01-31T12:00:00Z
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    since: Option<SystemTime>,
    /// Those that died before then
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    before: Option<SystemTime>,
    /// Those of one message
    #[arg(long, value_name = "LANE/POSITION", value_parser = parse_place)]
    at: Option<Place>,
}

impl Filters {
    /// As the store takes them.
    pub(super) fn select(&self) -> Select {
        let mut select = Select::all();
        if let Some(handler) = &self.handler {
            select = select.handler(handler);
        }
        if let Some(kind) = &self.kind {
            select = select.kind(kind);
        }
        if let Some(error) = &self.error {
            select = select.error(error);
        }
        if let Some(since) = self.since {
            select = select.died_after(since);
        }
        if let Some(before) = self.before {
            select = select.died_before(before);
        }
        if let Some(place) = self.at {
            select = select.at(place);
        }
        select
    }

    /// Whether all are meant.
    pub(super) fn is_empty(&self) -> bool {
        self.select() == Select::all()
    }

    /// A handler that there is not is a mistake, and no reason to find nothing.
    pub(super) async fn check(&self, operators: &Operators) -> Result<()> {
        if let Some(handler) = &self.handler {
            find_handler(operators, handler).await?;
        }
        Ok(())
    }

    /// What was said, for sentences.
    pub(super) fn described(&self) -> String {
        let said = [
            self.handler.as_ref().map(|name| format!("--handler {name}")),
            self.kind.as_ref().map(|kind| format!("--kind {kind}")),
            self.error.as_ref().map(|text| format!("--error {text:?}")),
            self.since.map(|time| format!("--since {}", rfc3339(time))),
            self.before.map(|time| format!("--before {}", rfc3339(time))),
            self.at.map(|place| format!("--at {}", shown(place))),
        ];
        let said: Vec<String> = said.into_iter().flatten().collect();
        if said.is_empty() { "--all".to_owned() } else { said.join(" ") }
    }
}
