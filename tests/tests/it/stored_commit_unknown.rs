//! Commits whose answer was lost, in the log: nothing twice, nothing lost, no attempt spent.

use std::sync::atomic::Ordering;

use oncebox::store::Select;
use oncebox::{Attempt, BoxError, Inbox, LogStore, PostgresStore};
use oncebox_servers::proxy::FaultyProxy;
use oncebox_testing::{Faulty, Fixture, Point};

use crate::cut::Cut;
use crate::every_store::{Conn, OrderPaid, envelope, judged, on_every_store};

on_every_store!(work_whose_commit_is_cut_takes_effect_once, an_accept_whose_commit_is_cut_is_found_out,);

/// Works until it does so without an error, as `run` would.
async fn work<S: LogStore>(inbox: &Inbox<S>) {
    while inbox.work_until_idle().await.is_err() {}
}

/// In visits of many messages, and of one: only then a lost commit that counts as a failure has a single message to blame.
async fn work_whose_commit_is_cut_takes_effect_once<F: Fixture<Store: LogStore>>(fixture: F) {
    let points = [Point::BeforeCommit, Point::AfterCommit];
    for (point, work_batch) in points.into_iter().flat_map(|point| [(point, 500), (point, 1)]) {
        let cut = Cut::at(point, 0);
        let effects = fixture.clone();
        let handler =
            async move |order: OrderPaid, Attempt(n): Attempt, conn: &mut Conn<F>| -> Result<(), BoxError> {
                effects.effect(conn, &format!("{} {n}", order.order_id)).await
            };
        let store = Faulty::new(fixture.store(), cut.clone());
        let inbox =
            Inbox::builder(store).stored().work_batch(work_batch).on("h", handler).build().await.unwrap();
        let id = |n| format!("{point:?}-{work_batch}-{n}");
        for n in 0..50 {
            assert!(inbox.accept(envelope(&id(n))).await.unwrap().is_new());
        }
        cut.left.store(3, Ordering::SeqCst);
        work(&inbox).await;
        assert_eq!(cut.left.load(Ordering::SeqCst), 0);
        for n in 0..50 {
            assert_eq!(fixture.effects(&format!("{} 1", id(n))).await, 1, "{}", id(n));
        }
        assert!(inbox.operators().tasks(None, 10).await.unwrap().is_empty());
        assert!(inbox.operators().dead_letters(Select::all(), 10).await.unwrap().is_empty());
    }
}

/// The appender tries again by itself, and finds what it has appended.
async fn an_accept_whose_commit_is_cut_is_found_out<F: Fixture<Store: LogStore>>(fixture: F) {
    for point in [Point::BeforeCommit, Point::AfterCommit] {
        let cut = Cut::at(point, 1);
        let store = Faulty::new(fixture.store(), cut.clone());
        let inbox = Inbox::builder(store).stored().build().await.unwrap();
        let id = format!("{point:?}");
        let accept = inbox.accept(envelope(&id)).await.unwrap();
        assert_eq!(cut.left.load(Ordering::SeqCst), 0);
        // Whether it was this call or one before it is not known after a lost answer; both mean that it is there.
        if point == Point::BeforeCommit {
            assert!(accept.is_new(), "{accept:?}");
        }
        assert!(inbox.accept(envelope(&id)).await.unwrap().is_duplicate());
        assert!(inbox.operators().find_message("order.paid", id.as_str()).await.unwrap().is_some());
    }
    let mut messages = 0;
    let inbox = Inbox::builder(fixture.store()).stored().build().await.unwrap();
    for lane in 0..8 {
        messages += inbox.operators().messages(lane, 0, 10).await.unwrap().len();
    }
    assert_eq!(messages, 2);
}

/// The real thing: the connection is cut when the server has the commit and before it can say so.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn work_whose_answer_is_cut_off_takes_effect_once() {
    let Some(postgres) = crate::postgres::as_owner("work_whose_answer_is_cut_off").await else { return };
    let port = postgres.store.pool().connect_options().get_port();
    let proxy = FaultyProxy::start(port).await.unwrap();
    let url = postgres.database.url().replace(&format!(":{port}/"), &format!(":{}/", proxy.port()));
    let effects = postgres.clone();
    let handler = async move |order: OrderPaid,
                              Attempt(n): Attempt,
                              conn: &mut sqlx::PgConnection|
                -> Result<(), BoxError> {
        effects.effect(conn, &format!("{} {n}", order.order_id)).await
    };
    let store = PostgresStore::connect(&url).await.unwrap();
    let inbox = Inbox::builder(store).stored().on("h", handler).build().await.unwrap();
    for round in 0..judged(50) {
        let ids = (0..40).map(|n| format!("o-{round}-{n}"));
        for accept in inbox.accept_all(ids.clone().map(|id| envelope(&id))).await {
            assert!(accept.unwrap().is_new());
        }
        let before = proxy.cuts();
        proxy.cut_after_commits(2);
        work(&inbox).await;
        assert!(proxy.cuts() > before, "nothing was cut in round {round}");
        for id in ids {
            assert_eq!(postgres.effects(&format!("{id} 1")).await, 1, "{id}");
        }
        assert!(inbox.operators().tasks(None, 10).await.unwrap().is_empty());
    }
}
