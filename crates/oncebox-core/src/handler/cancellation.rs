//! Telling a handler that it need not go on.

use tokio::sync::watch;

use crate::Failure;
use crate::handler::{Delivery, FromDelivery};

/// Tells a detached handler that its process was taken for dead: somebody else may be running the same message, and what this run
/// comes to does not count. Handlers in a transaction are never told.
#[derive(Clone, Debug)]
pub struct Cancellation(Option<watch::Receiver<bool>>);

/// The other end.
#[derive(Debug)]
pub(crate) struct Cancel(watch::Sender<bool>);

impl Cancel {
    pub(crate) fn new() -> Self {
        Self(watch::Sender::new(false))
    }

    pub(crate) fn cancellation(&self) -> Cancellation {
        Cancellation(Some(self.0.subscribe()))
    }

    pub(crate) fn cancel(&self) {
        self.0.send_replace(true);
    }
}

impl Cancellation {
    pub(crate) fn never() -> Self {
        Self(None)
    }

    /// Whether it was told so.
    pub fn is_cancelled(&self) -> bool {
        self.0.as_ref().is_some_and(|told| *told.borrow())
    }

    /// Waits until it is told so.
    pub async fn cancelled(&self) {
        if let Some(told) = &self.0
            && told.clone().wait_for(|told| *told).await.is_ok()
        {
            return;
        }
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
    async fn those_who_came_before_and_after_are_told() {
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
