//! Reads the history and the effects, and counts every promise that was broken: pure.

use std::collections::{HashMap, HashSet};

use anyhow::Result;
use oncebox_torture::event::TortureEvent;
use oncebox_torture::scenario::{AUDIT, MAIL, MessageKind, STATEMENT, Scenario, TortureMode};
use oncebox_workload::deliverer::DeliveryResult;
use oncebox_workload::history::DeliveryCounts;
use oncebox_workload::ledger::LedgerDiff;

use crate::history::Event;
use crate::verdict::Verdict;

/// The number of processes that start at once.
pub(crate) const STARTERS: u64 = 20;
/// The maximum number of violations that are described.
const DESCRIPTIONS_MAX: usize = 50;

/// The rows that are in the database at the end.
#[derive(Debug)]
pub(crate) struct EffectRows {
    /// Each effect, in the order in which they were written. With an outbox first those of the sender.
    pub(crate) rows: Vec<EffectRow>,
    /// The number of markers that are done.
    pub(crate) markers: u64,
}

/// An effect of a handler on a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct EffectRow {
    pub(crate) handler: String,
    pub(crate) message: u64,
    /// With an outbox: the sender's transaction, in its own row and in those of its message.
    pub(crate) token: Option<i64>,
}

/// The sender's transactions that have committed, by their message: the place of each in the order of commits, and its token.
type Committed = HashMap<u64, (usize, Option<i64>)>;

/// Checks a run by its history and effects alone. Returns the verdict, and a description of each violation.
pub(crate) fn check(
    scenario: Scenario,
    history: impl Iterator<Item = Result<Event>>,
    effects: &EffectRows,
) -> Result<(Verdict, Vec<String>)> {
    let mut checker = Checker::new(scenario);
    for event in history {
        checker.add(event?);
    }
    checker.check_acknowledgements();
    checker.check_effects(effects);
    checker.check_markers(effects);
    checker.check_overlap();
    let committed = checker.committed(effects);
    checker.check_transactions(effects, &committed);
    checker.check_order(effects, &committed);
    Ok((checker.verdict, checker.descriptions))
}

struct Checker {
    scenario: Scenario,
    verdict: Verdict,
    descriptions: Vec<String>,
    counts: DeliveryCounts,
    /// Letters whose handler has run.
    posted: HashSet<u64>,
    /// Dead letters that the scenario does not plan.
    dead: HashSet<(u64, String)>,
    /// When the transactions of each message and handler were open.
    bodies: HashMap<(u64, String), Vec<(u64, u64)>>,
}

impl Checker {
    fn new(scenario: Scenario) -> Self {
        Self {
            scenario,
            verdict: Verdict::default(),
            descriptions: Vec::new(),
            counts: DeliveryCounts::default(),
            posted: HashSet::new(),
            dead: HashSet::new(),
            bodies: HashMap::new(),
        }
    }

    fn describe(&mut self, description: String) {
        if self.descriptions.len() < DESCRIPTIONS_MAX {
            self.descriptions.push(description);
        }
    }

    fn stuck(&mut self, times: u64, description: String) {
        self.verdict.stuck += times;
        self.describe(description);
    }

    fn lost(&mut self, description: String) {
        self.verdict.lost += 1;
        self.describe(description);
    }

    fn add(&mut self, event: Event) {
        self.counts.add(&event);
        match event {
            // No planned failure leads to a rejection.
            Event::Settled { message, result: DeliveryResult::Reject, outcome, .. } => {
                self.stuck(1, format!("message {message} was rejected: {outcome}"));
            }
            Event::Run(event) => self.add_run_event(event),
            _ => {}
        }
    }

