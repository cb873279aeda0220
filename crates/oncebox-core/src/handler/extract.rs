//! Extractors: handler parameters that are filled from the delivery.

use std::fmt;
use std::sync::Arc;

use sha2::{Digest, Sha256};
use uuid::Uuid;

use crate::handler::cancellation::Cancellation;
use crate::handler::state::{Requirement, State, States};
use crate::store::Place;
use crate::{Envelope, Failure, Headers, Key};

/// One message for one handler, with its metadata.
#[derive(Clone, Debug)]
pub struct Delivery {
    pub(crate) handler: Arc<str>,
    pub(crate) envelope: Arc<Envelope>,
    pub(crate) key: Option<Key>,
    pub(crate) effect_id: EffectId,
    pub(crate) is_replay: bool,
    pub(crate) cancellation: Cancellation,
    pub(crate) states: Arc<States>,
}

impl Delivery {
    /// The handler's registered name.
    pub fn handler(&self) -> &str {
        &self.handler
    }

    /// The envelope as it arrived.
    pub fn envelope(&self) -> &Envelope {
        &self.envelope
    }

    /// The key that deduplicates the message; `None` if the handler runs without dedup and the message has no key.
    pub fn key(&self) -> Option<&Key> {
        self.key.as_ref()
    }
}

/// A handler parameter between the message and the connection.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be a handler's parameter",
    label = "not filled from a delivery",
    note = "a handler takes the message first, then any of `Attempt`, `Headers`, `Key`, `EffectId`, `Replay`, \
            `Cancellation`, `State<T>`, `Delivery`, and last the connection, e.g. `&mut SqliteConnection`"
)]
pub trait FromDelivery: Sized + Send {
    /// The states that must have been given to the builder.
    fn requirements() -> Vec<Requirement> {
        Vec::new()
    }

    /// Extracts the value from a delivery.
    fn from_delivery(delivery: &Delivery) -> Result<Self, Failure>;
}

/// A set handler's parameter between the messages and the connection.
///
/// It is `State<T>`, or a `Vec` of a single handler's parameters, with one item per message.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be a set handler's parameter",
    note = "a set handler takes `Vec<Message>` first, then `State<T>` or `Vec<Attempt>`, `Vec<Headers>`, …, and last \
            the connection"
)]
pub trait FromBatch: Sized + Send {
    /// The states that must have been given to the builder.
    fn requirements() -> Vec<Requirement> {
        Vec::new()
    }

    /// Extracts the value from a set of deliveries.
    fn from_batch(deliveries: &[Delivery]) -> Result<Self, Failure>;
}

impl<A: FromDelivery> FromBatch for Vec<A> {
    fn requirements() -> Vec<Requirement> {
        A::requirements()
    }

    fn from_batch(deliveries: &[Delivery]) -> Result<Self, Failure> {
        deliveries.iter().map(A::from_delivery).collect()
    }
}

impl<T: Clone + Send + Sync + 'static> FromBatch for State<T> {
    fn requirements() -> Vec<Requirement> {
        vec![Requirement::of::<T>()]
    }

    fn from_batch(deliveries: &[Delivery]) -> Result<Self, Failure> {
        // Any delivery will do: all of an inbox share its states.
        let first = deliveries.first().ok_or("an empty batch has no state")?;
        Self::from_delivery(first)
    }
}

impl<T: Clone + Send + Sync + 'static> FromDelivery for State<T> {
    fn requirements() -> Vec<Requirement> {
        vec![Requirement::of::<T>()]
    }

    fn from_delivery(delivery: &Delivery) -> Result<Self, Failure> {
        // `build()` has checked this, except for extractors that call this one and do not pass on its requirements.
        Self::from_states(&delivery.states).ok_or_else(|| {
            format!("no state of type {}: add .state(…) to the builder", std::any::type_name::<T>()).into()
        })
    }
}

/// The number of this attempt, counted from 1.
///
/// Inline it is the broker's count of deliveries. From the log it is the number of failed attempts plus one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attempt(pub u32);

impl FromDelivery for Attempt {
    fn from_delivery(delivery: &Delivery) -> Result<Self, Failure> {
        Ok(Self(delivery.envelope.attempt()))
    }
}

/// Whether an operator has requested this run, of a message that the handler may have handled before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Replay(pub bool);

impl FromDelivery for Replay {
    fn from_delivery(delivery: &Delivery) -> Result<Self, Failure> {
        Ok(Self(delivery.is_replay))
    }
}

impl FromDelivery for Headers {
    fn from_delivery(delivery: &Delivery) -> Result<Self, Failure> {
        Ok(delivery.envelope.headers().clone())
    }
}

impl FromDelivery for Key {
    fn from_delivery(delivery: &Delivery) -> Result<Self, Failure> {
        delivery.key.clone().ok_or_else(|| {
            "the message has no key: take `Option<Key>` in a handler that runs without dedup".into()
        })
    }
}

impl FromDelivery for Option<Key> {
    fn from_delivery(delivery: &Delivery) -> Result<Self, Failure> {
        Ok(delivery.key.clone())
    }
}

impl FromDelivery for Delivery {
    fn from_delivery(delivery: &Delivery) -> Result<Self, Failure> {
        Ok(delivery.clone())
    }
}

/// The idempotency key for calls outside the transaction: the same for every attempt of a handler on a message.
///
/// Pass it to the other system, so that a repeated call takes effect once there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct EffectId(Uuid);

impl EffectId {
    /// The id for a handler, a kind and a key.
    ///
    /// Each part is hashed with its length, so that no two units have the same id.
    pub fn of(handler: &str, kind: &str, key: &Key) -> Self {
        // Other systems store these ids, so callers pass the handler's first name: it outlives a rename.
        let mut hash = Sha256::new();
        for part in [handler.as_bytes(), kind.as_bytes(), key.as_bytes()] {
            hash.update((part.len() as u64).to_le_bytes());
            hash.update(part);
        }
        let mut bytes = [0; 16];
        bytes.copy_from_slice(&hash.finalize()[..16]);
        // UUID version 8, which is for custom bytes such as this digest.
        Self(uuid::Builder::from_custom_bytes(bytes).into_uuid())
    }

    /// The id for a message in the log without a key.
    pub(crate) fn at(handler: &str, place: Place) -> Self {
        // No message has this kind: names that start with `@` are reserved.
        Self::of(handler, "@place", &Key::from(format!("{}:{}", place.lane, place.pos)))
    }

    /// An id for an inline message without a key: nothing connects its deliveries, so each has its own effect.
    pub(crate) fn unique() -> Self {
        Self(Uuid::now_v7())
    }

    /// The id as a UUID.
    pub fn as_uuid(self) -> Uuid {
        self.0
    }
}

impl fmt::Display for EffectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromDelivery for EffectId {
    fn from_delivery(delivery: &Delivery) -> Result<Self, Failure> {
        Ok(delivery.effect_id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Effect ids are passed to other systems: a change here means that they see a second request.
    #[test]
    fn golden_vectors() {
        let id =
            |handler: &str, kind: &str, key: &str| EffectId::of(handler, kind, &Key::from(key)).to_string();
        assert_eq!(id("ledger", "order.paid", "o-1"), "eeec7ad4-38cf-87ee-9994-f006f21fafc3");
        assert_ne!(id("ab", "c", "d"), id("a", "bc", "d"));
    }
}
