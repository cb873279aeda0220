//! The sender: publishes messages in the transactions of its own effects, through a handler or without one.

use std::time::Duration;

use oncebox::{Attempt, BoxError, Failure, Inbox, Message, Outbox, Publish};
use oncebox_testing::{Faults, Point};
use oncebox_torture::event::TortureEvent;
use oncebox_torture::protocol::WorkerReport;
use oncebox_torture::scenario::{AUDIT, BOOKS, OwnTransaction as Planned, TILL};
use oncebox_workload::deliverer::DeliveryResult;
use serde::{Deserialize, Serialize};

use crate::Store;
use crate::effects::EffectStore;
use crate::handlers::{Effect, HandlerContext, Order};
use crate::own_transaction::OwnTransaction;
use crate::report::{monotonic_nanos, report};
use crate::services::{inline, stored};

/// The maximum time of an own transaction. Without it a silent connection would keep the caller for ever.
const LIMIT: Duration = Duration::from_secs(5);
/// No transaction of the sender has this token: a receiver that gets it has a message that was not to be delivered.
const NO_TOKEN: i64 = -1;

/// A message with an ordering key.
#[derive(Serialize, Deserialize, Message)]
#[message(kind = "sale", key = "id", order_by = "account")]
pub(crate) struct Sale {
    pub(crate) id: u64,
    pub(crate) account: u64,
    /// The sender's transaction. The receiver writes it beside its effect.
    pub(crate) token: i64,
}

/// A message without an ordering key.
#[derive(Serialize, Deserialize, Message)]
#[message(kind = "note", key = "id")]
pub(crate) struct Note {
    pub(crate) id: u64,
    pub(crate) token: i64,
}

/// What a handler publishes: a sale or a note.
type Published = (Option<Publish<Sale>>, Option<Publish<Note>>);

/// A number that no other transaction has: the time of the clock that all processes share.
fn new_token() -> i64 {
    monotonic_nanos().cast_signed()
}

fn published(context: &HandlerContext, Order { id, account }: Order, token: i64) -> Published {
    if context.scenario.is_note(id) {
        (None, Some(Publish::new(&Note { id, token })))
    } else {
        (Some(Publish::new(&Sale { id, account, token })), None)
    }
}

/// Builds the inline inbox of the sender, whose handler publishes.
pub(crate) async fn inbox<S: EffectStore>(
    store: Store<S>,
    outbox: &Outbox<Store<S>>,
    context: &HandlerContext,
) -> Result<Inbox<Store<S>>, oncebox::Error> {
    let context = context.clone();
    let book = async move |order: Order,
                           Attempt(attempt): Attempt,
                           conn: &mut <S as oncebox::store::Store>::Conn|
                -> Result<Published, Failure> {
        let token = new_token();
        // First the account: its lock decides the order of the messages.
        S::lock_account(conn, i64::try_from(order.account)?).await?;
        context.write::<S>(BOOKS, Effect { id: order.id, attempt, token: Some(token) }, conn).await?;
        Ok(published(&context, order, token))
    };
    inline(Inbox::builder(store)).outbox(outbox).on(BOOKS, book).build().await
}

/// Builds the inbox of the sender for its own messages. Its `run` also runs the mover and the relay.
pub(crate) async fn audit<S: EffectStore>(
    store: Store<S>,
    outbox: &Outbox<Store<S>>,
    context: &HandlerContext,
) -> Result<Inbox<Store<S>>, oncebox::Error> {
    let context = context.clone();
    let audit = async move |Sale { id, token, .. }: Sale,
                            Attempt(attempt): Attempt,
                            conn: &mut <S as oncebox::store::Store>::Conn|
                -> Result<(), Failure> {
        context.write::<S>(AUDIT, Effect { id, attempt, token: Some(token) }, conn).await
    };
    stored(Inbox::builder(store))
        .outbox(outbox)
        .on_with(AUDIT, audit, |options| options.ordered())
        .build()
        .await
}

/// Transactions of the application that publish without a handler.
#[derive(Clone)]
pub(crate) struct Till<S: EffectStore> {
    store: S,
    outbox: Outbox<Store<S>>,
    context: HandlerContext,
}