    fn add_run_event(&mut self, event: TortureEvent) {
        match event {
            // A detached handler has no transaction, so its runs may repeat and overlap.
            TortureEvent::Body { message, handler, .. } if handler == MAIL => {
                self.posted.insert(message);
            }
            TortureEvent::Body { message, handler, enter, leave } => {
                self.bodies.entry((message, handler)).or_default().push((enter, leave));
            }
            TortureEvent::CommitsUnknown { commits } => self.verdict.commits_unknown += commits,
            TortureEvent::CommitsRecovered { commits } => self.verdict.commits_recovered += commits,
            TortureEvent::DeadLetter { message, handler, error } => {
                self.add_dead_letter(message, handler, &error);
            }
            TortureEvent::TortureFault { id } => {
                self.verdict.faults += 1;
                *self.verdict.by_fault.entry(id).or_default() += 1;
            }
            TortureEvent::Starters { ready, effects } => self.add_starters(ready, effects),
            TortureEvent::Idle { worker } => {
                self.stuck(1, format!("worker {worker} made no progress after a fault"));
            }
            TortureEvent::IdleHandler { handler } => {
                self.stuck(1, format!("no message reached {handler} after a fault"));
            }
            TortureEvent::Stalled { faults } => {
                self.stuck(1, format!("no worker made progress, with {faults} faults still to come"));
            }
            TortureEvent::BacklogLeft(backlog) => {
                let left = backlog.lag + backlog.tasks + backlog.dead;
                self.stuck(left, format!("the backlog was not worked off: {backlog:?}"));
            }
            TortureEvent::WorkerEnded { is_expected: true, .. } => {}
            TortureEvent::WorkerEnded { worker, status, .. } => {
                self.stuck(1, format!("worker {worker} ended unexpectedly: {status}"));
            }
        }
    }

    /// A dead letter whose retry failed is reported again, and counts once.
    fn add_dead_letter(&mut self, message: u64, handler: String, error: &str) {
        if self.scenario.fails_permanently(&handler, message) {
            return;
        }
        let description = format!("{handler} gave up on message {message}: {error}");
        if self.dead.insert((message, handler)) {
            self.verdict.dead += 1;
            self.describe(description);
        }
    }

    fn add_starters(&mut self, ready: u64, effects: u64) {
        self.verdict.stuck += STARTERS.saturating_sub(ready);
        self.verdict.lost += u64::from(effects == 0);
        self.verdict.duplicated += effects.saturating_sub(1);
        if (ready, effects) != (STARTERS, 1) {
            self.describe(format!("of {STARTERS} starters {ready} were ready, with {effects} effects"));
        }
    }

    fn is_acknowledged(&self, message: u64) -> bool {
        self.counts.sent.get(&message).is_some_and(|sent| sent.is_acknowledged)
    }

    fn check_acknowledgements(&mut self) {
        self.verdict.messages = self.counts.sent.len() as u64;
        self.verdict.deliveries = self.counts.delivered;
        let sent: Vec<u64> = self.counts.sent.keys().copied().collect();
        for message in sent {
            if !self.is_acknowledged(message) {
                self.stuck(1, format!("message {message} was never acknowledged"));
            } else if self.scenario.kind(message) == MessageKind::Letter && !self.posted.contains(&message) {
                self.lost(format!("message {message} was acknowledged and never posted"));
            }
        }
    }

    fn check_effects(&mut self, effects: &EffectRows) {
        let scenario = self.scenario;
        let of_message =
            |message: u64| scenario.handlers(message).iter().map(move |handler| (*handler, message));
        // Also messages without an acknowledgement: their effects are allowed, so they are no ghosts.
        let expected = self.counts.sent.keys().flat_map(|message| of_message(*message));
        let rows = effects.rows.iter().map(|row| ((row.handler.as_str(), row.message), 1));
        let diff = LedgerDiff::new(expected, rows);
        self.verdict.effects = diff.rows;
        self.verdict.duplicated += diff.duplicate_rows();
        self.verdict.ghost += diff.unexpected_rows();
        // Without an acknowledgement the message is stuck, which is counted already.
        for (handler, message) in diff.missing {
            if self.is_acknowledged(message) {
                self.lost(format!("message {message} was acknowledged and has no effect of {handler}"));
            }
        }
        for ((handler, message), times) in diff.duplicated {
            self.describe(format!("{handler} took effect on message {message} {times} times"));
        }
        for ((handler, message), _) in diff.unexpected {
            self.describe(format!("{handler} took effect on message {message}, which was not sent to it"));
        }
    }

