//! `#[derive(Message)]` for [Oncebox](https://docs.rs/oncebox).
//!
//! Use it through the `oncebox` crate, which re-exports it next to the trait of the same name.
//!
//! Each step of the derive has a module: `attribute` reads `#[message(...)]`, `kind` and `template` check its texts without
//! the type, `fields` looks up the named fields in the type, and `expand` generates the `impl`. `debug_handler` is independent
//! of them.

mod attribute;
mod debug_handler;
mod expand;
mod fields;
mod kind;
mod template;

use proc_macro::TokenStream;
use syn::punctuated::Punctuated;
use syn::{DeriveInput, ItemFn, Meta, Token, parse_macro_input};

/// Implements `Message` for a type: its kind, its key and its codec.
///
/// ```
/// use oncebox::{Key, Message};
/// use serde::{Deserialize, Serialize};
/// use uuid::Uuid;
///
/// #[derive(Message, Serialize, Deserialize)]
/// #[message(kind = "order.paid", key = "order_id", order_by = "customer_id")]
/// struct OrderPaid {
///     order_id: Uuid,
///     customer_id: u64,
///     cents: i64,
/// }
///
/// let paid = OrderPaid { order_id: Uuid::nil(), customer_id: 7, cents: 990 };
/// assert_eq!(paid.key(), Some(Key::from(Uuid::nil())));
/// assert_eq!(paid.order_by(), Some(Key::from("7")));
/// ```
///
/// # Settings of `#[message(...)]`
///
/// | name | value | meaning |
/// |---|---|---|
/// | `kind` | `"order.paid"` | **Required.** The name of the message on the wire and in the database; keep it when you rename the type. Up to 200 bytes, no control characters, no `@` at the start. |
/// | `key` | `"order_id"` | The field that identifies the message; its text is the key, unchanged. `"order.id"` is a field of a field, `"0"` the first field of a tuple struct. |
/// | | `"{tenant}:{order_id}"` | Several fields with text between them. `{{` and `}}` stand for braces. |
/// | | `content` | The whole message: SHA-256 over its kind and its value. |
/// | `key_fn` | `path::to::function` | A function `fn(&Self) -> Option<Key>` that returns the key. |
/// | `order_by` | as `key`, without `content` | The ordering key. Ordered handlers take messages with equal ordering keys in the order in which they were accepted. |
/// | `codec` | `path::to::Codec` | The codec that encodes and decodes bodies; the default is `Json`. |
/// | `crate` | `path::to::oncebox` | The path of the crate `oncebox`; the default is `::oncebox`. |
///
/// A key field is text, bytes, an integer, a `Uuid`, or a type of your own that implements `KeyPart`. If a
/// field is `None`, or empty in a template, the message has no key. Without `key` and `key_fn` it never has a key of its own.
///
/// In a template of several fields, `%` and every character between two fields are escaped in the fields' values, so that
/// different values always make different keys:
///
/// ```
/// # use oncebox::{Key, Message};
/// # use serde::{Deserialize, Serialize};
/// #[derive(Message, Serialize, Deserialize)]
/// #[message(kind = "order.paid", key = "{tenant}:{order}")]
/// struct OrderPaid {
///     tenant: String,
///     order: String,
/// }
///
/// let key = |tenant: &str, order: &str| OrderPaid { tenant: tenant.into(), order: order.into() }.key();
/// assert_eq!(key("acme", "7"), Some(Key::from("acme:7")));
/// assert_ne!(key("a:b", "c"), key("a", "b:c"));
/// ```
///
/// An enum has no fields of its own: use `key_fn`, `key = content` or no key.
#[proc_macro_derive(Message, attributes(message))]
pub fn derive_message(input: TokenStream) -> TokenStream {
    let input = parse_macro_input!(input as DeriveInput);
    expand::expand(&input).unwrap_or_else(syn::Error::into_compile_error).into()
}

/// Explains why a function is not accepted as a handler.
///
/// Without it the compiler reports an unsatisfied trait bound at `on(…)`, for the function as a whole. With it the error is at
/// the wrong parameter, at the wrong return type, or at the value that makes the future not `Send`. It changes nothing at run
/// time: remove it when the handler compiles, or keep it.
///
/// ```
/// # use oncebox::Message;
/// # use serde::{Deserialize, Serialize};
/// # #[derive(Message, Serialize, Deserialize)]
/// # #[message(kind = "order.paid", key = "order_id")]
/// # struct OrderPaid { order_id: String }
/// #[oncebox::debug_handler]
/// async fn send_receipt(order: OrderPaid, effect: oncebox::EffectId) -> std::io::Result<()> {
///     println!("receipt for {}, sent once as {effect}", order.order_id);
///     Ok(())
/// }
/// ```
///
/// `#[debug_handler(crate = path::to::oncebox)]` sets the path of the crate `oncebox`; the default is `::oncebox`.
#[proc_macro_attribute]
pub fn debug_handler(options: TokenStream, function: TokenStream) -> TokenStream {
    let options = parse_macro_input!(options with Punctuated::<Meta, Token![,]>::parse_terminated);
    let function = parse_macro_input!(function as ItemFn);
    debug_handler::expand(&options, &function).into()
}
