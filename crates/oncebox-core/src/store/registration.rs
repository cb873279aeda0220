//! Registration: what a program wants beside what the database has. Pure rules; a store only carries out the plan.

use crate::store::{HandlerId, HandlerState, KnownHandler, LaneCount, Layout};
use crate::{DeadHead, Error, Mode, Start};

/// How an ordering key becomes a lane: the first eight bytes of its SHA-256, big-endian, modulo the number of lanes. A log that
/// was made with another rule would mix up the order.
const LANE_HASH: &str = "sha256-first8-be";

/// A handler as a program registers it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Registration {
    /// Its name.
    pub name: String,
    /// The kinds that it takes, sorted.
    pub kinds: Vec<String>,
    /// How messages reach it.
    pub mode: Mode,
    /// Whether it takes the messages of an ordering key in their order, and what a dead letter means there.
    pub ordered: Option<DeadHead>,
    /// Where a new one begins in the log.
    pub start: Start,
    /// Whether a removed one of that name may come back.
    pub revive: bool,
}

/// What a handler still has to do in the mode that it is to leave.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Leftovers {
    /// Whether messages are ahead of its progress.
    pub waiting: bool,
    /// Whether there are tasks or dead letters.
    pub set_apart: bool,
    /// Whether there are markers of keys that were never accepted: those came inline.
    pub inline_keys: bool,
    /// Whether messages wait in the log, or are tasks, whose marker says done: a copy came inline.
    pub done_elsewhere: bool,
}

/// What is fixed of a log when it is made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogLayout {
    /// How many lanes it has.
    pub lanes: u16,
    /// The name of the rule by which an ordering key becomes a lane.
    pub hash: String,
}

impl LogLayout {
    fn new(lanes: LaneCount) -> Self {
        Self { lanes: lanes.to_make(), hash: LANE_HASH.to_owned() }
    }

    /// Whether a program that asks for these lanes can use the log.
    fn check(&self, wanted: LaneCount) -> Result<(), Error> {
        let Self { lanes, hash } = self;
        if hash != LANE_HASH {
            return Err(Error::configuration(format!(
                "the log spreads ordering keys over its lanes by {hash:?}, and this program by {LANE_HASH:?}: update the \
                 program"
            )));
        }
        match wanted {
            LaneCount(Some(wanted)) if wanted != *lanes => Err(Error::configuration(format!(
                "the log has {lanes} lanes, and lanes({wanted}) is set: the number is fixed when the log is made. Leave the \
                 setting out, or use another database or schema"
            ))),
            LaneCount(_) => Ok(()),
        }
    }
}

/// What the database has, before a registration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RegistryState {
    /// The log, if there is one.
    pub log: Option<LogLayout>,
    /// What there is under the names of the registrations.
    pub handlers: Vec<KnownHandler>,
}

impl RegistryState {
    /// What is to be written for registrations, with a log if one is wanted. All refusals come first, but for those of
    /// [`HandlerPlan::check_leftovers`].
    pub fn plan<'w>(
        &self,
        log: Option<LaneCount>,
        wanted: &'w [Registration],
    ) -> Result<RegistrationPlan<'w>, Error> {
        if let (Some(wanted), Some(log)) = (log, &self.log) {
            log.check(wanted)?;
        }
        // Lanes and hash never change afterwards: another number would move ordering keys to other lanes.
        let make_log = log.filter(|_| self.log.is_none()).map(LogLayout::new);
        let plans = wanted.iter().map(|wanted| wanted.plan(self.find(&wanted.name)));
        let handlers = plans.filter_map(Result::transpose).collect::<Result<_, _>>()?;
        Ok(RegistrationPlan { make_log, handlers })
    }

    /// The answer, once all of them are there.
    pub fn layout(&self, wanted: &[Registration]) -> Layout {
        let known = wanted.iter().filter_map(|wanted| self.find(&wanted.name));
        let (handlers, origins) = known.map(|known| (known.id, known.origin.clone())).unzip();
        Layout { lanes: self.log.as_ref().map_or(0, |log| log.lanes), handlers, origins }
    }

    fn find(&self, name: &str) -> Option<&KnownHandler> {
        self.handlers.iter().find(|known| known.name == name)
    }
}

/// What a store has to write for registrations, in this order and in one transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegistrationPlan<'w> {
    /// The log to make.
    pub make_log: Option<LogLayout>,
    /// The handlers that are not there as they are wanted.
    pub handlers: Vec<HandlerPlan<'w>>,
}

impl RegistrationPlan<'_> {
    /// Whether everything is there as it is wanted.
    pub fn is_empty(&self) -> bool {
        self.make_log.is_none() && self.handlers.is_empty()
    }
}

