//! The doors: how many calls are running, and whether further ones may begin.

use tokio::sync::watch;

use crate::{Error, ErrorKind};

/// Counts the calls that are running, and closes behind them.
#[derive(Debug)]
pub(crate) struct Doors {
    inside: watch::Sender<Inside>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Inside {
    calls: usize,
    closed: bool,
}

/// A call that is running.
#[derive(Debug)]
pub(crate) struct Visit<'d>(&'d Doors);

impl Doors {
    pub(crate) fn open() -> Self {
        Self { inside: watch::Sender::new(Inside::default()) }
    }

    /// Lets a call in, unless the doors are closed. No caller waits for that, so none is woken.
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

    /// Returns when the doors are closed, whoever is still inside.
    pub(crate) async fn closed(&self) {
        let _ = self.inside.subscribe().wait_for(|inside| inside.closed).await;
    }

    /// Lets no further call in, and returns when all calls have ended.
    pub(crate) async fn close(&self) {
        self.inside.send_modify(|inside| inside.closed = true);
        // The sender is ours: the wait cannot end by its absence.
        let _ = self.inside.subscribe().wait_for(|inside| inside.calls == 0).await;
    }
}

impl Drop for Visit<'_> {
    fn drop(&mut self) {
        // Only who closes the doors waits for those inside.
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
    async fn whoever_waits_for_the_end_is_not_woken_by_visits() {
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
    async fn it_closes_behind_those_who_are_inside() {
        let doors = Doors::open();
        let visit = doors.enter().unwrap();
        let mut closing = Box::pin(doors.close());
        std::future::poll_fn(|cx| {
            assert!(closing.as_mut().poll(cx).is_pending(), "somebody is inside");
            std::task::Poll::Ready(())
        })
        .await;
        assert_eq!(doors.enter().unwrap_err().kind(), ErrorKind::Closed);
        drop(visit);
        closing.await;
        doors.close().await;
    }
}
