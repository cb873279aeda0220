//! Decides whether a handler has run for a message of the log. Only this file knows the rules of mixed mode.

use std::collections::HashSet;

use crate::inbox::registered::Registered;
use crate::inbox::stored::account::unit_of_message;
use crate::inbox::stored::visit::TakenBatch;
use crate::inbox::stored::{LaneVisitor, LogStore};
use crate::store::{Claimed, StoredMessage, Unit};
use crate::{Error, Mode, observe};

/// The proof that a handler has run for a message of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Referee {
    /// Progress and tasks: the message arrives through the log only.
    Log,
    /// The handler's own marker: in mixed mode the same message may arrive inline too.
    Marker,
}

impl Referee {
    pub(super) fn of(mode: Mode) -> Self {
        if mode.relies_on_markers() { Self::Marker } else { Self::Log }
    }

    /// Whether a message must be claimed before it runs. A replay runs again on purpose, and a task was claimed before.
    fn claims(self, message: &StoredMessage) -> bool {
        self == Self::Marker && !message.replay && !message.spilled
    }

    /// Whether the marker of a done message is updated to done. A replayed message may have been spilled before.
    pub(super) fn sets_done(self, message: &StoredMessage) -> bool {
        message.spilled || (self == Self::Marker && message.replay)
    }

    /// Whether a result is stored. It needs a marker to be stored with.
    pub(super) fn keeps_result(self, message: &StoredMessage) -> bool {
        message.spilled || self == Self::Marker
    }

    /// Whether the marker of a message that becomes a task or a dead letter is set to spilled.
    pub(super) fn sets_spilled(self, message: &StoredMessage) -> bool {
        self == Self::Marker && !message.spilled
    }

    /// Whether the claim of a message that did not run is deleted.
    pub(super) fn unclaims(self, message: &StoredMessage) -> bool {
        self == Self::Marker && !message.replay
    }
}

impl<S: LogStore> LaneVisitor<S> {
    pub(super) fn referee(&self) -> Referee {
        Referee::of(self.engine.mode)
    }

    /// Claims messages in mixed mode. Messages that are done already are skipped. Messages that another copy runs now are scheduled
    /// for retry.
    pub(super) async fn claim_taken(
        &self,
        handler: &Registered<S>,
        tx: &mut S::Tx,
        taken: &mut TakenBatch,
    ) -> Result<(), Error> {
        let referee = self.referee();
        let mut units: Vec<(usize, Unit)> = taken
            .messages
            .iter()
            .enumerate()
            .filter(|(_, message)| referee.claims(message))
            .filter_map(|(n, message)| Some((n, unit_of_message(&handler.origin, message)?)))
            .collect();
        if units.is_empty() {
            return Ok(());
        }
        // The same order as in all claims, so that two transactions cannot deadlock.
        units.sort_by(|(_, a), (_, b)| (&a.kind, &a.key).cmp(&(&b.kind, &b.key)));
        let (numbers, units): (Vec<usize>, Vec<Unit>) = units.into_iter().unzip();
        let claimed = self.engine.store.claim(tx, &units).await?;
        let (mut known, mut busy) = (HashSet::new(), HashSet::new());
        for (n, claimed) in numbers.into_iter().zip(claimed) {
            match claimed {
                Claimed::Fresh => {}
                // An inline copy was first, so this one is a duplicate.
                Claimed::Known(_) => {
                    self.engine.observer.count(observe::DUPLICATES, &handler.name);
                    known.insert(n);
                }
                Claimed::Busy => drop(busy.insert(n)),
            }
        }
        for (n, message) in std::mem::take(&mut taken.messages).into_iter().enumerate() {
            match n {
                n if busy.contains(&n) => taken.busy.push(message),
                n if known.contains(&n) => {}
                _ => taken.messages.push(message),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inbox::stored::account::tests::message;

    #[test]
    fn only_in_mixed_mode_markers_decide() {
        for mode in [Mode::inline(), Mode::inline().spill(), Mode::stored()] {
            assert_eq!(Referee::of(mode), Referee::Log, "{mode:?}");
        }
        assert_eq!(Referee::of(Mode::mixed()), Referee::Marker);
    }

    /// For each referee: is it claimed, set to done, with a result, set to spilled, unclaimed?
    #[test]
    fn markers_follow_their_messages() {
        let plain = || message(1);
        let replay = || StoredMessage { replay: true, ..message(1) };
        let spilled = || StoredMessage { spilled: true, ..message(1) };
        for (referee, message, expected) in [
            (Referee::Log, plain(), [false, false, false, false, false]),
            (Referee::Log, replay(), [false, false, false, false, false]),
            (Referee::Log, spilled(), [false, true, true, false, false]),
            (Referee::Marker, plain(), [true, false, true, true, true]),
            (Referee::Marker, replay(), [false, true, true, true, false]),
            (Referee::Marker, spilled(), [false, true, true, false, true]),
        ] {
            let decided = [
                referee.claims(&message),
                referee.sets_done(&message),
                referee.keeps_result(&message),
                referee.sets_spilled(&message),
                referee.unclaims(&message),
            ];
            assert_eq!(decided, expected, "{referee:?} {message:?}");
        }
    }
}
