//! The message: a typed value with a kind, a key and a codec.

use std::fmt;

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
        serde_json::from_slice(body).map_err(|error| NotTheJson(error).into())
    }
}

/// Says where the JSON is wrong, but not what stands there: errors are logged, bodies are not. The cause has the rest.
#[derive(Debug)]
struct NotTheJson(serde_json::Error);

impl fmt::Display for NotTheJson {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.0.classify() {
            serde_json::error::Category::Eof => "it ends too early",
            serde_json::error::Category::Data => "it is not of the expected form",
            serde_json::error::Category::Syntax | serde_json::error::Category::Io => "it is not JSON",
        };
        write!(f, "{what}: line {}, column {}", self.0.line(), self.0.column())
    }
}

impl std::error::Error for NotTheJson {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.0)
    }
}