    /// In stored mode the handlers' progress takes the place of markers.
    fn check_markers(&mut self, effects: &EffectRows) {
        let has_marker = |row: &&EffectRow| self.scenario.has_markers(&row.handler);
        let rows = effects.rows.iter().filter(has_marker).count() as u64;
        if self.scenario.mode != TortureMode::Stored && effects.markers != rows {
            self.verdict.ghost += effects.markers.abs_diff(rows);
            self.describe(format!("{} done markers for {rows} effects", effects.markers));
        }
    }

    /// The sender's transactions that have committed. The order of their rows is that of the commits, for each account: all of
    /// them lock its row first.
    fn committed(&self, effects: &EffectRows) -> Committed {
        let mut committed = Committed::new();
        let is_of_sender = |row: &EffectRow| {
            self.scenario.mode == TortureMode::Outbox && row.handler == self.scenario.sender(row.message)
        };
        for (place, row) in effects.rows.iter().enumerate().filter(|(_, row)| is_of_sender(row)) {
            committed.entry(row.message).or_insert((place, row.token));
        }
        committed
    }

    /// What a receiver has must come from a transaction of the sender that has committed; and what that has published must arrive,
    /// even if the source never got an acknowledgement.
    fn check_transactions(&mut self, effects: &EffectRows, committed: &Committed) {
        if self.scenario.mode != TortureMode::Outbox {
            return;
        }
        let mut received: HashSet<(&str, u64)> = HashSet::new();
        for row in &effects.rows {
            received.insert((&row.handler, row.message));
            let token = committed.get(&row.message).map(|(_, token)| *token);
            if token != Some(row.token) {
                self.verdict.ghost += 1;
                let EffectRow { handler, message, token: of_row } = row;
                self.describe(format!(
                    "{handler} has message {message} of transaction {of_row:?}, and the sender has committed {token:?}"
                ));
            }
        }
        for message in committed.keys().filter(|message| !self.is_acknowledged(**message)).collect::<Vec<_>>()
        {
            for handler in self.scenario.handlers(*message) {
                if !received.contains(&(*handler, *message)) {
                    self.lost(format!("message {message} was committed and has no effect of {handler}"));
                }
            }
        }
    }

    fn check_overlap(&mut self) {
        for ((message, handler), mut times) in std::mem::take(&mut self.bodies) {
            // The reports of several workers arrive in any order.
            times.sort_unstable();
            let overlap = times.windows(2).filter(|pair| pair[1].0 < pair[0].1).count();
            if overlap > 0 {
                self.verdict.overlap += overlap as u64;
                self.describe(format!("{handler} ran twice at once on message {message}: {times:?}"));
            }
        }
    }

    fn check_order(&mut self, effects: &EffectRows, committed: &Committed) {
        let plan = self.scenario.plan();
        // With an outbox the order is that of the sender's commits. In stored mode the source sends the messages of an account in
        // the order of their numbers.
        let place = |message: u64| match self.scenario.mode {
            TortureMode::Outbox => committed.get(&message).map_or(0, |(place, _)| *place as u64),
            _ => message,
        };
        let mut newest: HashMap<(&str, u64), (u64, u64)> = HashMap::new();
        let mut inversions = Vec::new();
        let is_ordered = |row: &&EffectRow| [STATEMENT, AUDIT].contains(&row.handler.as_str());
        for EffectRow { handler, message, .. } in effects.rows.iter().filter(is_ordered) {
            let this = (place(*message), *message);
            let newest = newest.entry((handler, plan.account(*message))).or_default();
            if *newest > this {
                inversions.push(format!("{handler} took effect on message {message} after {}", newest.1));
            }
            *newest = (*newest).max(this);
        }
        self.verdict.inversion += inversions.len() as u64;
        inversions.into_iter().for_each(|inversion| self.describe(inversion));
    }
}

