//! Filters that select dead letters: of handlers and relays, or of relays only.

use std::time::SystemTime;

use anyhow::Result;
use clap::Args;
use oncebox::Operators;
use oncebox::store::{DeadLetter, Place, Select};

use crate::operate::known::{find_handler, find_relay, relays};
use crate::operate::place::{parse_place, place_text};
use crate::times::{parse_time, rfc3339};

/// The conditions on dead letters, apart from whose they are.
#[derive(Args, Debug, Default)]
pub(crate) struct LetterFilters {
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

impl LetterFilters {
    /// The filters in the store's form.
    fn select(&self) -> Select {
        let mut select = Select::all();
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

    /// The filters as they are written on the command line, behind the one of their owner.
    fn described(&self, owner: Option<String>) -> String {
        let filters = [
            owner,
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

/// Options that select dead letters.
pub(crate) trait LetterOwner: Args + Default {
    /// The option that names the owner, for error texts.
    const OPTION: &'static str;
    /// The words for these dead letters.
    const WORDS: LetterWords;

    /// Whether no filter is set.
    fn is_empty(&self) -> bool;

    /// The selected dead letters. An unknown owner is an error. Otherwise a typing mistake would look like an empty result.
    fn selection(&self, operators: &Operators) -> impl Future<Output = Result<LetterSelection>> + Send;
}

/// The words for dead letters of handlers and relays, or of relays only.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LetterWords {
    /// One of them.
    one: &'static str,
    /// Several of them.
    several: &'static str,
    /// The column of their owners.
    pub(crate) owner: &'static str,
    /// The command that acts on them.
    pub(crate) command: &'static str,
}

impl LetterWords {
    /// Their number.
    pub(crate) fn counted(self, letters: u64) -> String {
        if letters == 1 { format!("1 {}", self.one) } else { format!("{letters} {}", self.several) }
    }

    /// One of them.
    pub(crate) fn one(self) -> &'static str {
        self.one
    }

    /// Several of them.
    pub(crate) fn several(self) -> &'static str {
        self.several
    }
}

/// Filters for dead letters of handlers and relays.
#[derive(Args, Debug, Default)]
pub(crate) struct DeadFilters {
    /// Dead letters of this handler or relay
    #[arg(long, value_name = "NAME")]
    handler: Option<String>,
    #[command(flatten)]
    letters: LetterFilters,
}

impl LetterOwner for DeadFilters {
    const OPTION: &'static str = "--handler NAME";
    const WORDS: LetterWords =
        LetterWords { one: "dead letter", several: "dead letters", owner: "handler", command: "dead" };

    fn is_empty(&self) -> bool {
        self.handler.is_none() && self.letters.select() == Select::all()
    }

    async fn selection(&self, operators: &Operators) -> Result<LetterSelection> {
        let mut select = self.letters.select();
        if let Some(handler) = &self.handler {
            find_handler(operators, handler).await?;
            select = select.handler(handler);
        }
        let described = self.letters.described(self.handler.as_ref().map(|name| format!("--handler {name}")));
        Ok(LetterSelection { selects: vec![select], described, has_filters: !self.is_empty() })
    }
}

/// Filters for dead letters of relays.
#[derive(Args, Debug, Default)]
pub(crate) struct ParkedFilters {
    /// Parked messages of this relay
    #[arg(long, value_name = "NAME")]
    relay: Option<String>,
    #[command(flatten)]
    letters: LetterFilters,
}

impl LetterOwner for ParkedFilters {
    const OPTION: &'static str = "--relay NAME";
    const WORDS: LetterWords =
        LetterWords { one: "parked message", several: "parked messages", owner: "relay", command: "outbox" };

    fn is_empty(&self) -> bool {
        self.relay.is_none() && self.letters.select() == Select::all()
    }

    async fn selection(&self, operators: &Operators) -> Result<LetterSelection> {
        let relays = match &self.relay {
            Some(relay) => vec![find_relay(operators, relay).await?],
            None => relays(operators).await?,
        };
        let select = |relay: String| self.letters.select().handler(relay);
        let selects = relays.into_iter().map(|status| select(status.handler.name)).collect();
        let described = self.letters.described(self.relay.as_ref().map(|name| format!("--relay {name}")));
        Ok(LetterSelection { selects, described, has_filters: !self.is_empty() })
    }
}

/// Selected dead letters.
pub(crate) struct LetterSelection {
    /// One selection, or one for each relay.
    pub(crate) selects: Vec<Select>,
    /// The filters as they are written on the command line.
    pub(crate) described: String,
    pub(crate) has_filters: bool,
}

impl LetterSelection {
    /// The dead letters, oldest first.
    pub(crate) async fn letters(&self, operators: &Operators, limit: u32) -> Result<Vec<DeadLetter>> {
        let mut letters = Vec::new();
        for select in &self.selects {
            letters.extend(operators.dead_letters(select.clone(), limit).await?);
        }
        if self.selects.len() > 1 {
            letters.sort_by_key(|letter| letter.died_at);
            letters.truncate(usize::try_from(limit).unwrap_or(usize::MAX));
        }
        Ok(letters)
    }
}
