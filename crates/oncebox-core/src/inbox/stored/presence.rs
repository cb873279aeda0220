//! Presence: a working process sends heartbeats. If they stop for longer than its lease, the lease expires.
//!
//! There is no leader: every process watches the others.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};
use uuid::Uuid;

use crate::backoff::Retries;
use crate::error::chain;
use crate::handler::{Cancel, Cancellation};
use crate::inbox::InboxStore;
use crate::inbox::engine::Engine;
use crate::inbox::faults::Judgement;
use crate::inbox::stored::incarnation::Incarnation;
use crate::inbox::stored::{LogShared, LogStore};
use crate::store::{NewProcess, Peer, ProcessId};
use crate::{Error, Mode};

/// The number of heartbeats in one lease.
const BEATS_IN_LEASE: u32 = 5;
/// How often this process checks whether others on its machine have ended. This check reads `/proc`, not the store.
const GLANCE_EVERY: Duration = Duration::from_millis(200);

/// Sends the heartbeats of this process, and frees the tasks of processes whose lease has expired.
pub(crate) struct Presence<S: InboxStore> {
    engine: Arc<Engine<S>>,
    log: Arc<LogShared>,
    me: Identities,
    /// Serializes joining and leaving: both change the state here and in the store.
    turn: tokio::sync::Mutex<()>,
}

/// The identity of this process in the store, and what it knows of the others.
#[derive(Debug, Default)]
struct Identities(Mutex<PresenceState>);

#[derive(Debug, Default)]
struct PresenceState {
    /// The number of guards that keep this process present.
    present: usize,
    identity: Option<ProcessIdentity>,
    /// The other processes, as last read from the store.
    others: Vec<Incarnation>,
    /// The number of heartbeats of each of them, and when this process has first read that number.
    beats: HashMap<ProcessId, (i64, Instant)>,
    heartbeats: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct ProcessIdentity {
    id: ProcessId,
    cancel: Cancel,
    /// The time of the last heartbeat that the store confirmed.
    last_heartbeat: Instant,
}

/// The identity of this process for its workers.
pub(super) struct ThisProcess {
    pub(super) id: ProcessId,
    pub(super) cancellation: Cancellation,
}

impl Identities {
    fn state(&self) -> MutexGuard<'_, PresenceState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The current identity; `None` while this process does not work.
    fn process(&self) -> Option<ThisProcess> {
        let state = self.state();
        let identity = state.identity.as_ref()?;
        Some(ThisProcess { id: identity.id, cancellation: identity.cancel.cancellation() })
    }

    /// Adopts a new identity, and cancels the bodies that run under the previous one: their ends no longer count.
    fn adopt(&self, id: ProcessId) {
        let before = self.state().identity.replace(ProcessIdentity {
            id,
            cancel: Cancel::new(),
            last_heartbeat: Instant::now(),
        });
        if let Some(before) = before {
            before.cancel.cancel();
        }
    }

    /// Whether the last heartbeat is within the lease, so that no other process can have taken over.
    fn has_valid_lease(&self, lease: Duration) -> bool {
        self.state().identity.as_ref().is_some_and(|it| it.last_heartbeat.elapsed() < lease)
    }

    /// Records a heartbeat that the store confirmed.
    fn note_heartbeat(&self) {
        if let Some(identity) = &mut self.state().identity {
            identity.last_heartbeat = Instant::now();
        }
    }

    /// Cancels running bodies, because other processes may run the same messages.
    fn cancel_running(&self) {
        if let Some(identity) = &self.state().identity {
            identity.cancel.cancel();
        }
    }

    /// Continues with the same identity, because no other process has taken over. Cancelled bodies stay cancelled; new bodies get a
    /// new cancellation. Returns whether running bodies had been cancelled.
    fn recover(&self) -> bool {
        let mut state = self.state();
        let cancelled = state.identity.as_mut().filter(|it| it.cancel.cancellation().is_cancelled());
        cancelled.map(|identity| identity.cancel = Cancel::new()).is_some()
    }

    /// Remembers the other processes.
    fn remember(&self, peers: &[Peer]) {
        self.state().others = peers.iter().filter_map(|peer| Incarnation::parse(&peer.name)).collect();
    }

    /// For how long this process has read the same number of heartbeats of each of these processes.
    fn listen(&self, peers: &[Peer]) -> Vec<Duration> {
        let mut state = self.state();
        let before = std::mem::take(&mut state.beats);
        for peer in peers {
            let heard = before.get(&peer.id).filter(|(beats, _)| *beats == peer.beats);
            let since = heard.map_or_else(Instant::now, |(_, since)| *since);
            state.beats.insert(peer.id, (peer.beats, since));
        }
        peers.iter().map(|peer| state.beats[&peer.id].1.elapsed()).collect()
    }

