//! The operations on a log.

use proptest::collection::vec;
use proptest::option::weighted;
use proptest::prelude::{Strategy, any, prop_oneof};

/// The handlers of every case, by number.
pub(super) const HANDLERS: usize = 4;
/// The detached one.
pub(super) const DETACHED: usize = 3;

/// The result of a handler at one attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Succeed,
    /// The next attempt is due at once.
    Fail,
    /// The next attempt is due in an hour.
    FailUntilLater,
    FailForGood,
}

/// One operation. Messages are named by their number, of as many as there are.
#[derive(Clone, Debug)]
pub(super) enum ModelOperation {
    /// A new message: its ordering key, whether it is due in an hour only, and what each handler does at each attempt; it
    /// succeeds when there is nothing left.
    Accept {
        order: Option<u8>,
        is_later: bool,
        steps: [Vec<Step>; HANDLERS],
    },
    /// A copy.
    AcceptAgain(usize),
    /// Works until no message can run.
    Work,
    /// The same, after a worker has crashed during a message.
    CrashAndWork(usize),
    /// Skips more than an hour.
    Travel,
    /// All dead letters of a handler; with the cause removed, or not.
    Retry {
        handler: usize,
        is_healed: bool,
    },
    /// All dead letters of a handler.
    Settle {
        handler: usize,
        is_discarded: bool,
    },
    /// From a message on, or from the beginning.
    Replay {
        handler: usize,
        from: Option<usize>,
    },
    Pause(usize),
    Resume(usize),
    Remove(usize),
    /// From the beginning.
    Revive(usize),
    Prune,
    /// A spilled message, for one handler.
    Spill {
        handler: usize,
        is_dead: bool,
    },
    /// Another process takes a message, or a task, of the detached handler.
    Lease {
        is_task: bool,
        lane: u16,
    },
    /// It ends its oldest lease.
    EndLease {
        is_well: bool,
    },
    /// It crashes, and its later outcomes do not count.
    LoseLeases,
}

fn handler() -> impl Strategy<Value = usize> + Clone {
    0..HANDLERS
}

fn step() -> impl Strategy<Value = Step> + Clone {
    prop_oneof![
        5 => proptest::strategy::Just(Step::Succeed),
        3 => proptest::strategy::Just(Step::Fail),
        2 => proptest::strategy::Just(Step::FailUntilLater),
        1 => proptest::strategy::Just(Step::FailForGood),
    ]
}

pub(super) fn accept() -> impl Strategy<Value = ModelOperation> + Clone {
    let steps = || vec(step(), 0..4);
    (
        weighted(0.7, 0_u8..3),
        weighted(0.15, proptest::strategy::Just(())),
        [steps(), steps(), steps(), steps()],
    )
        .prop_map(|(order, later, steps)| ModelOperation::Accept {
            order,
            is_later: later.is_some(),
            steps,
        })
}

pub(super) fn operation() -> impl Strategy<Value = ModelOperation> {
    let number = || 0_usize..64;
    prop_oneof![
        8 => accept(),
        2 => number().prop_map(ModelOperation::AcceptAgain),
        6 => proptest::strategy::Just(ModelOperation::Work),
        1 => number().prop_map(ModelOperation::CrashAndWork),
        3 => proptest::strategy::Just(ModelOperation::Travel),
        3 => (handler(), any::<bool>())
            .prop_map(|(handler, is_healed)| ModelOperation::Retry { handler, is_healed }),
        2 => (handler(), any::<bool>())
            .prop_map(|(handler, is_discarded)| ModelOperation::Settle { handler, is_discarded }),
        2 => (handler(), weighted(0.7, number()))
            .prop_map(|(handler, from)| ModelOperation::Replay { handler, from }),
        1 => handler().prop_map(ModelOperation::Pause),
        2 => handler().prop_map(ModelOperation::Resume),
        1 => handler().prop_map(ModelOperation::Remove),
        2 => handler().prop_map(ModelOperation::Revive),
        1 => proptest::strategy::Just(ModelOperation::Prune),
        2 => (handler(), any::<bool>()).prop_map(|(handler, is_dead)| ModelOperation::Spill { handler, is_dead }),
        4 => (any::<bool>(), 0_u16..2).prop_map(|(is_task, lane)| ModelOperation::Lease { is_task, lane }),
        2 => any::<bool>().prop_map(|is_well| ModelOperation::EndLease { is_well }),
        1 => proptest::strategy::Just(ModelOperation::LoseLeases),
    ]
}