#[cfg(test)]
mod tests {
    use oncebox_torture::event::Backlog;
    use oncebox_torture::scenario::{BOOKS, LEDGER};

    use super::*;

    const INLINE: Scenario = Scenario { mode: TortureMode::Inline, seed: 1 };
    const OUTBOX: Scenario = Scenario { mode: TortureMode::Outbox, seed: 1 };
    const STORED: Scenario = Scenario { mode: TortureMode::Stored, seed: 1 };

    fn sent(message: u64) -> Event {
        Event::Sent(INLINE.plan().entry(message))
    }

    fn settled(message: u64, result: DeliveryResult) -> Event {
        Event::Settled { delivery: message, message, worker: 0, result, outcome: "done".into() }
    }

    fn acknowledged(messages: impl IntoIterator<Item = u64>) -> Vec<Event> {
        let events = |message| {
            let delivered = Event::Delivered { delivery: message, message, worker: 0 };
            [sent(message), delivered, settled(message, DeliveryResult::Ack)]
        };
        messages.into_iter().flat_map(events).collect()
    }

    fn effects(list: &[(&str, u64)]) -> EffectRows {
        let row = |(handler, message): &(&str, u64)| EffectRow {
            handler: (*handler).to_owned(),
            message: *message,
            token: None,
        };
        EffectRows { markers: list.len() as u64, rows: list.iter().map(row).collect() }
    }

    /// Effects with an outbox, with the transactions that they come from.
    fn effects_of(list: &[(&str, u64, i64)]) -> EffectRows {
        let row = |(handler, message, token): &(&str, u64, i64)| EffectRow {
            handler: (*handler).to_owned(),
            message: *message,
            token: Some(*token),
        };
        let rows: Vec<EffectRow> = list.iter().map(row).collect();
        EffectRows {
            markers: rows.iter().filter(|row| OUTBOX.has_markers(&row.handler)).count() as u64,
            rows,
        }
    }

    /// All effects of a sale, from one transaction.
    fn carried(message: u64, token: i64) -> Vec<(&'static str, u64, i64)> {
        OUTBOX.handlers(message).iter().map(|handler| (*handler, message, token)).collect()
    }

    fn sales() -> impl Iterator<Item = u64> {
        (1..).filter(|message| !OUTBOX.is_note(*message))
    }

    fn verdict_of(scenario: Scenario, events: Vec<Event>, effects: &EffectRows) -> Verdict {
        let (verdict, descriptions) = check(scenario, events.into_iter().map(Ok), effects).unwrap();
        assert_eq!(verdict.violations() > 0, !descriptions.is_empty(), "{descriptions:?}");
        verdict
    }

    fn orders(scenario: Scenario) -> impl Iterator<Item = u64> {
        (1..).filter(move |message| scenario.kind(*message) == MessageKind::Order)
    }

    #[test]
    fn a_good_run_has_no_violation() {
        let verdict = verdict_of(INLINE, acknowledged([1]), &effects(&[(BOOKS, 1), (LEDGER, 1)]));
        assert_eq!((verdict.messages, verdict.deliveries, verdict.effects), (1, 1, 2));
        assert_eq!(verdict.violations(), 0);
    }

    #[test]
    fn a_missing_effect_is_lost_and_a_second_one_is_duplicated() {
        assert_eq!(verdict_of(INLINE, acknowledged([1]), &effects(&[(BOOKS, 1)])).lost, 1);
        let twice = effects(&[(BOOKS, 1), (LEDGER, 1), (BOOKS, 1), (BOOKS, 1)]);
        assert_eq!(verdict_of(INLINE, acknowledged([1]), &twice).duplicated, 2);
    }

