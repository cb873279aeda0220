//! When workers are killed: pure, by the seed and by what was sent.

use std::time::{Duration, Instant};

use crate::demo::chance::Chance;

/// So many messages may be sent while a kill is due: it is to happen under load.
const AHEAD: usize = 200;
/// A kill comes at some moment in this time after it is due.
const MOMENT_MS: usize = 25;

/// The kills that are still to come.
#[derive(Debug)]
pub(super) struct Kills {
    /// After so many messages each, the next one last.
    after: Vec<usize>,
    at: Option<Instant>,
    chance: Chance,
}

impl Kills {
    pub(super) fn new(seed: u64, kills: usize, messages: usize) -> Self {
        let mut chance = Chance::new(seed, 20);
        // Not before anything has happened, and not when it is all over.
        let (from, to) = (messages / 50, messages * 9 / 10);
        let mut after: Vec<usize> = (0..kills).map(|_| from + chance.below(to - from + 1)).collect();
        after.sort_unstable_by(|one, other| other.cmp(one));
        Self { after, at: None, chance }
    }

    /// How many are to come.
    pub(super) fn left(&self) -> usize {
        self.after.len()
    }

    /// How many messages may be sent before the next one.
    pub(super) fn sent_max(&self) -> usize {
        self.after.last().map_or(usize::MAX, |after| after + AHEAD)
    }

    /// Whether somebody is to be killed at this moment.
    pub(super) fn is_due(&mut self, sent: usize, now: Instant) -> bool {
        if self.after.last().is_none_or(|after| sent < *after) {
            return false;
        }
        let moment = Duration::from_micros(self.chance.below(MOMENT_MS * 1_000) as u64);
        *self.at.get_or_insert(now + moment) <= now
    }

    /// Somebody was killed.
    pub(super) fn happened(&mut self) {
        self.after.pop();
        self.at = None;
    }

    /// Who it is to be.
    pub(super) fn choose(&mut self, among: &[usize]) -> Option<usize> {
        (!among.is_empty()).then(|| among[self.chance.below(among.len())])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_of_them_come_while_messages_are_sent() {
        let mut kills = Kills::new(3, 20, 5_000);
        let mut now = Instant::now();
        let (mut sent, mut killed) = (0, Vec::new());
        while kills.left() > 0 {
            now += Duration::from_millis(1);
            sent = (sent + 10).min(kills.sent_max()).min(5_000);
            if kills.is_due(sent, now) {
                assert!(kills.choose(&[4]) == Some(4) && kills.choose(&[]).is_none());
                kills.happened();
                killed.push(sent);
            }
        }
        assert_eq!(killed.len(), 20);
        assert!(killed[0] >= 100 && killed[19] < 5_000, "{killed:?}");
        assert!(killed[0] < killed[10] && killed[10] < killed[19], "{killed:?}");
    }

    #[test]
    fn nothing_is_sent_past_one_that_is_due() {
        let kills = Kills::new(3, 1, 5_000);
        assert_eq!(kills.sent_max(), kills.after[0] + AHEAD);
        assert_eq!(Kills::new(3, 0, 5_000).sent_max(), usize::MAX);
    }

    #[test]
    fn there_may_be_more_of_them_than_messages() {
        let mut kills = Kills::new(3, 5, 1);
        let now = Instant::now();
        while kills.left() > 0 {
            kills.is_due(1, now);
            assert!(kills.is_due(1, now + Duration::from_secs(1)));
            kills.happened();
        }
    }
}
