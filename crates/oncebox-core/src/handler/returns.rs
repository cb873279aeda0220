//! Return values of handlers.

use std::marker::PhantomData;
use std::time::SystemTime;

use serde::Serialize;

use crate::{Envelope, Error, Failure, Key, Message};

/// A result that is stored with the marker, so that duplicates receive it too; see [`Inbox::call`](crate::Inbox::call).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reply<T>(pub T);

/// A message that the handler publishes through the [outbox](crate::Outbox) of its inbox, in the transaction of its own effect. A
/// duplicate runs nothing, and so publishes nothing.
///
/// ```ignore
/// async fn ship(order: OrderPaid, db: &mut PgConnection) -> Result<Publish<Shipped>, sqlx::Error> {
///     let shipped = book(&order, db).await?;
///     Ok(Publish::new(&shipped).with_order_by(order.customer))
/// }
/// ```
#[derive(Debug)]
pub struct Publish<M> {
    envelope: Result<Envelope, Error>,
    message: PhantomData<fn() -> M>,
}

impl<M: Message> Publish<M> {
    /// Publishes a message, with its own key and ordering key.
    pub fn new(message: &M) -> Self {
        Self { envelope: Envelope::of(message), message: PhantomData }
    }

    /// Sets the message's key. It takes precedence over the message's own key.
    #[must_use]
    pub fn with_key(self, key: impl Into<Key>) -> Self {
        self.with(|envelope| envelope.with_key(key))
    }

    /// Sets the ordering key. It takes precedence over the message's own ordering key.
    #[must_use]
    pub fn with_order_by(self, order_by: impl Into<Key>) -> Self {
        self.with(|envelope| envelope.with_order_by(order_by))
    }

    /// Adds a header.
    #[must_use]
    pub fn with_header(self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.with(|envelope| envelope.with_header(name, value))
    }

    /// Sets the time of the event that the message reports.
    #[must_use]
    pub fn with_occurred_at(self, at: SystemTime) -> Self {
        self.with(|envelope| envelope.with_occurred_at(at))
    }

    /// Sets the due time: receivers do not handle the message before it.
    #[must_use]
    pub fn with_due_at(self, at: SystemTime) -> Self {
        self.with(|envelope| envelope.with_due_at(at))
    }

    fn with(self, change: impl FnOnce(Envelope) -> Envelope) -> Self {
        Self { envelope: self.envelope.map(change), message: PhantomData }
    }
}

/// The result of a handler run: its [`Reply`], if it returned one, and the messages that it publishes.
#[derive(Debug, Default)]
pub struct Returned {
    pub(crate) result: Option<Vec<u8>>,
    pub(crate) published: Vec<Envelope>,
}

/// The return value of a handler: `()`, [`Reply<T>`], [`Publish<M>`], a `Vec` or an `Option` of messages to publish, a pair of
/// these, or a `Result` of them with any error.
#[diagnostic::on_unimplemented(
    message = "a handler cannot return `{Self}`",
    note = "return `()`, `Reply<T>`, `Publish<M>`, `Vec<Publish<M>>`, a pair of these such as `(Reply<T>, Publish<M>)`, or a \
            `Result` of them whose error is a `Failure` or any `std::error::Error`"
)]
pub trait IntoReturned: Send {
    /// Whether the value can publish messages. Then the inbox needs an outbox.
    const PUBLISHES: bool = false;

    /// Converts the value into a success or a failure.
    fn into_returned(self) -> Result<Returned, Failure>;
}

impl IntoReturned for () {
    fn into_returned(self) -> Result<Returned, Failure> {
        Ok(Returned::default())
    }
}

impl<T: Serialize + Send> IntoReturned for Reply<T> {
    fn into_returned(self) -> Result<Returned, Failure> {
        // Permanent: a result without a JSON form has none at the next attempt either.
        let result = serde_json::to_vec(&self.0).map_err(Failure::permanent)?;
        Ok(Returned { result: Some(result), published: Vec::new() })
    }
}

impl<M: Message> IntoReturned for Publish<M> {
    const PUBLISHES: bool = true;

    fn into_returned(self) -> Result<Returned, Failure> {
        // Permanent: a message that cannot be encoded cannot be encoded at the next attempt either.
        let envelope = self.envelope.map_err(Failure::permanent)?;
        Ok(Returned { result: None, published: vec![envelope] })
    }
}

