//! Presence: a process that works says so again and again; one that is silent for too long has died.
//!
//! There is no leader here either: every process looks after the others.

use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};
use uuid::Uuid;

use crate::Error;
use crate::backoff::{backoff, spread};
use crate::error::chain;
use crate::handler::{Cancel, Cancellation};
use crate::inbox::Inbox;
use crate::inbox::stored::incarnation::Incarnation;
use crate::inbox::stored::{LogStore, Stored};
use crate::store::{Fault, HandlerId, NewProcess, Peer, ProcessId};

/// So many times a process says that it is alive, before its silence is too long.
const BEATS_IN_LEASE: u32 = 5;

/// Who this process is to the others.
#[derive(Debug, Default)]
pub(crate) struct Presence {
    state: Mutex<State>,
    /// Only one at a time begins or ends it.
    turn: tokio::sync::Mutex<()>,
}

#[derive(Debug, Default)]
struct State {
    /// How many are at work here.
    present: usize,
    identity: Option<Identity>,
    /// Processes of which is not known whether they have died, as many times as they had been heard of.
    in_doubt: HashMap<ProcessId, (i64, Vec<HandlerId>)>,
    heart: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Identity {
    id: ProcessId,
    cancel: Cancel,
    /// When the store has heard of it last.
    heard: Instant,
}

/// The process as those who work see it.
pub(super) struct Process {
    pub(super) id: ProcessId,
    pub(super) cancellation: Cancellation,
}

impl Presence {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Who this process is now; nobody while nobody works here.
    pub(super) fn process(&self) -> Option<Process> {
        let state = self.state();
        let identity = state.identity.as_ref()?;
        Some(Process { id: identity.id, cancellation: identity.cancel.cancellation() })
    }

    /// Whether a process with this handler may have died.
    pub(super) fn is_careful(&self, handler: HandlerId) -> bool {
        self.state().in_doubt.values().any(|(_, handlers)| handlers.contains(&handler))
    }

    /// The handlers with which a process may have died.
    pub(super) fn in_doubt(&self) -> HashSet<HandlerId> {
        self.state().in_doubt.values().flat_map(|(_, handlers)| handlers.iter().copied()).collect()
    }

    /// Takes on an identity; those who ran under the one before are told that they run in vain.
    fn become_known(&self, id: ProcessId) {
        let before =
            self.state().identity.replace(Identity { id, cancel: Cancel::new(), heard: Instant::now() });
        if let Some(before) = before {
            before.cancel.cancel();
        }
    }

    /// Whether nobody can have taken this process for dead: it was heard of within its lease.
    pub(super) fn is_sure_of_itself(&self, lease: Duration) -> bool {
        self.state().identity.as_ref().is_some_and(|it| it.heard.elapsed() < lease)
    }

    /// The store has heard of it.
    fn is_heard(&self) {
        if let Some(identity) = &mut self.state().identity {
            identity.heard = Instant::now();
        }
    }

    /// Tells those who run that others may run the same.
    fn give_up(&self) {
        if let Some(identity) = &self.state().identity {
            identity.cancel.cancel();
        }
    }

    /// Nobody has taken this process for dead while it was not heard of: it goes on as who it is. Those who run have been told, and
    /// that stays so; those who begin from now on are told anew. Whether it had given up.
    fn recover(&self) -> bool {
        let mut state = self.state();
        let given_up = state.identity.as_mut().filter(|it| it.cancel.cancellation().is_cancelled());
        given_up.map(|identity| identity.cancel = Cancel::new()).is_some()
    }

    /// What is to be made of the others at the beginning.
    fn meet(&self, peers: &[Peer]) {
        self.state().in_doubt.clear();
        self.hear(peers);
    }

    /// Those who were heard of again are alive; those who are gone have ended, or have been taken for dead. Those who should have
    /// been heard of and were not are in doubt from now on.
    fn hear(&self, peers: &[Peer]) {
        let heard: HashMap<ProcessId, i64> = peers.iter().map(|peer| (peer.id, peer.beats)).collect();
        let mut state = self.state();
        state.in_doubt.retain(|id, (beats, _)| heard.get(id).is_some_and(|now| now <= beats));
        for peer in peers.iter().filter(|peer| is_doubtful(peer)) {
            state.in_doubt.entry(peer.id).or_insert_with(|| (peer.beats, peer.handlers.clone()));
        }
    }
}

/// Whether a process may have died.
fn is_doubtful(peer: &Peer) -> bool {
    let me = Incarnation::of_this_process();
    match Incarnation::parse(&peer.name).and_then(|it| it.is_alive_beside(me)) {
        Some(is_alive) => !is_alive,
        // On another machine: it should have been heard of by now.
        None => peer.silent_for > beat_every(peer.lease) * 2,
    }
}

/// What one process has heard of the others, by its own clock. A store that keeps everybody waiting lets all of them look dead.
#[derive(Default)]
struct Others(HashMap<ProcessId, (i64, Instant)>);

impl Others {
    fn hear(&mut self, peers: &[Peer]) {
        let now = Instant::now();
        let before = std::mem::take(&mut self.0);
        self.0 = peers
            .iter()
            .map(|peer| match before.get(&peer.id) {
                Some((beats, since)) if *beats == peer.beats => (peer.id, (*beats, *since)),
                _ => (peer.id, (peer.beats, now)),
            })
            .collect();
    }