/// The end of an own transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TillEnd {
    Committed,
    /// An earlier transaction has committed.
    Known,
    RolledBack,
}

impl<S: EffectStore> Till<S> {
    pub(crate) fn new(store: S, outbox: Outbox<Store<S>>, context: HandlerContext) -> Self {
        Self { store, outbox, context }
    }

    /// Handles a copy of a message. Its row is written once: the account's lock lets one copy look at a time.
    pub(crate) async fn handle(&self, order: &Order, copy: u32) -> (DeliveryResult, String) {
        let mut is_unknown = false;
        let first = self.attempt(order, copy, &mut is_unknown).await;
        let ended = if is_unknown {
            report(&WorkerReport::Event(TortureEvent::CommitsUnknown { commits: 1 }));
            // It waits for the account's lock, so for the end of the commit, and then its row tells how that ended.
            let second = self.attempt(order, copy, &mut false).await;
            if matches!(second, Ok(TillEnd::Known)) {
                report(&WorkerReport::Event(TortureEvent::CommitsRecovered { commits: 1 }));
            }
            second
        } else {
            first
        };
        match ended {
            Ok(TillEnd::Committed) => (DeliveryResult::Ack, "done".to_owned()),
            Ok(TillEnd::Known) => (DeliveryResult::Ack, "known".to_owned()),
            Ok(TillEnd::RolledBack) => (DeliveryResult::Retry, "rolled_back".to_owned()),
            Err(error) => (DeliveryResult::Retry, format!("error: {error}")),
        }
    }

    async fn attempt(&self, order: &Order, copy: u32, is_unknown: &mut bool) -> Result<TillEnd, BoxError> {
        tokio::time::timeout(LIMIT, self.transact(order, copy, is_unknown)).await?
    }

    async fn transact(
        &self,
        &Order { id, account }: &Order,
        copy: u32,
        is_unknown: &mut bool,
    ) -> Result<TillEnd, BoxError> {
        let (token, number) = (new_token(), i64::try_from(id)?);
        let planned = self.context.scenario.own_transaction(id, copy);
        let mut tx = OwnTransaction::begin(&self.store).await?;
        S::lock_account(tx.conn()?, i64::try_from(account)?).await?;
        if S::has_effect(tx.conn()?, TILL, number).await? {
            if planned == Planned::Repeats {
                // The key is known, so nobody may receive this one.
                self.publish(&mut tx, Order { id, account }, NO_TOKEN).await?;
            }
            tx.commit().await?;
            return Ok(TillEnd::Known);
        }
        let effect = Effect { id, attempt: copy, token: Some(token) };
        // For half of the messages the row comes first, for the others the message.
        if id.is_multiple_of(2) {
            self.publish(&mut tx, Order { id, account }, token).await?;
        }
        self.context.write::<S>(TILL, effect, tx.conn()?).await.map_err(|failure| failure.to_string())?;
        if !id.is_multiple_of(2) {
            self.publish(&mut tx, Order { id, account }, token).await?;
        }
        if planned == Planned::RollsBack {
            tx.roll_back().await?;
            return Ok(TillEnd::RolledBack);
        }
        self.context.points.at(Point::BeforeCommit).await?;
        *is_unknown = true;
        // A response of the database is a known outcome: it refuses the commit.
        tx.commit().await.inspect_err(|error| *is_unknown = error.as_database_error().is_none())?;
        self.context.points.at(Point::AfterCommit).await?;
        *is_unknown = false;
        self.outbox.wake();
        Ok(TillEnd::Committed)
    }

    async fn publish(&self, tx: &mut OwnTransaction<S>, order: Order, token: i64) -> Result<(), BoxError> {
        let Order { id, account } = order;
        if self.context.scenario.is_note(id) {
            self.outbox.publish(tx.conn()?, &Note { id, token }).await?;
        } else {
            self.outbox.publish(tx.conn()?, &Sale { id, account, token }).await?;
        }
        Ok(())
    }
}
