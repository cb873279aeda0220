//! The handler harness: deliver a message the way real brokers do, with copies and crashes.

use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use oncebox_core::store::TestTime;
use oncebox_core::{Envelope, Error, Inbox, InboxBuilder, InboxStore, Message, Outcome, Report};

use crate::faulty::{Faults, Faulty, Point, crash, is_crash};
use crate::time::travel;

/// An inbox with handlers, whose deliveries can be copied and whose process can crash.
///
/// ```
/// # use oncebox_core::{Json, Key, Message};
/// # use oncebox_sqlite::SqliteStore;
/// # use oncebox_testing::Harness;
/// # #[derive(serde::Serialize, serde::Deserialize)]
/// # struct OrderPaid { order_id: String }
/// # impl Message for OrderPaid {
/// #     const KIND: &'static str = "order.paid";
/// #     type Codec = Json;
/// #     fn key(&self) -> Option<Key> { Some(Key::from(&self.order_id)) }
/// # }
/// # async fn post_to_ledger(order: OrderPaid, db: &mut sqlx::SqliteConnection) -> Result<(), sqlx::Error> {
/// #     sqlx::query("insert into ledger values (?)").bind(order.order_id).execute(db).await?;
/// #     Ok(())
/// # }
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let store = SqliteStore::connect("sqlite::memory:").await?;
/// store.migrate().await?;
/// sqlx::query("create table ledger (order_id text)").execute(store.pool()).await?;
///
/// let harness = Harness::new(store.clone(), |inbox| inbox.on("ledger", post_to_ledger)).await?;
/// let order = OrderPaid { order_id: "o-1".into() };
/// let delivered = harness.deliver(&order).copies(3).crash_before_commit(1).await?;
///
/// assert_eq!(delivered.done("ledger"), 1);
/// assert_eq!(delivered.duplicates("ledger"), 2);
/// let rows: i64 = sqlx::query_scalar("select count(*) from ledger").fetch_one(store.pool()).await?;
/// assert_eq!(rows, 1);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Harness<S: InboxStore> {
    inbox: Inbox<Faulty<S, Crashes>>,
    crashes: Crashes,
}

/// Crashes that are still to come.
#[derive(Clone, Debug, Default)]
pub struct Crashes {
    before_commit: Arc<AtomicU32>,
    after_commit: Arc<AtomicU32>,
    happened: Arc<AtomicU32>,
}

impl Crashes {
    fn take(&self, left: &AtomicU32) -> Result<(), Error> {
        // Atomic, because copies in flight at the same time must not share a crash.
        let taken = left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
        match taken {
            Ok(_) => {
                self.happened.fetch_add(1, Ordering::SeqCst);
                Err(crash())
            }
            Err(_none_left) => Ok(()),
        }
    }
}

impl Faults for Crashes {
    async fn at(&self, point: Point) -> Result<(), Error> {
        match point {
            Point::BeforeCommit => self.take(&self.before_commit),
            Point::AfterCommit => self.take(&self.after_commit),
            Point::BeforeClaim | Point::AfterClaim => Ok(()),
        }
    }
}

impl<S: InboxStore> Harness<S> {
    /// An inbox on a migrated store, with the handlers that the closure registers.
    pub async fn new(
        store: S,
        register: impl FnOnce(InboxBuilder<Faulty<S, Crashes>>) -> InboxBuilder<Faulty<S, Crashes>>,
    ) -> Result<Self, Error> {
        let crashes = Crashes::default();
        let inbox = register(Inbox::builder(Faulty::new(store, crashes.clone()))).build().await?;
        Ok(Self { inbox, crashes })
    }

    /// Delivers a message; await what it returns.
    pub fn deliver<M: Message>(&self, message: &M) -> Deliver<'_, S> {
        self.deliver_result(Envelope::of(message))
    }

    /// Delivers an envelope; await what it returns.
    pub fn deliver_envelope(&self, envelope: Envelope) -> Deliver<'_, S> {
        self.deliver_result(Ok(envelope))
    }

    fn deliver_result(&self, envelope: Result<Envelope, Error>) -> Deliver<'_, S> {
        Deliver { harness: self, envelope, copies: 1, before_commit: 0, after_commit: 0 }
    }

    /// Moves time forward, as if the inbox had been running during that time: see [`travel`](crate::travel).
    pub async fn travel(&self, time: Duration) -> Result<(), Error>
    where
        S: TestTime,
    {
        travel(self.inbox.store(), time).await
    }

    /// The inbox, for everything else.
    pub fn inbox(&self) -> &Inbox<Faulty<S, Crashes>> {
        &self.inbox
    }
}

