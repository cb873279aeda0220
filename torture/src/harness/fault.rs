//! The faults, by their names, and when each is to happen.

use std::collections::{BTreeSet, VecDeque};

use oncebox_torture::chance::Chance;
use oncebox_torture::point::KillPoint;

use crate::database::StoreName;

/// Something that goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// `kill -9` of a worker at a named point.
    KillAt(KillPoint),
    /// `kill -9` of a worker, wherever it is.
    KillRandom,
    /// `kill -9` of everything that is the database at once, and a restart. For SQLite: of all workers.
    KillDatabase,
    /// One session is ended by the server.
    TerminateBackend,
    /// Another program keeps the one write lock to itself for a while.
    HoldWriteLock,
    /// A worker is stopped for longer than its lease, and goes on then.
    StopBeyondLease,
    /// A commit happens, and its answer is lost.
    CutAfterCommit,
    /// No byte of some connections arrives any more, and nobody says so.
    HalfOpen,
    /// No space is left on the disk, for a while.
    DiskFull,
    /// 64 copies of one message at once, to a worker with two connections.
    PoolOfTwo,
    /// Somebody keeps an old snapshot open, so that nothing dead can be cleared away.
    HeldSnapshot,
    /// Callers go away in the middle of their calls.
    CancelCallers,
    /// A worker's clock jumps by hours, forward or back.
    ClockJump,
    /// 20 processes start at once where there is no table yet.
    TwentyStarters,
    /// Every worker is asked to end and is replaced, one after the other, under load.
    RollingRestart,
    /// The handlers' own table gets another column, as a migration of the user's schema does.
    AlterTable,
    /// Sessions lose their prepared statements.
    DeallocateAll,
}

impl Fault {
    /// The faults that a store can meet.
    pub(crate) fn of(store: StoreName) -> Vec<Self> {
        let kills = KillPoint::ALL.into_iter().map(Self::KillAt);
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
        let meets = |fault: &Self| match fault {
            Self::TerminateBackend | Self::HalfOpen | Self::DeallocateAll => store == StoreName::Postgres,
            Self::HoldWriteLock => store == StoreName::Sqlite,
            _ => true,
        };
        kills.chain(others).filter(meets).collect()
    }

    /// The fault of that id.
    pub(crate) fn named(id: &str) -> Result<Self, String> {
        let all: Vec<Self> = StoreName::ALL.into_iter().flat_map(Self::of).collect();
        let named = all.iter().find(|fault| fault.id() == id).copied();
        named.ok_or_else(|| {
            let ids: BTreeSet<&str> = all.iter().map(|fault| fault.id()).collect();
            format!("not a fault: use one of {}", ids.into_iter().collect::<Vec<_>>().join(", "))
        })
    }

    /// How it is called in reports.
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
        }
    }
}

/// Which fault happens after how many answers.
#[derive(Debug)]
pub(crate) struct Schedule(VecDeque<(u64, Fault)>);

impl Schedule {
    /// So many faults over so many messages. One seed goes on in the list where the seed before has stopped, so that all
    /// faults come equally often.
    pub(crate) fn new(seed: u64, faults: usize, messages: u64, possible: &[Fault]) -> Self {
        let mut chance = Chance::new(seed);
        let behind = usize::try_from(seed).unwrap_or_default().wrapping_mul(faults);
        let mut chosen: Vec<Fault> =
            possible.iter().copied().cycle().skip(behind % possible.len().max(1)).take(faults).collect();
        chance.shuffle(&mut chosen);
        let stretch = messages / (faults as u64 + 1);
        let at = |number: usize, chance: &mut Chance| {
            let jitter = chance.below(usize::try_from(stretch / 2 + 1).unwrap_or(1));
            stretch * (number as u64 + 1) + jitter as u64
        };
        Self(chosen.into_iter().enumerate().map(|(number, fault)| (at(number, &mut chance), fault)).collect())
    }

    /// The next fault, if so many answers are enough for it.
    pub(crate) fn due(&mut self, answers: u64) -> Option<Fault> {
        self.0.pop_front_if(|(at, _)| *at <= answers).map(|(_, fault)| fault)
    }

    /// How many are still to come.
    pub(crate) fn left(&self) -> usize {
        self.0.len()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn all(seed: u64, faults: usize) -> Vec<&'static str> {
        let mut schedule = Schedule::new(seed, faults, 1_000, &Fault::of(StoreName::Postgres));
        let ids: Vec<&str> = std::iter::from_fn(|| schedule.due(u64::MAX)).map(Fault::id).collect();
        assert_eq!(schedule.left(), 0);
        ids
    }

    #[test]
    fn a_seed_says_it_all() {
        assert_eq!(all(3, 40), all(3, 40));
        assert_ne!(all(3, 40), all(4, 40));
    }

    #[test]
    fn seeds_go_on_where_others_have_stopped() {
        let mut counts = BTreeMap::new();
        for id in (0..10).flat_map(|seed| all(seed, 10)) {
            *counts.entry(id).or_insert(0) += 1;
        }
        let counts: BTreeSet<i32> = counts.into_values().collect();
        assert!(counts.len() <= 2, "as often as each other, give or take one: {counts:?}");
    }

    #[test]
    fn nothing_happens_before_its_time() {
        let mut schedule = Schedule::new(1, 4, 1_000, &Fault::of(StoreName::Sqlite));
        assert_eq!(schedule.due(199), None);
        assert!(schedule.due(300).is_some());
        assert_eq!(schedule.due(300), None);
    }

    #[test]
    fn every_fault_has_a_name_of_its_own() {
        for store in StoreName::ALL {
            let faults = Fault::of(store);
            let ids: BTreeSet<&str> = faults.iter().map(|fault| fault.id()).collect();
            assert_eq!(ids.len(), faults.len());
            assert!(faults.iter().all(|fault| Fault::named(fault.id()) == Ok(*fault)));
        }
    }
}
