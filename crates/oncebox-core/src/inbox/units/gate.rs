//! The gate: copies of a message that runs in this process wait here, outside the database.

use std::any::Any;
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;

use crate::handler::Delivery;
use crate::inbox::InboxStore;
use crate::inbox::registered::Registered;
use crate::inbox::units::{CopyWait, UnitEnd, Units};
use crate::outcome::{Outcome, Rejection};
use crate::policy::KeyReuse;
use crate::store::Unit;
use crate::{Error, Fingerprint, StoredKey};

impl<S: InboxStore> Units<S> {
    /// Runs a unit, or waits for the copy that runs in this process. A waiting copy holds no connection.
    pub(super) async fn pass_the_gate(
        &self,
        handler: &Registered<S>,
        delivery: &Delivery,
        unit: Unit,
        message: Box<dyn Any + Send>,
        wait: CopyWait,
    ) -> Result<UnitEnd, Error> {
        loop {
            match self.gate.enter(&unit) {
                Admission::Run(pass) => {
                    let ended = if handler.detached.is_some() {
                        self.queue_detached(handler, delivery, Some(&unit)).await?
                    } else {
                        let ended = self.batching.run(handler, delivery, &unit, message, wait).await?;
                        self.spill_failed(handler, delivery, Some(&unit), ended).await
                    };
                    // After the commit or the spill, so that a copy never reports an end that may still fail.
                    pass.notify(&ended);
                    return Ok(ended);
                }
                Admission::Wait(copy) => match copy.wait(wait.left()).await {
                    Waited::Ended(first) => {
                        if let Some(ended) = first.end_of_copy(&unit, self.engine.settings.key_reuse) {
                            return Ok(ended);
                        }
                    }
                    Waited::Dropped => {}
                    Waited::TimedOut => return Ok(Outcome::Busy.into()),
                },
            }
        }
    }
}

type UnitId = (String, String, StoredKey);
type FirstEndReceiver = watch::Receiver<Option<FirstEnd>>;

/// The units that run in this process.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    running: Mutex<HashMap<UnitId, FirstEndReceiver>>,
}

/// The end of the first copy, for the copies that waited.
#[derive(Clone, Debug)]
pub(crate) struct FirstEnd {
    ended: UnitEnd,
    fingerprint: Option<Fingerprint>,
}

/// The gate's decision about a unit.
pub(crate) enum Admission<'g> {
    /// Run: no other copy runs in this process.
    Run(Pass<'g>),
    /// Wait: another copy runs.
    Wait(Waiter),
}

/// Held by the copy that runs.
pub(crate) struct Pass<'g> {
    gate: &'g Gate,
    identity: UnitId,
    fingerprint: Option<Fingerprint>,
    news: watch::Sender<Option<FirstEnd>>,
}

/// Held by a copy that waits.
pub(crate) struct Waiter(FirstEndReceiver);

impl Gate {
    pub(crate) fn enter(&self, unit: &Unit) -> Admission<'_> {
        let identity = (unit.handler.clone(), unit.kind.clone(), unit.key.clone());
        let mut running = self.running();
        if let Some(news) = running.get(&identity) {
            return Admission::Wait(Waiter(news.clone()));
        }
        let (news, listener) = watch::channel(None);
        running.insert(identity.clone(), listener);
        Admission::Run(Pass { gate: self, identity, fingerprint: unit.fingerprint, news })
    }

    fn running(&self) -> MutexGuard<'_, HashMap<UnitId, FirstEndReceiver>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Pass<'_> {
    /// Notifies the waiting copies of the end. If the pass is dropped without this, one of them runs next.
    pub(crate) fn notify(&self, ended: &UnitEnd) {
        self.news.send_replace(Some(FirstEnd { ended: ended.clone(), fingerprint: self.fingerprint }));
    }
}

impl Drop for Pass<'_> {
    fn drop(&mut self) {
        // Fields drop after this: a copy that wakes up finds the entry removed and can run.
        self.gate.running().remove(&self.identity);
    }
}

