//! Registration: compares the handlers of a program with those in the database. The rules are pure; a store carries out the plan.

use std::time::Duration;

use crate::store::{HandlerId, HandlerState, KnownHandler, LaneCount, Layout};
use crate::{DeadHead, Error, Mode, Start};

/// The rule that maps an ordering key to a lane: the first eight bytes of its SHA-256, big-endian, modulo the number of lanes.
/// With another rule, messages of one key would be in two lanes and lose their order.
const LANE_HASH: &str = "sha256-first8-be";

/// A handler as a program registers it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Registration {
    /// Its name.
    pub name: String,
    /// The kinds that it handles, sorted.
    // Sorted, so that registering them in another order is no change.
    pub kinds: Vec<String>,
    /// How messages reach it.
    pub mode: Mode,
    /// The policy for dead letters if it is ordered; `None` if it is not.
    pub ordered: Option<DeadHead>,
    /// The position in the log where a new handler begins.
    pub start: Start,
    /// Whether a removed handler of that name may register again.
    pub revive: bool,
    /// How long a relay keeps sent messages for a replay; `None` for a handler.
    pub keep: Option<Duration>,
}

/// The unfinished work of a handler in the mode that it is to leave.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Leftovers {
    /// Whether messages are ahead of its progress.
    pub waiting: bool,
    /// Whether there are tasks or dead letters.
    pub has_tasks: bool,
    /// Whether there are markers of keys that were never accepted, which means that they arrived inline.
    pub inline_keys: bool,
    /// Whether messages in the log or tasks have a marker that says done, because a copy arrived inline.
    pub done_elsewhere: bool,
}

/// The properties of a log that never change after its creation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogLayout {
    /// The number of lanes.
    pub lanes: u16,
    /// The name of the rule that maps an ordering key to a lane.
    // Stored with the log, so that a program with another rule refuses it instead of mixing up the order.
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

/// The content of the database before a registration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RegistryState {
    /// The log, if there is one.
    pub log: Option<LogLayout>,
    /// The database's handlers with the names of the registrations.
    pub handlers: Vec<KnownHandler>,
}

impl RegistryState {
    /// Plans the changes for registrations, with a log if one is wanted. All refusals come before any change, except those of
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

    /// The result of the registration, after all handlers are written.
    pub fn layout(&self, wanted: &[Registration]) -> Layout {
        let known = wanted.iter().filter_map(|wanted| self.find(&wanted.name));
        let (handlers, origins) = known.map(|known| (known.id, known.origin.clone())).unzip();
        Layout { lanes: self.log.as_ref().map_or(0, |log| log.lanes), handlers, origins }
    }

    fn find(&self, name: &str) -> Option<&KnownHandler> {
        self.handlers.iter().find(|known| known.name == name)
    }
}

/// The changes that a store writes for registrations, in this order and in one transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegistrationPlan<'w> {
    /// The log to create.
    pub make_log: Option<LogLayout>,
    /// The handlers that are missing or differ.
    pub handlers: Vec<HandlerPlan<'w>>,
}

impl RegistrationPlan<'_> {
    /// Whether there is nothing to write.
    pub fn is_empty(&self) -> bool {
        self.make_log.is_none() && self.handlers.is_empty()
    }
}

/// The changes that a store writes for one handler: first its row, then the steps in its lanes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HandlerPlan<'w> {
    /// The registration of the program.
    pub wanted: &'w Registration,
    /// The change of its row.
    pub row: RowStep,
    /// The changes of its lanes.
    pub lanes: Vec<LaneStep>,
    /// The mode that it leaves.
    leaves: Option<Mode>,
}

/// The change of a handler's row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowStep {
    /// Insert it as active.
    Add,
    /// Set kinds, mode and order of a removed handler, and make it active: it begins again.
    Revive(HandlerId),
    /// Set kinds, mode and order.
    Update(HandlerId),
}

/// A change of a handler's lanes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LaneStep {
    /// The handler can have tasks from now on. A store whose lanes have lock rows inserts them.
    Open,
    /// The handler reads the log from now on. Insert its first progress in every lane, at this start, in an epoch that it
    /// never had.
    // A new epoch: rows that are left of an older one do not count.
    Begin(Start),
    /// The handler's markers decide from now on which messages run. Insert markers for the messages that it has passed.
    BackfillMarkers,
    /// The handler no longer reads the log. Delete its progress and its replays.
    End,
    /// The handler can have no more tasks. A store whose lanes have lock rows deletes them.
    Close,
}

