//! The registry: which handlers there are, durably, and where each began.

use crate::store::Store;
use crate::{Error, Mode, Start};

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
    /// It was removed; its name stays taken.
    Removed,
}

/// A handler as the database knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownHandler {
    /// Its number.
    pub id: HandlerId,
    /// Its name.
    pub name: String,
    /// The kinds that it takes, sorted.
    pub kinds: Vec<String>,
    /// How messages reach it.
    pub mode: Mode,
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
}

/// What the database fixes: the number of lanes, and each handler's number, in the order of the registrations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// How many lanes the log has; 0 where there is no log yet.
    pub lanes: u16,
    /// The handlers' numbers.
    pub handlers: Vec<HandlerId>,
}

impl Registration {
    /// What becomes of a registration beside what the database knows under that name. One rule for all stores.
    pub fn judge(&self, known: Option<&KnownHandler>) -> Result<Verdict, Error> {
        let name = &self.name;
        let Some(known) = known else { return Ok(Verdict::New) };
        if known.state == HandlerState::Removed {
            return match self.revive {
                true => Ok(Verdict::Revive(known.id)),
                false => Err(Error::configuration(format!(
                    "the handler {name:?} was removed: choose another name, or set .revive() in its options to let it begin \
                     again"
                ))),
            };
        }
        if known.mode != self.mode {
            return Err(Error::configuration(format!(
                "the handler {name:?} is {} in the database and {} here: a message that came in both ways would run twice. \
                 Choose another name, or keep its mode",
                known.mode.name(),
                self.mode.name()
            )));
        }
        if self.mode == Mode::Stored && known.kinds != self.kinds {
            return Err(Error::configuration(format!(
                "the handler {name:?} takes {:?} in the database and {:?} here: messages of the new kinds that it has passed \
                 already would be missing. Register it under another name",
                known.kinds, self.kinds
            )));
        }
        Ok(Verdict::Known(known.id))
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

    #[test]
    fn a_name_keeps_its_mode_and_its_kinds() {
        let wanted = |mode, kinds: &[&str], revive| Registration {
            name: "ledger".into(),
            kinds: kinds.iter().map(|&kind| kind.to_owned()).collect(),
            mode,
            start: Start::Beginning,
            revive,
        };
        let known = |mode, state| KnownHandler {
            id: HandlerId(7),
            name: "ledger".into(),
            kinds: vec!["a".into()],
            mode,
            state,
        };
        use HandlerState::{Active, Removed};
        let new = wanted(Mode::Stored, &["a"], false);
        assert_eq!(new.judge(None).unwrap(), Verdict::New);
        assert_eq!(new.judge(Some(&known(Mode::Stored, Active))).unwrap(), Verdict::Known(HandlerId(7)));
        let revived = wanted(Mode::Stored, &["b"], true).judge(Some(&known(Mode::Stored, Removed)));
        assert_eq!(revived.unwrap(), Verdict::Revive(HandlerId(7)));
        for (registration, known) in [
            (wanted(Mode::Stored, &["a"], false), known(Mode::Inline, Active)),
            (wanted(Mode::Inline, &["a"], true), known(Mode::Stored, Active)),
            (wanted(Mode::Stored, &["a", "b"], false), known(Mode::Stored, Active)),
            (wanted(Mode::Stored, &["a"], false), known(Mode::Stored, Removed)),
        ] {
            assert_eq!(registration.judge(Some(&known)).unwrap_err().kind(), ErrorKind::Configuration);
        }
        wanted(Mode::Inline, &["b"], false).judge(Some(&known(Mode::Inline, Active))).unwrap();
    }
}
