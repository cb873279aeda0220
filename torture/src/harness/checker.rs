//! The judge: reads the history and the effects, and counts every promise that was broken.

use std::collections::{BTreeMap, HashMap, HashSet};

use anyhow::Result;
use oncebox_torture::plan::{ACCOUNTS, Kind, MAIL, Mode, Plan, STATEMENT};
use serde::{Deserialize, Serialize};

use crate::history::{Answer, Event};

/// What came of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Verdict {
    /// Different messages.
    pub(crate) messages: u64,
    /// Copies given to workers.
    pub(crate) deliveries: u64,
    /// Faults that happened.
    pub(crate) faults: u64,
    /// Rows in the table of effects.
    pub(crate) effects: u64,
    /// Acknowledged, and without effect.
    pub(crate) lost: u64,
    /// Effects beyond the first.
    pub(crate) duplicated: u64,
    /// Bodies of one handler for one message whose transactions were open at the same time.
    pub(crate) overlap: u64,
    /// Effects of an ordered handler that came before one of an earlier message of their account.
    pub(crate) inversion: u64,
    /// Effects that nobody sent, and effects without a marker or markers without an effect.
    pub(crate) ghost: u64,
    /// Messages that were never acknowledged or never handled, though the faults had stopped; processes that
    /// did not start, or ended by themselves.
    pub(crate) stuck: u64,
    /// Dead letters of messages that were not planned to fail for good.
    #[serde(default)]
    pub(crate) dead: u64,
    /// Commits whose answer was lost.
    pub(crate) commits_unknown: u64,
    /// Of these, those that had happened.
    pub(crate) commits_recovered: u64,
    /// How often each fault happened.
    pub(crate) by_fault: BTreeMap<String, u64>,
}

impl Verdict {
    /// How many promises were broken.
    pub(crate) fn violations(&self) -> u64 {
        self.lost + self.duplicated + self.overlap + self.inversion + self.ghost + self.stuck + self.dead
    }

    /// Both together.
    pub(crate) fn add(&mut self, other: &Self) {
        let sums = [
            (&mut self.messages, other.messages),
            (&mut self.deliveries, other.deliveries),
            (&mut self.faults, other.faults),
            (&mut self.effects, other.effects),
            (&mut self.lost, other.lost),
            (&mut self.duplicated, other.duplicated),
            (&mut self.overlap, other.overlap),
            (&mut self.inversion, other.inversion),
            (&mut self.ghost, other.ghost),
            (&mut self.stuck, other.stuck),
            (&mut self.dead, other.dead),
            (&mut self.commits_unknown, other.commits_unknown),
            (&mut self.commits_recovered, other.commits_recovered),
        ];
        for (sum, more) in sums {
            *sum += more;
        }
        for (fault, times) in &other.by_fault {
            *self.by_fault.entry(fault.clone()).or_default() += times;
        }
    }
}

/// What is in the database at the end.
#[derive(Debug)]
pub(crate) struct Found {
    /// Handler and message, in the order in which they were written.
    pub(crate) effects: Vec<(String, u64)>,
    /// Markers that say done.
    pub(crate) markers: u64,
}

