//! The doors: the number of running calls, and whether further ones may start.

use tokio::sync::watch;

use crate::{Error, ErrorKind};

/// Counts running calls, and refuses new ones after closing.
#[derive(Debug)]
pub(crate) struct Doors {
    inside: watch::Sender<Inside>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Inside {
    calls: usize,
    closed: bool,
}

/// A running call. Dropping it ends the call.
#[derive(Debug)]
pub(crate) struct Visit<'d>(&'d Doors);

impl Doors {
    pub(crate) fn open() -> Self {
        Self { inside: watch::Sender::new(Inside::default()) }
    }

    /// Lets a call in, unless the doors are closed. No task waits for this event, so none is woken.
    pub(crate) fn enter(&self) -> Result<Visit<'_>, Error> {
        let mut entered = false;
        self.inside.send_if_modified(|inside| {
            entered = !inside.closed;
            inside.calls += usize::from(entered);
            false
        });
        match entered {
            true => Ok(Visit(self)),
            false => Err(Error::new(
                ErrorKind::Closed,
                "the inbox is closed: deliver to another process, or later",
            )),
        }
    }

    /// Waits until the doors are closed; calls may still run.
    pub(crate) async fn closed(&self) {
        let _ = self.inside.subscribe().wait_for(|inside| inside.closed).await;
    }

    /// Refuses further calls, and returns when all running calls have ended.
    pub(crate) async fn close(&self) {
        self.inside.send_modify(|inside| inside.closed = true);
        // The wait cannot fail: `self` owns the sender.
        let _ = self.inside.subscribe().wait_for(|inside| inside.calls == 0).await;
    }
}

impl Drop for Visit<'_> {
    fn drop(&mut self) {
        // Only `close` waits for running calls, so they wake it only when the doors are closed.
        self.0.inside.send_if_modified(|inside| {
            inside.calls -= 1;
            inside.closed
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn open_doors_wake_no_task_when_a_call_ends() {
        let doors = Doors::open();
        let mut watching = doors.inside.subscribe();
        drop(doors.enter().unwrap());
        assert!(!watching.has_changed().unwrap());
        let visit = doors.enter().unwrap();
        doors.inside.send_modify(|inside| inside.closed = true);
        watching.mark_unchanged();
        drop(visit);
        assert!(watching.has_changed().unwrap());
    }

    #[tokio::test]
    async fn closing_waits_for_running_calls() {
        let doors = Doors::open();
        let visit = doors.enter().unwrap();
        let mut closing = Box::pin(doors.close());
        std::future::poll_fn(|cx| {
            assert!(closing.as_mut().poll(cx).is_pending(), "a call is running");
            std::task::Poll::Ready(())
        })
        .await;
        assert_eq!(doors.enter().unwrap_err().kind(), ErrorKind::Closed);
        drop(visit);
        closing.await;
        doors.close().await;
    }
}
