//! The registry: which handlers there are, durably, and where each began.

use crate::store::Store;
use crate::{DeadHead, Error, Mode, Start};

/// A handler's number in the database.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HandlerId(pub i32);

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

/// Whether a handler is at work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HandlerState {
    /// It is.
    Active,
    /// An operator has stopped it for a while.
    Paused,
    /// It was removed; its name stays taken.
    Removed,
    /// Only a name that a handler had before; it stays taken.
    Renamed,
}

impl HandlerState {
    /// The state's name in the database.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Active => "active",
            Self::Paused => "paused",
            Self::Removed => "removed",
            Self::Renamed => "renamed",
        }
    }

    /// The state of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        [Self::Active, Self::Paused, Self::Removed, Self::Renamed]
            .into_iter()
            .find(|state| state.name() == name)
    }

    /// Whether there is a handler, not only a name that stays taken.
    pub const fn is_registered(self) -> bool {
        matches!(self, Self::Active | Self::Paused)
    }
}

/// A handler as the database knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownHandler {
    /// Its number.
    pub id: HandlerId,
    /// Its name.
    pub name: String,
    /// The name under which it was registered first. It never changes: markers and effect ids are made with it. For a name that
    /// a handler had before, the name that the handler has now.
    pub origin: String,
    /// The kinds that it takes, sorted.
    pub kinds: Vec<String>,
    /// How messages reach it.
    pub mode: Mode,
    /// Whether it takes the messages of an ordering key in their order, and what a dead letter means there.
    pub ordered: Option<DeadHead>,
    /// Whether it is at work.
    pub state: HandlerState,
}

/// What a registration comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is there as it is wanted.
    Known(HandlerId),
    /// It is to be inserted.
    New,
    /// It was removed, and is to begin again.
    Revive(HandlerId),
    /// Only what it does with dead letters in an order differs; what is wanted now counts.
    Reorder(HandlerId),
    /// Its mode is to change from this one, if [`Registration::may_change`].
    Change(HandlerId, Mode),
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

/// What the database fixes: the number of lanes, and each handler's number and first name, in the order of the
/// registrations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// How many lanes the log has; 0 where there is no log yet.
    pub lanes: u16,
    /// The handlers' numbers.
    pub handlers: Vec<HandlerId>,
    /// The names under which they were registered first.
    pub origins: Vec<String>,
}

impl Registration {
    /// What becomes of a registration beside what the database knows under that name. One rule for all stores.
    pub fn judge(&self, known: Option<&KnownHandler>) -> Result<Verdict, Error> {
        let name = &self.name;
        let Some(known) = known else { return Ok(Verdict::New) };
        match (known.state, self.revive) {
            (HandlerState::Active | HandlerState::Paused, _) => {}
            (HandlerState::Removed, true) => return Ok(Verdict::Revive(known.id)),
            (HandlerState::Removed, false) => {
                return Err(Error::configuration(format!(
                    "the handler {name:?} was removed: choose another name, or set `revive` in its options to let it begin \
                     again"
                )));
            }
            (HandlerState::Renamed, _) => {
                return Err(Error::configuration(format!(
                    "the handler {name:?} was renamed to {:?}: register it under that name",
                    known.origin
                )));
            }
        }
        if !self.may_become(known.mode) {
            return Err(Error::configuration(format!(
                "the handler {name:?} is {} in the database and {} here: a message that came in both ways would run twice. \
                 Choose another name, keep its mode, or go through Mode::mixed()",
                known.mode.name(),
                self.mode.name()
            )));
        }
        if known.mode.reads_log() && known.kinds != self.kinds {
            return Err(Error::configuration(format!(
                "the handler {name:?} takes {:?} in the database and {:?} here: messages of the new kinds that it has passed \
                 already would be missing. Register it under another name",
                known.kinds, self.kinds
            )));
        }
        Ok(match () {
            () if known.mode != self.mode => Verdict::Change(known.id, known.mode),
            () if known.ordered != self.ordered => Verdict::Reorder(known.id),
            () => Verdict::Known(known.id),
        })
    }

    /// Whether there is a way at all. Between inline and stored there is none but through mixed.
    fn may_become(&self, from: Mode) -> bool {
        match self.mode {
            Mode::Mixed => true,
            Mode::Stored => from.reads_log(),
            Mode::Inline { .. } => from.is_inline(),
        }
    }