/// Judges a run by what is written, and by nothing that the harness may have in mind.
pub(crate) fn check(
    plan: Plan,
    history: impl Iterator<Item = Result<Event>>,
    found: &Found,
) -> Result<(Verdict, Vec<String>)> {
    let mut verdict = Verdict { effects: found.effects.len() as u64, ..Verdict::default() };
    let mut complaints = Complaints::default();
    let mut sent = HashSet::new();
    let mut acknowledged = HashSet::new();
    let mut posted = HashSet::new();
    let mut dead = HashSet::new();
    let mut bodies: HashMap<(u64, String), Vec<(i128, i128)>> = HashMap::new();
    for event in history {
        match event? {
            Event::Sent { id } => _ = sent.insert(id),
            Event::Delivered { .. } => verdict.deliveries += 1,
            Event::Settled { id, answer: Answer::Ack, .. } => _ = acknowledged.insert(id),
            Event::Settled { id, answer: Answer::Reject, word, .. } => {
                verdict.stuck += 1;
                complaints.add(format!("{id} was rejected: {word}"));
            }
            Event::Settled { answer: Answer::Retry, .. } => {}
            Event::Body { id, handler, .. } if handler == MAIL => _ = posted.insert(id),
            Event::Body { id, handler, enter, leave } => {
                bodies.entry((id, handler)).or_default().push((enter, leave));
            }
            Event::Unknown { commits } => verdict.commits_unknown += commits,
            Event::Recovered { commits } => verdict.commits_recovered += commits,
            Event::Fault { id } => {
                verdict.faults += 1;
                *verdict.by_fault.entry(id).or_default() += 1;
            }
            Event::Started { ready, effects } => {
                verdict.stuck += STARTERS - ready.min(STARTERS);
                verdict.lost += u64::from(effects == 0);
                verdict.duplicated += effects.saturating_sub(1);
                if (ready, effects) != (STARTERS, 1) {
                    complaints
                        .add(format!("of {STARTERS} starters {ready} were ready, with {effects} effects"));
                }
            }
            Event::Idle { worker } => {
                verdict.stuck += 1;
                complaints.add(format!("worker {worker} did nothing new after a fault"));
            }
            Event::Silent { faults } => {
                verdict.stuck += 1;
                complaints.add(format!("nobody answered any more, with {faults} faults still to come"));
            }
            Event::Left { waiting, tasks, dead } => {
                verdict.stuck += waiting + tasks + dead;
                complaints
                    .add(format!("{waiting} messages, {tasks} tasks and {dead} dead letters were left"));
            }
            // A dead letter that could not be revived at once is reported again.
            Event::Dead { id, handler, error } => {
                if !plan.fails_for_good(&handler, id) && dead.insert((id, handler.clone())) {
                    complaints.add(format!("{handler} gave up on {id}: {error}"));
                }
            }
            Event::Gone { worker, how } => {
                if !how.starts_with("as asked") {
                    verdict.stuck += 1;
                    complaints.add(format!("worker {worker} ended by itself: {how}"));
                }
            }
        }
    }
    verdict.messages = sent.len() as u64;
    verdict.dead = dead.len() as u64;

    let mut times: HashMap<(&str, u64), u64> = HashMap::new();
    for (handler, id) in &found.effects {
        *times.entry((handler, *id)).or_default() += 1;
        if !sent.contains(id) || !plan.handlers(*id).contains(&handler.as_str()) {
            verdict.ghost += 1;
            complaints.add(format!("{handler} took effect on {id}, which nobody had sent to it"));
        }
    }
    for ((handler, id), times) in &times {
        if *times > 1 {
            verdict.duplicated += times - 1;
            complaints.add(format!("{handler} took effect on {id} {times} times"));
        }
    }
    for &id in &sent {
        if !acknowledged.contains(&id) {
            verdict.stuck += 1;
            complaints.add(format!("{id} was never acknowledged"));
            continue;
        }
        for handler in plan.handlers(id) {
            if !times.contains_key(&(*handler, id)) {
                verdict.lost += 1;
                complaints.add(format!("{id} was acknowledged and has no effect of {handler}"));
            }
        }
        if plan.kind(id) == Kind::Letter && !posted.contains(&id) {
            verdict.lost += 1;
            complaints.add(format!("{id} was acknowledged and never posted"));
        }
    }
    // Stored, what a handler has done is known by its progress.
    if plan.mode != Mode::Stored && found.markers != verdict.effects {
        verdict.ghost += found.markers.abs_diff(verdict.effects);
        complaints.add(format!("{} done markers beside {} effects", found.markers, verdict.effects));
    }
    for ((id, handler), mut times) in bodies {
        times.sort_unstable();
        let overlap = times.windows(2).filter(|pair| pair[1].0 < pair[0].1).count();
        if overlap > 0 {
            verdict.overlap += overlap as u64;
            complaints.add(format!("{handler} ran on {id} while it already did: {times:?}"));
        }
    }
    let mut newest: HashMap<u64, u64> = HashMap::new();
    for (_, id) in found.effects.iter().filter(|(handler, _)| handler == STATEMENT) {
        let newest = newest.entry(id % ACCOUNTS).or_default();
        if *newest > *id {
            verdict.inversion += 1;
            complaints.add(format!("{STATEMENT} took effect on {id} after {newest}"));
        }
        *newest = (*newest).max(*id);
    }
    Ok((verdict, complaints.0))
}

