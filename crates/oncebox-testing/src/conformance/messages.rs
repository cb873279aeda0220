//! Messages: bodies, results, calls.

use std::sync::{Arc, OnceLock};

use oncebox_core::store::Store;
use oncebox_core::{
    BoxError, Envelope, Error, ErrorKind, Inbox, KeyReuse, Once, Outcome, Rejection, Reply, Settlement,
};

use crate::conformance::{Fixture, Sample};

type Conn<F> = <<F as Fixture>::Store as Store>::Conn;

/// A known key with another body is not a duplicate, and never runs.
pub async fn another_body_under_a_known_key_is_reported<F: Fixture>(fixture: F) {
    let inbox = |policy| {
        let handler = {
            let fixture = fixture.clone();
            async move |sample: Sample, conn: &mut Conn<F>| fixture.effect(conn, &sample.id).await
        };
        Inbox::builder(fixture.store()).key_reuse(policy).on("h", handler).build()
    };
    let first = Envelope::of(&Sample { id: "reused".into(), text: "one".into() }).unwrap();
    let other = Envelope::of(&Sample { id: "reused".into(), text: "two".into() }).unwrap();

    let skipping = inbox(KeyReuse::Skip).await.unwrap();
    skipping.process(first.clone()).await.unwrap();
    let report = skipping.process(other.clone()).await.unwrap();
    assert!(matches!(report.outcome("h"), Some(Outcome::KeyReuse)), "{report:?}");
    assert_eq!(report.settlement(), Settlement::Ack);

    let rejecting = inbox(KeyReuse::Reject).await.unwrap();
    let report = rejecting.process(other).await.unwrap();
    assert!(matches!(report.outcome("h"), Some(Outcome::Rejected(Rejection::KeyReuse))), "{report:?}");
    assert_eq!(report.settlement(), Settlement::Reject);
    let report = rejecting.process(first).await.unwrap();
    assert!(matches!(report.outcome("h"), Some(Outcome::Duplicate)), "{report:?}");
    assert_eq!(fixture.effects("reused").await, 1);
}

/// A body of a whole mebibyte, a result as large, and a byte more than that.
pub async fn a_megabyte_goes_through<F: Fixture>(fixture: F) {
    let inbox = Inbox::builder(fixture.store())
        .on_raw(
            "h",
            ["blob"],
            async |envelope: Envelope, _: &mut Conn<F>| -> Result<Reply<Vec<u8>>, BoxError> {
                Ok(Reply(envelope.body().to_vec()))
            },
        )
        .build()
        .await
        .unwrap();
    let body: Vec<u8> = (0..1024 * 1024_u32).map(|n| n.to_le_bytes()[1]).collect();
    let call = || inbox.call_envelope::<Vec<u8>>("h", Envelope::new("blob", body.clone()).with_key("blob"));
    assert_eq!(call().await.unwrap(), Once::Fresh(body.clone()));
    assert_eq!(call().await.unwrap(), Once::Replayed(body.clone()));

    let mut larger = body.clone();
    larger.push(0);
    let report = inbox.process(Envelope::new("blob", larger).with_key("larger")).await.unwrap();
    assert!(matches!(report.outcome("h"), Some(Outcome::Rejected(Rejection::TooLarge { .. }))), "{report:?}");
    assert!(inbox.markers("larger").await.unwrap().is_empty());
}

/// `once` runs its closure once per key and gives its result ever after.
pub async fn once_keeps_its_result<F: Fixture>(fixture: F) {
    let inbox = Inbox::builder(fixture.store()).build().await.unwrap();
    let charge = |key: &'static str, amount: u32, fails: bool| {
        let (inbox, fixture) = (inbox.clone(), fixture.clone());
        async move {
            inbox
                .once("charge", key, async |conn: &mut Conn<F>| -> Result<u32, Error> {
                    if fails {
                        return Err(Error::new(ErrorKind::Handler, "declined"));
                    }
                    fixture.effect(conn, key).await.map_err(|error| Error::unavailable("effect", error))?;
                    Ok(amount)
                })
                .await
        }
    };
    assert_eq!(charge("once-a", 1, true).await.unwrap_err().to_string(), "declined");
    assert_eq!(charge("once-a", 2, false).await.unwrap(), Once::Fresh(2));
    assert_eq!(charge("once-a", 3, false).await.unwrap(), Once::Replayed(2));
    assert_eq!(charge("once-b", 4, false).await.unwrap(), Once::Fresh(4));
    assert_eq!(charge("", 5, false).await.unwrap_err().kind(), ErrorKind::Key);

    let together: Vec<_> = (0..16).map(|n| tokio::spawn(charge("once-c", n, false))).collect();
    let mut answers = Vec::new();
    for one in together {
        answers.push(one.await.unwrap().unwrap());
    }
    assert_eq!(answers.iter().filter(|answer| !answer.is_replayed()).count(), 1);
    let values: std::collections::HashSet<u32> = answers.into_iter().map(Once::into_inner).collect();
    assert_eq!(values.len(), 1, "all callers got the same result");
    assert_eq!((fixture.effects("once-a").await, fixture.effects("once-c").await), (1, 1));
}

/// `call` gives the first run's reply to every copy.
pub async fn a_call_gives_its_reply_to_copies_too<F: Fixture>(fixture: F) {
    let handler = {
        let fixture = fixture.clone();
        async move |sample: Sample, conn: &mut Conn<F>| -> Result<Reply<String>, BoxError> {
            fixture.effect(conn, &sample.id).await?;
            Ok(Reply(format!("receipt for {}", sample.id)))
        }
    };
    let silent = async |_: Sample, _: &mut Conn<F>| {};
    let inbox =
        Inbox::builder(fixture.store()).on("charge", handler).on("silent", silent).build().await.unwrap();
    let sample = Sample::new("called");
    let receipt = "receipt for called".to_owned();
    assert_eq!(inbox.call::<String, _>("charge", &sample).await.unwrap(), Once::Fresh(receipt.clone()));
    assert_eq!(inbox.call::<String, _>("charge", &sample).await.unwrap(), Once::Replayed(receipt));
    assert_eq!(fixture.effects("called").await, 1);

    let error = inbox.call::<u32, _>("charge", &sample).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Codec);
    let error = inbox.call::<String, _>("silent", &sample).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoResult);
    let error = inbox.call::<String, _>("absent", &sample).await.unwrap_err();
    assert!(error.to_string().contains("charge, silent"), "{error}");
}

/// A handler that calls its own inbox gets an error instead of waiting for itself.
pub async fn a_handler_cannot_call_its_own_inbox<F: Fixture>(fixture: F) {
    let own: Arc<OnceLock<Inbox<F::Store>>> = Arc::default();
    let handler = {
        let own = own.clone();
        async move |sample: Sample, _: &mut Conn<F>| -> Result<(), BoxError> {
            let inbox = own.get().ok_or("not set")?;
            inbox.process(Envelope::of(&sample)?).await?;
            Ok(())
        }
    };
    let inbox = Inbox::builder(fixture.store()).on("h", handler).build().await.unwrap();
    own.set(inbox.clone()).unwrap();
    let report = inbox.process(Envelope::of(&Sample::new("nested")).unwrap()).await.unwrap();
    let Some(Outcome::Retry { cause, .. }) = report.outcome("h") else { panic!("{report:?}") };
    assert!(cause.to_string().contains("its own inbox"), "{cause}");
}
