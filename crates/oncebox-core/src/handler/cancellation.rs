//! Cancellation of detached handlers whose lease has expired.

use tokio::sync::watch;

use crate::Failure;
use crate::handler::{Delivery, FromDelivery};

/// The signal that a detached handler's lease has expired.
///
/// Another process may run the same message then, and the outcome of this run is not recorded. Handlers in a transaction
/// never receive the signal.
#[derive(Clone, Debug)]
pub struct Cancellation(Option<watch::Receiver<bool>>);

/// The sender of the signal.
#[derive(Debug)]
// A `watch`, not a `Notify`: it keeps the signal for handlers that ask later.
pub(crate) struct Cancel(watch::Sender<bool>);

impl Cancel {
    pub(crate) fn new() -> Self {
        Self(watch::Sender::new(false))
    }

    pub(crate) fn cancellation(&self) -> Cancellation {
        Cancellation(Some(self.0.subscribe()))
    }

    pub(crate) fn cancel(&self) {
        // Not `send`: without a receiver it would drop the value, and later subscribers would miss the signal.
        self.0.send_replace(true);
    }
}

impl Cancellation {
    pub(crate) fn never() -> Self {
        Self(None)
    }

    /// Whether the lease has expired.
    pub fn is_cancelled(&self) -> bool {
        self.0.as_ref().is_some_and(|cancelled| *cancelled.borrow())
    }

    /// Waits until the lease has expired; for ever if it does not.
    pub async fn cancelled(&self) {
        // On a clone: waiting needs `&mut`, and handlers share one `Cancellation`.
        if let Some(receiver) = &self.0
            && receiver.clone().wait_for(|cancelled| *cancelled).await.is_ok()
        {
            return;
        }
        // The run has ended without a cancellation: none can follow.
        std::future::pending::<()>().await;
    }
}

impl FromDelivery for Cancellation {
    fn from_delivery(delivery: &Delivery) -> Result<Self, Failure> {
        Ok(delivery.cancellation.clone())
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[tokio::test]
    async fn cancellations_made_before_and_after_the_signal_receive_it() {
        let cancel = Cancel::new();
        let before = cancel.cancellation();
        assert!(!before.is_cancelled());
        assert!(before.cancelled().now_or_never().is_none());
        cancel.cancel();
        before.cancelled().await;
        assert!(before.is_cancelled() && cancel.cancellation().is_cancelled());
        assert!(Cancellation::never().cancelled().now_or_never().is_none());
    }
}