    #[test]
    fn a_message_is_lost_even_if_its_acknowledgement_did_not_reach_the_source() {
        let dropped = Event::AckDropped { delivery: 1, message: 1 };
        let events = [acknowledged([1]), vec![dropped]].concat();
        assert_eq!(verdict_of(INLINE, events, &effects(&[(BOOKS, 1)])).lost, 1);
    }

    #[test]
    fn an_effect_without_a_message_or_a_marker_is_a_ghost() {
        assert_eq!(verdict_of(INLINE, vec![], &effects(&[(BOOKS, 7)])).ghost, 1);
        let without_marker = EffectRows { markers: 1, ..effects(&[(BOOKS, 1), (LEDGER, 1)]) };
        assert_eq!(verdict_of(INLINE, acknowledged([1]), &without_marker).ghost, 1);
    }

    #[test]
    fn handlers_whose_transactions_were_open_at_once_overlap() {
        let body =
            |enter, leave| TortureEvent::Body { message: 1, handler: BOOKS.into(), enter, leave }.into();
        let effects = effects(&[(BOOKS, 1), (LEDGER, 1)]);
        let with = |bodies: [Event; 2]| [acknowledged([1]), bodies.to_vec()].concat();
        assert_eq!(verdict_of(INLINE, with([body(1, 5), body(4, 6)]), &effects).overlap, 1);
        assert_eq!(verdict_of(INLINE, with([body(1, 5), body(5, 6)]), &effects).overlap, 0);
    }

    #[test]
    fn an_effect_out_of_order_in_its_account_is_an_inversion() {
        let of_account = |message: &u64| STORED.plan().account(*message) == 3;
        let two: Vec<u64> = orders(STORED).filter(of_account).take(2).collect();
        let effects = effects(&[(BOOKS, two[0]), (BOOKS, two[1]), (STATEMENT, two[1]), (STATEMENT, two[0])]);
        assert_eq!(verdict_of(STORED, acknowledged(two), &effects).inversion, 1);
    }

    #[test]
    fn what_the_receiver_has_comes_from_a_committed_transaction() {
        let message = sales().next().unwrap();
        let good = carried(message, 7);
        let verdict_of_rows =
            |rows: &[(&str, u64, i64)]| verdict_of(OUTBOX, acknowledged([message]), &effects_of(rows));
        assert_eq!(verdict_of_rows(&good).violations(), 0);
        for place in 1..good.len() {
            let (mut other, mut missing, mut twice) = (good.clone(), good.clone(), good.clone());
            other[place].2 = 8;
            missing.remove(place);
            twice.push(good[place]);
            assert_eq!(verdict_of_rows(&other).ghost, 1, "of a transaction that has rolled back");
            assert_eq!(verdict_of_rows(&missing).lost, 1);
            assert_eq!(verdict_of_rows(&twice).duplicated, 1);
        }
        let ghosts = verdict_of_rows(&good[1..]);
        assert_eq!((ghosts.ghost, ghosts.lost), (3, 1), "{ghosts:?}");
    }

    #[test]
    fn what_was_committed_arrives_even_without_an_acknowledgement() {
        let message = sales().next().unwrap();
        let rows = carried(message, 7);
        let verdict = |rows: &[(&str, u64, i64)]| verdict_of(OUTBOX, vec![sent(message)], &effects_of(rows));
        assert_eq!((verdict(&rows).lost, verdict(&rows).stuck), (0, 1));
        assert_eq!(verdict(&rows[..1]).lost, 3);
        assert_eq!(verdict(&[]).lost, 0);
    }

