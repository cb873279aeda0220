//! Outages around a relay: of the receiver, of the database, of one confirmation.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use oncebox::store::ReplayFrom;
use oncebox::{Error, Outbox, Outgoing, Relay, Sink, Verdict};
use oncebox_testing::{Faults, Faulty, Point, crash};

use crate::every_store::{judged, on_every_store};
use crate::outbox_fixture::{
    OutboxFixture, RELAY, Receiver, RunningOutbox, assert_nothing_parked, is_sent, message, publish, until,
};

on_every_store!(
    an_outage_of_the_receiver_parks_no_message,
    a_relay_without_heartbeats_stops_sending,
    a_lane_whose_progress_cannot_be_written_is_released,
    a_replay_sends_what_was_confirmed_behind_a_missing_verdict,
);

/// With one message as with many: no attempt is spent, and all arrive when the receiver is back.
async fn an_outage_of_the_receiver_parks_no_message<F: OutboxFixture>(fixture: F) {
    let is_up = Arc::new(AtomicBool::new(false));
    let up = is_up.clone();
    let receiver = Receiver::new(move |_, _| match up.load(Ordering::SeqCst) {
        true => Verdict::Confirmed,
        false => Verdict::Unknown("connection refused".into()),
    });
    let outbox = Outbox::builder(fixture.store()).relay(receiver.relay()).build().await.unwrap();
    let running = RunningOutbox::start(&outbox);
    let mut sent = 0;
    for (round, messages) in [1, judged(10_000)].into_iter().enumerate() {
        is_up.store(false, Ordering::SeqCst);
        let key = |n: usize| format!("{round} {n}");
        let envelopes = (0..messages).map(|n| message(&key(n)).with_order_by(format!("{}", n % 100)));
        publish(&fixture, &outbox, envelopes.collect()).await;
        // More attempts than a message has, for each of them if there is one message only.
        let before = receiver.received();
        until(async || receiver.received() >= before + 10).await;
        // A receiver counts messages before it responds.
        until(async || outbox.health().is_err_and(|waits| waits.to_string().contains("connection refused")))
            .await;
        assert_eq!(outbox.operators().tasks(Some(RELAY), 10).await.unwrap(), []);
        assert_nothing_parked(&outbox).await;
        is_up.store(true, Ordering::SeqCst);
        sent += messages;
        until(async || receiver.confirmed().len() >= sent && is_sent(&outbox).await).await;
        outbox.health().unwrap();
    }
    assert_eq!(running.stop().await.failed, 0);
    assert_eq!(receiver.confirmed().len(), sent, "each was confirmed once");
    assert_nothing_parked(&outbox).await;
}

/// The time that this receiver takes for each message.
const PACE: Duration = Duration::from_millis(50);

/// A sink that takes messages one by one, at a pace.
#[derive(Clone)]
struct SteadyReceiver(Receiver);

impl Sink for SteadyReceiver {
    const WAVE: usize = 1;

    async fn publish(&self, wave: &[Outgoing]) -> Vec<Verdict> {
        let verdicts = self.0.publish(wave).await;
        tokio::time::sleep(PACE).await;
        verdicts
    }
}

