//! `oncebox outbox replay`: sends messages again that are still in the log.

use std::time::{Duration, SystemTime};

use anyhow::Result;
use clap::Args;
use oncebox::Operators;
use oncebox::store::{HandlerStatus, ReplayFrom};
use serde_json::json;

use crate::cli::CommonArgs;
use crate::exit::NotFound;
use crate::operate::handlers::ReplayStart;
use crate::operate::known::find_relay;
use crate::times::{rfc3339, rough};

#[derive(Args, Debug)]
pub(super) struct ReplayRelay {
    /// The relay
    name: String,
    #[command(flatten)]
    from: ReplayStart,
}

pub(super) async fn run(operators: &Operators, replay: &ReplayRelay, common: &CommonArgs) -> Result<()> {
    let name = &replay.name;
    let relay = find_relay(operators, name).await?;
    let from = replay.from.place();
    if let ReplayFrom::Time(since) = from {
        check_kept(operators, &relay, since).await?;
    }
    let replayed = operators.replay(name, from, &common.operator()?).await?;
    let output = common.output();
    output.object(&json!({
        "action": "replay",
        "relay": name,
        "positions": replayed.positions,
        "retries": replayed.tasks,
        "parked": replayed.dead,
    }))?;
    output.line(format_args!(
        "{name} replays {} positions; {} of its retries and {} of its parked messages are waiting messages again. Copies have the \
         ids that they had before, so a receiver can drop them",
        replayed.positions, replayed.tasks, replayed.dead
    ))
}

/// Refuses a time of which messages are pruned: they would be missing without a trace.
async fn check_kept(operators: &Operators, relay: &HandlerStatus, since: SystemTime) -> Result<()> {
    let Some(keep) = relay.handler.keep else { return Ok(()) };
    let age = operators.database_time().await?.duration_since(since).unwrap_or_default();
    if age <= keep {
        return Ok(());
    }
    let (mut is_pruned, mut oldest) = (false, None);
    for lane in 0..operators.lanes().await? {
        match &operators.messages(lane, 0, 1).await?[..] {
            [first] => {
                // Messages are pruned from the front of a lane.
                is_pruned |= first.message.place.pos > 1 && first.received_at > since;
                oldest = oldest.into_iter().chain([first.received_at]).min();
            }
            // All were pruned, or there never was one: the log does not tell.
            _ => is_pruned |= relay.passed + relay.lag > 0,
        }
    }
    match is_pruned {
        true => Err(NotFound(not_kept(&relay.handler.name, since, keep, oldest)).into()),
        false => Ok(()),
    }
}

fn not_kept(relay: &str, since: SystemTime, keep: Duration, oldest: Option<SystemTime>) -> String {
    let oldest = match oldest {
        Some(oldest) => format!("the oldest one that is left is from {}", rfc3339(oldest)),
        None => "none is left".to_owned(),
    };
    format!(
        "messages since {} may be pruned: {relay} keeps sent messages for {}, and {oldest}. Nothing was replayed. To send those that \
         are left: `oncebox outbox replay {relay} --all`",
        rfc3339(since),
        rough(keep)
    )
}