impl<P: IntoReturned> IntoReturned for Vec<P> {
    const PUBLISHES: bool = P::PUBLISHES;

    fn into_returned(self) -> Result<Returned, Failure> {
        self.into_iter().try_fold(Returned::default(), |all, one| all.and(one.into_returned()?))
    }
}

impl<P: IntoReturned> IntoReturned for Option<P> {
    const PUBLISHES: bool = P::PUBLISHES;

    fn into_returned(self) -> Result<Returned, Failure> {
        self.map_or_else(|| Ok(Returned::default()), P::into_returned)
    }
}

impl<A: IntoReturned, B: IntoReturned> IntoReturned for (A, B) {
    const PUBLISHES: bool = A::PUBLISHES || B::PUBLISHES;

    fn into_returned(self) -> Result<Returned, Failure> {
        self.0.into_returned()?.and(self.1.into_returned()?)
    }
}

impl Returned {
    fn and(mut self, other: Self) -> Result<Self, Failure> {
        if self.result.is_some() && other.result.is_some() {
            return Err(Failure::permanent("the handler returned two replies: return one"));
        }
        self.result = self.result.or(other.result);
        self.published.extend(other.published);
        Ok(self)
    }
}

impl<R: IntoReturned, E: Into<Failure> + Send> IntoReturned for Result<R, E> {
    const PUBLISHES: bool = R::PUBLISHES;

    fn into_returned(self) -> Result<Returned, Failure> {
        self.map_err(Into::into)?.into_returned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(serde::Serialize, serde::Deserialize)]
    struct Shipped(u32);

    impl Message for Shipped {
        const KIND: &'static str = "shipped";
        type Codec = crate::Json;

        fn key(&self) -> Option<Key> {
            Some(Key::from(self.0))
        }
    }

    fn returned<R: IntoReturned>(value: R) -> (bool, Option<String>, Vec<String>) {
        let Returned { result, published } = value.into_returned().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let bodies = published.iter().map(|envelope| text(envelope.body())).collect();
        (R::PUBLISHES, result.as_deref().map(text), bodies)
    }

    fn publish(number: u32) -> Publish<Shipped> {
        Publish::new(&Shipped(number))
    }

    #[test]
    fn a_value_holds_a_reply_and_messages() {
        let texts = |all: &[&str]| all.iter().map(ToString::to_string).collect::<Vec<_>>();
        let five = Some("5".to_owned());
        assert_eq!(returned(()), (false, None, vec![]));
        assert_eq!(returned(Reply(5)), (false, five.clone(), vec![]));
        assert_eq!(returned(publish(1)), (true, None, texts(&["1"])));
        assert_eq!(returned(vec![publish(1), publish(2)]), (true, None, texts(&["1", "2"])));
        assert_eq!(returned(None::<Publish<Shipped>>), (true, None, vec![]));
        assert_eq!(returned((Reply(5), publish(1))), (true, five.clone(), texts(&["1"])));
        assert_eq!(returned((vec![publish(1)], Reply(5))), (true, five, texts(&["1"])));
        assert_eq!(returned(Ok::<_, Failure>((publish(1), publish(2)))), (true, None, texts(&["1", "2"])));
    }

    #[test]
    fn two_replies_are_a_failure() {
        (Reply(1), Reply(2)).into_returned().unwrap_err();
        vec![Reply(1), Reply(2)].into_returned().unwrap_err();
    }

    #[test]
    fn options_of_a_message_are_those_of_its_envelope() {
        let at = SystemTime::UNIX_EPOCH;
        let published = publish(1)
            .with_order_by("customer-1")
            .with_header("a", "b")
            .with_occurred_at(at)
            .with_due_at(at)
            .with_key("other")
            .into_returned()
            .unwrap()
            .published;
        let [envelope] = &published[..] else { panic!("{published:?}") };
        assert_eq!(
            (envelope.key(), envelope.order_by()),
            (Some(&"other".into()), Some(&"customer-1".into()))
        );
        assert_eq!((envelope.occurred_at(), envelope.due_at()), (Some(at), Some(at)));
        assert_eq!(envelope.headers().get("a"), Some("b"));
        assert_eq!(publish(1).into_returned().unwrap().published[0].key(), Some(&1_u32.into()));
    }
}