/// A delivery that is being configured.
#[derive(Debug)]
#[must_use = "a delivery happens when it is awaited"]
pub struct Deliver<'h, S: InboxStore> {
    harness: &'h Harness<S>,
    envelope: Result<Envelope, Error>,
    copies: u32,
    before_commit: u32,
    after_commit: u32,
}

impl<S: InboxStore> Deliver<'_, S> {
    /// Delivers this many copies at the same time.
    pub fn copies(mut self, copies: u32) -> Self {
        self.copies = copies;
        self
    }

    /// Crashes this number of times after the handler has run and before the commit. The message is delivered again.
    pub fn crash_before_commit(mut self, times: u32) -> Self {
        self.before_commit = times;
        self
    }

    /// Crashes this number of times after the commit and before the acknowledgement. The message is delivered again.
    pub fn crash_after_commit(mut self, times: u32) -> Self {
        self.after_commit = times;
        self
    }

    async fn run(self) -> Result<Delivered, Error> {
        let envelope = self.envelope?;
        let Harness { inbox, crashes } = self.harness;
        crashes.before_commit.store(self.before_commit, Ordering::SeqCst);
        crashes.after_commit.store(self.after_commit, Ordering::SeqCst);
        // Deliveries of one harness share these counters.
        crashes.happened.store(0, Ordering::SeqCst);
        let mut copies = Vec::new();
        for _ in 0..self.copies {
            let inbox = inbox.clone();
            let envelope = envelope.clone();
            // In tasks, so that the copies are in flight at the same time.
            copies.push(tokio::spawn(async move { deliver_until_answered(&inbox, envelope).await }));
        }
        let mut reports = Vec::new();
        for copy in copies {
            match copy.await {
                Ok(report) => reports.push(report?),
                Err(panic) => return Err(Error::unavailable("a delivery panicked", panic)),
            }
        }
        Ok(Delivered { reports, crashes: crashes.happened.load(Ordering::SeqCst) })
    }
}

/// A crashed consumer acknowledges nothing, so the broker delivers again.
async fn deliver_until_answered<S: InboxStore>(
    inbox: &Inbox<S>,
    envelope: Envelope,
) -> Result<Report, Error> {
    loop {
        let report = inbox.process(envelope.clone()).await?;
        let crashed = report
            .outcomes()
            .any(|(_, outcome)| matches!(outcome, Outcome::Retry { cause, .. } if is_crash(&**cause)));
        // Only crashes lead to a new delivery. Any other failure is a result that the test asserts.
        if !crashed {
            return Ok(report);
        }
    }
}

impl<'h, S: InboxStore> IntoFuture for Deliver<'h, S> {
    type Output = Result<Delivered, Error>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send + 'h>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.run())
    }
}

/// The results of all copies.
#[derive(Clone, Debug)]
pub struct Delivered {
    /// The last report of each copy.
    pub reports: Vec<Report>,
    /// How many crashes happened.
    pub crashes: u32,
}

impl Delivered {
    /// The number of copies whose handler took effect.
    pub fn done(&self, handler: &str) -> usize {
        self.count(handler, |outcome| matches!(outcome, Outcome::Done))
    }

    /// The number of copies recognised as duplicates.
    pub fn duplicates(&self, handler: &str) -> usize {
        self.count(handler, |outcome| matches!(outcome, Outcome::Duplicate))
    }

    /// The number of copies with an outcome that matches.
    pub fn count(&self, handler: &str, is: impl Fn(&Outcome) -> bool) -> usize {
        self.reports.iter().filter_map(|report| report.outcome(handler)).filter(|outcome| is(outcome)).count()
    }
}