/// The result of a wait.
pub(crate) enum Waited {
    /// The first copy ended in this way.
    Ended(FirstEnd),
    /// The first copy was dropped before it ended.
    Dropped,
    /// The first copy still runs, and the waiting time is over.
    TimedOut,
}

impl Waiter {
    pub(crate) async fn wait(mut self, max: Duration) -> Waited {
        match tokio::time::timeout(max, self.0.wait_for(Option::is_some)).await {
            Ok(Ok(first)) => match &*first {
                Some(first) => Waited::Ended(first.clone()),
                None => Waited::Dropped,
            },
            Ok(Err(_gone)) => Waited::Dropped,
            Err(_elapsed) => Waited::TimedOut,
        }
    }
}

impl FirstEnd {
    /// The end of a copy, given the end of the first one; `None` if the copy must run the check itself.
    pub(crate) fn end_of_copy(self, unit: &Unit, key_reuse: KeyReuse) -> Option<UnitEnd> {
        let same_body = self.fingerprint == unit.fingerprint;
        let outcome = match (self.ended.outcome, same_body) {
            (Outcome::Done | Outcome::Queued | Outcome::Duplicate, true) => Outcome::Duplicate,
            (Outcome::Done | Outcome::Queued, false) => match key_reuse {
                KeyReuse::Skip => Outcome::KeyReuse,
                KeyReuse::Reject => Outcome::Rejected(Rejection::KeyReuse),
            },
            // Any other outcome of the same body holds for the copy too.
            (other, true) => other,
            (_, false) => return None,
        };
        Some(UnitEnd { outcome, result: self.ended.result, shared: true })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Key;
    use crate::outcome::cause;

    fn unit(body: &str) -> Unit {
        Unit {
            handler: "h".into(),
            kind: "k".into(),
            key: Key::from("a").stored(),
            fingerprint: Some(Fingerprint::of(body.as_bytes())),
            waited: Duration::ZERO,
        }
    }

    #[test]
    fn a_copy_shares_the_outcome_of_the_same_body() {
        let retry = || Outcome::Retry { after: None, cause: cause("failed") };
        let table = [
            (Outcome::Done, "one", Some("duplicate")),
            (Outcome::Done, "two", Some("key_reuse")),
            (Outcome::Duplicate, "one", Some("duplicate")),
            (Outcome::Duplicate, "two", None),
            (Outcome::KeyReuse, "one", Some("key_reuse")),
            (Outcome::KeyReuse, "two", None),
            (retry(), "one", Some("retry")),
            (retry(), "two", None),
            (Outcome::Busy, "one", Some("busy")),
            (Outcome::Rejected(Rejection::MissingKey), "one", Some("rejected")),
        ];
        for (outcome, body, expected) in table {
            let first = FirstEnd { ended: outcome.clone().into(), fingerprint: unit("one").fingerprint };
            let means = first.end_of_copy(&unit(body), KeyReuse::Skip);
            assert_eq!(means.map(|ended| ended.outcome.name()), expected, "{outcome:?} {body}");
        }
    }

    #[tokio::test]
    async fn a_copy_runs_next_when_the_first_one_is_dropped() {
        let gate = Gate::default();
        let Admission::Run(pass) = gate.enter(&unit("one")) else { panic!("no copy runs") };
        let Admission::Wait(copy) = gate.enter(&unit("one")) else { panic!("a copy runs") };
        assert!(matches!(copy.wait(Duration::from_millis(1)).await, Waited::TimedOut));
        let Admission::Wait(copy) = gate.enter(&unit("two")) else { panic!("the body does not matter") };
        drop(pass);
        assert!(matches!(copy.wait(Duration::from_secs(60)).await, Waited::Dropped));
        let Admission::Run(pass) = gate.enter(&unit("one")) else { panic!("the first one was dropped") };
        let Admission::Wait(copy) = gate.enter(&unit("one")) else { panic!("a copy runs") };
        pass.notify(&Outcome::Done.into());
        drop(pass);
        assert!(matches!(copy.wait(Duration::from_secs(60)).await, Waited::Ended(_)));
        assert!(gate.running().is_empty());
    }
}