/// So many processes start at once.
pub(crate) const STARTERS: u64 = 20;

/// The first things that are wrong, in words.
#[derive(Default)]
struct Complaints(Vec<String>);

impl Complaints {
    const MOST: usize = 50;

    fn add(&mut self, complaint: String) {
        if self.0.len() < Self::MOST {
            self.0.push(complaint);
        }
    }
}

#[cfg(test)]
mod tests {
    use oncebox_torture::plan::{BOOKS, LEDGER};

    use super::*;

    const INLINE: Plan = Plan { mode: Mode::Inline, seed: 1 };
    const STORED: Plan = Plan { mode: Mode::Stored, seed: 1 };

    fn acknowledged(ids: impl IntoIterator<Item = u64>) -> Vec<Event> {
        let word = || "done".to_owned();
        let events = |id| {
            [
                Event::Sent { id },
                Event::Delivered { id, worker: 0 },
                Event::Settled { id, worker: 0, answer: Answer::Ack, word: word() },
            ]
        };
        ids.into_iter().flat_map(events).collect()
    }

    fn effects(list: &[(&str, u64)]) -> Found {
        let effects: Vec<_> = list.iter().map(|(handler, id)| ((*handler).to_owned(), *id)).collect();
        Found { markers: effects.len() as u64, effects }
    }

    fn judge(plan: Plan, events: Vec<Event>, found: &Found) -> Verdict {
        let (verdict, complaints) = check(plan, events.into_iter().map(Ok), found).unwrap();
        assert_eq!(verdict.violations() > 0, !complaints.is_empty(), "{complaints:?}");
        verdict
    }

    fn orders(plan: Plan, account: u64) -> Vec<u64> {
        let of_account = (0..).map(|n| account + n * ACCOUNTS);
        of_account.filter(|&id| plan.kind(id) == Kind::Order).take(2).collect()
    }

    #[test]
    fn a_good_run_has_no_violation() {
        let verdict = judge(INLINE, acknowledged([1]), &effects(&[(BOOKS, 1), (LEDGER, 1)]));
        assert_eq!((verdict.messages, verdict.deliveries, verdict.effects), (1, 1, 2));
        assert_eq!(verdict.violations(), 0);
    }

    #[test]
    fn a_missing_effect_is_lost_and_a_second_one_is_duplicated() {
        assert_eq!(judge(INLINE, acknowledged([1]), &effects(&[(BOOKS, 1)])).lost, 1);
        let twice = effects(&[(BOOKS, 1), (LEDGER, 1), (BOOKS, 1), (BOOKS, 1)]);
        assert_eq!(judge(INLINE, acknowledged([1]), &twice).duplicated, 2);
    }

    #[test]
    fn an_effect_that_nobody_sent_or_that_has_no_marker_is_a_ghost() {
        assert_eq!(judge(INLINE, vec![], &effects(&[(BOOKS, 7)])).ghost, 1);
        let mut found = effects(&[(BOOKS, 1), (LEDGER, 1)]);
        found.markers = 1;
        assert_eq!(judge(INLINE, acknowledged([1]), &found).ghost, 1);
    }

