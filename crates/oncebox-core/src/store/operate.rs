//! Operations of operators on handlers. The core plans an operation and its text in the audit; a store carries out the plan.

use crate::Error;
use crate::store::{HandlerId, HandlerState, KnownHandler, ReplayFrom, Replayed, Store};

/// An operator's operation on a handler.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Pauses it: it takes no messages from the log until it is resumed.
    Pause,
    /// Resumes a paused handler.
    Resume,
    /// Runs it again on earlier messages. In every lane where its progress is ahead of the first of them, a new epoch begins
    /// right before that message. Its tasks and dead letters from there on are deleted, because the lane delivers their
    /// messages again. Those of messages for this handler alone stay, because the lane does not deliver these again.
    Replay(ReplayFrom),
    /// Renames it; the old name stays taken.
    Rename {
        /// The new name.
        to: String,
    },
    /// Removes it, and deletes its tasks and dead letters. Its name stays taken. Its markers that say known and not done become
    /// done, so that sweeps delete them.
    Remove,
}

impl Operation {
    /// The operation's name in the audit.
    pub fn action(&self) -> &'static str {
        match self {
            Self::Pause => "pause",
            Self::Resume => "resume",
            Self::Replay(_) => "replay",
            Self::Rename { .. } => "rename",
            Self::Remove => "remove",
        }
    }

    /// The operation's name in error texts of stores.
    pub fn doing(&self) -> &'static str {
        match self {
            Self::Pause => "pause a handler",
            Self::Resume => "resume a handler",
            Self::Replay(_) => "replay a handler",
            Self::Rename { .. } => "rename a handler",
            Self::Remove => "remove a handler",
        }
    }

    /// The names whose rows [`plan`](Self::plan) needs: the handler's, and for a rename the new one.
    pub fn names<'a>(&'a self, handler: &'a str) -> Vec<&'a str> {
        match self {
            Self::Rename { to } => vec![handler, to],
            Self::Pause | Self::Resume | Self::Replay(_) | Self::Remove => vec![handler],
        }
    }

    /// Plans the operation against the rows of its [`names`](Self::names) in the database. `None` if there is nothing to do:
    /// there is no such handler, or it is already paused or active.
    pub fn plan(&self, handler: &str, known: &[KnownHandler]) -> Result<Option<OperationPlan>, Error> {
        let find = |name: &str| known.iter().find(|known| known.name == name);
        let Some(handler) = find(handler).filter(|known| known.state.is_registered()) else {
            return Ok(None);
        };
        let step = match self {
            Self::Pause => set_state(handler, HandlerState::Paused)?,
            Self::Resume => set_state(handler, HandlerState::Active)?,
            Self::Replay(from) => Some(replay(handler, *from)?),
            Self::Rename { to } => Some(rename(handler, to, find(to))?),
            Self::Remove => Some(OperationStep::Remove { origin: handler.origin.clone() }),
        };
        let (id, name, action) = (handler.id, handler.name.clone(), self.action());
        Ok(step.map(|step| OperationPlan { handler: id, step, name, action }))
    }
}

/// `None` if the handler has this state already.
fn set_state(handler: &KnownHandler, state: HandlerState) -> Result<Option<OperationStep>, Error> {
    if !handler.mode.has_tasks() {
        return Err(Error::configuration(format!(
            "the handler {:?} is {}: no messages wait for it in the log, so it cannot be paused. Stop its deliveries instead",
            handler.name,
            handler.mode.name()
        )));
    }
    Ok((handler.state != state).then_some(OperationStep::SetState(state)))
}

fn replay(handler: &KnownHandler, from: ReplayFrom) -> Result<OperationStep, Error> {
    if !handler.mode.reads_log() {
        return Err(Error::configuration(format!(
            "the handler {:?} is {} and does not read the log: there is nothing to replay",
            handler.name,
            handler.mode.name()
        )));
    }
    Ok(OperationStep::Replay(from))
}

/// Refuses a taken name, unless it is a former name of this handler.
fn rename(handler: &KnownHandler, to: &str, taken: Option<&KnownHandler>) -> Result<OperationStep, Error> {
    // Names stay taken, because an old program may still start under one. A handler may return to its own.
    let was_its_own =
        |taken: &KnownHandler| taken.state == HandlerState::Renamed && taken.origin == handler.name;
    if taken.is_some_and(|taken| !was_its_own(taken)) {
        return Err(Error::configuration(format!(
            "the name {to:?} is taken: choose another one. Names of handlers are never used twice"
        )));
    }
    Ok(OperationStep::Rename { from: handler.name.clone(), to: to.to_owned() })
}

/// The plan of an [`Operation`]: a store carries it out in one transaction with its entry in the audit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OperationPlan {
    /// The handler.
    pub handler: HandlerId,
    /// The change of the handler.
    pub step: OperationStep,
    name: String,
    action: &'static str,
}

