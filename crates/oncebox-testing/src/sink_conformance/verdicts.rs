//! Which verdict each message of a wave gets.

use std::collections::HashSet;

use oncebox_core::{Outgoing, Sink};

use super::{SinkFixture, full, ids, is_confirmed, is_refused, numbered, ordered, publish, stored_ids};

/// Id, kind, headers, ordering key, body and time. An empty body is a body too.
pub async fn confirmed_messages_are_stored_unchanged<F: SinkFixture>(fixture: F) {
    let wave = [full(), Outgoing::new("note", "")];
    let verdicts = publish(&fixture.sink().await, &wave).await;
    assert!(verdicts.iter().all(is_confirmed), "{verdicts:?}");
    let stored = fixture.stored().await;
    assert_eq!(stored.len(), 2);
    for (stored, sent) in stored.iter().zip(&wave) {
        let expected = fixture.as_stored(sent);
        assert_eq!(stored.message_id, expected.message_id);
        assert_eq!(stored.kind, expected.kind);
        assert_eq!(stored.body, expected.body);
        assert_eq!(stored.order_by, expected.order_by);
        assert_eq!(stored.occurred_at, expected.occurred_at);
        for (name, value) in expected.headers.headers.iter() {
            assert_eq!(stored.headers.headers.get(name), Some(value), "{name}");
        }
    }
}

/// Also an empty one.
pub async fn a_wave_of_any_size_is_confirmed<F: SinkFixture>(fixture: F) {
    let sink = fixture.sink().await;
    assert!(publish(&sink, &[]).await.is_empty());
    let waves = [wave_of(1), wave_of(F::Sink::WAVE)];
    for wave in &waves {
        let verdicts = publish(&sink, wave).await;
        assert!(verdicts.iter().all(is_confirmed), "{verdicts:?}");
    }
    assert_eq!(stored_ids(&fixture).await, [ids(&waves[0]), ids(&waves[1])].concat());
}

/// The first and the last one count too.
pub async fn verdicts_are_in_the_order_of_their_messages<F: SinkFixture>(fixture: F) {
    let sink = fixture.sink().await;
    for unroutable in 0..4 {
        let message = |n| if n == unroutable { fixture.unroutable(numbered(n)) } else { numbered(n) };
        let wave: Vec<_> = (0..4).map(message).collect();
        for (n, verdict) in (0..).zip(publish(&sink, &wave).await) {
            assert_eq!(is_refused(&verdict), n == unroutable, "message {n}: {verdict:?}");
            assert_eq!(is_confirmed(&verdict), n != unroutable, "message {n}: {verdict:?}");
        }
    }
}

/// Every tenth one. The others arrive, each once.
pub async fn exactly_the_unroutable_messages_of_a_wave_are_refused<F: SinkFixture>(fixture: F) {
    let sink = fixture.sink().await;
    let mut routable = HashSet::new();
    let messages: Vec<_> =
        (0..1000).map(|n| if n % 10 == 3 { fixture.unroutable(numbered(n)) } else { numbered(n) }).collect();
    for (start, wave) in (0..).step_by(F::Sink::WAVE).zip(messages.chunks(F::Sink::WAVE)) {
        for ((n, message), verdict) in (start..).zip(wave).zip(publish(&sink, wave).await) {
            assert_eq!(is_refused(&verdict), n % 10 == 3, "message {n}: {verdict:?}");
            assert_eq!(is_confirmed(&verdict), n % 10 != 3, "message {n}: {verdict:?}");
            if n % 10 != 3 {
                routable.insert(message.id.to_string());
            }
        }
    }
    let stored = stored_ids(&fixture).await;
    assert_eq!(stored.len(), 900);
    assert_eq!(stored.into_iter().collect::<HashSet<_>>(), routable);
}

/// A relay sends several.
pub async fn waves_at_the_same_time_have_verdicts_of_their_own<F: SinkFixture>(fixture: F) {
    let sink = fixture.sink().await;
    let routable = wave_of(F::Sink::WAVE.min(20));
    let unroutable: Vec<_> =
        routable.iter().map(|_| fixture.unroutable(Outgoing::new("note", "refused"))).collect();
    let more = wave_of(routable.len());
    let (one, two, three) =
        tokio::join!(publish(&sink, &routable), publish(&sink, &unroutable), publish(&sink, &more));
    assert!(one.iter().chain(&three).all(is_confirmed), "{one:?}, {three:?}");
    assert!(two.iter().all(is_refused), "{two:?}");
    let stored: HashSet<_> = stored_ids(&fixture).await.into_iter().collect();
    assert_eq!(stored, ids(&routable).into_iter().chain(ids(&more)).collect());
}

/// A receiver deduplicates by it. A destination may do so itself.
pub async fn a_copy_has_the_same_id<F: SinkFixture>(fixture: F) {
    let sink = fixture.sink().await;
    let wave = [ordered(1, "customer-7")];
    for _ in 0..2 {
        let verdicts = publish(&sink, &wave).await;
        assert!(verdicts.iter().all(is_confirmed), "{verdicts:?}");
    }
    let stored = stored_ids(&fixture).await;
    assert!(!stored.is_empty() && stored.len() <= 2, "{stored:?}");
    assert!(stored.iter().all(|id| *id == wave[0].id.to_string()), "{stored:?}");
}

fn wave_of(count: usize) -> Vec<Outgoing> {
    (0..).take(count).map(numbered).collect()
}
