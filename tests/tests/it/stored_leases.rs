//! Leases: a detached message belongs to its process while that sends heartbeats, and never longer.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use oncebox::store::{Peer, Select, Waits};
use oncebox::{BoxError, Envelope, Inbox, InboxBuilder, LogStore, PostgresStore};
use oncebox_servers::postgres::{PostgresOptions, PostgresServer};
use oncebox_servers::proxy::FaultyProxy;
use tokio::sync::watch;

use crate::every_store::{OrderPaid, envelope, judged, on_every_store};
use crate::stored_fixture::LogFixture;
use crate::worker::LogWorker;

on_every_store!(
    a_body_that_outlasts_its_lease_runs_once,
    a_process_that_is_taken_for_dead_changes_nothing_any_more,
    a_process_that_is_taken_for_dead_comes_too_late,
);

fn delivery(id: &str) -> Envelope {
    Envelope::new("delivery", format!("{{\"id\": \"{id}\"}}")).with_key(id)
}

async fn acceptor<F: LogFixture>(fixture: &F) -> Inbox<F::Store> {
    Inbox::builder(fixture.store()).stored().build().await.unwrap()
}

async fn accept<S: LogStore>(inbox: &Inbox<S>, envelopes: impl IntoIterator<Item = Envelope>) {
    for accept in inbox.accept_all(envelopes).await {
        assert!(accept.unwrap().is_new());
    }
}

/// Whether nothing is left to do, as far as the store answers.
async fn is_through<S: LogStore>(inbox: &Inbox<S>) -> bool {
    let statuses = inbox.operators().handler_statuses().await;
    statuses.is_ok_and(|statuses| statuses.iter().all(|status| (status.lag, status.tasks) == (0, 0)))
}

async fn assert_nothing_died<S: LogStore>(inbox: &Inbox<S>) {
    assert_eq!(inbox.operators().dead_letters(Select::all(), 10).await.unwrap(), []);
}

/// A machine that stalls for longer than a lease makes a process that is alive look dead. So what must not happen within a lease
/// is tried with a longer one if it does, up to one that no machine stalls for.
const LEASES: [Duration; 3] = [Duration::from_millis(800), Duration::from_secs(6), Duration::from_secs(60)];

/// With another process that would like to have it.
async fn a_body_that_outlasts_its_lease_runs_once<F: LogFixture>(fixture: F) {
    let mut lost = Vec::new();
    for lease in LEASES {
        match outlast(&fixture, lease).await {
            0 => return,
            bodies => lost.push((lease, bodies)),
        }
    }
    panic!("lost to another process: {lost:?}");
}

