//! The mover: takes committed messages from the outbox to the log.
//!
//! Every process with an outbox has one, and one of them moves at a time. There is no leader: the store lets one in, and the
//! others look again later.

use std::time::{Duration, Instant};

use tokio::time::{sleep, timeout};

use crate::backoff::Retries;
use crate::error::chain;
use crate::outbox::{OutboxParts, OutboxStore};
use crate::store::{MoveLimits, MoveWindow, Moved};
use crate::{Error, ErrorKind};

/// The limits of one move. The messages stay within the database, so large moves cost no memory here.
const LIMITS: MoveLimits = MoveLimits { messages: 10_000, bytes: 16 * 1024 * 1024 };
/// The pauses between two looks at an empty outbox: the first one, and the longest one.
const SHORTEST_PAUSE: Duration = Duration::from_millis(5);
const LONGEST_PAUSE: Duration = Duration::from_millis(100);
/// The limit of the move at a shutdown.
const LAST_MOVE: Duration = Duration::from_secs(2);
/// How long `flush` retries while the store does not respond.
const FLUSH_LIMIT: Duration = Duration::from_secs(5);
/// How long `flush` waits for another mover. One large move may take this long on a busy machine.
const OTHERS_LIMIT: Duration = Duration::from_secs(60);
/// How often everything is looked at, whatever the window is. A window is never wrong unless the database was replaced by an older
/// copy of itself, and then this finds the messages that it hides.
const LOOK_AT_ALL_EVERY: Duration = Duration::from_secs(10 * 60);

/// What the mover of a process knows: the window in which it looks for the next messages.
#[derive(Debug)]
pub(super) struct MoverView {
    window: MoveWindow,
    looked_at_all: Instant,
}

impl MoverView {
    /// Looks at everything first: it does not know what others have moved.
    pub(super) fn new() -> Self {
        Self { window: MoveWindow::default(), looked_at_all: Instant::now() }
    }
}

/// Moves messages.
pub(super) struct Mover<'a, S: OutboxStore> {
    parts: &'a OutboxParts<S>,
}

impl<'a, S: OutboxStore> Mover<'a, S> {
    pub(super) fn new(parts: &'a OutboxParts<S>) -> Self {
        Self { parts }
    }

    /// Moves messages until `shutdown` is ready.
    pub(super) async fn run(self, shutdown: impl Future<Output = ()> + Send) {
        let mut shutdown = std::pin::pin!(shutdown);
        let mut retries = Retries::unlimited();
        let mut pause = SHORTEST_PAUSE;
        loop {
            // Not cut off by the shutdown: a move takes milliseconds.
            let next = match self.step().await {
                Ok(moved) => {
                    self.parts.note_error(None);
                    retries.reset();
                    pause = match &moved {
                        Some(moved) if moved.messages > 0 => SHORTEST_PAUSE,
                        // Another mover is at work, or there is nothing to move.
                        Some(_) | None => (pause * 2).min(LONGEST_PAUSE),
                    };
                    match moved {
                        Some(Moved { is_complete: false, .. }) => Duration::ZERO,
                        Some(_) | None => pause,
                    }
                }
                Err(error) => {
                    self.parts.note_error(Some(chain(&error)));
                    retries.next_pause()
                }
            };
            tokio::select! {
                biased;
                () = &mut shutdown => break,
                () = self.parts.wake.notified(), if retries.is_clean() => pause = SHORTEST_PAUSE,
                () = sleep(next) => {}
            }
        }
        // The last transactions before the shutdown may have published. Otherwise the next process moves their messages.
        if retries.is_clean() {
            let _ = timeout(LAST_MOVE, self.step()).await;
        }
    }

    /// Moves all committed messages.
    pub(super) async fn flush(self) -> Result<u64, Error> {
        let mut messages = 0;
        let mut retries = Retries::within(FLUSH_LIMIT);
        let mut others = Retries::within(OTHERS_LIMIT);
        loop {
            match self.step().await {
                Ok(Some(moved)) => {
                    others.reset();
                    messages += moved.messages;
                    if moved.is_complete {
                        return Ok(messages);
                    }
                }
                // Another mover is at work. It may have looked before the last commit.
                Ok(None) if others.is_over() => {
                    let text = "another process moves messages from the outbox, and has not ended: try again";
                    return Err(Error::new(ErrorKind::Unavailable, text));
                }
                Ok(None) => sleep(SHORTEST_PAUSE).await,
                Err(error) => retries.after::<S>(error).await?,
            }
        }
    }

    /// Moves messages once, within the limits. Returns `None` if another mover is at work.
    async fn step(&self) -> Result<Option<Moved>, Error> {
        let mut view = self.parts.view.lock().await;
        if view.looked_at_all.elapsed() >= LOOK_AT_ALL_EVERY {
            *view = MoverView::new();
        }
        // Taken, not borrowed: a caller that goes away during the move leaves a window that hides nothing.
        let window = std::mem::take(&mut view.window);
        match self.parts.store.move_captured(&window, LIMITS).await {
            Ok(Some(moved)) => {
                view.window = window.after(&moved);
                if moved.messages > 0 {
                    self.parts.observer.moved(moved.messages);
                    self.parts.moves.send_modify(|moves| *moves += 1);
                }
                Ok(Some(moved))
            }
            Ok(None) => {
                view.window = window;
                Ok(None)
            }
            Err(error) => {
                view.window = window.unanswered();
                Err(error)
            }
        }
    }
}

impl<S: OutboxStore> OutboxParts<S> {
    /// Records or clears the error. It logs changes only, so that an outage does not fill the log.
    fn note_error(&self, error: Option<String>) {
        let mut noted = self.last_error();
        match (&*noted, &error) {
            (before, Some(text)) if before.as_ref() != Some(text) => {
                tracing::error!(error = text, "the mover of the outbox waits");
            }
            (Some(_), None) => tracing::info!("the mover of the outbox goes on"),
            _ => {}
        }
        *noted = error;
    }
}