    /// Whether one of the others has ended on this machine since the last read.
    fn has_another_ended(&self) -> bool {
        let me = Incarnation::of_this_process();
        self.state().others.iter().any(|other| other.has_ended_beside(me))
    }
}

/// The evidence that a process has crashed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CrashEvidence {
    /// It is no longer in the process table of this machine.
    Exited,
    /// Its lease has expired without a heartbeat.
    LeaseExpired,
}

/// What a process knows about the silence of others.
#[derive(Clone, Copy, Debug)]
enum Listener {
    /// It starts: the times in the store decide.
    Starting,
    /// It works. Then the clock of the heartbeats, which may have jumped, does not decide alone.
    Working {
        /// When the connection to the store came back, if it was lost.
        connected_since: Option<Instant>,
    },
}

/// Decides whether a process has crashed. A process at work must have listened for a whole lease without a heartbeat; `unheard_for`
/// is the time for which it has. An outage of the store stops all heartbeats, so it does not count: after it, a lease expires only
/// when this process has been connected for longer than that lease.
fn crash_of(
    peer: &Peer,
    me: &Incarnation,
    listener: Listener,
    unheard_for: Duration,
) -> Option<CrashEvidence> {
    if Incarnation::parse(&peer.name).is_some_and(|it| it.has_ended_beside(me)) {
        return Some(CrashEvidence::Exited);
    }
    let has_listened = match listener {
        Listener::Starting => true,
        Listener::Working { connected_since } => {
            unheard_for > peer.lease && connected_since.is_none_or(|since| since.elapsed() > peer.lease)
        }
    };
    (peer.silent_for > peer.lease && has_listened).then_some(CrashEvidence::LeaseExpired)
}

fn beat_every(lease: Duration) -> Duration {
    lease / BEATS_IN_LEASE
}

/// Keeps this process present while it is held.
pub(super) struct PresenceGuard<S: LogStore> {
    presence: Option<Arc<Presence<S>>>,
}

impl<S: LogStore> PresenceGuard<S> {
    fn of(presence: &Arc<Presence<S>>) -> Self {
        Self { presence: Some(presence.clone()) }
    }

    /// Releases this guard. The last one waits until the process has signed off.
    pub(super) async fn leave(mut self) {
        if let Some(presence) = self.presence.take() {
            presence.leave().await;
        }
    }
}

impl<S: LogStore> Drop for PresenceGuard<S> {
    fn drop(&mut self) {
        if let (Some(presence), Ok(runtime)) = (self.presence.take(), tokio::runtime::Handle::try_current()) {
            runtime.spawn(async move { presence.leave().await });
        }
    }
}

impl<S: InboxStore> Presence<S> {
    pub(super) fn new(engine: Arc<Engine<S>>, log: Arc<LogShared>) -> Self {
        Self { engine, log, me: Identities::default(), turn: tokio::sync::Mutex::default() }
    }

    /// The current identity; `None` while this process does not work.
    pub(super) fn process(&self) -> Option<ThisProcess> {
        self.me.process()
    }

    /// Whether no other process can have taken over, because the last heartbeat is within the lease.
    pub(super) fn has_valid_lease(&self) -> bool {
        self.me.has_valid_lease(self.log.settings.lease)
    }

    /// Whether this process has reached the store within half of the lease. Then a message that it sends now has its verdict before
    /// the lease expires.
    pub(super) fn is_fresh(&self) -> bool {
        self.me.has_valid_lease(self.log.settings.lease / 2)
    }
}

impl<S: LogStore> Presence<S> {
    /// Makes this process present: registers it and starts its heartbeats.
    pub(super) async fn join(self: &Arc<Self>) -> Result<PresenceGuard<S>, Error> {
        let _turn = self.turn.lock().await;
        if self.me.state().present == 0 {
            self.enter().await?;
            let presence = self.clone();
            self.me.state().heartbeats = Some(tokio::spawn(async move { presence.send_heartbeats().await }));
        }
        self.me.state().present += 1;
        Ok(PresenceGuard::of(self))
    }

    /// The same as [`join`](Self::join), with retries while the store does not respond. `None` if `shutdown` is ready first.
    pub(super) async fn join_with_retry(
        self: &Arc<Self>,
        mut shutdown: impl Future<Output = ()> + Unpin + Send,
    ) -> Result<Option<PresenceGuard<S>>, Error> {
        let mut retries = Retries::unlimited();
        loop {
            // Not cancelled by `shutdown`: a half-registered process would look crashed to the others later.
            match self.join().await {
                Err(error) if !Judgement::of::<S>(&error).is_refused() => {
                    self.log.note_error(Some(chain(&error)));
                }
                present => {
                    self.log.note_error(None);
                    return present.map(Some);
                }
            }
            tokio::select! {
                () = &mut shutdown => return Ok(None),
                () = retries.pause() => {}
            }
        }
    }

