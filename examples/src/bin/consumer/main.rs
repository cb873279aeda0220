//! A queue consumer: the broker delivers at least once, every payout is booked once.
//!
//! ```console
//! $ cargo run --bin consumer
//! ```
//!
//! ends by itself with an audit, and fails if the books are not exact. `consume` is the loop to copy; the queue in
//! `broker.rs` stands for the broker that you have.

#![allow(clippy::print_stdout, reason = "the program shows a person its audit")]

mod broker;

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::ensure;
use broker::Broker;
use oncebox::{Attempt, Envelope, Failure, Inbox, Message, Outcome, Settlement, SqliteStore};
use serde::{Deserialize, Serialize};
use sqlx::SqliteConnection;
use sqlx::error::DatabaseError;

const SEED: u64 = 7;
const PAYOUTS: u32 = 200;
/// No amount of deliveries makes this one right.
const POISON: u32 = 13;
/// How long to wait before another delivery, where the handler does not say.
const RETRY_AFTER: Duration = Duration::from_secs(1);

#[derive(Message, Serialize, Deserialize)]
#[message(kind = "payout.requested", key = "payout_id")]
struct PayoutRequested {
    payout_id: u32,
    cents: i64,
}

/// Books a payout. It fails on the first delivery of some, after it has written: that write is rolled back.
async fn book(
    payout: PayoutRequested,
    Attempt(attempt): Attempt,
    db: &mut SqliteConnection,
) -> Result<(), Failure> {
    sqlx::query("insert into bookings (payout_id, cents) values (?, ?)")
        .bind(payout.payout_id)
        .bind(payout.cents)
        .execute(db)
        .await?;
    if attempt == 1 && payout.payout_id.is_multiple_of(10) {
        return Err(Failure::after(Duration::from_secs(5), "the bank does not answer"));
    }
    Ok(())
}

/// A value that the database refuses is refused the next time too.
fn is_refused(error: &sqlx::Error) -> bool {
    error.as_database_error().is_some_and(DatabaseError::is_check_violation)
}

/// What became of the deliveries.
#[derive(Debug, Default)]
struct ConsumerCounts {
    done: u32,
    duplicates: u32,
    retries: u32,
    rejected: u32,
}

/// The consumer: process, then settle, never the other way round. Any number of these loops, in any number of
/// processes, may share a queue and a database.
async fn consume(broker: &mut Broker, inbox: &Inbox<SqliteStore>) -> ConsumerCounts {
    let mut counts = ConsumerCounts::default();
    while let Some(delivery) = broker.receive() {
        let envelope = Envelope::new(delivery.kind, delivery.body).with_attempt(delivery.attempt);
        let settlement = match inbox.process(envelope).await {
            Ok(report) => {
                counts.add(report.outcome("book"));
                report.settlement()
            }
            // This is about the store, not about the message, and nothing is decided: have it delivered again.
            Err(error) => {
                tracing::warn!("{:#}", anyhow::Error::from(error));
                Settlement::Retry { after: None }
            }
        };
        match settlement {
            Settlement::Ack => broker.ack(delivery.tag),
            Settlement::Retry { after } => broker.retry(delivery.tag, after.unwrap_or(RETRY_AFTER)),
            Settlement::Reject => broker.reject(delivery.tag),
        }
    }
    counts
}

impl ConsumerCounts {
    fn add(&mut self, outcome: Option<&Outcome>) {
        match outcome {
            Some(Outcome::Done) => self.done += 1,
            Some(Outcome::Duplicate) => self.duplicates += 1,
            Some(Outcome::Rejected(_)) => self.rejected += 1,
            _ => self.retries += 1,
        }
    }
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let store = SqliteStore::connect("sqlite::memory:").await?;
    store.migrate().await?;
    // No unique constraint: nothing but the inbox keeps a second booking out.
    sqlx::query("create table bookings (payout_id integer, cents integer check (cents > 0))")
        .execute(store.pool())
        .await?;
    let inbox = Inbox::builder(store.clone())
        .on_with("book", book, |options| options.permanent_if(is_refused))
        .build()
        .await?;

    let mut broker = Broker::new(SEED);
    let mut cents_sent = 0;
    for payout_id in 1..=PAYOUTS {
        let cents = if payout_id == POISON { -1 } else { i64::from(payout_id) * 100 };
        cents_sent += cents.max(0);
        broker.publish(&Envelope::of(&PayoutRequested { payout_id, cents })?);
    }
    let counts = consume(&mut broker, &inbox).await;

    let (bookings, payouts, cents): (u32, u32, i64) =
        sqlx::query_as("select count(*), count(distinct payout_id), sum(cents) from bookings")
            .fetch_one(store.pool())
            .await?;
    let dead = broker
        .dead_letters
        .iter()
        .map(|letter| Ok(serde_json::from_slice::<PayoutRequested>(&letter.body)?.payout_id))
        .collect::<anyhow::Result<BTreeSet<u32>>>()?;

    println!("sent          {PAYOUTS:>4}  and {} of them twice", broker.copies);
    println!(
        "delivered     {:>4}  with {} acknowledgements lost",
        broker.deliveries, broker.lost_acknowledgements
    );
    println!("  done        {:>4}", counts.done);
    println!("  duplicates  {:>4}", counts.duplicates);
    println!("  failed      {:>4}  rolled back and delivered again", counts.retries);
    println!("  rejected    {:>4}", counts.rejected);
    println!("effects       {bookings:>4}  bookings of {payouts} payouts, {cents} of {cents_sent} cents");
    println!("dead          {:>4}  payout {dead:?}", dead.len());

    ensure!(dead == BTreeSet::from([POISON]), "only the poison message is dead");
    ensure!(payouts == PAYOUTS - 1, "every other payout is booked");
    ensure!(bookings == payouts && cents == cents_sent, "and booked once");
    ensure!(counts.duplicates > 0 && counts.retries > 0, "although there were duplicates and failures");
    println!("exact: every payout is booked once");
    Ok(())
}
