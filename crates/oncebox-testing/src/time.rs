//! Time travel: retention, retries and schedules without waiting.

use std::time::Duration;

use oncebox_core::Error;
use oncebox_core::store::{TestTime, Upkeep};

/// Moves a store's clock forward, and records the heartbeats of that time.
///
/// Retention counts only time in which a process was running, so [`TestTime::travel`] alone expires no marker. After this
/// function it is as if the inbox had been running all the while. Call [`Inbox::sweep`](oncebox_core::Inbox::sweep) or
/// [`prune`](oncebox_core::Inbox::prune) to delete what has expired.
pub async fn travel<S: Upkeep + TestTime>(store: &S, time: Duration) -> Result<(), Error> {
    // The first heartbeat ends now. The second one extends it to the time of arrival, so the gap counts as live time.
    store.beat(MARGIN).await?;
    store.travel(time);
    store.beat(time.saturating_add(MARGIN)).await
}

/// Between two heartbeats the test's own statements take time too.
const MARGIN: Duration = Duration::from_secs(60);