    /// Keeps the process present for work that its starter does not wait for. `None` if the process is not present.
    pub(super) fn stay(self: &Arc<Self>) -> Option<PresenceGuard<S>> {
        let mut state = self.me.state();
        state.identity.as_ref()?;
        state.present += 1;
        Some(PresenceGuard::of(self))
    }

    async fn leave(&self) {
        let _turn = self.turn.lock().await;
        let gone = {
            let mut state = self.me.state();
            state.present = state.present.saturating_sub(1);
            if state.present > 0 {
                return;
            }
            state.others.clear();
            state.beats.clear();
            if let Some(heartbeats) = state.heartbeats.take() {
                heartbeats.abort();
            }
            state.identity.take()
        };
        if let Some(identity) = gone
            && let Err(error) = self.engine.store.leave(identity.id).await
        {
            tracing::warn!(
                error = chain(&error),
                "could not sign off: other processes take over when the lease expires"
            );
        }
    }

    /// Registers this process under a new id.
    async fn enter(&self) -> Result<(), Error> {
        let store = &self.engine.store;
        // A process that continues under a new id has listened. If it judged by the times alone, two processes whose clocks differ
        // would remove each other again and again.
        let listener = match self.me.process() {
            None => Listener::Starting,
            Some(_) => Listener::Working { connected_since: None },
        };
        let process = NewProcess {
            // A new id each time: a process whose lease expired must not continue under its old fences.
            id: ProcessId(Uuid::now_v7()),
            name: Incarnation::of_this_process().to_string(),
            handlers: self.log.ids.clone(),
            lease: self.log.settings.lease,
            in_flight: u32::try_from(self.log.settings.work_batch).unwrap_or(u32::MAX),
            moves: self.engine.outbox.is_some() || self.engine.mode == Mode::Relay,
        };
        let entered = match store.enter(&process).await {
            // Crashed processes first: this process may end before its first heartbeat, which would do it otherwise.
            Ok(()) => self.free_crashed(process.id, listener).await,
            Err(error) => Err(error),
        };
        if let Err(error) = entered {
            // Only the response may have been lost. A process that never worked must not look crashed, so it signs off.
            let _ = store.leave(process.id).await;
            return Err(error);
        }
        self.me.adopt(process.id);
        Ok(())
    }

    /// Sends heartbeats, and frees the tasks of crashed processes.
    async fn send_heartbeats(&self) {
        let lease = self.log.settings.lease;
        let mut last_heartbeat = Instant::now();
        // When the connection to the store came back, if it was lost.
        let mut connected_since = None;
        loop {
            self.wait_for_next_heartbeat(&mut connected_since).await;
            let Some(process) = self.me.process() else { return };
            // Half of the lease, so that a stuck connection leaves time for another heartbeat before the lease expires.
            let beat = timeout(lease / 2, self.engine.store.beat_process(process.id)).await;
            let silent_for = last_heartbeat.elapsed();
            match beat {
                Ok(Ok(true)) => {
                    last_heartbeat = Instant::now();
                    self.me.note_heartbeat();
                    if self.me.recover() {
                        self.log.wake.notify_one();
                    }
                    if silent_for > beat_every(lease) * 2 {
                        // The others may have missed heartbeats for the same reason, so they get time for the next one.
                        connected_since = Some(last_heartbeat);
                    }
                    self.free_crashed_in_time(process.id, connected_since).await;
                }
                Ok(Ok(false)) => {
                    tracing::warn!(
                        "the lease of this process expired; what it ran outside of transactions does not count"
                    );
                    if let Err(error) = self.enter().await {
                        tracing::debug!(
                            error = chain(&error),
                            "could not register this process again: the store does not respond"
                        );
                        self.me.cancel_running();
                    }
                    last_heartbeat = Instant::now();
                    connected_since = Some(last_heartbeat);
                }
                failed => {
                    // Without a connection this process cannot see the heartbeats of others either.
                    connected_since = Some(Instant::now());
                    if silent_for > lease {
                        self.me.cancel_running();
                    }
                    let error = failed.map(|beat| beat.err().map(|error| chain(&error)));
                    tracing::debug!(?error, "a heartbeat failed");
                }
            }
        }
    }

    /// Waits until the next heartbeat. A process that ends on this machine meanwhile is noticed at once.
    async fn wait_for_next_heartbeat(&self, connected_since: &mut Option<Instant>) {
        let next = Instant::now() + beat_every(self.log.settings.lease);
        while let Some(left) = next.checked_duration_since(Instant::now()) {
            sleep(left.min(GLANCE_EVERY)).await;
            let Some(process) = self.me.process() else { return };
            if self.me.has_another_ended() {
                self.free_crashed_in_time(process.id, *connected_since).await;
            }
        }
    }

