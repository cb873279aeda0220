//! Failed messages and many processes: each is tried once per round, and never by two at a time.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use oncebox::{Attempt, BoxError, Failure, Inbox, Retry};

use crate::every_store::{Conn, OrderPaid, envelope, judged};
use crate::stored_fixture::LogFixture;

/// What the bodies of all inboxes did.
#[derive(Default)]
struct BodyRuns {
    inside: HashSet<String>,
    overlaps: usize,
    runs: HashMap<(String, u32), usize>,
}

/// Tries are due at once, looks come all the time, and still every try is one process's.
async fn each_try_is_made_by_one_process<F: LogFixture>(fixture: F) {
    const TRIES: u32 = 4;
    let messages = judged(1_000);
    let retry = Retry::new().max_attempts(TRIES).first_delay(Duration::ZERO).max_delay(Duration::ZERO);
    let bodies: Arc<Mutex<BodyRuns>> = Arc::default();
    let mut inboxes = Vec::new();
    for _ in 0..8 {
        let (effects, bodies) = (fixture.clone(), bodies.clone());
        let handler =
            async move |order: OrderPaid, Attempt(n): Attempt, conn: &mut Conn<F>| -> Result<(), Failure> {
                let id = order.order_id;
                {
                    let mut bodies = bodies.lock().unwrap();
                    bodies.overlaps += usize::from(!bodies.inside.insert(id.clone()));
                    *bodies.runs.entry((id.clone(), n)).or_default() += 1;
                }
                let result = effects.effect(conn, &id).await;
                tokio::task::yield_now().await;
                bodies.lock().unwrap().inside.remove(&id);
                result?;
                if n < TRIES { Err(BoxError::from("not yet").into()) } else { Ok(()) }
            };
        let builder = Inbox::builder(fixture.another_store().await).stored().retry(retry);
        let builder = builder.poll_every(Duration::from_millis(1)).workers(1);
        inboxes.push(builder.on("h", handler).build().await.unwrap());
    }
    for accept in inboxes[0].accept_all((0..messages).map(|n| envelope(&format!("o-{n}")))).await {
        assert!(accept.unwrap().is_new());
    }
    let running: Vec<_> = inboxes
        .iter()
        .map(|inbox| {
            let inbox = inbox.clone();
            tokio::spawn(async move { inbox.run(std::future::pending()).await })
        })
        .collect();
    while fixture.totals().await.0 < messages as i64 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let (mut done, mut failed) = (0, 0);
    for (inbox, running) in inboxes.iter().zip(running) {
        inbox.close().await;
        let report = running.await.unwrap().unwrap();
        done += report.done;
        failed += report.failed;
    }
    let bodies = std::mem::take(&mut *bodies.lock().unwrap());
    assert_eq!(bodies.overlaps, 0);
    // The first try shares a transaction with others, and may be repeated when that is taken apart. Later ones are not.
    for (at, runs) in bodies.runs.iter().filter(|((_, attempt), _)| *attempt > 1) {
        assert_eq!(*runs, 1, "{at:?}");
    }
    assert_eq!(bodies.runs.len(), messages * TRIES as usize);
    assert_eq!((done, failed), (messages as u64, messages as u64 * u64::from(TRIES - 1)));
    assert_eq!(fixture.totals().await, (messages as i64, messages as i64));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_try_is_made_by_one_process_on_sqlite() {
    each_try_is_made_by_one_process(crate::sqlite::in_a_file("failed_rows").await.unwrap()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_try_is_made_by_one_process_on_postgres() {
    if let Some(postgres) = crate::postgres::as_owner("failed_rows").await {
        each_try_is_made_by_one_process(postgres).await;
    }
}
