//! What handlers may look like, and what becomes of what they return.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use oncebox::{
    Attempt, BoxError, Delivery, EffectId, Envelope, ErrorKind, Failure, Headers, Inbox, Key, Outcome,
    Rejection, Settlement, State,
};
use oncebox_testing::Fixture;

use crate::every_store::{Conn, OrderPaid, envelope, on_every_store, order};

on_every_store!(
    extractors_tell_about_the_delivery,
    a_set_handler_takes_what_is_there,
    a_raw_handler_takes_several_kinds,
    a_kind_that_nobody_handles_is_not_acknowledged,
    failures_say_what_happens_next,
    permanent_if_sees_the_error_s_own_type,
    a_retry_after_runs_later_once,
    an_error_type_of_one_s_own_needs_nothing,
    a_call_s_error_tells_bad_input_from_a_refusal,
);

async fn extractors_tell_about_the_delivery<F: Fixture>(fixture: F) {
    let seen: Arc<Mutex<Vec<String>>> = Arc::default();
    let effect_ids: Arc<Mutex<Vec<EffectId>>> = Arc::default();
    let (log, ids) = (seen.clone(), effect_ids.clone());
    let handler = async move |order: OrderPaid,
                              Attempt(attempt): Attempt,
                              headers: Headers,
                              key: Key,
                              id: EffectId,
                              tenant: State<&'static str>,
                              _: &mut Conn<F>| {
        let trace = headers.get("TRACEPARENT").unwrap_or_default().to_owned();
        log.lock().unwrap().push(format!("{} {attempt} {trace} {key} {}", order.cents, *tenant));
        ids.lock().unwrap().push(id);
        Err::<(), _>("again, please")
    };
    let whole =
        async |_: OrderPaid, delivery: Delivery, key: Option<Key>, _: &mut Conn<F>| -> Result<(), BoxError> {
            assert_eq!((delivery.handler(), delivery.key()), ("whole", key.as_ref()));
            assert_eq!(delivery.envelope().kind(), "order.paid");
            Ok(())
        };
    let inbox = Inbox::builder(fixture.store())
        .state("acme")
        .on("h", handler)
        .on("whole", whole)
        .build()
        .await
        .unwrap();
    for attempt in [1, 2] {
        let envelope = envelope("o-1").with_attempt(attempt).with_header("traceparent", "00-abc");
        let report = inbox.process(envelope).await.unwrap();
        assert!(!matches!(report.outcome("whole"), Some(Outcome::Retry { .. })), "{report:?}");
    }
    assert_eq!(*seen.lock().unwrap(), ["100 1 00-abc o-1 acme", "100 2 00-abc o-1 acme"]);
    let ids = effect_ids.lock().unwrap();
    assert_eq!(ids[0], ids[1], "every try has the same effect id");
    assert_eq!(ids[0], EffectId::of("h", "order.paid", &Key::from("o-1")));
}

async fn a_set_handler_takes_what_is_there<F: Fixture>(fixture: F) {
    let bulk = {
        let fixture = fixture.clone();
        async move |orders: Vec<OrderPaid>,
                    attempts: Vec<Attempt>,
                    rate: State<i64>,
                    conn: &mut Conn<F>|
                    -> Result<(), BoxError> {
            assert_eq!(orders.len(), attempts.len());
            assert_eq!(*rate, 7);
            for order in orders {
                fixture.effect(conn, &order.order_id).await?;
            }
            Ok(())
        }
    };
    let inbox = Inbox::builder(fixture.store()).state(7_i64).on("bulk", bulk).build().await.unwrap();
    for id in ["o-1", "o-2", "o-1"] {
        inbox.process(envelope(id)).await.unwrap();
    }
    assert_eq!((fixture.effects("o-1").await, fixture.effects("o-2").await), (1, 1));
}

async fn a_raw_handler_takes_several_kinds<F: Fixture>(fixture: F) {
    let raw = {
        let fixture = fixture.clone();
        async move |envelope: Envelope, conn: &mut Conn<F>| fixture.effect(conn, envelope.kind()).await
    };
    let inbox = Inbox::builder(fixture.store()).on_raw("audit", ["a", "b"], raw).build().await.unwrap();
    // Not JSON, not even text: a raw handler decodes as it likes. One key in two kinds is two messages.
    for kind in ["a", "b", "a", "b"] {
        inbox.process(Envelope::new(kind, [0xff, 0]).with_key("k")).await.unwrap();
    }
    assert_eq!((fixture.effects("a").await, fixture.effects("b").await), (1, 1));
}

async fn a_kind_that_nobody_handles_is_not_acknowledged<F: Fixture>(fixture: F) {
    let inbox = Inbox::builder(fixture.store()).build().await.unwrap();
    let report = inbox.process(envelope("o-1")).await.unwrap();
    assert!(!report.is_handled());
    assert_eq!(report.settlement(), Settlement::Reject);
}