    /// The same with a time limit. Handlers may use all connections, and the next heartbeat must not wait for one.
    async fn free_crashed_in_time(&self, me: ProcessId, connected_since: Option<Instant>) {
        let look = self.free_crashed(me, Listener::Working { connected_since });
        match timeout(beat_every(self.log.settings.lease), look).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                tracing::debug!(error = chain(&error), "could not look for crashed processes");
            }
            Err(_elapsed) => tracing::debug!("no time to look for crashed processes"),
        }
    }

    async fn free_crashed(&self, me: ProcessId, listener: Listener) -> Result<(), Error> {
        let store = &self.engine.store;
        let peers = store.peers(me).await?;
        let this = Incarnation::of_this_process();
        let unheard_for = self.me.listen(&peers);
        let (mut crashed, mut alive) = (Vec::new(), Vec::new());
        for (peer, unheard_for) in peers.into_iter().zip(unheard_for) {
            match crash_of(&peer, this, listener, unheard_for) {
                Some(evidence) => crashed.push((peer, evidence)),
                None => alive.push(peer),
            }
        }
        self.me.remember(&alive);
        for (peer, evidence) in crashed {
            let has_exited = evidence == CrashEvidence::Exited;
            if let Some(tasks) = store.remove_crashed(peer.id, has_exited).await? {
                tracing::warn!(process = peer.name, tasks, "a process crashed; its tasks are free");
                self.log.wake.notify_one();
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::HandlerId;

    fn peer(name: &str, silent_for: Duration) -> Peer {
        Peer {
            id: ProcessId(Uuid::from_u128(1)),
            name: name.to_owned(),
            handlers: vec![HandlerId(1)],
            beats: 0,
            silent_for,
            lease: Duration::from_secs(10),
            moves: false,
        }
    }

    #[test]
    fn a_process_continues_when_its_heartbeats_succeed_again() {
        let presence = Identities::default();
        presence.adopt(ProcessId(Uuid::from_u128(1)));
        assert!(!presence.recover());
        let before = presence.process().unwrap();
        presence.cancel_running();
        assert!(presence.process().unwrap().cancellation.is_cancelled());
        assert!(presence.recover());
        let after = presence.process().unwrap();
        assert_eq!(after.id, before.id);
        assert!(before.cancellation.is_cancelled() && !after.cancellation.is_cancelled());
    }

    #[test]
    fn a_process_has_crashed_when_it_ended_here_or_its_lease_expired() {
        let me = Incarnation::of_this_process();
        let this = me.to_string();
        let (fresh, silent) = (Duration::ZERO, Duration::from_secs(11));
        let working = |connected_since| Listener::Working { connected_since };
        let (always, since_now) = (working(None), working(Some(Instant::now())));
        let table = [
            (peer("elsewhere 7 x", fresh), always, silent, None),
            (peer("elsewhere 7 x", silent), always, silent, Some(CrashEvidence::LeaseExpired)),
            // Its clock differs: it was heard a moment ago.
            (peer("elsewhere 7 x", silent), always, fresh, None),
            // The store received no heartbeats until now.
            (peer("elsewhere 7 x", silent), since_now, silent, None),
            // No process has listened yet.
            (peer("elsewhere 7 x", silent), Listener::Starting, fresh, Some(CrashEvidence::LeaseExpired)),
            (peer(&this, fresh), always, silent, None),
            // A stopped process (`SIGSTOP`), for example.
            (peer(&this, silent), always, silent, Some(CrashEvidence::LeaseExpired)),
            (peer("by hand", silent), always, silent, Some(CrashEvidence::LeaseExpired)),
        ];
        for (peer, listener, unheard_for, expected) in table {
            assert_eq!(crash_of(&peer, me, listener, unheard_for), expected, "{peer:?}, {listener:?}");
        }
        let mut words: Vec<&str> = this.split(' ').collect();
        if words.len() == 5 {
            (words[1], words[2]) = ("4294967295", "gone");
            assert_eq!(
                crash_of(&peer(&words.join(" "), fresh), me, since_now, fresh),
                Some(CrashEvidence::Exited)
            );
        }
    }

    #[test]
    fn a_process_is_heard_when_its_number_of_heartbeats_changes() {
        let me = Identities::default();
        let peer = |beats| Peer { beats, ..peer("elsewhere 7 x", Duration::ZERO) };
        me.listen(&[peer(1)]);
        let first = me.state().beats[&peer(1).id].1;
        me.listen(&[peer(1)]);
        assert_eq!(me.state().beats[&peer(1).id], (1, first));
        me.listen(&[peer(2)]);
        let (beats, heard) = me.state().beats[&peer(1).id];
        assert!(beats == 2 && heard >= first);
        me.listen(&[]);
        assert!(me.state().beats.is_empty(), "it has left");
    }
}
