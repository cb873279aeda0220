//! The operations on an outbox.

use proptest::collection::vec;
use proptest::option::weighted;
use proptest::prelude::{Strategy, any, prop_oneof};
use proptest::strategy::Just;

/// The verdict of the sink on one copy of a message. It confirms when nothing is planned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PlannedVerdict {
    Confirm,
    /// The next attempt is due at once.
    Refuse,
    /// The next attempt is due in an hour.
    RefuseUntilLater,
    /// The other side may have it, but no confirmation comes.
    LoseConfirm,
}

/// A message of one publishing transaction.
#[derive(Clone, Debug)]
pub(super) struct PlannedMessage {
    /// The number of an earlier message whose key it has; a key of its own without one.
    pub(super) copy_of: Option<usize>,
    pub(super) order: Option<u8>,
    pub(super) verdicts: Vec<PlannedVerdict>,
}

/// Where a relay loses its progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CrashPoint {
    /// The sink has confirmed; nothing is written.
    BeforeCommit,
    /// The progress is written; the relay has no answer.
    AfterCommit,
    /// Other processes take it for dead while it sends.
    LeaseLost,
}

/// One operation.
#[derive(Clone, Debug)]
pub(super) enum OutboxOperation {
    /// One transaction of the application.
    Publish {
        messages: Vec<PlannedMessage>,
        commits: bool,
    },
    /// Moves all committed messages to the log.
    Move,
    /// Moves, and sends what can be sent.
    Send,
    /// The same, and the relay crashes during it.
    Crash(CrashPoint),
    /// The handlers of the same database.
    Work,
    /// Skips more than an hour.
    Travel,
    /// The relay, from a message on, or from the beginning.
    Replay(Option<usize>),
    /// All dead letters of the relay; the sink confirms them from now on, or goes on as planned.
    Retry {
        is_healed: bool,
    },
    /// All dead letters of the relay.
    Discard,
    Pause,
    Resume,
}

fn verdict() -> impl Strategy<Value = PlannedVerdict> + Clone {
    prop_oneof![
        4 => Just(PlannedVerdict::Confirm),
        3 => Just(PlannedVerdict::LoseConfirm),
        3 => Just(PlannedVerdict::Refuse),
        1 => Just(PlannedVerdict::RefuseUntilLater),
    ]
}

fn message() -> impl Strategy<Value = PlannedMessage> + Clone {
    (weighted(0.2, 0_usize..64), weighted(0.7, 0_u8..3), vec(verdict(), 0..5))
        .prop_map(|(copy_of, order, verdicts)| PlannedMessage { copy_of, order, verdicts })
}

pub(super) fn publish() -> impl Strategy<Value = OutboxOperation> + Clone {
    (vec(message(), 1..5), weighted(0.8, Just(())))
        .prop_map(|(messages, commits)| OutboxOperation::Publish { messages, commits: commits.is_some() })
}

pub(super) fn operation() -> impl Strategy<Value = OutboxOperation> {
    let point = prop_oneof![
        Just(CrashPoint::BeforeCommit),
        Just(CrashPoint::AfterCommit),
        Just(CrashPoint::LeaseLost),
    ];
    prop_oneof![
        8 => publish(),
        2 => Just(OutboxOperation::Move),
        6 => Just(OutboxOperation::Send),
        3 => point.prop_map(OutboxOperation::Crash),
        2 => Just(OutboxOperation::Work),
        2 => Just(OutboxOperation::Travel),
        2 => weighted(0.6, 0_usize..64).prop_map(OutboxOperation::Replay),
        2 => any::<bool>().prop_map(|is_healed| OutboxOperation::Retry { is_healed }),
        1 => Just(OutboxOperation::Discard),
        1 => Just(OutboxOperation::Pause),
        2 => Just(OutboxOperation::Resume),
    ]
}