    /// Whether it was silent for longer than its lease while this process listened.
    fn is_silent(&self, peer: &Peer) -> bool {
        peer.silent_for > peer.lease
            && self.0.get(&peer.id).is_some_and(|(_, since)| since.elapsed() > peer.lease)
    }
}

fn beat_every(lease: Duration) -> Duration {
    lease / BEATS_IN_LEASE
}

/// As long as one of these is held the process is present.
pub(super) struct Present<S: LogStore> {
    inbox: Option<Inbox<S>>,
}

impl<S: LogStore> Present<S> {
    /// Ends it, and waits until the others know.
    pub(super) async fn leave(mut self) {
        if let Some(inbox) = self.inbox.take() {
            inbox.be_absent().await;
        }
    }
}

impl<S: LogStore> Drop for Present<S> {
    fn drop(&mut self) {
        if let (Some(inbox), Ok(runtime)) = (self.inbox.take(), tokio::runtime::Handle::try_current()) {
            runtime.spawn(async move { inbox.be_absent().await });
        }
    }
}

impl<S: LogStore> Inbox<S> {
    /// Lets the others know that this process works.
    pub(super) async fn be_present(&self, stored: &Stored) -> Result<Present<S>, Error> {
        let presence = &stored.presence;
        let _turn = presence.turn.lock().await;
        if presence.state().present == 0 {
            self.enter(stored).await?;
            let inbox = self.clone();
            presence.state().heart = Some(tokio::spawn(async move { inbox.stay_alive().await }));
        }
        presence.state().present += 1;
        Ok(Present { inbox: Some(self.clone()) })
    }

    /// The same, however long the store does not answer; nothing if `shutdown` is ready before that.
    pub(super) async fn be_present_at_last(
        &self,
        stored: &Stored,
        mut shutdown: impl Future<Output = ()> + Unpin + Send,
    ) -> Result<Option<Present<S>>, Error> {
        let mut troubles = 0;
        loop {
            // To its end, whatever else happens: whoever stopped half way would be there to others, and taken for dead later.
            match self.be_present(stored).await {
                Err(error) if S::classify(&error) != Fault::Other => {
                    troubles += 1;
                    stored.note_trouble(Some(chain(&error)));
                }
                present => {
                    stored.note_trouble(None);
                    return present.map(Some);
                }
            }
            tokio::select! {
                () = &mut shutdown => return Ok(None),
                () = sleep(backoff(troubles, spread())) => {}
            }
        }
    }

    /// Stays present for as long as something runs, whoever started it and does not wait for it. `None` if nobody is.
    pub(super) fn stay_present(&self, stored: &Stored) -> Option<Present<S>> {
        let mut state = stored.presence.state();
        state.identity.as_ref()?;
        state.present += 1;
        Some(Present { inbox: Some(self.clone()) })
    }

    async fn be_absent(&self) {
        let Ok(stored) = self.stored() else { return };
        let presence = &stored.presence;
        let _turn = presence.turn.lock().await;
        let gone = {
            let mut state = presence.state();
            state.present = state.present.saturating_sub(1);
            if state.present > 0 {
                return;
            }
            state.in_doubt.clear();
            if let Some(heart) = state.heart.take() {
                heart.abort();
            }
            state.identity.take()
        };
        if let Some(identity) = gone
            && let Err(error) = self.inner.store.leave(identity.id).await
        {
            tracing::warn!(error = chain(&error), "not signed off: others will take this process for dead");
        }
    }

    /// Begins under a new id.
    async fn enter(&self, stored: &Stored) -> Result<(), Error> {
        let store = &self.inner.store;
        let process = NewProcess {
            id: ProcessId(Uuid::now_v7()),
            name: Incarnation::of_this_process().to_string(),
            handlers: stored.ids.clone(),
            lease: stored.settings.lease,
            in_hand: u32::try_from(stored.settings.work_batch).unwrap_or(u32::MAX),
        };
        let entered = match store.enter(&process).await {
            Ok(()) => store.peers(process.id).await,
            Err(error) => Err(error),
        };
        match entered {
            Ok(peers) => stored.presence.meet(&peers),
            Err(error) => {
                // Nobody is to be mourned who never worked; that it is written down may be all that was not answered.
                let _ = store.leave(process.id).await;
                return Err(error);
            }
        }
        stored.presence.become_known(process.id);
        Ok(())
    }

