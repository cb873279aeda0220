//! Filters that select dead letters.

use std::time::SystemTime;

use anyhow::Result;
use clap::Args;
use oncebox::Operators;
use oncebox::store::{Place, Select};

use crate::operate::known::find_handler;
use crate::operate::place::{parse_place, place_text};
use crate::times::{parse_time, rfc3339};

#[derive(Args, Debug, Default)]
pub(super) struct DeadFilters {
    /// Dead letters of this handler
    #[arg(long, value_name = "NAME")]
    pub(super) handler: Option<String>,
    /// Dead letters of this kind
    #[arg(long)]
    kind: Option<String>,
    /// Dead letters whose last error contains this text, in upper or lower case
    #[arg(long, value_name = "TEXT")]
    error: Option<String>,
    /// Became a dead letter since this time: 2026-01-31T12:00:00Z, or how long ago, for example 30m or 2d
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    since: Option<SystemTime>,
    /// Became a dead letter before this time
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    before: Option<SystemTime>,
    /// Dead letters of the message at this place
    #[arg(long, value_name = "LANE/POSITION", value_parser = parse_place)]
    at: Option<Place>,
}

impl DeadFilters {
    /// The filters in the store's form.
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

    /// Whether no filter is set.
    pub(super) fn is_empty(&self) -> bool {
        self.select() == Select::all()
    }

    /// An unknown handler is an error. Otherwise a typing mistake would look like an empty result.
    pub(super) async fn check(&self, operators: &Operators) -> Result<()> {
        if let Some(handler) = &self.handler {
            find_handler(operators, handler).await?;
        }
        Ok(())
    }

    /// The filters as they are written on the command line.
    pub(super) fn described(&self) -> String {
        let filters = [
            self.handler.as_ref().map(|name| format!("--handler {name}")),
            self.kind.as_ref().map(|kind| format!("--kind {kind}")),
            self.error.as_ref().map(|text| format!("--error {text:?}")),
            self.since.map(|time| format!("--since {}", rfc3339(time))),
            self.before.map(|time| format!("--before {}", rfc3339(time))),
            self.at.map(|place| format!("--at {}", place_text(place))),
        ];
        let filters: Vec<String> = filters.into_iter().flatten().collect();
        if filters.is_empty() { "--all".to_owned() } else { filters.join(" ") }
    }
}