/// What a store has to write for one handler: first its row, then the steps in its lanes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HandlerPlan<'w> {
    /// How it is wanted.
    pub wanted: &'w Registration,
    /// What becomes of its row.
    pub row: RowStep,
    /// What becomes of its lanes.
    pub lanes: Vec<LaneStep>,
    /// The mode that it leaves.
    leaves: Option<Mode>,
}

/// What becomes of a handler's row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowStep {
    /// It is inserted, active.
    Add,
    /// The handler was removed, and begins again: kinds, mode and order are set, and it is active.
    Revive(HandlerId),
    /// Kinds, mode and order are set.
    Update(HandlerId),
}

/// What becomes of a handler's lanes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LaneStep {
    /// It can have tasks from now on: a store whose lanes have lock rows makes them.
    Open,
    /// It reads the log from now on: its first progress in every lane, from there, in an epoch that it never had.
    Begin(Start),
    /// Its markers are the referee from now on, also of what it took from the log before: what it has passed gets its own.
    BackfillMarkers,
    /// It reads the log no more: its progress and its replays go.
    End,
    /// It can have no more tasks: a store whose lanes have lock rows deletes them.
    Close,
}

impl HandlerPlan<'_> {
    /// The handler whose [`Leftovers`] have to be read and checked before anything is written: one that changes its mode.
    pub fn leaves_mode(&self) -> Option<HandlerId> {
        match self.row {
            RowStep::Update(id) => self.leaves.map(|_| id),
            RowStep::Add | RowStep::Revive(_) => None,
        }
    }

    /// Whether the handler may leave its mode, with what it still has to do there.
    pub fn check_leftovers(&self, left: Leftovers) -> Result<(), Error> {
        let Some(from) = self.leaves else { return Ok(()) };
        let obstacle = match self.wanted.mode {
            Mode::Stored if left.inline_keys => {
                "keys that came inline are still remembered, and would run again if they were accepted: wait until they are swept"
            }
            Mode::Stored | Mode::Inline { .. } if left.done_elsewhere => {
                "messages in the log were done inline meanwhile, and would run again: let it pass them"
            }
            Mode::Inline { .. } if left.waiting => "messages wait in the log: let it work through them",
            Mode::Inline { spill: false } if left.set_apart => {
                "there are tasks or dead letters: let it work through them, and deal with the dead letters"
            }
            Mode::Inline { .. } | Mode::Stored | Mode::Mixed => return Ok(()),
        };
        Err(Error::configuration(format!(
            "the handler {:?} cannot become {} yet, and is still {}: {obstacle}",
            self.wanted.name,
            self.wanted.mode.name(),
            from.name()
        )))
    }
}