/// Another process may have leased its lanes. So it sends for half of a lease after its last heartbeat, and no longer.
async fn a_relay_without_heartbeats_stops_sending<F: OutboxFixture>(fixture: F) {
    const LEASE: Duration = Duration::from_secs(4);
    const MESSAGES: usize = 150;
    let receiver = Receiver::confirming();
    let relay = Relay::new(RELAY, SteadyReceiver(receiver.clone()));
    let commits = CommitFaults::default();
    let store = Faulty::new(fixture.again().await.store(), commits.clone());
    let outbox = Outbox::builder(store).lanes(1).lease(LEASE).relay(relay).build().await.unwrap();
    let publisher = Outbox::builder(fixture.store()).build().await.unwrap();
    let all = (0..MESSAGES).map(|n| message(&format!("{n:03}")).with_order_by("a")).collect();
    publish(&fixture, &publisher, all).await;
    publisher.flush().await.unwrap();
    // All messages are one range. `flush` moves first, so that the next commit is that of the range.
    let sending = tokio::spawn({
        let outbox = outbox.clone();
        async move { outbox.flush().await }
    });
    until(async || receiver.received() > 3).await;
    let hold = fixture.hold_heartbeats().await;
    let (sent, before) = (receiver.received(), commits.count());
    until(async || commits.count() > before).await;
    let sent = receiver.received() - sent;
    // The pace limits how many messages fit into half of a lease, on any machine.
    let most = usize::try_from((LEASE / 2).as_millis() / PACE.as_millis()).unwrap() + 1;
    assert!(sent <= most, "{sent} messages were sent without a heartbeat");
    drop(hold);
    // It fails if it could not write its progress; then the rest is sent again.
    let _ = sending.await.unwrap();
    let running = RunningOutbox::start(&outbox);
    until(async || is_sent(&publisher).await).await;
    running.stop().await;
    assert_eq!(receiver.keys(), MESSAGES);
    assert_nothing_parked(&publisher).await;
}

/// Counts commits, and lets them fail on request, in a way that is not repeated.
#[derive(Clone, Default)]
struct CommitFaults {
    commits: Arc<AtomicUsize>,
    is_failing: Arc<AtomicBool>,
}

impl CommitFaults {
    fn count(&self) -> usize {
        self.commits.load(Ordering::SeqCst)
    }
}

impl Faults for CommitFaults {
    async fn at(&self, point: Point) -> Result<(), Error> {
        if point == Point::BeforeCommit {
            self.commits.fetch_add(1, Ordering::SeqCst);
            if self.is_failing.load(Ordering::SeqCst) {
                return Err(crash());
            }
        }
        Ok(())
    }
}

/// The process lives on, and no process looks into a lane that is leased.
async fn a_lane_whose_progress_cannot_be_written_is_released<F: OutboxFixture>(fixture: F) {
    let receiver = Receiver::confirming();
    let faults = CommitFaults::default();
    let store = Faulty::new(fixture.store(), faults.clone());
    let outbox = Outbox::builder(store).lanes(1).relay(receiver.relay()).build().await.unwrap();
    let publisher = Outbox::builder(fixture.store()).build().await.unwrap();
    publish(&fixture, &publisher, vec![message("a"), message("b")]).await;
    publisher.flush().await.unwrap();
    faults.is_failing.store(true, Ordering::SeqCst);
    let running = RunningOutbox::start(&outbox);
    until(async || receiver.received() > 4).await;
    assert!(!is_sent(&publisher).await);
    faults.is_failing.store(false, Ordering::SeqCst);
    until(async || is_sent(&publisher).await).await;
    running.stop().await;
    assert_eq!(receiver.keys(), 2);
    assert_nothing_parked(&publisher).await;
}

/// A replay means that the receiver may have lost what it confirmed.
async fn a_replay_sends_what_was_confirmed_behind_a_missing_verdict<F: OutboxFixture>(fixture: F) {
    let is_up = Arc::new(AtomicBool::new(false));
    let up = is_up.clone();
    let receiver = Receiver::new(move |message, _| match &*message.key.to_string() {
        "b" if !up.load(Ordering::SeqCst) => Verdict::Unknown("no response".into()),
        _ => Verdict::Confirmed,
    });
    let outbox = Outbox::builder(fixture.store()).lanes(1).relay(receiver.relay()).build().await.unwrap();
    for messages in [vec![message("a")], vec![message("b"), message("c")]] {
        publish(&fixture, &outbox, messages).await;
        outbox.flush().await.unwrap();
    }
    assert_eq!(receiver.confirmed(), ["a", "c"]);
    let ann = oncebox_testing::operator("ann");
    outbox.operators().replay(RELAY, ReplayFrom::Beginning, &ann).await.unwrap();
    is_up.store(true, Ordering::SeqCst);
    until(async || {
        outbox.flush().await.unwrap();
        is_sent(&outbox).await
    })
    .await;
    assert_eq!(receiver.confirmed(), ["a", "c", "a", "b", "c"]);
}
