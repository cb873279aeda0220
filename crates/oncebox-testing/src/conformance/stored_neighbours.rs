//! What happens in one lane, or to one handler, must not depend on how busy the others are.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use oncebox_core::store::{Place, Select};
use oncebox_core::{Attempt, BoxError, Envelope, Failure, Inbox, LogStore};

use super::stored::{AT_ONCE, Conn, NO_LIMIT, accept_new, one_lane, sample};
use super::{Fixture, Sample};
use crate::operator;

/// A failed message becomes a task although another lane of its handler has work without end.
pub async fn a_culprit_is_found_while_another_lane_is_busy<F: Fixture<Store: LogStore>>(fixture: F) {
    let handler = async move |sample: Sample, _: &mut Conn<F>| -> Result<(), Failure> {
        match &*sample.id {
            "culprit" => Err(Failure::permanent("never")),
            _ => Ok(()),
        }
    };
    // One worker, so that a busy lane could starve the other one.
    let builder = Inbox::builder(fixture.store()).stored().lanes(2).workers(1).work_batch(10);
    let builder = builder.batch_time(NO_LIMIT);
    let inbox = builder.on("ledger", handler).build().await.unwrap();
    let (mut busy, mut quiet) = (None, None);
    // Two ordering keys that sit in different lanes.
    for key in (0..).map(|n| format!("key-{n}")) {
        let accepted = inbox.accept(sample(&key).with_order_by(&*key)).await.unwrap();
        let oncebox_core::Accept::Accepted(Place { lane, .. }) = accepted else { panic!("{accepted:?}") };
        if lane == 0 {
            busy.get_or_insert(key)
        } else {
            quiet.get_or_insert(key)
        };
        if busy.is_some() && quiet.is_some() {
            break;
        }
    }
    let (busy, quiet) = (busy.unwrap(), quiet.unwrap());
    inbox.work_until_idle().await.unwrap();
    for n in 0..300 {
        accept_new(&inbox, sample(&format!("busy-{n}")).with_order_by(&*busy)).await;
    }
    for id in ["before", "culprit", "behind"] {
        accept_new(&inbox, sample(id).with_order_by(&*quiet)).await;
    }
    for _ in 0..5 {
        inbox.work_once().await.unwrap();
    }
    assert_eq!(inbox.operators().dead_letters(Select::all(), 10).await.unwrap().len(), 1);
    let lag = inbox.operators().handler_statuses().await.unwrap()[0].lag;
    assert!(lag > 100, "the other lane has {lag} messages left only: it was not busy");
}

/// Tasks that are due run although messages come without end.
pub async fn tasks_run_while_there_is_a_backlog<F: Fixture<Store: LogStore>>(fixture: F) {
    let done = Arc::new(AtomicU32::new(0));
    let done_before_retry = Arc::new(AtomicU32::new(u32::MAX));
    let (count, before) = (done.clone(), done_before_retry.clone());
    let handler = async move |sample: Sample, Attempt(n): Attempt, _: &mut Conn<F>| -> Result<(), BoxError> {
        if sample.id == "first" {
            if n == 1 {
                return Err("not yet".into());
            }
            before.store(count.load(Ordering::SeqCst), Ordering::SeqCst);
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
        count.fetch_add(1, Ordering::SeqCst);
        Ok(())
    };
    let builder =
        one_lane(&fixture).workers(1).work_batch(5).poll_every(Duration::from_millis(20)).retry(AT_ONCE);
    let inbox = builder.on("ledger", handler).build().await.unwrap();
    let backlog = 1_000;
    let first = std::iter::once("first".to_owned());
    let all = first.chain((0..backlog).map(|n| format!("m-{n}"))).map(|id| sample(&id));
    for accepted in inbox.accept_all(all).await {
        assert!(accepted.unwrap().is_new());
    }
    let running = inbox.clone();
    let work = tokio::spawn(async move { running.run(std::future::pending()).await });
    while done.load(Ordering::SeqCst) < backlog {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    inbox.close().await;
    work.await.unwrap().unwrap();
    let before = done_before_retry.load(Ordering::SeqCst);
    assert!(before < backlog, "the task waited for the whole backlog");
}

/// A process that still knows a handler as it was does not pass over messages of its new kinds.
pub async fn a_straggler_passes_over_nothing<F: Fixture<Store: LogStore>>(fixture: F) {
    let build = async |kinds: &'static [&'static str], revive: bool| {
        let effects = fixture.clone();
        let handler = async move |envelope: Envelope, conn: &mut Conn<F>| -> Result<(), BoxError> {
            effects.effect(conn, envelope.kind()).await
        };
        let builder = one_lane(&fixture).on_raw_with("h", kinds.iter().copied(), handler, |options| {
            if revive { options.revive() } else { options }
        });
        builder.build().await.unwrap()
    };
    let old = build(&["a"], false).await;
    assert!(old.operators().remove_handler("h", &operator("ann")).await.unwrap());
    let new = build(&["b", "a"], true).await;
    for kind in ["b", "a"] {
        accept_new(&new, Envelope::new(kind, "{}").with_key("1")).await;
    }
    assert!(old.work_once().await.unwrap().is_empty());
    assert_eq!(new.work_until_idle().await.unwrap().done, 2);
    for kind in ["a", "b"] {
        assert_eq!(fixture.effects(kind).await, 1, "{kind}");
    }
}

/// Rules about errors are code of the application.
pub async fn a_rule_that_panics_does_not_stop_its_lane<F: Fixture<Store: LogStore>>(fixture: F) {
    let handler = async move |sample: Sample, _: &mut Conn<F>| -> Result<(), BoxError> {
        match &*sample.id {
            "fails" => Err(std::io::Error::other("failed").into()),
            _ => Ok(()),
        }
    };
    let builder = one_lane(&fixture).retry(AT_ONCE);
    let builder = builder.on_with("ledger", handler, |options| {
        options.permanent_if(|_: &std::io::Error| panic!("a rule that panics"))
    });
    let inbox = builder.build().await.unwrap();
    for id in ["before", "fails", "behind"] {
        accept_new(&inbox, sample(id)).await;
    }
    let report = inbox.work_until_idle().await.unwrap();
    assert_eq!((report.done, report.dead), (2, 1));
    assert_eq!(inbox.operators().dead_letters(Select::all(), 2).await.unwrap()[0].attempts.len(), 3);
}
