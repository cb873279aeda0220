//! The contenders: Oncebox, other inboxes, and programs without an inbox.

mod bare;
mod bulk;
mod claim_loop;
mod modulus;
mod oncebox;
mod turbomediator;
mod vulthil;

use std::fmt;
use std::sync::Arc;

use anyhow::Result;
use futures_util::future::BoxFuture;
use sqlx::Pool;

use crate::business::{BodyError, HandlerWork};
use crate::feed::Feed;
use crate::message::OrderPaid;
use crate::store::{DatabaseKind, Ground, HandlerCalls};

/// The name of the handler.
pub(crate) const HANDLER: &str = "ledger";
/// The name of the second handler, where there is one.
pub(crate) const SECOND_HANDLER: &str = "ledger-backwards";

/// A system that takes deliveries.
pub(crate) trait Contender: Send + Sync {
    /// Takes the next delivery, or the next few, and settles them; `None` when there are no more.
    fn deliver<'a>(&'a self, feed: &'a Feed) -> BoxFuture<'a, Result<Option<Tally>>>;
}

/// The numbers of deliveries by outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) done: u64,
    pub(crate) duplicates: u64,
    pub(crate) failed: u64,
}

impl Tally {
    pub(crate) const DONE: Tally = Tally { done: 1, duplicates: 0, failed: 0 };
    pub(crate) const DUPLICATE: Tally = Tally { done: 0, duplicates: 1, failed: 0 };
    pub(crate) const FAILED: Tally = Tally { done: 0, duplicates: 0, failed: 1 };

    pub(crate) fn settled(self) -> u64 {
        self.done + self.duplicates + self.failed
    }
}

impl std::ops::AddAssign for Tally {
    fn add_assign(&mut self, other: Tally) {
        self.done += other.done;
        self.duplicates += other.duplicates;
        self.failed += other.failed;
    }
}

/// The contenders by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum ContenderName {
    Oncebox,
    OnceboxSet,
    /// The same inbox with every message in a transaction of its own.
    OnePerTx,
    /// One message per transaction, written by hand.
    ClaimLoop,
    Modulus,
    TurboMediator,
    Vulthil,
    Bare,
    Bulk,
}

impl ContenderName {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            ContenderName::Oncebox => "oncebox",
            ContenderName::OnceboxSet => "oncebox-set",
            ContenderName::OnePerTx => "one-per-tx",
            ContenderName::ClaimLoop => "claim-loop",
            ContenderName::Modulus => "modulus",
            ContenderName::TurboMediator => "turbomediator",
            ContenderName::Vulthil => "vulthil",
            ContenderName::Bare => "bare",
            ContenderName::Bulk => "bulk",
        }
    }

    /// Whether it gets the best of several sizes of pool. The others all get the inbox's.
    pub(crate) fn chooses_its_pool(self) -> bool {
        !matches!(
            self,
            ContenderName::Oncebox
                | ContenderName::OnceboxSet
                | ContenderName::OnePerTx
                | ContenderName::ClaimLoop
        )
    }

    /// Starts it on fresh tables.
    pub(crate) async fn enter<E: DatabaseKind>(
        self,
        ground: &E::Ground,
        pool: Pool<E>,
        work: HandlerWork,
    ) -> Result<Arc<dyn Contender>> {
        Ok(match self {
            ContenderName::Oncebox => Self::oncebox::<E>(ground, pool, HandlerCalls::Singles, work).await?,
            ContenderName::OnceboxSet => Self::oncebox::<E>(ground, pool, HandlerCalls::Sets, work).await?,
            ContenderName::OnePerTx => Self::oncebox::<E>(ground, pool, HandlerCalls::Off, work).await?,
            ContenderName::ClaimLoop => Arc::new(claim_loop::ClaimLoop { pool, work }),
            ContenderName::Modulus => Arc::new(modulus::Modulus { pool, work }),
            ContenderName::TurboMediator => Arc::new(turbomediator::TurboMediator { pool, work }),
            ContenderName::Vulthil => Arc::new(vulthil::Vulthil { pool, work }),
            ContenderName::Bare => Arc::new(bare::Bare { pool, work }),
            ContenderName::Bulk => Arc::new(bulk::Bulk { pool }),
        })
    }

    async fn oncebox<E: DatabaseKind>(
        ground: &E::Ground,
        pool: Pool<E>,
        batching: HandlerCalls,
        work: HandlerWork,
    ) -> Result<Arc<dyn Contender>> {
        let inbox = ground.inbox(pool, batching, work).await?;
        Ok(Arc::new(oncebox::Oncebox { inbox, work }))
    }

    /// Writes the rows that a baseline keeps for processed messages, in one transaction; `false` if this
    /// contender has to process them.
    pub(crate) async fn remember<E: DatabaseKind>(self, pool: &Pool<E>, feed: &Feed) -> Result<bool> {
        let mut tx = pool.begin_with(E::BEGIN).await?;
        while let Some(body) = feed.next() {
            match self {
                ContenderName::Modulus => modulus::remember::<E>(&mut tx, &body).await?,
                ContenderName::TurboMediator => turbomediator::remember::<E>(&mut tx, &body).await?,
                ContenderName::Vulthil => vulthil::remember::<E>(&mut tx, &body).await?,
                _ => return Ok(false),
            }
        }
        tx.commit().await?;
        Ok(true)
    }
}

impl fmt::Display for ContenderName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

pub(crate) fn decode(body: &[u8]) -> Result<OrderPaid> {
    Ok(serde_json::from_slice(body)?)
}

fn is_duplicate_key(error: &sqlx::Error) -> bool {
    error.as_database_error().is_some_and(|error| error.is_unique_violation())
}

/// The outcome of a handler's error, for contenders without an inbox.
fn failed(trouble: BodyError) -> Result<Tally> {
    match trouble {
        BodyError::Meant => Ok(Tally::FAILED),
        BodyError::Database(error) => Err(error.into()),
    }
}
