//! The message: a typed value with a kind, a key and a codec.

use std::fmt;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::{Error, Key};

/// A type of message, with its kind, key and codec.
///
/// It is usually derived:
///
/// ```ignore
/// #[derive(Message, Serialize, Deserialize)]
/// #[message(kind = "order.paid", key = "order_id")]
/// struct OrderPaid { order_id: Uuid, cents: i64 }
/// ```
///
/// Implement it by hand if the key needs a few lines of code:
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
    /// The name of this type of message on the wire and in the database.
    ///
    /// Keep it when you rename the type: stored messages and markers refer to it.
    const KIND: &'static str;

    /// The codec that encodes and decodes bodies; the derive's default is [`Json`].
    type Codec: Codec<Self>;

    /// The key from the message's own fields, if it has one.
    fn key(&self) -> Option<Key> {
        None
    }

    /// The key from the whole content, for messages with `key = content`.
    fn content_key(&self) -> Option<Result<Key, Error>> {
        None
    }

    /// The ordering key: ordered handlers take messages with equal ordering keys in the order in which they were accepted.
    fn order_by(&self) -> Option<Key> {
        None
    }
}

/// Encodes and decodes the bodies of one type of message.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot read and write `{M}`",
    note = "the codec `Json` needs `serde::Serialize` and `serde::Deserialize` on the message"
)]
pub trait Codec<M>: 'static {
    /// Encodes a message as a body.
    fn encode(message: &M) -> Result<Vec<u8>, Box<dyn std::error::Error + Send + Sync>>;

    /// Decodes a message from a body. An error rejects the message: another delivery cannot succeed.
    fn decode(body: &[u8]) -> Result<M, Box<dyn std::error::Error + Send + Sync>>;
}

/// The default codec: JSON through serde, with limited nesting depth.
#[derive(Clone, Copy, Debug)]
pub struct Json;

impl<M: Serialize + DeserializeOwned> Codec<M> for Json {
    fn encode(message: &M) -> Result<Vec<u8>, Box<dyn std::error::Error + Send + Sync>> {
        Ok(serde_json::to_vec(message)?)
    }

    fn decode(body: &[u8]) -> Result<M, Box<dyn std::error::Error + Send + Sync>> {
        // serde_json refuses more than 128 nested levels, so a malicious body cannot overflow the stack.
        serde_json::from_slice(body).map_err(|error| NotTheJson(error).into())
    }
}

/// The position and class of a JSON error, without text of the body: errors are logged, bodies are not. The cause has the
/// whole error.
#[derive(Debug)]
struct NotTheJson(serde_json::Error);

impl fmt::Display for NotTheJson {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.0.classify() {
            serde_json::error::Category::Eof => "the JSON ends too early",
            serde_json::error::Category::Data => "the JSON does not match the message type",
            serde_json::error::Category::Syntax | serde_json::error::Category::Io => "invalid JSON",
        };
        write!(f, "{what} at line {}, column {}", self.0.line(), self.0.column())
    }
}

impl std::error::Error for NotTheJson {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.0)
    }
}