    /// Says that this process is alive, and takes over from those who are not.
    async fn stay_alive(&self) {
        let Ok(stored) = self.stored() else { return };
        let lease = stored.settings.lease;
        let mut heard = Instant::now();
        let mut others = Others::default();
        loop {
            sleep(beat_every(lease)).await;
            let Some(process) = stored.presence.process() else { return };
            let beat = timeout(lease / 2, self.inner.store.beat_process(process.id)).await;
            let silent_for = heard.elapsed();
            match beat {
                Ok(Ok(true)) => {
                    heard = Instant::now();
                    stored.presence.is_heard();
                    if stored.presence.recover() {
                        stored.wake.notify_one();
                    }
                    if silent_for > beat_every(lease) * 2 {
                        // The others may have been as silent, for the same reason: they get the time to be heard again.
                        others = Others::default();
                    }
                    // Handlers may have all connections: the next beat does not wait for that.
                    let look = self.look_after_others(stored, process.id, &mut others);
                    match timeout(beat_every(lease), look).await {
                        Ok(Ok(())) => {}
                        Ok(Err(error)) => {
                            tracing::debug!(
                                error = chain(&error),
                                "the other processes were not looked after"
                            );
                        }
                        Err(_elapsed) => tracing::debug!("no time to look after the other processes"),
                    }
                }
                Ok(Ok(false)) => {
                    tracing::warn!(
                        "this process was taken for dead; what it ran outside of transactions does not count"
                    );
                    if let Err(error) = self.enter(stored).await {
                        tracing::debug!(error = chain(&error), "not present: the store does not answer");
                        stored.presence.give_up();
                    }
                    heard = Instant::now();
                    others = Others::default();
                }
                not_heard => {
                    // Who cannot speak cannot hear either.
                    others = Others::default();
                    if silent_for > lease {
                        stored.presence.give_up();
                    }
                    let error = not_heard.map(|beat| beat.err().map(|error| chain(&error)));
                    tracing::debug!(?error, "the store did not hear of this process");
                }
            }
        }
    }

    async fn look_after_others(
        &self,
        stored: &Stored,
        me: ProcessId,
        others: &mut Others,
    ) -> Result<(), Error> {
        let store = &self.inner.store;
        let peers = store.peers(me).await?;
        stored.presence.hear(&peers);
        others.hear(&peers);
        for peer in peers.iter().filter(|peer| others.is_silent(peer)) {
            if let Some(tasks) = store.bury_process(peer.id).await? {
                tracing::warn!(process = peer.name, tasks, "a process has died; its tasks are free");
                stored.wake.notify_one();
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(id: u128, name: &str, beats: i64, silent_for: Duration) -> Peer {
        Peer {
            id: ProcessId(Uuid::from_u128(id)),
            name: name.to_owned(),
            handlers: vec![HandlerId(1)],
            beats,
            silent_for,
            lease: Duration::from_secs(10),
        }
    }

    #[test]
    fn a_process_that_gave_up_and_is_heard_of_again_goes_on() {
        let presence = Presence::default();
        presence.become_known(ProcessId(Uuid::from_u128(1)));
        assert!(!presence.recover());
        let before = presence.process().unwrap();
        presence.give_up();
        assert!(presence.process().unwrap().cancellation.is_cancelled());
        assert!(presence.recover());
        let after = presence.process().unwrap();
        assert_eq!(after.id, before.id);
        assert!(before.cancellation.is_cancelled() && !after.cancellation.is_cancelled());
    }

    #[test]
    fn who_may_have_died_makes_careful_until_it_is_heard_of() {
        let presence = Presence::default();
        let silent = Duration::from_secs(5);
        presence.meet(&[peer(1, "elsewhere 7 x", 3, silent), peer(2, "elsewhere 8 y", 3, Duration::ZERO)]);
        assert!(presence.is_careful(HandlerId(1)) && !presence.is_careful(HandlerId(2)));
        presence.hear(&[peer(1, "elsewhere 7 x", 3, silent)]);
        assert!(presence.is_careful(HandlerId(1)), "not heard of yet");
        presence.hear(&[peer(1, "elsewhere 7 x", 4, Duration::ZERO)]);
        assert!(!presence.is_careful(HandlerId(1)));
        // Another inbox of this very process is no reason, whatever it is silent about.
        let this = Incarnation::of_this_process().to_string();
        presence.meet(&[peer(3, &this, 0, silent)]);
        assert!(!presence.is_careful(HandlerId(1)));
    }
}
