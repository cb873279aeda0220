//! Chunks: groups of messages of a batch share one savepoint.

use std::time::Instant;

use crate::inbox::registered::Registered;
use crate::inbox::stored::visit::Course;
use crate::inbox::stored::work::{
    MessageEnd, Order, Ran, VisitTrouble, sole_result, trouble_behind, trouble_of_own,
};
use crate::inbox::stored::{Lanes, LogStore};
use crate::store::StoredMessage;

/// The number of messages that share a savepoint.
const CHUNK: usize = 50;
/// The maximum number of savepoints in one transaction. With more, PostgreSQL becomes slow.
const SAVEPOINTS_MAX: usize = 40;

/// Messages that share a savepoint.
struct Chunk {
    begin: usize,
    /// The number of savepoints so far.
    savepoints: usize,
    /// Whether a savepoint is open to roll back to.
    open: bool,
}

impl Chunk {
    fn opened(&mut self, begin: usize) {
        self.begin = begin;
        self.savepoints += 1;
        self.open = true;
    }
}

impl<S: LogStore> Lanes<S> {
    /// Runs messages with one savepoint for each chunk. If a handler fails, only its chunk is rolled back, and runs again with a
    /// savepoint for each message, to find the failed one.
    pub(super) async fn run_in_chunks(
        &self,
        handler: &Registered<S>,
        tx: &mut S::Tx,
        messages: &[StoredMessage],
        course: &Course,
        started: Instant,
        mut order: Order,
    ) -> Result<Ran, VisitTrouble> {
        let store = &self.engine.store;
        let mut ran = Ran::default();
        let mut chunk = Chunk { begin: 0, savepoints: 0, open: false };
        if course.wary {
            store.isolate(tx).await.map_err(VisitTrouble::Store)?;
            chunk.opened(0);
        }
        while ran.ended.len() < messages.len() {
            let n = ran.ended.len();
            if ran.bodies > 0 && (started.elapsed() >= course.time || chunk.savepoints >= SAVEPOINTS_MAX) {
                break;
            }
            let mut trouble = None;
            let mut result = None;
            if n - chunk.begin >= CHUNK {
                let kept = if chunk.open { store.keep(tx, true).await } else { store.isolate(tx).await };
                match kept {
                    Ok(()) => chunk.opened(n),
                    Err(error) => trouble = Some(trouble_of_own::<S>(error)?),
                }
            }
            if trouble.is_none() {
                match self.make_ready(handler, &messages[n], &mut order) {
                    Ok(ready) => {
                        match self.run_body_of(handler, tx, vec![ready]).await {
                            Ok(returned) => result = sole_result(returned),
                            Err(met) => trouble = Some(met),
                        }
                        ran.bodies += 1;
                    }
                    Err(ended) => {
                        ran.ended.push(ended);
                        continue;
                    }
                }
            }
            match trouble {
                None => ran.ended.push(MessageEnd::Done(result)),
                Some(trouble) if !chunk.open || trouble.ends_the_transaction() => return Err(trouble),
                Some(trouble) => {
                    let end = messages.len().min(n + 1);
                    let batch = &messages[..end];
                    let whole = self
                        .take_apart(handler, tx, batch, course, &mut ran, &mut chunk, trouble, &mut order)
                        .await?;
                    if !whole {
                        return Ok(ran);
                    }
                }
            }
        }
        if course.wary && chunk.open && chunk.begin < ran.ended.len() {
            // Releasing the savepoint checks the messages of the last chunk, which no later chunk has checked.
            if let Err(error) = store.keep(tx, false).await {
                let trouble = trouble_of_own::<S>(error)?;
                let batch = &messages[..ran.ended.len()];
                self.take_apart(handler, tx, batch, course, &mut ran, &mut chunk, trouble, &mut order)
                    .await?;
            }
        }
        Ok(ran)
    }

    /// Rolls a chunk back and runs its messages again, each with a savepoint. Returns whether all of them ran.
    #[allow(clippy::too_many_arguments, reason = "what a chunk is about")]
    async fn take_apart(
        &self,
        handler: &Registered<S>,
        tx: &mut S::Tx,
        messages: &[StoredMessage],
        course: &Course,
        ran: &mut Ran,
        chunk: &mut Chunk,
        trouble: VisitTrouble,
        order: &mut Order,
    ) -> Result<bool, VisitTrouble> {
        let store = &self.engine.store;
        if let Err(error) = store.undo(tx, None, false).await {
            return Err(trouble_behind::<S>(error, trouble));
        }
        ran.ended.truncate(chunk.begin);
        let rest = &messages[chunk.begin..];
        let isolated = match rest {
            // A chunk of one message: this is the failed one, and it need not run again.
            [one] => {
                let ended = self.blame(handler, one, trouble, course, order).into_iter().collect();
                Ran { ended, ..Ran::default() }
            }
            _ => self.run_isolated_messages(handler, tx, rest, course, Instant::now(), order).await?,
        };
        chunk.savepoints += isolated.bodies;
        let whole = isolated.ended.len() == rest.len();
        ran.bodies += isolated.bodies;
        ran.ended.extend(isolated.ended);
        if whole {
            store.isolate(tx).await.map_err(VisitTrouble::Store)?;
            chunk.opened(ran.ended.len());
        }
        Ok(whole)
    }
}
