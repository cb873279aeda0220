//! `#[debug_handler]` does not change a valid handler.

use oncebox::lease::Lease;
use oncebox::{Attempt, Failure, Inbox, MemoryStore, Message, Reply, State};
use serde::{Deserialize, Serialize};

#[derive(Message, Serialize, Deserialize)]
#[message(kind = "paid", key = "id")]
struct Paid {
    id: String,
}

#[oncebox::debug_handler]
async fn one(
    paid: Paid,
    Attempt(_): Attempt,
    State(_): State<u32>,
    _: &mut Lease,
) -> Result<Reply<String>, Failure> {
    Ok(Reply(paid.id))
}

#[oncebox::debug_handler]
async fn set(_: Vec<Paid>, _: State<u32>, _: Vec<Attempt>, _: &mut Lease) {}

#[oncebox::debug_handler(crate = oncebox)]
async fn detached(_: Paid) -> std::io::Result<()> {
    Ok(())
}

#[test]
fn handlers_that_are_accepted_stay_accepted() {
    let builder = Inbox::builder(MemoryStore::in_memory())
        .state(7_u32)
        .on("one", one)
        .on("set", set)
        .on_with("detached", detached, |options| options.detached());
    assert!(format!("{builder:?}").contains("detached"));
}
