//! Chunks: groups of messages of a batch share one savepoint.

use std::time::Instant;

use crate::inbox::registered::Registered;
use crate::inbox::stored::visit::VisitPlan;
use crate::inbox::stored::work::{
    BatchRun, HeldKeys, MessageEnd, VisitFailure, failed_undo, own_statement_failure, sole_result,
};
use crate::inbox::stored::{LaneVisitor, LogStore};
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

impl<S: LogStore> LaneVisitor<S> {
    /// Runs messages with one savepoint for each chunk. If a handler fails, only its chunk is rolled back, and runs again with a
    /// savepoint for each message, to find the failed one.
    pub(super) async fn run_in_chunks(
        &self,
        handler: &Registered<S>,
        tx: &mut S::Tx,
        messages: &[StoredMessage],
        plan: &VisitPlan,
        started: Instant,
        mut held_keys: HeldKeys,
    ) -> Result<BatchRun, VisitFailure> {
        let store = &self.engine.store;
        let mut ran = BatchRun::default();
        let mut chunk = Chunk { begin: 0, savepoints: 0, open: false };
        if plan.recently_failed {
            store.isolate(tx).await.map_err(VisitFailure::Store)?;
            chunk.opened(0);
        }
        while ran.ended.len() < messages.len() {
            let n = ran.ended.len();
            if ran.bodies > 0 && (started.elapsed() >= plan.time || chunk.savepoints >= SAVEPOINTS_MAX) {
                break;
            }
            let mut problem = None;
            let mut result = None;
            // Savepoints cost time, so a batch without recent failures opens its first one only after a full chunk.
            if n - chunk.begin >= CHUNK {
                let kept = if chunk.open { store.keep(tx, true).await } else { store.isolate(tx).await };
                match kept {
                    Ok(()) => chunk.opened(n),
                    Err(error) => problem = Some(own_statement_failure::<S>(error)?),
                }
            }
            if problem.is_none() {
                match self.make_ready(handler, &messages[n], &mut held_keys) {
                    Ok(ready) => {
                        match self.run_body_of(handler, tx, vec![ready]).await {
                            Ok(returned) => result = sole_result(returned),
                            Err(met) => problem = Some(met),
                        }
                        ran.bodies += 1;
                    }
                    Err(ended) => {
                        ran.ended.push(ended);
                        continue;
                    }
                }
            }
            match problem {
                None => ran.ended.push(MessageEnd::Done(result)),
                // Without a savepoint nothing can be kept: the whole batch rolls back.
                Some(problem) if !chunk.open || problem.is_whole_transaction_lost() => return Err(problem),
                Some(problem) => {
                    let end = messages.len().min(n + 1);
                    let batch = &messages[..end];
                    let whole = self
                        .take_apart(handler, tx, batch, plan, &mut ran, &mut chunk, problem, &mut held_keys)
                        .await?;
                    if !whole {
                        return Ok(ran);
                    }
                }
            }
        }
        if plan.recently_failed && chunk.open && chunk.begin < ran.ended.len() {
            // Releasing the savepoint checks the messages of the last chunk, which no later chunk has checked.
            if let Err(error) = store.keep(tx, false).await {
                let problem = own_statement_failure::<S>(error)?;
                let batch = &messages[..ran.ended.len()];
                self.take_apart(handler, tx, batch, plan, &mut ran, &mut chunk, problem, &mut held_keys)
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
        plan: &VisitPlan,
        ran: &mut BatchRun,
        chunk: &mut Chunk,
        problem: VisitFailure,
        held_keys: &mut HeldKeys,
    ) -> Result<bool, VisitFailure> {
        let store = &self.engine.store;
        if let Err(error) = store.undo(tx, None, false).await {
            return Err(failed_undo::<S>(error, problem));
        }
        ran.ended.truncate(chunk.begin);
        let rest = &messages[chunk.begin..];
        let isolated = match rest {
            // A chunk of one message: this is the failed one, and it need not run again.
            [one] => {
                let ended =
                    self.end_after_rollback(handler, one, problem, plan, held_keys).into_iter().collect();
                BatchRun { ended, ..BatchRun::default() }
            }
            _ => self.run_isolated_messages(handler, tx, rest, plan, Instant::now(), held_keys).await?,
        };
        chunk.savepoints += isolated.bodies;
        let whole = isolated.ended.len() == rest.len();
        ran.bodies += isolated.bodies;
        ran.ended.extend(isolated.ended);
        if whole {
            store.isolate(tx).await.map_err(VisitFailure::Store)?;
            chunk.opened(ran.ended.len());
        }
        Ok(whole)
    }
}