    #[test]
    fn bodies_whose_transactions_were_open_at_once_overlap() {
        let body = |enter, leave| Event::Body { id: 1, handler: BOOKS.into(), enter, leave };
        let found = effects(&[(BOOKS, 1), (LEDGER, 1)]);
        let with = |bodies: [Event; 2]| [acknowledged([1]), bodies.to_vec()].concat();
        assert_eq!(judge(INLINE, with([body(1, 5), body(4, 6)]), &found).overlap, 1);
        assert_eq!(judge(INLINE, with([body(1, 5), body(5, 6)]), &found).overlap, 0);
    }

    #[test]
    fn an_effect_out_of_order_is_an_inversion() {
        let ids = orders(STORED, 3);
        let found = effects(&[(BOOKS, ids[0]), (BOOKS, ids[1]), (STATEMENT, ids[1]), (STATEMENT, ids[0])]);
        assert_eq!(judge(STORED, acknowledged(ids), &found).inversion, 1);
    }

    #[test]
    fn a_letter_must_be_posted_once_at_least() {
        let id = (0..).find(|&id| STORED.kind(id) == Kind::Letter).unwrap();
        let body = Event::Body { id, handler: MAIL.into(), enter: 1, leave: 2 };
        assert_eq!(judge(STORED, acknowledged([id]), &effects(&[])).lost, 1);
        let posted = [acknowledged([id]), vec![body.clone(), body]].concat();
        assert_eq!(judge(STORED, posted, &effects(&[])).violations(), 0);
    }

    #[test]
    fn who_is_never_answered_or_ends_by_himself_is_stuck() {
        assert_eq!(judge(INLINE, vec![Event::Sent { id: 1 }], &effects(&[])).stuck, 1);
        assert_eq!(judge(INLINE, vec![Event::Idle { worker: 2 }], &effects(&[])).stuck, 1);
        assert_eq!(judge(INLINE, vec![Event::Silent { faults: 0 }], &effects(&[])).stuck, 1);
        let left = Event::Left { waiting: 1, tasks: 2, dead: 0 };
        assert_eq!(judge(INLINE, vec![left], &effects(&[])).stuck, 3);
        let gone = |how: &str| vec![Event::Gone { worker: 1, how: how.into() }];
        assert_eq!(judge(INLINE, gone("ended with exit code 1"), &effects(&[])).stuck, 1);
        assert_eq!(judge(INLINE, gone("as asked: was ended by signal 9"), &effects(&[])).stuck, 0);
        assert_eq!(judge(INLINE, vec![Event::Started { ready: 19, effects: 1 }], &effects(&[])).stuck, 1);
        assert_eq!(
            judge(INLINE, vec![Event::Started { ready: 20, effects: 2 }], &effects(&[])).duplicated,
            1
        );
    }

    #[test]
    fn a_dead_letter_that_the_plan_does_not_know_of_is_a_violation() {
        let dead = |id| Event::Dead { id, handler: BOOKS.into(), error: "cached plan".into() };
        let found = |id| effects(&[(BOOKS, id), (STATEMENT, id)]);
        let orders = || (0..).filter(|&id| STORED.kind(id) == Kind::Order);
        let planned = orders().find(|&id| STORED.fails_for_good(BOOKS, id)).unwrap();
        let events = [acknowledged([planned]), vec![dead(planned)]].concat();
        assert_eq!(judge(STORED, events, &found(planned)).violations(), 0);
        let other = orders().find(|&id| !STORED.fails_for_good(BOOKS, id)).unwrap();
        let events = [acknowledged([other]), vec![dead(other), dead(other)]].concat();
        let verdict = judge(STORED, events, &found(other));
        assert_eq!((verdict.dead, verdict.violations()), (1, 1), "reported twice, counted once");
    }

    #[test]
    fn verdicts_add_up() {
        let mut sum = judge(INLINE, acknowledged([1]), &effects(&[(BOOKS, 1)]));
        let other = judge(INLINE, vec![Event::Fault { id: "disk_full".into() }], &effects(&[]));
        sum.add(&other);
        sum.add(&other);
        assert_eq!((sum.messages, sum.lost, sum.faults, sum.by_fault["disk_full"]), (1, 1, 2, 2));
    }
}
