//! The faults, and the schedule of a seed: pure.

use std::collections::{BTreeSet, VecDeque};

use oncebox_torture::kill_point::KillPoint;
use oncebox_torture::scenario::TortureMode;
use oncebox_workload::random::Random;

use crate::broker::BrokerName;
use crate::database::StoreName;

/// A fault that can be injected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TortureFault {
    /// `kill -9` of a worker at a named point.
    KillAt(KillPoint),
    /// `kill -9` of a worker at any moment.
    KillRandom,
    /// `kill -9` of the server and all its sessions, and a restart. For SQLite: of all workers at once.
    KillDatabase,
    /// The server terminates one session.
    TerminateBackend,
    /// Another program holds the write lock for a while.
    HoldWriteLock,
    /// A worker is stopped for longer than its lease, and continues then.
    StopBeyondLease,
    /// A commit succeeds, and its result is lost.
    CutAfterCommit,
    /// Connections that no longer transmit any data, without an error.
    HalfOpen,
    /// The disk is full for a while.
    DiskFull,
    /// 64 copies of one message at once, to a worker with two connections.
    PoolOfTwo,
    /// Another session holds an old snapshot, so that dead rows cannot be removed.
    HeldSnapshot,
    /// Callers cancel their calls before they are complete.
    CancelCallers,
    /// A worker's clock jumps by hours, forward or back.
    ClockJump,
    /// 20 processes start at once on an empty database.
    TwentyStarters,
    /// All workers are restarted, one after the other, under load.
    RollingRestart,
    /// The handlers' own table gets another column, as a migration of the user's schema does.
    AlterTable,
    /// Sessions lose their prepared statements.
    DeallocateAll,
    /// Commits of the mover and the relay succeed, and their results are lost.
    LoseOutboxResults,
    /// `kill -9` of the broker, and a restart.
    BrokerKill,
    /// The broker is stopped for seconds, and continues then.
    BrokerStop,
    /// The broker closes all connections.
    BrokerClose,
    /// The broker closes the channel of a consumer with an error.
    BrokerChannel,
    /// The broker runs out of memory for seconds.
    BrokerAlarm,
    /// A queue is deleted with its messages, and created again.
    BrokerQueue,
}

impl TortureFault {
    /// The faults of a broker.
    const OF_BROKER: [Self; 6] = [
        Self::BrokerKill,
        Self::BrokerStop,
        Self::BrokerClose,
        Self::BrokerChannel,
        Self::BrokerAlarm,
        Self::BrokerQueue,
    ];

    /// The faults that are possible with a store, in a mode, with or without a broker.
    pub(crate) fn of(store: StoreName, mode: TortureMode, broker: Option<BrokerName>) -> Vec<Self> {
        let has_outbox = mode == TortureMode::Outbox;
        let of_outbox = KillPoint::OF_OUTBOX.into_iter().map(Self::KillAt).chain([Self::LoseOutboxResults]);
        let kills = KillPoint::OF_INBOX.into_iter().map(Self::KillAt);
        let others = [
            Self::KillRandom,
            Self::KillDatabase,
            Self::TerminateBackend,
            Self::HoldWriteLock,
            Self::StopBeyondLease,
            Self::CutAfterCommit,
            Self::HalfOpen,
            Self::DiskFull,
            Self::PoolOfTwo,
            Self::HeldSnapshot,
            Self::CancelCallers,
            Self::ClockJump,
            Self::TwentyStarters,
            Self::RollingRestart,
            Self::AlterTable,
            Self::DeallocateAll,
        ];
        let is_possible = |fault: &Self| match fault {
            Self::TerminateBackend | Self::HalfOpen | Self::DeallocateAll => store == StoreName::Postgres,
            Self::HoldWriteLock => store == StoreName::Sqlite,
            _ => true,
        };
        let of_broker = Self::OF_BROKER.into_iter().filter(|_| broker.is_some());
        let of_outbox = of_outbox.filter(|_| has_outbox);
        kills.chain(others).chain(of_outbox).chain(of_broker).filter(is_possible).collect()
    }

    /// All faults of a store, whatever the mode.
    pub(crate) fn all(store: StoreName) -> Vec<Self> {
        // The mode with an outbox has the faults of all others.
        Self::of(store, TortureMode::Outbox, Some(BrokerName::Rabbitmq))
    }

    /// The fault with that id.
    pub(crate) fn named(id: &str) -> Result<Self, String> {
        let all: Vec<Self> = StoreName::ALL.into_iter().flat_map(Self::all).collect();
        let named = all.iter().find(|fault| fault.id() == id).copied();
        named.ok_or_else(|| {
            let ids: BTreeSet<&str> = all.iter().map(|fault| fault.id()).collect();
            format!("unknown fault: use one of {}", ids.into_iter().collect::<Vec<_>>().join(", "))
        })
    }