/// Sequences in which every transition happens.
pub(super) fn grand_tour() -> Vec<Vec<ModelOperation>> {
    use ModelOperation::*;
    use Step::*;
    let message = |order: Option<u8>, is_later: bool, steps: &[Step]| Accept {
        order,
        is_later,
        steps: std::array::from_fn(|_| steps.to_vec()),
    };
    let both =
        |lane_task: bool| [Lease { is_task: lane_task, lane: 0 }, Lease { is_task: lane_task, lane: 1 }];
    let mut tours = vec![
        // Failures, dead heads, parked messages, and the actions of operators on them.
        vec![
            message(Some(1), false, &[FailUntilLater]),
            message(Some(1), false, &[]),
            Work,
            Travel,
            Work,
            message(Some(2), false, &[FailForGood]),
            message(Some(2), false, &[]),
            Work,
            Retry { handler: 1, is_healed: true },
            Work,
            Settle { handler: 0, is_discarded: true },
            Settle { handler: 2, is_discarded: false },
            message(Some(1), true, &[]),
            Work,
            Travel,
            message(Some(1), false, &[FailUntilLater, FailForGood]),
            Work,
            Travel,
            Work,
        ],
        // A dead letter that was skipped is retried before a later message that waits.
        vec![
            message(Some(1), false, &[FailForGood]),
            message(Some(1), false, &[FailUntilLater]),
            Work,
            Retry { handler: 2, is_healed: false },
            Work,
        ],
        // Replays of everything, and a handler that is removed and revived.
        vec![
            message(Some(1), true, &[]),
            message(Some(1), false, &[FailForGood]),
            message(Some(1), false, &[]),
            message(None, false, &[FailUntilLater]),
            message(None, false, &[]),
            Work,
            Replay { handler: 1, from: None },
            Replay { handler: 0, from: None },
            Work,
            Remove(1),
            Revive(1),
            Work,
            Prune,
        ],
        // Messages for one handler alone.
        vec![Spill { handler: 0, is_dead: false }, Spill { handler: 1, is_dead: true }, Work],
        // Removed at every stage.
        vec![
            message(Some(1), true, &[]),
            message(Some(1), false, &[FailForGood]),
            message(Some(1), false, &[]),
            message(Some(2), false, &[FailUntilLater]),
            message(Some(3), false, &[]),
            Work,
            message(None, false, &[]),
            Remove(1),
            Work,
            Travel,
            Prune,
        ],
    ];
    // Another process at work.
    let mut leases = vec![message(None, false, &[]), message(None, false, &[]), message(None, false, &[])];
    leases.extend(both(false));
    leases.push(EndLease { is_well: true });
    leases.extend(both(false));
    leases.push(EndLease { is_well: false });
    leases.extend(both(true));
    leases.push(LoseLeases);
    leases.extend(both(true));
    leases.push(Replay { handler: DETACHED, from: None });
    leases.push(Work);
    leases.push(message(None, false, &[]));
    leases.push(message(None, false, &[]));
    leases.extend(both(false));
    leases.push(Remove(DETACHED));
    leases.push(Work);
    tours.push(leases);
    // Three crashes, and then a run that fails for the last time.
    let mut deaths = vec![message(None, false, &[Fail, Fail, Fail])];
    for _ in 0..3 {
        deaths.extend(both(false));
        deaths.extend(both(true));
        deaths.push(LoseLeases);
    }
    deaths.push(Work);
    deaths.push(Retry { handler: DETACHED, is_healed: false });
    for _ in 0..3 {
        deaths.extend(both(true));
        deaths.push(EndLease { is_well: false });
    }
    deaths.push(Work);
    tours.push(deaths);
    tours
}