impl HandlerPlan<'_> {
    /// The handler, if it changes its mode. The store reads and checks its [`Leftovers`] before it writes anything.
    pub fn leaves_mode(&self) -> Option<HandlerId> {
        match self.row {
            RowStep::Update(id) => self.leaves.map(|_| id),
            RowStep::Add | RowStep::Revive(_) => None,
        }
    }

    /// Checks that the handler may leave its mode with this unfinished work.
    pub fn check_leftovers(&self, left: Leftovers) -> Result<(), Error> {
        let Some(from) = self.leaves else { return Ok(()) };
        // The remaining data decides, not a waiting time: the old mode may have been in use until now.
        let obstacle = match self.wanted.mode {
            Mode::Stored if left.inline_keys => {
                "keys that came inline are still remembered, and would run again if they were accepted: wait until they are swept"
            }
            Mode::Stored | Mode::Inline { .. } if left.done_elsewhere => {
                "messages in the log were done inline meanwhile, and would run again: let it pass them"
            }
            // Inline handlers do not read the log: these messages would wait for ever.
            Mode::Inline { .. } if left.waiting => "messages wait in the log: let it work through them",
            // With spill the handler keeps its tasks, so this concerns purely inline handlers only.
            Mode::Inline { spill: false } if left.has_tasks => {
                "there are tasks or dead letters: let it work through them, and deal with the dead letters"
            }
            Mode::Inline { .. } | Mode::Stored | Mode::Mixed | Mode::Relay => return Ok(()),
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
    /// Plans the changes against the handler of that name in the database; `None` if nothing differs.
    fn plan(&self, known: Option<&KnownHandler>) -> Result<Option<HandlerPlan<'_>>, Error> {
        let begins = |row| HandlerPlan { wanted: self, row, lanes: self.lane_steps(None), leaves: None };
        let Some(known) = known else { return Ok(Some(begins(RowStep::Add))) };
        match known.state {
            // A paused handler stays paused: only an operator resumes it, not the start of a program.
            HandlerState::Active | HandlerState::Paused => {}
            // Like a new handler: its progress was deleted when it was removed.
            HandlerState::Removed if self.revive => return Ok(Some(begins(RowStep::Revive(known.id)))),
            HandlerState::Removed | HandlerState::Renamed => return Err(self.only_a_name(known)),
        }
        self.check(known)?;
        let leaves = Some(known.mode).filter(|&mode| mode != self.mode);
        // A changed order is not refused: the program that started last decides. So it is with what a relay sends and keeps.
        let is_same = known.ordered == self.ordered && known.keep == self.keep;
        let has_new_kinds = self.mode == Mode::Relay && known.kinds != self.kinds;
        if leaves.is_none() && is_same && !has_new_kinds {
            return Ok(None);
        }
        let lanes = self.lane_steps(Some(known.mode));
        Ok(Some(HandlerPlan { wanted: self, row: RowStep::Update(known.id), lanes, leaves }))
    }

    /// The error for a reserved name: its handler was removed or renamed.
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

    /// Checks that the handler in the database may change to this registration.
    fn check(&self, known: &KnownHandler) -> Result<(), Error> {
        let name = &self.name;
        if (self.mode == Mode::Relay) != (known.mode == Mode::Relay) {
            return Err(Error::configuration(format!(
                "{name:?} is a {} in the database and a {} here: choose another name",
                known.mode.role(),
                self.mode.role()
            )));
        }
        if !self.may_become(known.mode) {
            return Err(Error::configuration(format!(
                "the handler {name:?} is {} in the database and {} here: a message that came in both ways would run twice. \
                 Choose another name, keep its mode, or go through Mode::mixed()",
                known.mode.name(),
                self.mode.name()
            )));
        }
        // An inline handler passes no messages over, so its kinds may change.
        // The messages of new kinds that a relay has passed are kept, and a replay sends them.
        if known.mode.reads_log() && known.mode != Mode::Relay && known.kinds != self.kinds {
            return Err(Error::configuration(format!(
                "the handler {name:?} takes {:?} in the database and {:?} here: messages of the new kinds that it has passed \
                 already would be missing. Register it under another name",
                known.kinds, self.kinds
            )));
        }
        Ok(())
    }

    /// Whether the change of mode is possible at all. Between inline and stored the only way is through mixed.
    fn may_become(&self, from: Mode) -> bool {
        match self.mode {
            Mode::Mixed => true,
            // Directly between inline and stored, a message that arrived in both ways would run twice. Only mixed mode,
            // which relies on markers, recognises it.
            Mode::Stored => from.reads_log(),
            Mode::Inline { .. } => from.is_inline(),
            Mode::Relay => from == Mode::Relay,
        }
    }

    /// The changes of its lanes when it leaves a mode, or begins.
    fn lane_steps(&self, from: Option<Mode>) -> Vec<LaneStep> {
        let (had_tasks, read_log) = (from.is_some_and(Mode::has_tasks), from.is_some_and(Mode::reads_log));
        let (has_tasks, reads_log) = (self.mode.has_tasks(), self.mode.reads_log());
        // The order of execution: lanes have lock rows before the handler begins in them, and lose them last.
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
            keep: None,
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
            keep: None,
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

    /// Every change of mode, with the unfinished work for which it is refused.
    #[test]
    fn modes_change_through_mixed() {
        let (inline, spill) = (Mode::inline(), Mode::inline().spill());
        let waiting = Leftovers { waiting: true, ..Leftovers::default() };
        let has_tasks = Leftovers { has_tasks: true, ..Leftovers::default() };
        let inline_keys = Leftovers { inline_keys: true, ..Leftovers::default() };
        let done_elsewhere = Leftovers { done_elsewhere: true, ..Leftovers::default() };
        let refused_with = |from: Mode, to: Mode| {
            let registration = wanted(to, &["a"], false);
            let plan = registration.plan(Some(&known(from, HandlerState::Active))).ok()??;
            assert_eq!((plan.row, plan.leaves_mode()), (RowStep::Update(ID), Some(ID)));
            plan.check_leftovers(Leftovers::default()).unwrap();
            Some(
                [waiting, has_tasks, inline_keys, done_elsewhere]
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
