//! Keys and names: exact, whatever they are.

use oncebox_core::store::{Claims, Inspect, Store};
use oncebox_core::{Inbox, Key};

use crate::conformance::{Fixture, LIMITS, Sample, unit};

/// Keys that differ in one byte are different keys; equal ones are equal, however odd.
pub async fn keys_compare_byte_by_byte<F: Fixture>(fixture: F) {
    let store = fixture.store();
    let long = vec![b'x'; 600];
    let mut longer = long.clone();
    longer.push(b'x');
    // A key with the bytes of another key's stored digest must not be equal to that key.
    let digest_of_long = Key::new(&long).stored().as_bytes()[1..].to_vec();
    let keys: Vec<Vec<u8>> = vec![
        b"a".to_vec(),
        b"A".to_vec(),
        b" a".to_vec(),
        b"a ".to_vec(),
        b"a\0".to_vec(),
        b"\0".to_vec(),
        vec![0xff, 0xfe],
        vec![0xff],
        // A database with a Unicode collation could treat these two pairs as equal.
        "e\u{301}".into(),
        "\u{e9}".into(),
        "ß".into(),
        "ss".into(),
        b"'; drop table marker; --".to_vec(),
        // Stores keep keys of more than 512 bytes as a digest.
        vec![b'x'; 511],
        vec![b'x'; 512],
        vec![b'x'; 513],
        long,
        longer,
        digest_of_long,
        vec![0; Key::MAX_BYTES],
    ];
    for round in 0..2 {
        for key in &keys {
            let unit = unit("h", "k", &key[..]);
            let mut tx = store.begin(LIMITS).await.unwrap();
            let fresh = store.claim(&mut tx, std::slice::from_ref(&unit)).await.unwrap()[0].is_fresh();
            store.arm(&mut tx).await.unwrap();
            store.guard(&mut tx).await.unwrap();
            store.commit(tx).await.unwrap();
            assert_eq!(fresh, round == 0, "round {round}, {:?}", Key::new(key));
            let marker = store.marker(&unit).await.unwrap().unwrap();
            assert_eq!(marker.key.as_bytes(), key, "the key came back changed");
        }
    }
}

/// Handler names are values: quotes and other scripts are nothing special.
pub async fn names_may_have_quotes<F: Fixture>(fixture: F) {
    let names = ["o'brien", "say \"x\"", "a;b", "台帳", "back\\slash", "%s{}"];
    let mut builder = Inbox::builder(fixture.store());
    for name in names {
        let fixture = fixture.clone();
        builder = builder.on(name, async move |sample: Sample, conn: &mut <F::Store as Store>::Conn| {
            fixture.effect(conn, &sample.id).await
        });
    }
    let inbox = builder.build().await.unwrap();
    for _ in 0..2 {
        inbox.process(oncebox_core::Envelope::of(&Sample::new("quoted")).unwrap()).await.unwrap();
    }
    assert_eq!(fixture.effects("quoted").await, names.len() as u64);
    for name in names {
        assert!(inbox.marker(name, "sample", "quoted").await.unwrap().is_some(), "{name}");
    }
}