    #[test]
    fn ordered_handlers_follow_the_order_of_the_sender_s_commits() {
        let of_account = |message: &u64| OUTBOX.plan().account(*message) == 3;
        let two: Vec<u64> = sales().filter(of_account).take(2).collect();
        let (first, second) = (carried(two[0], 1), carried(two[1], 2));
        // The sender has committed the second one first.
        let mut rows = vec![second[0], first[0]];
        rows.extend(second[1..].iter().chain(&first[1..]));
        assert_eq!(verdict_of(OUTBOX, acknowledged(two.clone()), &effects_of(&rows)).violations(), 0);
        rows.truncate(2);
        rows.extend(first[1..].iter().chain(&second[1..]));
        let verdict = verdict_of(OUTBOX, acknowledged(two), &effects_of(&rows));
        assert_eq!((verdict.inversion, verdict.violations()), (2, 2), "of both ordered handlers");
    }

    #[test]
    fn a_letter_must_be_posted_at_least_once() {
        let message = (1..).find(|message| STORED.kind(*message) == MessageKind::Letter).unwrap();
        let body = || TortureEvent::Body { message, handler: MAIL.into(), enter: 1, leave: 2 }.into();
        assert_eq!(verdict_of(STORED, acknowledged([message]), &effects(&[])).lost, 1);
        let posted = [acknowledged([message]), vec![body(), body()]].concat();
        assert_eq!(verdict_of(STORED, posted, &effects(&[])).violations(), 0);
    }

    #[test]
    fn messages_and_processes_without_progress_are_stuck() {
        let ended = |is_expected| {
            let status = "ended with exit code 1".into();
            TortureEvent::WorkerEnded { worker: 1, status, is_expected }.into()
        };
        let table: [(Vec<Event>, u64); 10] = [
            (vec![sent(1)], 1),
            (vec![sent(1), settled(1, DeliveryResult::Retry)], 1),
            (vec![sent(1), settled(1, DeliveryResult::Reject)], 2),
            (vec![TortureEvent::Idle { worker: 2 }.into()], 1),
            (vec![TortureEvent::IdleHandler { handler: LEDGER.into() }.into()], 1),
            (vec![TortureEvent::Stalled { faults: 0 }.into()], 1),
            (vec![TortureEvent::BacklogLeft(Backlog { lag: 1, tasks: 2, dead: 0 }).into()], 3),
            (vec![ended(false)], 1),
            (vec![ended(true)], 0),
            (vec![TortureEvent::Starters { ready: 19, effects: 1 }.into()], 1),
        ];
        for (events, stuck) in table {
            assert_eq!(verdict_of(INLINE, events.clone(), &effects(&[])).stuck, stuck, "{events:?}");
        }
    }

    #[test]
    fn starters_must_take_effect_once_together() {
        let starters = |effects| vec![TortureEvent::Starters { ready: STARTERS, effects }.into()];
        assert_eq!(verdict_of(INLINE, starters(1), &effects(&[])).violations(), 0);
        assert_eq!(verdict_of(INLINE, starters(2), &effects(&[])).duplicated, 1);
        assert_eq!(verdict_of(INLINE, starters(0), &effects(&[])).lost, 1);
    }

    #[test]
    fn a_dead_letter_that_is_not_planned_is_a_violation() {
        let run = |message| {
            let error = "cached plan".to_owned();
            let dead = TortureEvent::DeadLetter { message, handler: BOOKS.into(), error };
            // Reported twice, counted once.
            let events = [acknowledged([message]), vec![dead.clone().into(), dead.into()]].concat();
            let verdict = verdict_of(STORED, events, &effects(&[(BOOKS, message), (STATEMENT, message)]));
            (verdict.dead, verdict.violations())
        };
        let fails = |message: &u64| STORED.fails_permanently(BOOKS, *message);
        assert_eq!(run(orders(STORED).find(fails).unwrap()), (0, 0));
        assert_eq!(run(orders(STORED).find(|message| !fails(message)).unwrap()), (1, 1));
    }
}
