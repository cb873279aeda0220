//! Processes that crash at any point: no message is lost, and none takes effect twice.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use oncebox_core::store::Select;
use oncebox_core::{Attempt, BoxError, Error, ErrorKind, Inbox, LogStore};
use tokio::sync::Notify;

use super::stored::{AT_ONCE, Conn, accept_new, one_lane, sample};
use super::{Fixture, Sample};
use crate::faulty::{Faults, Faulty, Point, crash};

const POINTS: [Point; 4] = [Point::BeforeClaim, Point::AfterClaim, Point::BeforeCommit, Point::AfterCommit];

/// Stops at a point and reports it. Never goes on.
#[derive(Clone)]
struct StopsAt {
    point: Point,
    arrived: Arc<Notify>,
}

impl Faults for StopsAt {
    async fn at(&self, point: Point) -> Result<(), Error> {
        if point == self.point {
            self.arrived.notify_one();
            std::future::pending::<()>().await;
        }
        Ok(())
    }
}

/// Crashes the first time that it comes to a point.
#[derive(Clone)]
struct CrashesAt {
    point: Point,
    left: Arc<AtomicBool>,
}

impl Faults for CrashesAt {
    async fn at(&self, point: Point) -> Result<(), Error> {
        if point == self.point && self.left.swap(false, Ordering::SeqCst) { Err(crash()) } else { Ok(()) }
    }
}

/// The worker's task is dropped at each point, as its process would be; another one goes on.
pub async fn a_worker_that_dies_leaves_its_messages_to_others<F: Fixture<Store: LogStore>>(fixture: F) {
    let handler = |effects: F| {
        async move |sample: Sample, Attempt(n): Attempt, conn: &mut Conn<F>| -> Result<(), BoxError> {
            effects.effect(conn, &sample.id).await?;
            if sample.id.ends_with("fails") && n == 1 { Err("at first".into()) } else { Ok(()) }
        }
    };
    let alive =
        one_lane(&fixture).retry(AT_ONCE).on("ledger", handler(fixture.clone())).build().await.unwrap();
    let ids = |point: Point| ["a", "b", "fails", "c"].map(|name| format!("{point:?} {name}"));
    for point in POINTS {
        let stops = StopsAt { point, arrived: Arc::default() };
        let dying = Inbox::builder(Faulty::new(fixture.store(), stops.clone())).stored().retry(AT_ONCE);
        let dying = dying.on("ledger", handler(fixture.clone())).build().await.unwrap();
        for id in ids(point) {
            accept_new(&alive, sample(&id)).await;
        }
        let work = tokio::spawn(async move { dying.work_until_idle().await });
        stops.arrived.notified().await;
        work.abort();
        assert!(work.await.unwrap_err().is_cancelled());
        alive.work_until_idle().await.unwrap();
        for id in ids(point) {
            assert_eq!(fixture.effects(&id).await, 1, "{id}");
        }
    }
    assert!(alive.work_until_idle().await.unwrap().is_empty());
    assert!(alive.operators().dead_letters(Select::all(), 10).await.unwrap().is_empty());
}

/// The same with tasks, which are taken out of their table while they run.
pub async fn a_worker_that_dies_with_tasks_in_flight_loses_none<F: Fixture<Store: LogStore>>(fixture: F) {
    let handler = |effects: F| {
        async move |sample: Sample, Attempt(n): Attempt, conn: &mut Conn<F>| -> Result<(), BoxError> {
            effects.effect(conn, &sample.id).await?;
            if n == 1 { Err("at first".into()) } else { Ok(()) }
        }
    };
    let alive =
        one_lane(&fixture).retry(AT_ONCE).on("ledger", handler(fixture.clone())).build().await.unwrap();
    for point in POINTS {
        let ids = [format!("{point:?} a"), format!("{point:?} b")];
        for id in &ids {
            accept_new(&alive, sample(id)).await;
        }
        // Not `work_until_idle`: the retries are due at once, so it would also run the tasks.
        while alive.operators().tasks(None, 10).await.unwrap().len() < ids.len() {
            alive.work_once().await.unwrap();
        }
        let stops = StopsAt { point, arrived: Arc::default() };
        let dying = Inbox::builder(Faulty::new(fixture.store(), stops.clone())).stored().retry(AT_ONCE);
        let dying = dying.on("ledger", handler(fixture.clone())).build().await.unwrap();
        let work = tokio::spawn(async move { dying.work_until_idle().await });
        stops.arrived.notified().await;
        work.abort();
        assert!(work.await.unwrap_err().is_cancelled());
        alive.work_until_idle().await.unwrap();
        for id in &ids {
            assert_eq!(fixture.effects(id).await, 1, "{id}");
        }
    }
    assert!(alive.operators().dead_letters(Select::all(), 10).await.unwrap().is_empty());
}

/// A second accept shows whether the first one was stored.
pub async fn an_accept_whose_answer_was_lost_is_a_duplicate_when_repeated<F: Fixture<Store: LogStore>>(
    fixture: F,
) {
    for point in [Point::BeforeCommit, Point::AfterCommit] {
        let faults = CrashesAt { point, left: Arc::new(AtomicBool::new(true)) };
        let store = Faulty::new(fixture.store(), faults);
        let effects = fixture.clone();
        let handler = async move |sample: Sample, conn: &mut Conn<F>| -> Result<(), BoxError> {
            effects.effect(conn, &sample.id).await
        };
        let inbox = Inbox::builder(store).stored().lanes(1).on("ledger", handler).build().await.unwrap();
        let id = format!("{point:?}");
        assert_eq!(inbox.accept(sample(&id)).await.unwrap_err().kind(), ErrorKind::Unavailable);
        let repeated = inbox.accept(sample(&id)).await.unwrap();
        assert_eq!(repeated.is_duplicate(), point == Point::AfterCommit, "{point:?}: {repeated:?}");
        assert!(inbox.accept(sample(&id)).await.unwrap().is_duplicate());
        assert_eq!(inbox.work_until_idle().await.unwrap().done, 1);
        assert_eq!(fixture.effects(&id).await, 1);
    }
}

/// Callers that go away while their message is being appended, and come back with it.
pub async fn a_caller_of_accept_that_goes_away_can_come_back<F: Fixture<Store: LogStore>>(fixture: F) {
    let effects = fixture.clone();
    let handler = async move |sample: Sample, conn: &mut Conn<F>| -> Result<(), BoxError> {
        effects.effect(conn, &sample.id).await
    };
    let inbox = one_lane(&fixture).on("ledger", handler).build().await.unwrap();
    for round in 0..20 {
        let ids = (0..5).map(|n| format!("{round}-{n}"));
        let mut calls: Vec<_> = ids.clone().map(|id| Box::pin(inbox.accept(sample(&id)))).collect();
        // One poll queues each call. Then a little more time passes in each round, so that the calls are dropped at
        // different steps.
        for call in &mut calls {
            std::future::poll_fn(|cx| std::task::Poll::Ready(call.as_mut().poll(cx).is_ready())).await;
        }
        for _ in 0..round {
            tokio::task::yield_now().await;
        }
        drop(calls);
        for id in ids {
            // New or a duplicate: the append may have happened before the call was dropped.
            let _ = inbox.accept(sample(&id)).await.unwrap();
        }
    }
    let messages = inbox.operators().messages(0, 0, 1_000).await.unwrap();
    let positions: Vec<i64> = messages.iter().map(|found| found.message.place.pos).collect();
    assert_eq!(positions, (1..=100).collect::<Vec<i64>>());
    assert_eq!(inbox.work_until_idle().await.unwrap().done, 100);
}
