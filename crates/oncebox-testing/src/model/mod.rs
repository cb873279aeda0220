//! The model test: random operations on a store, and on a small model of it that knows nothing of databases.
//!
//! After every operation each message must stand, for each handler, where the model says, with as many effects. The model moves
//! by [`LIFE`](oncebox_core::store::LIFE) only. A failing sequence is shrunk; the seed is printed, and can be set in
//! `ONCEBOX_SEED`.

#![allow(clippy::unwrap_used, clippy::missing_panics_doc, reason = "a test that cannot go on panics")]
#![allow(clippy::print_stdout, reason = "a test says with which seed it ran")]

mod expected;
mod operations;
mod outbox;
mod world;

use std::collections::BTreeSet;
use std::env;
use std::fmt::Debug;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use oncebox_core::LogStore;
use oncebox_core::store::{Event, LIFE, Stage};
use proptest::collection::vec;
use proptest::strategy::{Just, Strategy};
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestError, TestRng, TestRunner};
use tokio::runtime::Handle;

use self::operations::{ModelOperation, operation};
pub use self::outbox::{planned_publishing_agrees_with_the_model, random_publishing_agrees_with_the_model};
use self::world::World;
use crate::conformance::Fixture;

/// The number of sequences with `--full`, a tenth of it otherwise.
const SEQUENCES: u32 = 200;
/// The longest sequence.
const OPERATIONS: usize = 40;

/// The state that all cases on one store share.
#[derive(Debug, Default)]
struct StoreCases {
    /// The transitions that were seen.
    seen: Mutex<BTreeSet<(Stage, Event)>>,
    /// How far the store's clock was moved.
    travelled: Mutex<Duration>,
}

/// Random operations leave every message where the model says.
pub async fn random_operations_agree_with_the_model<F: Fixture<Store: LogStore>>(fixture: F) {
    let shared = Arc::new(StoreCases::default());
    run_sequences(sequence(), |operations| {
        let (fixture, shared) = (&fixture, &shared);
        async move { run(fixture, &operations, shared).await }
    });
    println!("{} of {} transitions seen", shared.seen.lock().unwrap().len(), LIFE.len());
}

/// Runs random sequences, and shrinks the first one that fails.
fn run_sequences<O: Debug, R: Future<Output = Result<(), String>>>(
    sequences: impl Strategy<Value = Vec<O>>,
    run: impl Fn(Vec<O>) -> R,
) {
    let seed: u64 = match env::var("ONCEBOX_SEED").ok().and_then(|seed| seed.parse().ok()) {
        Some(seed) => seed,
        None => std::time::SystemTime::now()
            .duration_since(std::time::SystemTime::UNIX_EPOCH)
            .map_or(1, |since| u64::from(since.subsec_nanos())),
    };
    println!("seed: ONCEBOX_SEED={seed}");
    let cases = if env::var_os("ONCEBOX_FULL").is_some() { SEQUENCES } else { SEQUENCES / 10 };
    // The runner of proptest is not async: it blocks this thread, and each case blocks on the runtime in turn.
    let ran = tokio::task::block_in_place(move || {
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&seed.to_le_bytes());
        let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
        // Nothing is written to the source folder: the printed seed repeats a failure.
        let config = Config { cases, failure_persistence: None, max_shrink_iters: 200, ..Config::default() };
        TestRunner::new_with_rng(config, rng).run(&sequences, |operations| {
            Handle::current().block_on(run(operations)).map_err(TestCaseError::fail)
        })
    });
    match ran {
        Ok(()) => {}
        Err(TestError::Fail(why, operations)) => {
            panic!("{why}\nshortest sequence found: {operations:#?}\nseed: ONCEBOX_SEED={seed}")
        }
        Err(TestError::Abort(why)) => panic!("{why}\nseed: ONCEBOX_SEED={seed}"),
    }
}

/// Every transition of the table happens, on a store too.
pub async fn every_transition_happens<F: Fixture<Store: LogStore>>(fixture: F) {
    let shared = Arc::new(StoreCases::default());
    for operations in operations::grand_tour() {
        run(&fixture, &operations, &shared).await.unwrap_or_else(|why| panic!("{why}\n{operations:#?}"));
    }
    let seen = shared.seen.lock().unwrap();
    let missing: Vec<_> = LIFE.iter().filter(|line| !seen.contains(&(line.from, line.event))).collect();
    assert!(missing.is_empty(), "never seen: {missing:?}");
}

fn sequence() -> impl Strategy<Value = Vec<ModelOperation>> {
    // A few messages first: without them there is nothing to do.
    (vec(operations::accept(), 1..6), vec(operation(), 1..OPERATIONS), Just(ModelOperation::Work))
        .prop_map(|(first, rest, last)| first.into_iter().chain(rest).chain([last]).collect())
}

async fn run<F: Fixture<Store: LogStore>>(
    fixture: &F,
    operations: &[ModelOperation],
    shared: &Arc<StoreCases>,
) -> Result<(), String> {
    let mut world = World::new(fixture, shared.clone()).await;
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
    // Also after a failure: the cases share a store, and shrinking runs many more.
    world.leave().await;
    done
}
