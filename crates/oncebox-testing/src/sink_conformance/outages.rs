//! Outages, lost connections and callers that go away.

use std::collections::HashSet;

use oncebox_core::Sink;

use super::{
    SinkFixture, ids, is_confirmed, is_refused, is_unknown, numbered, publish, publish_until_confirmed,
    stored_ids,
};
use crate::source_conformance::polled;

/// So that no attempt is counted. It recovers by itself.
pub async fn a_stopped_destination_confirms_and_refuses_nothing<F: SinkFixture>(fixture: F) {
    let sink = fixture.sink().await;
    let wave = [numbered(1), numbered(2)];
    publish_until_confirmed(&sink, &wave[..1]).await;
    if !fixture.stop().await {
        return;
    }
    for _ in 0..3 {
        let verdicts = publish(&sink, &wave[1..]).await;
        assert!(verdicts.iter().all(is_unknown), "{verdicts:?}");
    }
    fixture.start().await;
    publish_until_confirmed(&sink, &wave[1..]).await;
    let stored: HashSet<_> = stored_ids(&fixture).await.into_iter().collect();
    assert_eq!(stored, ids(&wave).into_iter().collect());
}

/// Whatever was confirmed is there.
pub async fn a_sink_works_again_after_a_lost_connection<F: SinkFixture>(fixture: F) {
    let sink = fixture.sink().await;
    let mut confirmed = HashSet::new();
    for n in 0..10 {
        let wave: Vec<_> = (0..).take(F::Sink::WAVE.min(10)).map(numbered).collect();
        // Before the wave, and while it is sent.
        if n % 2 == 0 {
            fixture.end_connections().await;
        }
        let (verdicts, ()) = tokio::join!(publish(&sink, &wave), fixture.end_connections());
        assert!(!verdicts.iter().any(is_refused), "a lost connection refuses nothing: {verdicts:?}");
        let sent = wave.iter().zip(verdicts).filter(|(_, verdict)| is_confirmed(verdict));
        confirmed.extend(sent.map(|(message, _)| message.id.to_string()));
        publish_until_confirmed(&sink, &wave).await;
        confirmed.extend(ids(&wave));
    }
    let stored: HashSet<_> = stored_ids(&fixture).await.into_iter().collect();
    assert_eq!(stored, confirmed);
}

/// After its first poll, its second one, and so on. Later verdicts belong to later waves.
pub async fn a_dropped_publish_leaves_the_sink_usable<F: SinkFixture>(fixture: F) {
    let sink = fixture.sink().await;
    for polls in 1..=15 {
        let dropped = [numbered(0), fixture.unroutable(numbered(1)), numbered(2)];
        let dropped = &dropped[..F::Sink::WAVE.min(3)];
        polled(polls, sink.publish(dropped)).await;
        let wave = [fixture.unroutable(numbered(3))];
        let verdicts = publish(&sink, &wave).await;
        assert!(!is_confirmed(&verdicts[0]), "it has the verdict of another message");
        let wave = [numbered(4)];
        publish_until_confirmed(&sink, &wave).await;
        let stored = stored_ids(&fixture).await;
        assert!(stored.contains(&wave[0].id.to_string()), "confirmed and not stored");
    }
}
