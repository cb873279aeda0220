//! The message: a typed value with a kind, a key and a codec.

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::{Error, Key};

/// A type that arrives as a message.
///
/// Usually derived:
///
/// ```ignore
/// #[derive(Message, Serialize, Deserialize)]
/// #[message(kind = "order.paid", key = "order_id")]
/// struct OrderPaid { order_id: Uuid, cents: i64 }
/// ```
///
/// or written by hand where the key needs a few lines of code:
///
/// ```
/// use oncebox_core::{Json, Key, Message};
///
/// #[derive(serde::Serialize, serde::Deserialize)]
/// struct Webhook { id: String }
///
/// impl Message for Webhook {
///     const KIND: &'static str = "stripe.webhook";
///     type Codec = Json;
///     fn key(&self) -> Option<Key> {
///         Some(Key::from(format!("stripe:{}", self.id)))
///     }
/// }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a message",
    label = "has no kind and no key",
    note = "add `#[derive(Message)]` and `#[message(kind = \"...\", key = \"...\")]`, or implement `Message`"
)]
pub trait Message: Sized + Send + Sync + 'static {
    /// The name of this type of message on the wire and in the database. It outlives renames of the type.
    const KIND: &'static str;

    /// How bodies are read and written; [`Json`] unless the message says otherwise.
    type Codec: Codec<Self>;

    /// What identifies the message, if its own fields say so.
    fn key(&self) -> Option<Key> {
        None
    }

    /// The key made from the whole content, for a message that asked for it (`key = content`).
    fn content_key(&self) -> Option<Result<Key, Error>> {
        None
    }

    /// Messages with equal ordering keys can be handled in the order in which they were accepted.
    fn order_by(&self) -> Option<Key> {
        None
    }
}

/// Reads and writes the bodies of one type of message.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot read and write `{M}`",
    note = "the codec `Json` needs `serde::Serialize` and `serde::Deserialize` on the message"
)]
pub trait Codec<M>: 'static {
    /// The body that stands for the message.
    fn encode(message: &M) -> Result<Vec<u8>, Box<dyn std::error::Error + Send + Sync>>;

    /// The message that a body stands for. Called inside the guarded unit: an error rejects the delivery.
    fn decode(body: &[u8]) -> Result<M, Box<dyn std::error::Error + Send + Sync>>;
}

/// The default codec: JSON through serde, with a limited depth.
#[derive(Clone, Copy, Debug)]
pub struct Json;

impl<M: Serialize + DeserializeOwned> Codec<M> for Json {
    fn encode(message: &M) -> Result<Vec<u8>, Box<dyn std::error::Error + Send + Sync>> {
        Ok(serde_json::to_vec(message)?)
    }

    fn decode(body: &[u8]) -> Result<M, Box<dyn std::error::Error + Send + Sync>> {
        Ok(serde_json::from_slice(body)?)
    }
}