/// The change that a store makes to a handler.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OperationStep {
    /// Set its state.
    SetState(HandlerState),
    /// Begin an epoch in every lane for which [`ReplayLane::back_to`](crate::store::ReplayLane::back_to) returns one. Delete the
    /// handler's tasks and dead letters behind that position, except those of messages for this handler alone.
    Replay(ReplayFrom),
    /// Delete the row of the new name if it is a former name of this handler, rename the handler, and insert the old name as
    /// renamed.
    Rename {
        /// The present name.
        from: String,
        /// The new name.
        to: String,
    },
    /// Set its state, and delete its progress, tasks and dead letters. Its markers that say known and not done become done.
    Remove {
        /// The name in its markers.
        origin: String,
    },
}

/// The numbers of rows that an operation affected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Affected {
    /// The number of positions that the handler passes again.
    pub positions: u64,
    /// The number of deleted tasks.
    pub tasks: u64,
    /// The number of deleted dead letters.
    pub dead: u64,
}

impl From<Affected> for Replayed {
    fn from(Affected { positions, tasks, dead }: Affected) -> Self {
        Self { positions, tasks, dead }
    }
}

/// The entry of an operation in the audit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OperationEntry {
    /// The name of the operation.
    pub action: &'static str,
    /// The handler's name after the operation.
    pub handler: String,
    /// Further details, if there are any.
    pub detail: Option<String>,
}

impl OperationPlan {
    /// The entry in the audit for this plan.
    pub fn entry(&self, affected: Affected) -> OperationEntry {
        let Affected { positions, tasks, dead } = affected;
        let (handler, detail) = match &self.step {
            OperationStep::SetState(_) => (&self.name, None),
            OperationStep::Replay(from) => {
                let counts = format!("positions: {positions}, tasks: {tasks}, dead letters: {dead}");
                (&self.name, Some(format!("from {from}; {counts}")))
            }
            OperationStep::Rename { from, to } => (to, Some(format!("was {from}"))),
            OperationStep::Remove { .. } => {
                (&self.name, Some(format!("tasks: {tasks}, dead letters: {dead}")))
            }
        };
        OperationEntry { action: self.action, handler: handler.clone(), detail }
    }
}

/// Carries out operators' operations on handlers. Each operation waits until no transaction runs the handler.
pub trait Operate: Store {
    /// Carries out [`Operation::plan`], and writes [`OperationPlan::entry`] to the audit, in one transaction that holds the locks
    /// of the handler's lanes. `None` if there was nothing to do.
    fn operate(
        &self,
        handler: &str,
        operation: &Operation,
        operator: &str,
    ) -> impl Future<Output = Result<Option<Affected>, Error>> + Send;

    /// Carries out [`Operation::Pause`] or [`Operation::Resume`]; returns whether the handler exists and its state changed.
    fn pause_handler(
        &self,
        name: &str,
        paused: bool,
        operator: &str,
    ) -> impl Future<Output = Result<bool, Error>> + Send {
        let operation = if paused { Operation::Pause } else { Operation::Resume };
        async move { Ok(self.operate(name, &operation, operator).await?.is_some()) }
    }

    /// Carries out [`Operation::Replay`]; returns `None` if there is no such handler.
    fn replay(
        &self,
        name: &str,
        from: ReplayFrom,
        operator: &str,
    ) -> impl Future<Output = Result<Option<Replayed>, Error>> + Send {
        async move { Ok(self.operate(name, &Operation::Replay(from), operator).await?.map(Replayed::from)) }
    }

    /// Carries out [`Operation::Rename`]; returns whether the handler exists.
    fn rename_handler(
        &self,
        name: &str,
        new_name: &str,
        operator: &str,
    ) -> impl Future<Output = Result<bool, Error>> + Send {
        let operation = Operation::Rename { to: new_name.to_owned() };
        async move { Ok(self.operate(name, &operation, operator).await?.is_some()) }
    }

