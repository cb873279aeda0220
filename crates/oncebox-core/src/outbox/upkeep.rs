//! The upkeep of a database by an outbox: deletes sent messages, and everything else where no inbox does it.

use std::time::{Duration, Instant};

use crate::error::chain;
use crate::inbox::{Pruning, prune, prune_sent, sweep};
use crate::outbox::{OutboxParts, OutboxStore};
use crate::retention::Retention;
use crate::{Error, Mode};

/// How often sent messages are deleted.
const PRUNE_EVERY: Duration = Duration::from_secs(10 * 60);

/// What the upkeep covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum UpkeepScope {
    /// Sent messages only: an inbox of this process does the rest, and knows its retention.
    SentMessages,
    /// Everything, if the database has no handlers.
    Database,
}

/// Runs the upkeep beside a future, until that ends.
pub(super) async fn beside<S: OutboxStore, T>(
    parts: &OutboxParts<S>,
    scope: UpkeepScope,
    work: impl Future<Output = T>,
) -> T {
    tokio::select! {
        ended = work => ended,
        () = keep_up(parts, scope) => unreachable!("the upkeep has no end"),
    }
}

async fn keep_up<S: OutboxStore>(parts: &OutboxParts<S>, scope: UpkeepScope) {
    let retention = Retention::default();
    let mut next_prune = Instant::now();
    loop {
        let is_due = Instant::now() >= next_prune;
        match keep_up_once(parts, scope, retention, is_due).await {
            Ok(()) if is_due => next_prune = Instant::now() + PRUNE_EVERY,
            Ok(()) => {}
            Err(error) => {
                tracing::debug!(
                    error = chain(&error),
                    "could not delete sent messages: another attempt follows"
                );
            }
        }
        tokio::time::sleep(retention.beat_every()).await;
    }
}

async fn keep_up_once<S: OutboxStore>(
    parts: &OutboxParts<S>,
    scope: UpkeepScope,
    retention: Retention,
    is_due: bool,
) -> Result<(), Error> {
    let (store, observer) = (&parts.store, parts.observer);
    let has_inbox = scope == UpkeepScope::SentMessages || has_handlers(store).await?;
    // An inbox knows how long its messages and markers are kept, and its time counts. Without one, accepted keys of sent messages
    // would stay for ever.
    if !has_inbox {
        store.beat(retention.tolerance()).await?;
    }
    if !is_due {
        return Ok(());
    }
    prune_sent(store, parts.relays.lanes(), observer).await?;
    if !has_inbox {
        sweep(store, retention, Duration::ZERO, observer).await?;
        let pruning = Pruning { lanes: parts.relays.lanes(), keep_messages: retention.period, retention };
        prune(store, pruning, observer).await?;
    }
    Ok(())
}

/// Whether the database has handlers, so that an inbox somewhere works on it.
async fn has_handlers<S: OutboxStore>(store: &S) -> Result<bool, Error> {
    let statuses = store.handler_statuses().await?;
    let mut handlers = statuses.iter().map(|status| &status.handler);
    Ok(handlers.any(|handler| handler.state.is_registered() && handler.mode != Mode::Relay))
}