/// Lets bodies run for longer than their lease; how many were lost to another process. If none was, each has run once.
async fn outlast<F: LogFixture>(fixture: &F, lease: Duration) -> u64 {
    let address = fixture.address();
    let mut workers = Vec::new();
    for _ in 0..2 {
        workers.push(LogWorker::start_with_lease(&address, "held", 0, 1, lease).await);
    }
    while fixture.processes().await.len() < 2 {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let inbox = acceptor(fixture).await;
    let ids: Vec<String> = (0..10).map(|n| format!("m-{}-{n}", lease.as_millis())).collect();
    accept(&inbox, ids.iter().map(|id| delivery(id))).await;
    // Each process sends five heartbeats in a lease. This is two leases of both, unless one of them expires.
    let before = fixture.processes().await;
    loop {
        let now = fixture.processes().await;
        let beats = |peer: &Peer| now.iter().find(|now| now.id == peer.id).map(|now| now.beats - peer.beats);
        if before.iter().all(|peer| beats(peer).is_none_or(|beats| beats > 10)) {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    for worker in &mut workers {
        for id in &ids {
            worker.tell(&format!("go {id}")).await;
        }
    }
    while !is_through(&inbox).await {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let mut said = Vec::new();
    let (mut done, mut lost) = (0, 0);
    for worker in workers {
        let (lines, report) = worker.stop().await;
        said.extend(lines);
        assert_eq!(report[1], 0, "failed");
        done += report[0];
        lost += report[3];
    }
    if lost == 0 {
        assert_nothing_died(&inbox).await;
        assert_eq!(done, 10);
        said.sort_unstable();
        let mut expected: Vec<String> =
            ids.iter().flat_map(|id| [format!("begin {id}"), format!("end {id}")]).collect();
        expected.sort_unstable();
        assert_eq!(said, expected);
    }
    lost
}

/// One process that was stopped until its lease expired, and goes on now; another one that runs its message.
async fn two_of_which_one_was_stopped<F: LogFixture>(fixture: &F, inbox: &Inbox<F::Store>) -> [LogWorker; 2] {
    let address = fixture.address();
    let mut first = LogWorker::start(&address, "held", 0, 1).await;
    accept(inbox, [delivery("m")]).await;
    assert_eq!(first.until("begin m").await, [""; 0]);
    let mut second = LogWorker::start(&address, "held", 0, 1).await;
    loop {
        first.signal("STOP").await;
        if !fixture.is_stuck().await {
            break;
        }
        // It was stopped in the middle of a write, and would keep all others waiting.
        first.signal("CONT").await;
    }
    fixture.remove_process(first.number()).await;
    assert_eq!(second.until("begin m").await, [""; 0]);
    first.signal("CONT").await;
    // It finds out that it was silent for too long.
    assert_eq!(first.until("cancelled m").await, [""; 0]);
    [first, second]
}

async fn a_process_that_is_taken_for_dead_changes_nothing_any_more<F: LogFixture>(fixture: F) {
    let inbox = acceptor(&fixture).await;
    let [mut first, mut second] = two_of_which_one_was_stopped(&fixture, &inbox).await;
    first.tell("go m").await;
    first.until("end m").await;
    // Once it has ended, what it has to say is said.
    let (said, report) = first.stop().await;
    assert_eq!((said.len(), report), (0, [0, 0, 0, 1]), "{said:?}");
    let tasks = inbox.operators().tasks(None, 10).await.unwrap();
    assert_eq!(tasks.iter().map(|task| task.waits).collect::<Vec<_>>(), [Waits::Running]);
    second.tell("go m").await;
    let (said, report) = second.stop().await;
    assert_eq!((said, report), (vec!["end m".to_owned()], [1, 0, 0, 0]));
    assert!(is_through(&inbox).await);
    assert_nothing_died(&inbox).await;
}

async fn a_process_that_is_taken_for_dead_comes_too_late<F: LogFixture>(fixture: F) {
    let inbox = acceptor(&fixture).await;
    let [mut first, mut second] = two_of_which_one_was_stopped(&fixture, &inbox).await;
    second.tell("go m").await;
    second.until("end m").await;
    while !is_through(&inbox).await {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    first.tell("go m").await;
    first.until("end m").await;
    assert_eq!(first.stop().await.1, [0, 0, 0, 1]);
    assert_eq!(second.stop().await.1, [1, 0, 0, 0]);
    assert!(is_through(&inbox).await);
    assert_nothing_died(&inbox).await;
}

/// How often bodies have begun, and whether they may go on.
#[derive(Clone)]
struct GatedBodies {
    begun: Arc<Mutex<HashMap<String, usize>>>,
    gate: watch::Sender<bool>,
}

impl GatedBodies {
    fn new(open: bool) -> Self {
        Self { begun: Arc::default(), gate: watch::Sender::new(open) }
    }

    fn begun(&self) -> HashMap<String, usize> {
        self.begun.lock().unwrap().clone()
    }

    /// A detached handler with this many bodies at a time.
    fn handled_by(
        &self,
        builder: InboxBuilder<PostgresStore>,
        lease: Duration,
    ) -> InboxBuilder<PostgresStore> {
        let bodies = self.clone();
        let handler = move |order: OrderPaid| {
            let bodies = bodies.clone();
            async move {
                *bodies.begun.lock().unwrap().entry(order.order_id).or_default() += 1;
                bodies.gate.subscribe().wait_for(|open| *open).await?;
                Ok::<(), BoxError>(())
            }
        };
        let builder = builder.stored().lease(lease).poll_every(Duration::from_millis(20));
        builder.on_with("h", handler, |options| options.detached().concurrency(20))
    }
}

/// All processes are silent while the database is away: none of them has crashed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_outage_longer_than_the_lease_runs_nothing_again() {
    // The test that starts the common server knows whether there is one at all.
    if crate::postgres::as_owner("an_outage_longer_than_the_lease").await.is_none() {
        return;
    }
    let mut lost = Vec::new();
    for lease in LEASES {
        match work_through_an_outage(lease).await {
            0 => return,
            bodies => lost.push((lease, bodies)),
        }
    }
    panic!("lost to another process: {lost:?}");
}

/// An outage of several leases; how many bodies were lost to another process. If none was, each has run once.
async fn work_through_an_outage(lease: Duration) -> u64 {
    let mut server = PostgresServer::start(PostgresOptions::default()).await.unwrap();
    let store = PostgresStore::connect(&server.url()).await.unwrap();
    store.migrate().await.unwrap();
    let bodies = GatedBodies::new(false);
    let mut inboxes = Vec::new();
    let mut running = Vec::new();
    for _ in 0..2 {
        let store = PostgresStore::connect(&server.url()).await.unwrap();
        let inbox = bodies.handled_by(Inbox::builder(store), lease).build().await.unwrap();
        running.push(tokio::spawn({
            let inbox = inbox.clone();
            async move { inbox.run(std::future::pending()).await }
        }));
        inboxes.push(inbox);
    }
    let messages = 30;
    accept(&inboxes[0], (0..messages).map(|n| envelope(&format!("o-{n}")))).await;
    while bodies.begun().len() < messages {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    server.kill().unwrap();
    tokio::time::sleep(lease * 3).await;
    server.restart().await.unwrap();

    // Both send heartbeats again, for as long as an expired lease takes to be found: a lease has five of them.
    let beats = async || -> Vec<i64> {
        let beats = sqlx::query_scalar("select beats from oncebox.process order by id");
        beats.fetch_all(store.pool()).await.unwrap_or_default()
    };
    let mut first = beats().await;
    while first.len() < 2 {
        first = beats().await;
    }
    loop {
        let now = beats().await;
        if now.iter().zip(&first).all(|(now, first)| now - first > 15) && !now.is_empty() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    bodies.gate.send_replace(true);
    while !is_through(&inboxes[0]).await {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }

    // Both work as before.
    bodies.gate.send_replace(false);
    accept(&inboxes[0], (0..messages).map(|n| envelope(&format!("later-{n}")))).await;
    while bodies.begun().len() < 2 * messages {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    bodies.gate.send_replace(true);
    while !is_through(&inboxes[0]).await {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let (mut done, mut lost) = (0, 0);
    for (inbox, running) in inboxes.iter().zip(running) {
        inbox.close().await;
        let report = running.await.unwrap().unwrap();
        assert_eq!(report.failed, 0);
        done += report.done;
        lost += report.lease_lost;
    }
    if lost == 0 {
        assert_nothing_died(&inboxes[0]).await;
        assert_eq!(done, 2 * messages as u64);
        let begun = bodies.begun();
        assert!(begun.values().all(|times| *times == 1), "{begun:?}");
    }
    lost
}

/// The connection is cut when the server has the commit and before its response: no process runs what may be leased, and
/// nothing stays leased to a process that does not know it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_whose_answer_is_cut_off_is_let_go() {
    let Some(postgres) = crate::postgres::as_owner("a_lease_whose_answer_is_cut_off").await else { return };
    let port = postgres.store.pool().connect_options().get_port();
    let proxy = FaultyProxy::start(port).await.unwrap();
    let url = postgres.database.url().replace(&format!(":{port}/"), &format!(":{}/", proxy.port()));
    let bodies = GatedBodies::new(true);
    let store = PostgresStore::connect(&url).await.unwrap();
    // Longer than any test: it is not the end of a lease that frees anything.
    let lease = Duration::from_secs(3600);
    let inbox = bodies.handled_by(Inbox::builder(store), lease).build().await.unwrap();
    let acceptor = Inbox::builder(postgres.store.clone()).stored().build().await.unwrap();
    let running = tokio::spawn({
        let inbox = inbox.clone();
        async move { inbox.run(std::future::pending()).await }
    });
    let (rounds, each) = (judged(50), 40);
    for round in 0..rounds {
        let before = proxy.cuts();
        proxy.cut_after_commits(2);
        accept(&acceptor, (0..each).map(|n| envelope(&format!("o-{round}-{n}")))).await;
        while proxy.cuts() == before || !is_through(&acceptor).await {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
    inbox.close().await;
    let report = running.await.unwrap().unwrap();
    assert_eq!((report.failed, report.dead, report.lease_lost), (0, 0, 0));
    let begun = bodies.begun();
    assert_eq!(begun.len(), rounds * each);
    assert_nothing_died(&inbox).await;
    // No message ran without its lease, and each ran once.
    assert!(begun.values().all(|times| *times == 1), "{begun:?}");
}
