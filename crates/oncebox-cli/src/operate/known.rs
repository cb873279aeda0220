//! The handlers that are registered in the database, by name.

use anyhow::Result;
use oncebox::store::{HandlerState, HandlerStatus};
use oncebox::{Mode, Operators};

use crate::exit::NotFound;

/// All handlers without the removed ones.
pub(crate) async fn handlers(operators: &Operators) -> Result<Vec<HandlerStatus>> {
    let mut statuses = operators.handler_statuses().await?;
    statuses.retain(|status| status.handler.state != HandlerState::Removed);
    Ok(statuses)
}

/// The handler of that name. Otherwise an error with the known names.
pub(crate) async fn find_handler(operators: &Operators, name: &str) -> Result<HandlerStatus> {
    find("handler", name, handlers(operators).await?)
}

fn find(what: &str, name: &str, statuses: Vec<HandlerStatus>) -> Result<HandlerStatus> {
    let names: Vec<String> = statuses.iter().map(|status| status.handler.name.clone()).collect();
    let found = statuses.into_iter().find(|status| status.handler.name == name);
    found.ok_or_else(|| NotFound(not_known(what, name, &names)).into())
}

/// All relays without the removed ones.
pub(crate) async fn relays(operators: &Operators) -> Result<Vec<HandlerStatus>> {
    let mut statuses = handlers(operators).await?;
    statuses.retain(is_relay);
    Ok(statuses)
}

/// Whether this is a relay, and no handler of an inbox.
pub(crate) fn is_relay(status: &HandlerStatus) -> bool {
    status.handler.mode == Mode::Relay
}

/// The relay of that name. Otherwise an error with the known names.
pub(crate) async fn find_relay(operators: &Operators, name: &str) -> Result<HandlerStatus> {
    let statuses = handlers(operators).await?;
    if statuses.iter().any(|status| status.handler.name == name && !is_relay(status)) {
        let text = format!("{name} is a handler, and not a relay: use `oncebox handlers` and `oncebox dead`");
        return Err(NotFound(text).into());
    }
    find("relay", name, statuses.into_iter().filter(is_relay).collect())
}

/// The state's name, in tables and in JSON.
pub(crate) fn state_name(state: HandlerState) -> &'static str {
    match state {
        HandlerState::Active => "active",
        HandlerState::Paused => "paused",
        HandlerState::Removed => "removed",
        HandlerState::Renamed => "renamed",
    }
}

fn not_known(what: &str, name: &str, names: &[String]) -> String {
    let known = match names {
        [] => "none is registered".to_owned(),
        names => format!("known: {}", names.join(", ")),
    };
    match nearest(name, names) {
        Some(similar) => format!("there is no {what} {name:?}. Did you mean {similar:?}? ({known})"),
        None => format!("there is no {what} {name:?} ({known})"),
    }
}

/// The most similar name, if it differs by few letters.
fn nearest<'n>(name: &str, names: &'n [String]) -> Option<&'n str> {
    // A third of the letters: more would suggest unrelated names.
    let max = (name.chars().count() / 3).max(1);
    let near = names.iter().map(|known| (distance(name, known), known.as_str()));
    near.filter(|(changes, _)| *changes <= max).min().map(|(_, known)| known)
}

/// The number of letters to add, remove or replace (Levenshtein distance).
fn distance(from: &str, to: &str) -> usize {
    let to: Vec<char> = to.chars().collect();
    let mut row: Vec<usize> = (0..=to.len()).collect();
    for (i, letter) in from.chars().enumerate() {
        let mut before = i;
        row[0] = i + 1;
        for (j, other) in to.iter().enumerate() {
            let replaced = before + usize::from(letter != *other);
            before = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(before + 1);
        }
    }
    row[to.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_similar_name_is_suggested() {
        let names = ["ledger".to_owned(), "receipts".to_owned()];
        assert_eq!(nearest("legder", &names), Some("ledger"));
        assert_eq!(nearest("receipt", &names), Some("receipts"));
        assert_eq!(nearest("mail", &names), None);
        assert_eq!(distance("", "abc"), 3);
        assert_eq!(distance("kitten", "sitting"), 3);
        assert!(not_known("handler", "legder", &names).contains("Did you mean \"ledger\""));
    }
}
