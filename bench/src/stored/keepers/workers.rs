//! Workers of a baseline: each takes batches until the meter's goal is reached.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use tokio::task::JoinSet;

use crate::stored::meter::Meter;

/// The pause of a worker that found no messages.
const PAUSE: Duration = Duration::from_millis(2);

/// Runs batches on this many workers. A batch returns the number of messages that it handled.
pub(super) async fn work<B, F>(workers: usize, meter: &Arc<Meter>, batch: B) -> Result<u64>
where
    B: Fn() -> F + Clone + Send + 'static,
    F: Future<Output = Result<u64>> + Send + 'static,
{
    let mut running = JoinSet::new();
    for _ in 0..workers {
        let (meter, batch) = (meter.clone(), batch.clone());
        running.spawn(async move {
            let mut all = 0;
            while !meter.is_enough() {
                match batch().await? {
                    0 => tokio::time::sleep(PAUSE).await,
                    done => {
                        all += done;
                        meter.add(done);
                    }
                }
            }
            Ok(all)
        });
    }
    let mut all = 0;
    while let Some(ended) = running.join_next().await {
        let ended: Result<u64> = ended.context("a worker panicked")?;
        all += ended?;
    }
    Ok(all)
}
