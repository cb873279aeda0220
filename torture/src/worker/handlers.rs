//! The handlers, and what goes wrong in them by plan.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use oncebox::{Attempt, BoxError, Failure, InboxBuilder, Message};
use oncebox_torture::plan::{BOOKS, LEDGER, MAIL, Mode, Plan, STATEMENT, Trouble};
use oncebox_torture::point::KillPoint;
use serde::{Deserialize, Serialize};

use crate::Store;
use crate::effects::Effects;
use crate::points::Points;
use crate::say::{nanos, say};

/// How long a slow body takes.
const SLOW: Duration = Duration::from_millis(20);

#[derive(Serialize, Deserialize, Message)]
#[message(kind = "order", key = "id", order_by = "account")]
pub(crate) struct Order {
    pub(crate) id: u64,
    pub(crate) account: u64,
}

#[derive(Serialize, Deserialize, Message)]
#[message(kind = "letter", key = "id")]
pub(crate) struct Letter {
    pub(crate) id: u64,
}

/// What all handlers know.
#[derive(Clone, Debug)]
pub(crate) struct Scene {
    plan: Plan,
    points: Points,
    is_healed: Arc<AtomicBool>,
}

impl Scene {
    pub(crate) fn new(plan: Plan, points: Points) -> Self {
        Self { plan, points, is_healed: Arc::default() }
    }

    /// What failed for good works from now on.
    pub(crate) fn heal(&self) {
        self.is_healed.store(true, Ordering::SeqCst);
    }

    async fn write<S: Effects>(
        &self,
        handler: &'static str,
        id: u64,
        attempt: u32,
        conn: &mut <S as oncebox::store::Store>::Conn,
    ) -> Result<(), Failure> {
        let enter = nanos();
        let deallocates = self.points.is_to_deallocate();
        // Half of the time the handler's own statements are the first to be missed, else those of the inbox.
        if deallocates && id.is_multiple_of(2) {
            deallocate::<S>(conn).await?;
        }
        S::effect(conn, handler, i64::try_from(id)?).await?;
        S::read_back(conn).await?;
        self.points.pass(KillPoint::InBody);
        if self.plan.is_slow(handler, id) {
            tokio::time::sleep(SLOW).await;
            S::prove(conn).await?;
        }
        if deallocates && !id.is_multiple_of(2) {
            deallocate::<S>(conn).await?;
        }
        say(&format!("body {id} {handler} {enter} {}", nanos()));
        self.end(handler, id, attempt)
    }

    async fn post(&self, id: u64, attempt: u32) -> Result<(), Failure> {
        let enter = nanos();
        self.points.pass(KillPoint::InBody);
        if self.plan.is_slow(MAIL, id) {
            tokio::time::sleep(SLOW).await;
        }
        say(&format!("body {id} {MAIL} {enter} {}", nanos()));
        self.end(MAIL, id, attempt)
    }

    fn end(&self, handler: &str, id: u64, attempt: u32) -> Result<(), Failure> {
        match self.plan.trouble(handler, id, attempt, self.is_healed.load(Ordering::SeqCst)) {
            None => Ok(()),
            Some(Trouble::Passing) => Err(BoxError::from("not this time").into()),
            Some(Trouble::Lasting) => Err(Failure::permanent("it cannot work until it is healed")),
        }
    }
}

async fn deallocate<S: Effects>(conn: &mut <S as oncebox::store::Store>::Conn) -> Result<(), Failure> {
    S::deallocate(conn).await?;
    say("deallocated");
    Ok(())
}

/// The handlers of the plan's mode.
pub(crate) fn with_handlers<S: Effects>(
    builder: InboxBuilder<Store<S>>,
    scene: &Scene,
) -> InboxBuilder<Store<S>> {
    let writing = |handler: &'static str| {
        let scene = scene.clone();
        async move |order: Order,
                    Attempt(attempt): Attempt,
                    conn: &mut <S as oncebox::store::Store>::Conn|
                    -> Result<(), Failure> {
            scene.write::<S>(handler, order.id, attempt, conn).await
        }
    };
    let builder = builder.on(BOOKS, writing(BOOKS));
    if scene.plan.mode != Mode::Stored {
        return builder.on(LEDGER, writing(LEDGER));
    }
    let scene = scene.clone();
    let post = move |letter: Letter, Attempt(attempt): Attempt| {
        let scene = scene.clone();
        async move { scene.post(letter.id, attempt).await }
    };
    builder.on_with(STATEMENT, writing(STATEMENT), |options| options.ordered()).on_with(
        MAIL,
        post,
        |options| options.detached(),
    )
}
