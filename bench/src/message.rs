//! The message that every contender handles: about 200 bytes of JSON.

use oncebox::Message;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// An order was paid.
#[derive(Clone, Debug, Message, Serialize, Deserialize)]
#[message(kind = "order.paid", key = "order_id")]
pub(crate) struct OrderPaid {
    pub(crate) order_id: Uuid,
    pub(crate) customer: String,
    pub(crate) cents: i64,
    pub(crate) note: String,
}

impl OrderPaid {
    /// The message of a number: the same number, the same message.
    pub(crate) fn numbered(number: u64) -> OrderPaid {
        OrderPaid {
            // Spread as ids from many producers are, so that no index is filled in order.
            order_id: Uuid::from_u64_pair(scatter(number), scatter(!number)),
            customer: format!("customer-{:08}", number % 10_000),
            cents: i64::from(u32::try_from(number % 100_000).unwrap_or_default()),
            note: "paid by card, to be shipped to the address on file within two days, with thanks".into(),
        }
    }

    /// The body as a broker delivers it.
    pub(crate) fn body(number: u64) -> Vec<u8> {
        serde_json::to_vec(&OrderPaid::numbered(number)).unwrap_or_default()
    }
}

/// A number that looks random, a different one for each (the finaliser of SplitMix64).
pub(crate) fn scatter(number: u64) -> u64 {
    let mut z = number.wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_has_about_200_bytes_and_is_read_back() {
        let body = OrderPaid::body(123_456);
        assert!((180..=220).contains(&body.len()), "{} bytes", body.len());
        let paid: OrderPaid = serde_json::from_slice(&body).unwrap();
        assert_eq!(paid.order_id, OrderPaid::numbered(123_456).order_id);
        assert_ne!(paid.order_id, OrderPaid::numbered(123_457).order_id);
    }
}
