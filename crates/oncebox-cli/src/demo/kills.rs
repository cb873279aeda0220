//! When workers are killed, by the seed and the number of messages that were sent: pure.

use std::time::{Duration, Instant};

use oncebox_workload::random::Random;

/// The maximum number of messages that are sent while a kill is due: it must happen under load.
const AHEAD: u64 = 200;
/// A kill happens within this time after it is due.
const DELAY_MS: usize = 25;

/// The kills that have not happened yet.
#[derive(Debug)]
pub(super) struct KillSchedule {
    /// The number of sent messages after which each kill is due, the next one last.
    after: Vec<u64>,
    at: Option<Instant>,
    random: Random,
}

impl KillSchedule {
    pub(super) fn new(seed: u64, kills: usize, messages: usize) -> Self {
        let mut random = Random::new(seed, "kills");
        // Not before there is any work, and not when all of it is done.
        let (from, to) = (messages / 50, messages * 9 / 10);
        let mut after: Vec<u64> = (0..kills).map(|_| (from + random.below(to - from + 1)) as u64).collect();
        after.sort_unstable_by(|one, other| other.cmp(one));
        Self { after, at: None, random }
    }

    /// The number of kills that have not happened yet.
    pub(super) fn left(&self) -> usize {
        self.after.len()
    }

    /// The maximum number of messages that are sent before the next kill.
    pub(super) fn sent_max(&self) -> u64 {
        self.after.last().map_or(u64::MAX, |after| after + AHEAD)
    }

    /// Whether a worker must be killed now.
    pub(super) fn is_due(&mut self, sent: u64, now: Instant) -> bool {
        if self.after.last().is_none_or(|after| sent < *after) {
            return false;
        }
        // Random, so that kills hit the workers at different steps of their work.
        let delay = Duration::from_micros(self.random.below(DELAY_MS * 1_000) as u64);
        *self.at.get_or_insert(now + delay) <= now
    }

    /// The next kill has happened.
    pub(super) fn complete_one(&mut self) {
        self.after.pop();
        self.at = None;
    }

    /// The worker to be killed.
    pub(super) fn choose(&mut self, workers: &[usize]) -> Option<usize> {
        self.random.choose(workers)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_kills_happen_while_messages_are_sent() {
        let mut kills = KillSchedule::new(3, 20, 5_000);
        let mut now = Instant::now();
        let (mut sent, mut killed) = (0, Vec::new());
        while kills.left() > 0 {
            now += Duration::from_millis(1);
            sent = (sent + 10).min(kills.sent_max()).min(5_000);
            if kills.is_due(sent, now) {
                kills.complete_one();
                killed.push(sent);
            }
        }
        assert_eq!(killed.len(), 20);
        assert!(killed[0] >= 100 && killed[19] < 5_000, "{killed:?}");
        assert!(killed[0] < killed[10] && killed[10] < killed[19], "{killed:?}");
    }

    #[test]
    fn few_messages_are_sent_while_a_kill_is_due() {
        let kills = KillSchedule::new(3, 1, 5_000);
        assert_eq!(kills.sent_max(), kills.after[0] + AHEAD);
        assert_eq!(KillSchedule::new(3, 0, 5_000).sent_max(), u64::MAX);
    }

    #[test]
    fn there_can_be_more_kills_than_messages() {
        let mut kills = KillSchedule::new(3, 5, 1);
        let now = Instant::now();
        while kills.left() > 0 {
            kills.is_due(1, now);
            assert!(kills.is_due(1, now + Duration::from_secs(1)));
            kills.complete_one();
        }
    }
}