    /// Its id in options and reports.
    pub(crate) fn id(self) -> &'static str {
        match self {
            Self::KillAt(KillPoint::BeforeClaim) => "kill_before_claim",
            Self::KillAt(KillPoint::InBody) => "kill_in_body",
            Self::KillAt(KillPoint::BeforeCommit) => "kill_before_commit",
            Self::KillAt(KillPoint::AfterCommit) => "kill_after_commit",
            Self::KillAt(KillPoint::BeforeAnswer) => "kill_before_answer",
            Self::KillRandom => "kill_random",
            Self::KillDatabase => "kill_database",
            Self::TerminateBackend => "terminate_backend",
            Self::HoldWriteLock => "hold_write_lock",
            Self::StopBeyondLease => "stop_beyond_lease",
            Self::CutAfterCommit => "cut_after_commit",
            Self::HalfOpen => "half_open",
            Self::DiskFull => "disk_full",
            Self::PoolOfTwo => "pool_of_two",
            Self::HeldSnapshot => "held_snapshot",
            Self::CancelCallers => "cancel_callers",
            Self::ClockJump => "clock_jump",
            Self::TwentyStarters => "twenty_starters",
            Self::RollingRestart => "rolling_restart",
            Self::AlterTable => "alter_table",
            Self::DeallocateAll => "deallocate_all",
            Self::KillAt(KillPoint::BeforeOutboxCommit) => "kill_before_outbox_commit",
            Self::KillAt(KillPoint::AfterOutboxCommit) => "kill_after_outbox_commit",
            Self::KillAt(KillPoint::BeforeSend) => "kill_before_send",
            Self::KillAt(KillPoint::BeforeConfirm) => "kill_before_confirm",
            Self::LoseOutboxResults => "lose_outbox_results",
            Self::BrokerKill => "broker_kill",
            Self::BrokerStop => "broker_stop",
            Self::BrokerClose => "broker_close",
            Self::BrokerChannel => "broker_channel",
            Self::BrokerAlarm => "broker_alarm",
            Self::BrokerQueue => "broker_queue",
        }
    }
}

/// The faults that have not happened yet, and the number of acknowledged messages after which each is due.
#[derive(Debug)]
pub(crate) struct Schedule(VecDeque<(u64, TortureFault)>);

impl Schedule {
    /// Spreads the faults over the messages. A seed continues the list of faults where the seed before it has ended, so that all
    /// faults happen equally often.
    pub(crate) fn new(seed: u64, faults: usize, messages: u64, possible: &[TortureFault]) -> Self {
        let mut random = Random::new(seed, "schedule");
        let behind = usize::try_from(seed).unwrap_or_default().wrapping_mul(faults);
        let mut chosen: Vec<TortureFault> =
            possible.iter().copied().cycle().skip(behind % possible.len().max(1)).take(faults).collect();
        // Otherwise each fault would always follow the same other one.
        random.shuffle(&mut chosen);
        let interval = messages / (faults as u64 + 1);
        let at = |number: usize, random: &mut Random| {
            let jitter = random.below(usize::try_from(interval / 2 + 1).unwrap_or(1));
            interval * (number as u64 + 1) + jitter as u64
        };
        Self(chosen.into_iter().enumerate().map(|(number, fault)| (at(number, &mut random), fault)).collect())
    }

    /// The next fault, if it is due after that many acknowledged messages.
    pub(crate) fn due(&mut self, acknowledged: u64) -> Option<TortureFault> {
        self.0.pop_front_if(|(at, _)| *at <= acknowledged).map(|(_, fault)| fault)
    }

    /// The number of faults that have not happened yet.
    pub(crate) fn left(&self) -> usize {
        self.0.len()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn all(seed: u64, faults: usize) -> Vec<&'static str> {
        let mut schedule = Schedule::new(seed, faults, 1_000, &TortureFault::all(StoreName::Postgres));
        let ids: Vec<&str> = std::iter::from_fn(|| schedule.due(u64::MAX)).map(TortureFault::id).collect();
        assert_eq!(schedule.left(), 0);
        ids
    }

    #[test]
    fn the_same_seed_gives_the_same_schedule() {
        assert_eq!(all(3, 40), all(3, 40));
        assert_ne!(all(3, 40), all(4, 40));
    }

    #[test]
    fn faults_happen_equally_often_over_several_seeds() {
        let mut counts = BTreeMap::new();
        for id in (0..10).flat_map(|seed| all(seed, 10)) {
            *counts.entry(id).or_insert(0) += 1;
        }
        let counts: BTreeSet<i32> = counts.into_values().collect();
        assert!(counts.len() <= 2, "the counts differ by one at most: {counts:?}");
    }

    #[test]
    fn no_fault_happens_before_it_is_due() {
        let mut schedule = Schedule::new(1, 4, 1_000, &TortureFault::all(StoreName::Sqlite));
        assert_eq!(schedule.due(199), None);
        assert!(schedule.due(300).is_some());
        assert_eq!(schedule.due(300), None);
    }

    #[test]
    fn every_fault_is_found_by_its_id() {
        for store in StoreName::ALL {
            let faults = TortureFault::all(store);
            let ids: BTreeSet<&str> = faults.iter().map(|fault| fault.id()).collect();
            assert_eq!(ids.len(), faults.len());
            assert!(faults.iter().all(|fault| TortureFault::named(fault.id()) == Ok(*fault)));
        }
    }

    #[test]
    fn the_mode_with_an_outbox_has_the_faults_of_all_modes() {
        for (store, mode) in
            StoreName::ALL.into_iter().flat_map(|store| TortureMode::ALL.map(|mode| (store, mode)))
        {
            let all = TortureFault::all(store);
            assert!(TortureFault::of(store, mode, None).iter().all(|fault| all.contains(fault)));
        }
        let of_inline = TortureFault::of(StoreName::Sqlite, TortureMode::Inline, None);
        assert!(!of_inline.contains(&TortureFault::LoseOutboxResults));
        assert!(!of_inline.contains(&TortureFault::BrokerKill));
    }
}