async fn failures_say_what_happens_next<F: Fixture>(fixture: F) {
    let handler = {
        let fixture = fixture.clone();
        async move |order: OrderPaid, conn: &mut Conn<F>| -> Result<(), Failure> {
            fixture.effect(conn, &order.order_id).await?;
            match &*order.order_id {
                "later" => Err(Failure::after(Duration::from_secs(9), "busy")),
                "never" => Err(Failure::permanent("no such customer")),
                _ => Ok("again".parse::<i32>().map(drop)?),
            }
        }
    };
    let inbox = Inbox::builder(fixture.store()).on("h", handler).build().await.unwrap();
    let again = inbox.process(envelope("again")).await.unwrap();
    assert_eq!(again.settlement(), Settlement::Retry { after: None });
    let later = inbox.process(envelope("later")).await.unwrap();
    assert_eq!(later.settlement(), Settlement::Retry { after: Some(Duration::from_secs(9)) });
    let never = inbox.process(envelope("never")).await.unwrap();
    assert_eq!(never.settlement(), Settlement::Reject);
    let Some(Outcome::Rejected(rejection @ Rejection::Permanent(_))) = never.outcome("h") else {
        panic!("{never:?}")
    };
    assert!(rejection.to_string().contains("no such customer"), "{rejection}");
    for id in ["again", "later", "never"] {
        assert_eq!(fixture.effects(id).await, 0, "{id}");
        assert!(inbox.markers(id).await.unwrap().is_empty(), "{id}");
    }
}

#[derive(Debug)]
enum LedgerError {
    Closed,
    Slow,
}

impl std::fmt::Display for LedgerError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{self:?}")
    }
}

impl std::error::Error for LedgerError {}

async fn permanent_if_sees_the_error_s_own_type<F: Fixture>(fixture: F) {
    let handler = async |order: OrderPaid, _: &mut Conn<F>| match &*order.order_id {
        "closed" => Err::<(), _>(LedgerError::Closed),
        _ => Err(LedgerError::Slow),
    };
    let inbox = Inbox::builder(fixture.store())
        .on_with("h", handler, |options| {
            options.permanent_if(|error: &LedgerError| matches!(error, LedgerError::Closed))
        })
        .build()
        .await
        .unwrap();
    assert_eq!(inbox.process(envelope("closed")).await.unwrap().settlement(), Settlement::Reject);
    assert_eq!(
        inbox.process(envelope("slow")).await.unwrap().settlement(),
        Settlement::Retry { after: None }
    );
}

/// A deferred copy has the same key; it must not be taken for a duplicate of its own first try.
async fn a_retry_after_runs_later_once<F: Fixture>(fixture: F) {
    let tries = Arc::new(AtomicU32::new(0));
    let handler = {
        let fixture = fixture.clone();
        async move |order: OrderPaid, conn: &mut Conn<F>| -> Result<(), Failure> {
            if tries.fetch_add(1, Ordering::SeqCst) == 0 {
                return Err(Failure::after(Duration::from_millis(1), "not yet"));
            }
            fixture.effect(conn, &order.order_id).await?;
            Ok(())
        }
    };
    let inbox = Inbox::builder(fixture.store()).on("h", handler).build().await.unwrap();
    let names = async |times: usize| {
        let mut names = Vec::new();
        for _ in 0..times {
            names.push(inbox.process(envelope("deferred")).await.unwrap().outcome("h").unwrap().name());
        }
        names
    };
    assert_eq!(names(3).await, ["retry", "done", "duplicate"]);
    assert_eq!(fixture.effects("deferred").await, 1);
}

async fn an_error_type_of_one_s_own_needs_nothing<F: Fixture>(fixture: F) {
    let with_anyhow =
        async |_: OrderPaid, _: &mut Conn<F>| -> anyhow::Result<()> { anyhow::bail!("no ledger") };
    let inbox = Inbox::builder(fixture.store()).on("h", with_anyhow).build().await.unwrap();
    let error = inbox.call::<(), _>("h", &order("o-1")).await.unwrap_err();
    let cause = std::error::Error::source(&error).unwrap().to_string();
    assert!(cause.contains("no ledger"), "{cause}");
}

async fn a_call_s_error_tells_bad_input_from_a_refusal<F: Fixture>(fixture: F) {
    let handler = async |order: OrderPaid, _: &mut Conn<F>| -> Result<(), Failure> {
        match &*order.order_id {
            "later" => Err(Failure::after(Duration::from_secs(9), "busy")),
            "never" => Err(Failure::permanent("no such customer")),
            _ => Ok(()),
        }
    };
    let inbox = Inbox::builder(fixture.store()).max_body_bytes(100).on("h", handler).build().await.unwrap();
    let call = async |envelope: Envelope| inbox.call_envelope::<()>("h", envelope).await.unwrap_err();
    assert_eq!(call(envelope("never")).await.kind(), ErrorKind::Rejected);
    assert_eq!(call(envelope("")).await.kind(), ErrorKind::Key);
    assert_eq!(call(envelope("a").with_key(vec![0; 70_000])).await.kind(), ErrorKind::Key);
    assert_eq!(call(Envelope::new("order.paid", "?").with_key("a")).await.kind(), ErrorKind::Codec);
    assert_eq!(
        call(Envelope::new("order.paid", [b' '; 101]).with_key("a")).await.kind(),
        ErrorKind::TooLarge
    );
    assert_eq!(call(Envelope::new("other", "")).await.kind(), ErrorKind::Configuration);
    let later = call(envelope("later")).await;
    assert_eq!((later.kind(), later.retry_after()), (ErrorKind::Handler, Some(Duration::from_secs(9))));
}
