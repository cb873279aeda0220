//! The model test of an outbox: random transactions, moves, verdicts, crashes and operators' actions, on a store and on a small model.
//!
//! After every operation: nothing is sent that was not committed; each copy has the same id; no message overtakes an earlier one of its
//! ordering key; what counts as sent was confirmed; only refusals spend attempts. At the end every message was confirmed, or given up by
//! an operator, and the handlers of the same database have had each message once.

mod expected;
mod operations;
mod world;

use proptest::collection::vec;
use proptest::strategy::{Just, Strategy};

use oncebox_core::OutboxStore;

use self::operations::{CrashPoint, OutboxOperation, PlannedMessage, PlannedVerdict, operation, publish};
use self::world::OutboxWorld;
use super::run_sequences;
use crate::conformance::Fixture;

/// The maximum number of refusals. Then the message is a dead letter.
const ATTEMPTS: u32 = 3;
/// The longest sequence.
const OPERATIONS: usize = 30;

/// Random transactions, verdicts and crashes leave every published message where the model says.
pub async fn random_publishing_agrees_with_the_model<F: Fixture<Store: OutboxStore>>(fixture: F) {
    run_sequences(sequence(), |operations| {
        let fixture = &fixture;
        async move { run(fixture, &operations).await }
    });
}

/// The sequences that random ones may miss.
pub async fn planned_publishing_agrees_with_the_model<F: Fixture<Store: OutboxStore>>(fixture: F) {
    for operations in planned() {
        run(&fixture, &operations).await.unwrap_or_else(|why| panic!("{why}\n{operations:#?}"));
    }
}

fn sequence() -> impl Strategy<Value = Vec<OutboxOperation>> {
    (vec(publish(), 1..4), vec(operation(), 1..OPERATIONS), Just(OutboxOperation::Send))
        .prop_map(|(first, rest, last)| first.into_iter().chain(rest).chain([last]).collect())
}

async fn run<F: Fixture<Store: OutboxStore>>(
    fixture: &F,
    operations: &[OutboxOperation],
) -> Result<(), String> {
    let mut world = OutboxWorld::new(fixture).await;
    let mut done = Ok(());
    for (n, operation) in operations.iter().enumerate() {
        let step = match world.perform(operation).await {
            Ok(()) => world.compare().await,
            Err(why) => Err(why),
        };
        done = step.map_err(|why| format!("after operation {n}, {operation:?}: {why}"));
        if done.is_err() {
            break;
        }
    }
    if done.is_ok() {
        done = world.finish().await.map_err(|why| format!("at the end: {why}"));
    }
    // Also after a failure: the cases share a store, and shrinking runs many more.
    world.leave().await;
    done
}

fn planned() -> Vec<Vec<OutboxOperation>> {
    use OutboxOperation::{Crash, Discard, Publish, Replay, Retry, Send, Travel, Work};
    use PlannedVerdict::{Confirm, LoseConfirm, Refuse, RefuseUntilLater};
    let message = |order: Option<u8>, verdicts: &[PlannedVerdict]| PlannedMessage {
        copy_of: None,
        order,
        verdicts: verdicts.to_vec(),
    };
    let committed = |messages: Vec<PlannedMessage>| Publish { messages, commits: true };
    let copy = PlannedMessage { copy_of: Some(0), ..message(Some(1), &[]) };
    let first = || committed(vec![message(Some(1), &[]), message(Some(1), &[]), message(None, &[])]);
    let mut planned = vec![
        // What was confirmed behind a missing verdict is sent again after a replay.
        vec![
            committed(vec![message(Some(1), &[])]),
            Send,
            committed(vec![
                message(Some(1), &[LoseConfirm, LoseConfirm]),
                message(Some(2), &[]),
                message(None, &[]),
            ]),
            Send,
            Replay(None),
            Send,
        ],
        // Dead letters that are retried, discarded and replayed.
        vec![
            committed(vec![message(Some(1), &[Refuse; 9]), message(Some(1), &[]), message(Some(2), &[])]),
            Send,
            Retry { is_healed: false },
            Send,
            Discard,
            Send,
            Replay(Some(0)),
            Send,
            Retry { is_healed: true },
            Send,
        ],
        // Copies of a key that was rolled back, that waits, and that was sent.
        vec![
            Publish { messages: vec![message(Some(1), &[])], commits: false },
            committed(vec![copy.clone(), copy.clone()]),
            committed(vec![copy.clone()]),
            Send,
            committed(vec![copy]),
            Work,
            Send,
        ],
        vec![
            committed(vec![message(Some(1), &[RefuseUntilLater]), message(Some(1), &[Confirm, LoseConfirm])]),
            Send,
            Travel,
            Send,
            Replay(Some(1)),
            Send,
        ],
        // Unknown verdicts, more of them than there are attempts.
        vec![committed(vec![message(None, &[LoseConfirm; 8]), message(None, &[])]), Send, Send, Send],
    ];
    for point in [CrashPoint::BeforeCommit, CrashPoint::AfterCommit, CrashPoint::LeaseLost] {
        planned.push(vec![first(), Crash(point), Send]);
        planned.push(vec![
            committed(vec![
                message(Some(1), &[Refuse]),
                message(Some(1), &[]),
                message(Some(2), &[LoseConfirm]),
            ]),
            Crash(point),
            first(),
            Crash(point),
            Replay(None),
            Crash(point),
        ]);
    }
    planned
}
