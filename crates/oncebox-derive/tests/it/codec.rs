//! `codec`: the codec that encodes and decodes bodies.

use std::error::Error;

use oncebox::{Codec, Json, Message};
use serde::{Deserialize, Serialize};

fn round_trip<M: Message>(message: &M) -> (Vec<u8>, M) {
    let body = M::Codec::encode(message).unwrap();
    let back = M::Codec::decode(&body).unwrap();
    (body, back)
}

#[test]
fn json_is_the_default() {
    #[derive(Message, Serialize, Deserialize)]
    #[message(kind = "n", key = "n")]
    struct Number {
        n: u8,
    }
    let (body, back) = round_trip(&Number { n: 7 });
    assert_eq!(body, br#"{"n":7}"#);
    assert_eq!(back.n, 7);
    assert!(<Json as Codec<Number>>::decode(b"{").is_err());
}

#[test]
fn a_message_with_a_codec_of_its_own_needs_no_serde() {
    /// Numbers as bytes, most significant first; `WIDTH` makes the codec generic.
    struct BigEndian<const WIDTH: usize>;
    impl Codec<Number> for BigEndian<4> {
        fn encode(message: &Number) -> Result<Vec<u8>, Box<dyn Error + Send + Sync>> {
            Ok(message.0.to_be_bytes().into())
        }
        fn decode(body: &[u8]) -> Result<Number, Box<dyn Error + Send + Sync>> {
            Ok(Number(u32::from_be_bytes(body.try_into()?)))
        }
    }
    #[derive(Message)]
    #[message(kind = "n", key = "0", codec = BigEndian<4>)]
    struct Number(u32);

    let (body, back) = round_trip(&Number(258));
    assert_eq!(body, [0, 0, 1, 2]);
    assert_eq!(back.0, 258);
}
