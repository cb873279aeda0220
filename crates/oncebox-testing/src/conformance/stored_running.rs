//! Running: workers that run until they are stopped.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use oncebox_core::store::{ProcessId, Processes};
use oncebox_core::{BoxError, Error, ErrorKind, Inbox, LogStore};
use tokio::sync::{Semaphore, mpsc, oneshot};
use uuid::Uuid;

use super::stored::{Conn, accept_new, one_lane, sample, with_effect};
use super::{Fixture, Sample};
use crate::faulty::{Faults, Faulty, Point, crash};

/// Longer than any test.
const NEVER: Duration = Duration::from_secs(3600);

async fn until_there<F: Fixture>(fixture: &F, effect: &str) {
    while fixture.effects(effect).await == 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// A lane changes its worker after each message. The next worker sees the progress of the one before: nothing runs twice, and no
/// worker conflicts with the writes of another one, which a retry would hide.
pub async fn workers_in_one_lane_take_turns_without_an_error<F: Fixture<Store: LogStore>>(fixture: F) {
    const MESSAGES: u64 = 60;
    let mut inboxes = Vec::new();
    for _ in 0..3 {
        let builder = with_effect(&fixture, one_lane(&fixture).work_batch(1), "ledger");
        inboxes.push(builder.build().await.unwrap());
    }
    for n in 0..MESSAGES {
        accept_new(&inboxes[0], sample(&format!("m-{n}"))).await;
    }
    let working: Vec<_> = inboxes
        .into_iter()
        .map(|inbox| tokio::spawn(async move { inbox.work_until_idle().await.unwrap().done }))
        .collect();
    let mut done = 0;
    for worker in working {
        done += worker.await.unwrap();
    }
    assert_eq!(done, MESSAGES);
    for n in 0..MESSAGES {
        assert_eq!(fixture.effects(&format!("ledger m-{n}")).await, 1, "m-{n}");
    }
}

/// They are notified of what this process accepts, and do not wait for their next look.
pub async fn workers_take_what_comes_in<F: Fixture<Store: LogStore>>(fixture: F) {
    let inbox = with_effect(&fixture, one_lane(&fixture).poll_every(NEVER), "ledger").build().await.unwrap();
    let (stop, stopped) = oneshot::channel::<()>();
    let running = tokio::spawn({
        let inbox = inbox.clone();
        async move { inbox.run(async { drop(stopped.await) }).await }
    });
    for n in 0..10 {
        accept_new(&inbox, sample(&format!("m-{n}"))).await;
        until_there(&fixture, &format!("ledger m-{n}")).await;
    }
    // Pauses between looks are as long as it has been quiet. A worker that is notified is faster, on a slow machine too, once the
    // pause is long enough.
    let mut quiet = Duration::from_millis(500);
    let mut late = 0;
    loop {
        tokio::time::sleep(quiet).await;
        let accepted = Instant::now();
        late += 1;
        accept_new(&inbox, sample(&format!("late-{late}"))).await;
        until_there(&fixture, &format!("ledger late-{late}")).await;
        if accepted.elapsed() < quiet / 4 {
            break;
        }
        assert!(late < 9, "it is found by looking, not by being told");
        quiet *= 2;
    }
    stop.send(()).unwrap();
    assert_eq!(running.await.unwrap().unwrap().done, 10 + late);
    accept_new(&inbox, sample("behind")).await;
    assert_eq!(fixture.effects("ledger behind").await, 0, "no worker is left");
    assert_eq!(inbox.work_until_idle().await.unwrap().done, 1);
}

/// Wherever they are then, they sign off. Otherwise their leases would expire, and lead to care without a crash.
pub async fn workers_that_are_stopped_while_they_begin_leave_no_process_behind<
    F: Fixture<Store: LogStore>,
>(
    fixture: F,
) {
    let inbox = with_effect(&fixture, one_lane(&fixture), "ledger").build().await.unwrap();
    for n in 0..20 {
        // A little later each time, so that the stop meets different steps of the start.
        let stop = tokio::time::sleep(Duration::from_micros(200) * n);
        assert_eq!(inbox.run(stop).await.unwrap().done, 0);
        let present = fixture.store().peers(ProcessId(Uuid::nil())).await.unwrap();
        assert_eq!(present, [], "stopped in turn {n}");
    }
}

/// Announcements are a hint only: without them, others' messages are found by looking.
pub async fn what_another_process_accepts_is_found<F: Fixture<Store: LogStore>>(fixture: F) {
    let looking = Duration::from_millis(50);
    let worker =
        with_effect(&fixture, one_lane(&fixture).poll_every(looking), "ledger").build().await.unwrap();
    let acceptor = with_effect(&fixture, one_lane(&fixture), "ledger").build().await.unwrap();
    let running = tokio::spawn({
        let worker = worker.clone();
        async move { worker.run(std::future::pending()).await }
    });
    for n in 0..3 {
        // A worker that has just worked looks once more in any case.
        tokio::time::sleep(looking * 20).await;
        accept_new(&acceptor, sample(&format!("m-{n}"))).await;
        until_there(&fixture, &format!("ledger m-{n}")).await;
    }
    worker.close().await;
    assert_eq!(running.await.unwrap().unwrap().done, 3);
}

/// Where the store can tell other processes, they need not look.
pub async fn what_another_process_announces_is_found<F: Fixture<Store: LogStore>>(fixture: F) {
    let worker = with_effect(&fixture, one_lane(&fixture).notify(true), "ledger").build().await.unwrap();
    let acceptor = with_effect(&fixture, one_lane(&fixture).notify(true), "ledger").build().await.unwrap();
    let running = tokio::spawn({
        let worker = worker.clone();
        async move { worker.run(std::future::pending()).await }
    });
    for n in 0..20 {
        accept_new(&acceptor, sample(&format!("m-{n}"))).await;
        until_there(&fixture, &format!("ledger m-{n}")).await;
    }
    worker.close().await;
    assert_eq!(running.await.unwrap().unwrap().done, 20);
}

/// An inbox whose handler says that it has begun, and waits until it may go on.
async fn held_up<F: Fixture<Store: LogStore>>(
    fixture: &F,
) -> (Inbox<F::Store>, mpsc::UnboundedReceiver<()>, Arc<Semaphore>) {
    let (begins, begun) = mpsc::unbounded_channel();
    let may_go_on = Arc::new(Semaphore::new(0));
    let (effects, wait) = (fixture.clone(), may_go_on.clone());
    let handler = async move |sample: Sample, conn: &mut Conn<F>| -> Result<(), BoxError> {
        effects.effect(conn, &sample.id).await?;
        begins.send(())?;
        wait.acquire().await?.forget();
        Ok(())
    };
    (one_lane(fixture).work_batch(1).on("ledger", handler).build().await.unwrap(), begun, may_go_on)
}

/// The messages behind it stay in the log for other workers.
pub async fn what_is_in_flight_at_shutdown_is_finished<F: Fixture<Store: LogStore>>(fixture: F) {
    let (inbox, mut begun, may_go_on) = held_up(&fixture).await;
    accept_new(&inbox, sample("in flight")).await;
    accept_new(&inbox, sample("behind it")).await;
    let (stop, stopped) = oneshot::channel::<()>();
    let running = tokio::spawn({
        let inbox = inbox.clone();
        async move { inbox.run(async { drop(stopped.await) }).await }
    });
    begun.recv().await.unwrap();
    stop.send(()).unwrap();
    tokio::task::yield_now().await;
    assert!(!running.is_finished(), "a handler is still at work");
    may_go_on.add_permits(1);
    assert_eq!(running.await.unwrap().unwrap().done, 1);
    assert_eq!((fixture.effects("in flight").await, fixture.effects("behind it").await), (1, 0));
    may_go_on.add_permits(1);
    assert_eq!(inbox.work_until_idle().await.unwrap().done, 1);
    assert_eq!(fixture.effects("behind it").await, 1);
}

/// The workers finish their in-flight work first.
pub async fn closing_the_inbox_ends_its_workers<F: Fixture<Store: LogStore>>(fixture: F) {
    let (inbox, mut begun, may_go_on) = held_up(&fixture).await;
    accept_new(&inbox, sample("in flight")).await;
    let running = tokio::spawn({
        let inbox = inbox.clone();
        async move { inbox.run(std::future::pending()).await }
    });
    begun.recv().await.unwrap();
    may_go_on.add_permits(1);
    inbox.close().await;
    assert_eq!(running.await.unwrap().unwrap().done, 1);
    assert_eq!(fixture.effects("in flight").await, 1);
    assert_eq!(inbox.accept(sample("late")).await.unwrap_err().kind(), ErrorKind::Closed);
}

/// Inboxes come and go, a store stays: whatever an inbox was doing for itself when it was closed.
pub async fn closing_inboxes_leaves_the_store_as_it_is<F: Fixture<Store: LogStore>>(fixture: F) {
    for round in 0..100 {
        let inbox = with_effect(&fixture, one_lane(&fixture), "ledger").build().await.unwrap();
        // A little later each time: its timer has begun, and has not ended, in some of the rounds.
        for _ in 0..round {
            tokio::task::yield_now().await;
        }
        inbox.close().await;
    }
    let inbox = with_effect(&fixture, one_lane(&fixture), "ledger").build().await.unwrap();
    accept_new(&inbox, sample("a")).await;
    assert_eq!(inbox.work_until_idle().await.unwrap().done, 1);
}

/// Fails every visit while it is switched on.
#[derive(Clone)]
struct Down(Arc<AtomicBool>);

impl Faults for Down {
    async fn at(&self, point: Point) -> Result<(), Error> {
        let down = point == Point::BeforeClaim && self.0.load(Ordering::SeqCst);
        if down { Err(crash()) } else { Ok(()) }
    }
}

/// An outage counts as no attempt.
pub async fn workers_that_cannot_work_fail_the_health_until_they_can<F: Fixture<Store: LogStore>>(
    fixture: F,
) {
    let down = Arc::new(AtomicBool::new(true));
    let store = Faulty::new(fixture.store(), Down(down.clone()));
    let effects = fixture.clone();
    let handler = async move |sample: Sample, conn: &mut Conn<F>| -> Result<(), BoxError> {
        effects.effect(conn, &sample.id).await
    };
    let inbox = Inbox::builder(store).stored().lanes(1).on("ledger", handler).build().await.unwrap();
    inbox.health().await.unwrap();
    accept_new(&inbox, sample("a")).await;
    let running = tokio::spawn({
        let inbox = inbox.clone();
        async move { inbox.run(std::future::pending()).await }
    });
    let error = loop {
        match inbox.health().await {
            Ok(()) => tokio::time::sleep(Duration::from_millis(2)).await,
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.to_string().contains("the workers wait"), "{error}");
    down.store(false, Ordering::SeqCst);
    until_there(&fixture, "a").await;
    while inbox.health().await.is_err() {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    inbox.close().await;
    assert_eq!(running.await.unwrap().unwrap().done, 1);
    assert_eq!(inbox.operators().tasks(None, 10).await.unwrap().len(), 0);
    assert_eq!(fixture.effects("a").await, 1);
}
