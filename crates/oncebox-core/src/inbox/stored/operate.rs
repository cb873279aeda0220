//! What operators do, with a name under which it is written down.

use crate::inbox::Inbox;
use crate::inbox::stored::LogStore;
use crate::store::{Action, AuditEntry, DeadLetter, ReplayFrom, Replayed, Select};
use crate::{Error, ErrorKind, name};

/// So many dead letters are moved in one transaction.
const STEP: u32 = 500;

impl<S: LogStore> Inbox<S> {
    /// Dead letters, the oldest first.
    pub async fn dead_letters(&self, select: Select, limit: u32) -> Result<Vec<DeadLetter>, Error> {
        self.stored()?;
        self.inner.store.dead_letters(&select, limit).await
    }

    /// Runs dead letters again, with all attempts ahead of them; how many. Those that turn out to be done are not run.
    pub async fn retry_dead(&self, select: Select, operator: &str) -> Result<u64, Error> {
        self.act(select, &Action::Retry, operator).await
    }

    /// Runs one dead letter again, with another body. The message in the log stays as it was.
    pub async fn edit_dead(
        &self,
        select: Select,
        body: impl Into<Vec<u8>>,
        operator: &str,
    ) -> Result<u64, Error> {
        let body = body.into();
        let max = self.inner.settings.max_body_bytes;
        if body.len() > max {
            let bytes = body.len();
            return Err(Error::new(
                ErrorKind::TooLarge,
                format!("the body has {bytes} bytes, the limit is {max}"),
            ));
        }
        match &self.dead_letters(select, 2).await?[..] {
            [] => Ok(0),
            // This very one, whatever dies meanwhile.
            [one] => {
                let select = Select::all().handler(&*one.handler).at(one.place);
                self.act(select, &Action::Edit(body), operator).await
            }
            _ => Err(Error::configuration(
                "several dead letters are selected: a corrected body is for one. Select it by handler and place",
            )),
        }
    }

    /// Drops dead letters: their handlers will never run for them; how many.
    pub async fn discard_dead(&self, select: Select, operator: &str) -> Result<u64, Error> {
        self.act(select, &Action::Discard, operator).await
    }

    /// Counts dead letters as done, because they were dealt with by other means; how many.
    pub async fn mark_dead_processed(&self, select: Select, operator: &str) -> Result<u64, Error> {
        self.act(select, &Action::MarkProcessed, operator).await
    }

    /// Removes a handler that nobody needs any more: what it has not handled is dropped, and its name stays taken. Messages
    /// no longer wait for it. Whether there was one.
    pub async fn remove_handler(&self, handler: &str, operator: &str) -> Result<bool, Error> {
        self.stored()?;
        check_operator(operator)?;
        self.inner.store.remove_handler(handler, operator).await
    }

    /// Stops a handler for a while; what is in a transaction now is waited for. Its messages wait. Whether it was at work.
    pub async fn pause_handler(&self, handler: &str, operator: &str) -> Result<bool, Error> {
        self.stored()?;
        check_operator(operator)?;
        self.inner.store.pause_handler(handler, true, operator).await
    }

    /// Lets a handler go on that was paused; whether it was.
    pub async fn resume_handler(&self, handler: &str, operator: &str) -> Result<bool, Error> {
        let stored = self.stored()?;
        check_operator(operator)?;
        let resumed = self.inner.store.pause_handler(handler, false, operator).await?;
        stored.wake.notify_one();
        Ok(resumed)
    }

    /// Runs a handler again on messages that are still in the log. It runs on purpose where it has run before: the handler is told,
    /// see [`Replay`](crate::Replay). Its tasks and dead letters from there on are waiting messages again.
    pub async fn replay(&self, handler: &str, from: ReplayFrom, operator: &str) -> Result<Replayed, Error> {
        let stored = self.stored()?;
        check_operator(operator)?;
        let replayed = self.inner.store.replay(handler, from, operator).await?;
        stored.wake.notify_one();
        replayed.ok_or_else(|| Error::configuration(format!("there is no handler {handler:?}")))
    }

    /// Gives a handler another name, with everything that it has done and has to do. The old name stays taken: programs that still
    /// have it run on, and are told the new one when they start again. Whether there was one.
    pub async fn rename_handler(&self, handler: &str, new_name: &str, operator: &str) -> Result<bool, Error> {
        self.stored()?;
        check_operator(operator)?;
        name::check("handler name", new_name)?;
        self.inner.store.rename_handler(handler, new_name, operator).await
    }

    /// What operators did, newest first.
    pub async fn audit(&self, limit: u32) -> Result<Vec<AuditEntry>, Error> {
        self.stored()?;
        self.inner.store.audit(limit).await
    }

    async fn act(&self, select: Select, action: &Action, operator: &str) -> Result<u64, Error> {
        let stored = self.stored()?;
        check_operator(operator)?;
        // From the first to the last place: those that die again meanwhile are not met again, or it might never end.
        let (mut acted, mut after) = (0, None);
        loop {
            let step = self.inner.store.act(&select, action, operator, after, STEP).await?;
            acted += step.letters;
            if step.next.is_none() {
                break;
            }
            after = step.next;
        }
        stored.wake.notify_one();
        Ok(acted)
    }
}

fn check_operator(operator: &str) -> Result<(), Error> {
    if operator.is_empty() || operator.len() > name::MAX_BYTES || operator.chars().any(char::is_control) {
        return Err(Error::configuration(
            "the operator's name is empty, too long or has control characters: the audit says who did what",
        ));
    }
    Ok(())
}