    /// Carries out [`Operation::Remove`]; returns whether the handler exists.
    fn remove_handler(&self, name: &str, operator: &str) -> impl Future<Output = Result<bool, Error>> + Send {
        async move { Ok(self.operate(name, &Operation::Remove, operator).await?.is_some()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ErrorKind, Mode};

    fn known(name: &str, mode: Mode, state: HandlerState) -> KnownHandler {
        KnownHandler {
            id: HandlerId(7),
            name: name.into(),
            origin: "first".into(),
            kinds: vec!["a".into()],
            mode,
            ordered: None,
            state,
            keep: None,
        }
    }

    fn rename_to(to: &str) -> Operation {
        Operation::Rename { to: to.into() }
    }

    /// Every operation on a handler in every state.
    #[test]
    fn an_operation_is_planned_by_the_handler_s_state() {
        use HandlerState::{Active, Paused, Removed, Renamed};
        let (pause, resume) = (OperationStep::SetState(Paused), OperationStep::SetState(Active));
        let replay = OperationStep::Replay(ReplayFrom::Beginning);
        let rename = OperationStep::Rename { from: "ledger".into(), to: "book".into() };
        let remove = OperationStep::Remove { origin: "first".into() };
        let replay_all = Operation::Replay(ReplayFrom::Beginning);
        for (operation, state, expected) in [
            (Operation::Pause, Active, Some(&pause)),
            (Operation::Pause, Paused, None),
            (Operation::Resume, Active, None),
            (Operation::Resume, Paused, Some(&resume)),
            (replay_all.clone(), Active, Some(&replay)),
            (replay_all.clone(), Paused, Some(&replay)),
            (rename_to("book"), Active, Some(&rename)),
            (rename_to("book"), Paused, Some(&rename)),
            (Operation::Remove, Active, Some(&remove)),
            (Operation::Remove, Paused, Some(&remove)),
        ] {
            let plan = operation.plan("ledger", &[known("ledger", Mode::Stored, state)]).unwrap();
            assert_eq!(plan.as_ref().map(|plan| &plan.step), expected, "{operation:?} {state:?}");
        }
        // A reserved name is not a handler, in any mode.
        for operation in
            [Operation::Pause, Operation::Resume, replay_all, rename_to("book"), Operation::Remove]
        {
            assert_eq!(operation.plan("ledger", &[]).unwrap(), None);
            for state in [Removed, Renamed] {
                let plan = operation.plan("ledger", &[known("ledger", Mode::inline(), state)]).unwrap();
                assert_eq!(plan, None, "{operation:?} {state:?}");
            }
        }
    }

    #[test]
    fn what_has_nothing_in_the_log_is_neither_paused_nor_replayed() {
        let (inline, spill) = (Mode::inline(), Mode::inline().spill());
        let replay = Operation::Replay(ReplayFrom::Beginning);
        let pause_refused = "the handler \"ledger\" is inline: no messages wait for it in the log, so it cannot be paused. \
                             Stop its deliveries instead";
        let replay_refused = |mode: &str| {
            format!("the handler \"ledger\" is {mode} and does not read the log: there is nothing to replay")
        };
        for (operation, mode, expected) in [
            (&Operation::Pause, inline, Some(pause_refused.to_owned())),
            (&Operation::Resume, inline, Some(pause_refused.to_owned())),
            (&Operation::Pause, spill, None),
            (&Operation::Pause, Mode::Mixed, None),
            (&replay, inline, Some(replay_refused("inline"))),
            (&replay, spill, Some(replay_refused("spill"))),
            (&replay, Mode::Mixed, None),
            (&Operation::Remove, inline, None),
            (&rename_to("book"), inline, None),
        ] {
            let planned = operation.plan("ledger", &[known("ledger", mode, HandlerState::Active)]);
            let refused = planned.err().inspect(|error| assert_eq!(error.kind(), ErrorKind::Configuration));
            assert_eq!(refused.map(|error| error.to_string()), expected, "{operation:?} {mode:?}");
        }
    }

    #[test]
    fn a_name_is_used_once() {
        use HandlerState::{Active, Removed, Renamed};
        let ledger = || known("ledger", Mode::Stored, Active);
        let had_by =
            |now: &str| KnownHandler { origin: now.into(), ..known("book", Mode::inline(), Renamed) };
        for (taken, is_refused) in [
            (known("book", Mode::Stored, Active), true),
            (known("book", Mode::Stored, Removed), true),
            (had_by("another"), true),
            (had_by("ledger"), false),
        ] {
            let planned = rename_to("book").plan("ledger", &[ledger(), taken.clone()]);
            assert_eq!(planned.is_err(), is_refused, "{taken:?}");
        }
        let refused = rename_to("ledger").plan("ledger", &[ledger()]).unwrap_err();
        let text = "the name \"ledger\" is taken: choose another one. Names of handlers are never used twice";
        assert_eq!(refused.to_string(), text);
    }

    #[test]
    fn the_audit_says_what_was_done() {
        let affected = Affected { positions: 3, tasks: 1, dead: 2 };
        for (operation, action, handler, detail) in [
            (Operation::Pause, "pause", "ledger", None),
            (
                Operation::Replay(ReplayFrom::Beginning),
                "replay",
                "ledger",
                Some("from the beginning; positions: 3, tasks: 1, dead letters: 2"),
            ),
            (rename_to("book"), "rename", "book", Some("was ledger")),
            (Operation::Remove, "remove", "ledger", Some("tasks: 1, dead letters: 2")),
        ] {
            let known = [known("ledger", Mode::Stored, HandlerState::Active)];
            let entry = operation.plan("ledger", &known).unwrap().unwrap().entry(affected);
            let expected =
                OperationEntry { action, handler: handler.into(), detail: detail.map(str::to_owned) };
            assert_eq!(entry, expected);
        }
    }
}
