//! Sinks that keep the order of an ordering key.

use std::collections::HashMap;

use oncebox_core::{Outgoing, Sink};

use super::{SinkFixture, is_confirmed, is_refused, ordered, publish};

/// Of a sink that declares it. The others of the wave are sent.
pub async fn nothing_overtakes_a_failed_message_of_its_ordering_key<F: SinkFixture>(fixture: F) {
    if !F::Sink::KEEPS_ORDER {
        return;
    }
    let sink = fixture.sink().await;
    let keys = ["a", "b", "c"];
    let message = |n: u32| ordered(n, keys[n as usize % keys.len()]);
    // The third message of key a, and the first one of key b.
    let is_bad = |n| n == 6 || n == 1;
    let wave: Vec<Outgoing> =
        (0..12).map(|n| if is_bad(n) { fixture.unroutable(message(n)) } else { message(n) }).collect();
    let verdicts = publish(&sink, &wave).await;
    for (n, verdict) in (0..).zip(&verdicts) {
        let is_behind = (n % 3 == 0 && n >= 6) || n % 3 == 1;
        assert_eq!(is_confirmed(verdict), !is_behind, "message {n}: {verdict:?}");
        assert_eq!(is_refused(verdict), is_bad(n), "message {n}: {verdict:?}");
    }
    let mut of_key: HashMap<_, Vec<u32>> = HashMap::new();
    for stored in fixture.stored().await {
        let n = std::str::from_utf8(&stored.body).unwrap().parse().unwrap();
        of_key.entry(stored.order_by).or_default().push(n);
    }
    let found = |key: &str| of_key.get(&Some(key.into())).cloned().unwrap_or_default();
    assert_eq!((found("a"), found("b"), found("c")), (vec![0, 3], vec![], vec![2, 5, 8, 11]));
}