impl Registration {
    /// What is to be written for it beside what the database has under its name; `None` if it is there as it is wanted.
    fn plan(&self, known: Option<&KnownHandler>) -> Result<Option<HandlerPlan<'_>>, Error> {
        let begins = |row| HandlerPlan { wanted: self, row, lanes: self.lane_steps(None), leaves: None };
        let Some(known) = known else { return Ok(Some(begins(RowStep::Add))) };
        match known.state {
            // A paused handler stays paused: only an operator resumes it, not the start of a program.
            HandlerState::Active | HandlerState::Paused => {}
            HandlerState::Removed if self.revive => return Ok(Some(begins(RowStep::Revive(known.id)))),
            HandlerState::Removed | HandlerState::Renamed => return Err(self.only_a_name(known)),
        }
        self.check(known)?;
        let leaves = Some(known.mode).filter(|&mode| mode != self.mode);
        // A changed order is not refused: the program that started last decides.
        if leaves.is_none() && known.ordered == self.ordered {
            return Ok(None);
        }
        let lanes = self.lane_steps(Some(known.mode));
        Ok(Some(HandlerPlan { wanted: self, row: RowStep::Update(known.id), lanes, leaves }))
    }

    /// Why a name cannot be registered that no handler has any more.
    fn only_a_name(&self, known: &KnownHandler) -> Error {
        let name = &self.name;
        Error::configuration(match known.state {
            HandlerState::Renamed => {
                format!("the handler {name:?} was renamed to {:?}: register it under that name", known.origin)
            }
            _ => format!(
                "the handler {name:?} was removed: choose another name, or set `revive` in its options to let it begin again"
            ),
        })
    }

    /// Whether the handler of that name can be what is wanted.
    fn check(&self, known: &KnownHandler) -> Result<(), Error> {
        let name = &self.name;
        if !self.may_become(known.mode) {
            return Err(Error::configuration(format!(
                "the handler {name:?} is {} in the database and {} here: a message that came in both ways would run twice. \
                 Choose another name, keep its mode, or go through Mode::mixed()",
                known.mode.name(),
                self.mode.name()
            )));
        }
        // An inline handler passes no messages over, so its kinds may change.
        if known.mode.reads_log() && known.kinds != self.kinds {
            return Err(Error::configuration(format!(
                "the handler {name:?} takes {:?} in the database and {:?} here: messages of the new kinds that it has passed \
                 already would be missing. Register it under another name",
                known.kinds, self.kinds
            )));
        }
        Ok(())
    }

    /// Whether there is a way at all. Between inline and stored there is none but through mixed.
    fn may_become(&self, from: Mode) -> bool {
        match self.mode {
            Mode::Mixed => true,
            Mode::Stored => from.reads_log(),
            Mode::Inline { .. } => from.is_inline(),
        }
    }

    /// What becomes of its lanes when it leaves a mode for the one that is wanted, or begins.
    fn lane_steps(&self, from: Option<Mode>) -> Vec<LaneStep> {
        let (had_tasks, read_log) = (from.is_some_and(Mode::has_tasks), from.is_some_and(Mode::reads_log));
        let (has_tasks, reads_log) = (self.mode.has_tasks(), self.mode.reads_log());
        let table = [
            (has_tasks && !had_tasks, LaneStep::Open),
            (reads_log && !read_log, LaneStep::Begin(self.start)),
            // A stored handler writes no marker per success. Without these, a copy that arrives inline would run again.
            (from == Some(Mode::Stored) && self.mode == Mode::Mixed, LaneStep::BackfillMarkers),
            (read_log && !reads_log, LaneStep::End),
            (had_tasks && !has_tasks, LaneStep::Close),
        ];
        table.into_iter().filter_map(|(is_needed, step)| is_needed.then_some(step)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;

    const ID: HandlerId = HandlerId(7);

    fn wanted(mode: Mode, kinds: &[&str], revive: bool) -> Registration {
        Registration {
            name: "ledger".into(),
            kinds: kinds.iter().map(|&kind| kind.to_owned()).collect(),
            mode,
            ordered: None,
            start: Start::Now,
            revive,
        }
    }

    fn known(mode: Mode, state: HandlerState) -> KnownHandler {
        KnownHandler {
            id: ID,
            name: "ledger".into(),
            origin: "first".into(),
            kinds: vec!["a".into()],
            mode,
            ordered: None,
            state,
        }
    }

    fn row(registration: &Registration, known: &KnownHandler) -> Option<RowStep> {
        registration.plan(Some(known)).unwrap().map(|plan| plan.row)
    }

    #[test]
    fn a_name_keeps_its_mode_and_its_kinds() {
        use HandlerState::{Active, Paused, Removed, Renamed};
        let new = wanted(Mode::Stored, &["a"], false);
        assert_eq!(new.plan(None).unwrap().map(|plan| plan.row), Some(RowStep::Add));
        assert_eq!(row(&new, &known(Mode::Stored, Active)), None);
        assert_eq!(row(&new, &known(Mode::Stored, Paused)), None);
        let revived = wanted(Mode::Stored, &["b"], true);
        assert_eq!(row(&revived, &known(Mode::Stored, Removed)), Some(RowStep::Revive(ID)));
        assert_eq!(row(&wanted(Mode::inline(), &["b"], false), &known(Mode::inline(), Active)), None);
        for (registration, known) in [
            (wanted(Mode::Stored, &["a"], false), known(Mode::inline(), Active)),
            (wanted(Mode::inline(), &["a"], true), known(Mode::Stored, Active)),
            (wanted(Mode::Stored, &["a", "b"], false), known(Mode::Stored, Active)),
            (wanted(Mode::Stored, &["a"], false), known(Mode::Stored, Removed)),
            (wanted(Mode::Stored, &["a"], true), known(Mode::Stored, Renamed)),
        ] {
            assert_eq!(registration.plan(Some(&known)).unwrap_err().kind(), ErrorKind::Configuration);
        }
    }

    #[test]
    fn what_is_wanted_now_is_done_with_dead_letters() {
        let ordered = Registration { ordered: Some(DeadHead::Skip), ..wanted(Mode::Stored, &["a"], false) };
        let known = known(Mode::Stored, HandlerState::Active);
        let plan = ordered.plan(Some(&known)).unwrap().unwrap();
        assert_eq!((plan.row, plan.leaves_mode()), (RowStep::Update(ID), None));
        assert!(plan.lanes.is_empty());
    }

    /// Every change that there is, and with what left behind it is refused.
    #[test]
    fn modes_change_through_mixed() {
        let (inline, spill) = (Mode::inline(), Mode::inline().spill());
        let waiting = Leftovers { waiting: true, ..Leftovers::default() };
        let set_apart = Leftovers { set_apart: true, ..Leftovers::default() };
        let inline_keys = Leftovers { inline_keys: true, ..Leftovers::default() };
        let done_elsewhere = Leftovers { done_elsewhere: true, ..Leftovers::default() };
        let refused_with = |from: Mode, to: Mode| {
            let registration = wanted(to, &["a"], false);
            let plan = registration.plan(Some(&known(from, HandlerState::Active))).ok()??;
            assert_eq!((plan.row, plan.leaves_mode()), (RowStep::Update(ID), Some(ID)));
            plan.check_leftovers(Leftovers::default()).unwrap();
            Some(
                [waiting, set_apart, inline_keys, done_elsewhere]
                    .map(|left| plan.check_leftovers(left).is_err()),
            )
        };
        assert_eq!(refused_with(inline, spill), Some([true, false, false, true]));
        assert_eq!(refused_with(spill, inline), Some([true, true, false, true]));
        assert_eq!(refused_with(inline, Mode::Mixed), Some([false; 4]));
        assert_eq!(refused_with(spill, Mode::Mixed), Some([false; 4]));
        assert_eq!(refused_with(Mode::Stored, Mode::Mixed), Some([false; 4]));
        assert_eq!(refused_with(Mode::Mixed, Mode::Stored), Some([false, false, true, true]));
        assert_eq!(refused_with(Mode::Mixed, inline), Some([true, true, false, true]));
        assert_eq!(refused_with(Mode::Mixed, spill), Some([true, false, false, true]));
        assert_eq!(refused_with(inline, Mode::Stored), None);
        assert_eq!(refused_with(spill, Mode::Stored), None);
        assert_eq!(refused_with(Mode::Stored, inline), None);
        assert_eq!(refused_with(Mode::Stored, spill), None);
    }

    /// From every mode, or from nothing, to every mode that it may become.
    #[test]
    fn lanes_follow_the_mode() {
        use LaneStep::{BackfillMarkers, Begin, Close, End, Open};
        let (inline, spill) = (Mode::inline(), Mode::inline().spill());
        let begin = Begin(Start::Now);
        let table: [(Option<Mode>, Mode, &[LaneStep]); 12] = [
            (None, inline, &[]),
            (None, spill, &[Open]),
            (None, Mode::Stored, &[Open, begin]),
            (None, Mode::Mixed, &[Open, begin]),
            (Some(inline), spill, &[Open]),
            (Some(inline), Mode::Mixed, &[Open, begin]),
            (Some(spill), inline, &[Close]),
            (Some(spill), Mode::Mixed, &[begin]),
            (Some(Mode::Stored), Mode::Mixed, &[BackfillMarkers]),
            (Some(Mode::Mixed), Mode::Stored, &[]),
            (Some(Mode::Mixed), spill, &[End]),
            (Some(Mode::Mixed), inline, &[End, Close]),
        ];
        for (from, to, steps) in table {
            assert_eq!(wanted(to, &["a"], false).lane_steps(from), steps, "{from:?} {to:?}");
        }
    }

    #[test]
    fn a_log_is_made_once() {
        let handlers = [wanted(Mode::Stored, &["a"], false)];
        let empty = RegistryState::default();
        let lanes =
            |log: Option<LaneCount>| empty.plan(log, &handlers).unwrap().make_log.map(|log| log.lanes);
        assert_eq!(lanes(None), None);
        assert_eq!(lanes(Some(LaneCount(None))), Some(LaneCount::DEFAULT));
        assert_eq!(lanes(Some(LaneCount(Some(3)))), Some(3));

        let log = Some(LogLayout::new(LaneCount(Some(3))));
        let there = RegistryState { log, handlers: vec![known(Mode::Stored, HandlerState::Active)] };
        for lanes in [None, Some(3)] {
            assert!(there.plan(Some(LaneCount(lanes)), &handlers).unwrap().is_empty());
        }
        let layout = Layout { lanes: 3, handlers: vec![ID], origins: vec!["first".into()] };
        assert_eq!(there.layout(&handlers), layout);
        let refused = there.plan(Some(LaneCount(Some(8))), &handlers).unwrap_err().to_string();
        assert!(refused.starts_with("the log has 3 lanes, and lanes(8) is set"), "{refused}");

        let other = RegistryState { log: Some(LogLayout { lanes: 3, hash: "crc32".into() }), ..there };
        let refused = other.plan(Some(LaneCount(None)), &handlers).unwrap_err().to_string();
        let text = "the log spreads ordering keys over its lanes by \"crc32\", and this program by \"sha256-first8-be\": \
                    update the program";
        assert_eq!(refused, text);
        assert!(other.plan(None, &handlers).unwrap().is_empty(), "without a log it does not matter");
    }
}