    /// Whether a handler may leave a mode for this one, with what it still has to do there. One rule for all stores.
    pub fn may_change(&self, from: Mode, left: Leftovers) -> Result<(), Error> {
        let (name, to) = (&self.name, self.mode.name());
        let obstacle = match self.mode {
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
            "the handler {name:?} cannot become {to} yet, and is still {}: {obstacle}",
            from.name()
        )))
    }
}

/// Checks the number of lanes that a program asks for, if it asks for one, against the one that is fixed in the database.
pub fn check_lanes(wanted: Option<u16>, fixed: u16) -> Result<(), Error> {
    match wanted {
        Some(wanted) if wanted != fixed => Err(Error::configuration(format!(
            "the log has {fixed} lanes, and lanes({wanted}) is set: the number is fixed when the log is made. Leave the setting \
             out, or use another database or schema"
        ))),
        _ => Ok(()),
    }
}

/// Keeps the handlers' names, modes and kinds.
pub trait Registry: Store {
    /// Registers handlers, each by [`Registration::judge`]; any number of processes may do so at once. Writes nothing where
    /// all of them are known. With `log`, also makes the lanes of the log: as many as asked for, else
    /// [`Lanes::DEFAULT`]. Without it, all handlers are inline.
    fn register(
        &self,
        log: Option<Lanes>,
        handlers: &[Registration],
    ) -> impl Future<Output = Result<Layout, Error>> + Send;
}

/// How many lanes a program asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lanes(pub Option<u16>);

impl Lanes {
    /// How many a log has whose makers did not say.
    pub const DEFAULT: u16 = 8;

    /// How many a new log gets.
    pub fn to_make(self) -> u16 {
        self.0.unwrap_or(Self::DEFAULT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;

    fn wanted(mode: Mode, kinds: &[&str], revive: bool) -> Registration {
        Registration {
            name: "ledger".into(),
            kinds: kinds.iter().map(|&kind| kind.to_owned()).collect(),
            mode,
            ordered: None,
            start: Start::Beginning,
            revive,
        }
    }

    fn known(mode: Mode, state: HandlerState) -> KnownHandler {
        KnownHandler {
            id: HandlerId(7),
            name: "ledger".into(),
            origin: "ledger".into(),
            kinds: vec!["a".into()],
            mode,
            ordered: None,
            state,
        }
    }

    #[test]
    fn a_name_keeps_its_mode_and_its_kinds() {
        use HandlerState::{Active, Paused, Removed, Renamed};
        let new = wanted(Mode::Stored, &["a"], false);
        assert_eq!(new.judge(None).unwrap(), Verdict::New);
        assert_eq!(new.judge(Some(&known(Mode::Stored, Active))).unwrap(), Verdict::Known(HandlerId(7)));
        assert_eq!(new.judge(Some(&known(Mode::Stored, Paused))).unwrap(), Verdict::Known(HandlerId(7)));
        let revived = wanted(Mode::Stored, &["b"], true).judge(Some(&known(Mode::Stored, Removed)));
        assert_eq!(revived.unwrap(), Verdict::Revive(HandlerId(7)));
        for (registration, known) in [
            (wanted(Mode::Stored, &["a"], false), known(Mode::inline(), Active)),
            (wanted(Mode::inline(), &["a"], true), known(Mode::Stored, Active)),
            (wanted(Mode::Stored, &["a", "b"], false), known(Mode::Stored, Active)),
            (wanted(Mode::Stored, &["a"], false), known(Mode::Stored, Removed)),
            (wanted(Mode::Stored, &["a"], true), known(Mode::Stored, Renamed)),
        ] {
            assert_eq!(registration.judge(Some(&known)).unwrap_err().kind(), ErrorKind::Configuration);
        }
        wanted(Mode::inline(), &["b"], false).judge(Some(&known(Mode::inline(), Active))).unwrap();
    }

    #[test]
    fn what_is_wanted_now_is_done_with_dead_letters() {
        let ordered = Registration { ordered: Some(DeadHead::Skip), ..wanted(Mode::Stored, &["a"], false) };
        let known = known(Mode::Stored, HandlerState::Active);
        assert_eq!(ordered.judge(Some(&known)).unwrap(), Verdict::Reorder(HandlerId(7)));
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
            let verdict = registration.judge(Some(&known(from, HandlerState::Active))).ok()?;
            assert_eq!(verdict, Verdict::Change(HandlerId(7), from));
            registration.may_change(from, Leftovers::default()).unwrap();
            let refused = [waiting, set_apart, inline_keys, done_elsewhere]
                .map(|left| registration.may_change(from, left).is_err());
            Some(refused)
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
}
