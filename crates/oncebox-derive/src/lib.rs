//! `#[derive(Message)]` for [Oncebox](https://docs.rs/oncebox).
//!
//! Use it through the `oncebox` crate, which re-exports it next to the trait of the same name.
//!
//! The work goes through one file per step: `attribute` reads `#[message(...)]`, `kind` and `template` check
//! its texts without knowing the type, `fields` looks the named fields up in the type, `expand` writes the
//! `impl`. `debug_handler` stands alone.

mod attribute;
mod debug_handler;
mod expand;
mod fields;
mod kind;
mod template;

use proc_macro::TokenStream;
use syn::punctuated::Punctuated;
use syn::{DeriveInput, ItemFn, Meta, Token, parse_macro_input};

/// Implements `Message`: the kind, the key and the codec of a type that arrives as a message.
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
/// # What `#[message(...)]` takes
///
/// | name | value | meaning |
/// |---|---|---|
/// | `kind` | `"order.paid"` | **Required.** Names the message on the wire and in the database; outlives renames of the type. At most 200 bytes, no control characters, no `@` in front. |
/// | `key` | `"order_id"` | The field that identifies the message; its text is the key, unchanged. `"order.id"` reaches into a field, `"0"` is the first field of a tuple struct. |
/// | | `"{tenant}:{order_id}"` | Several fields with text between them. `{{` and `}}` stand for braces. |
/// | | `content` | The whole message: SHA-256 over its kind and its value. |
/// | `key_fn` | `path::to::function` | `fn(&Self) -> Option<Key>`, where a field is not enough. |
/// | `order_by` | as `key`, without `content` | Messages with equal ordering keys can be handled in the order in which they were accepted. |
/// | `codec` | `path::to::Codec` | How bodies are read and written; `Json` if left out. |
/// | `crate` | `path::to::oncebox` | Where `oncebox` is found, if not at `::oncebox`. |
///
/// A key field is text, bytes, an integer, a `Uuid`, or a type of your own that implements `KeyPart`. If a
/// field is `None`, or empty in a template, the message has no key. With neither `key` nor `key_fn` it never has one of its own.
///
/// In a template of several fields, `%` and every character that stands between two of them are escaped in
/// the fields' values, so that different values always make different keys:
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
/// An enum has no fields of its own, so it takes `key_fn`, `key = content` or no key.
#[proc_macro_derive(Message, attributes(message))]
pub fn derive_message(input: TokenStream) -> TokenStream {
    let input = parse_macro_input!(input as DeriveInput);
    expand::expand(&input).unwrap_or_else(syn::Error::into_compile_error).into()
}

/// Explains why a function is not accepted as a handler.
///
/// Without it the compiler reports that `on(…)` is not satisfied, for the function as a whole. With it the error is at the
/// parameter or the return type that is wrong, or at what makes the future not `Send`. It changes nothing at run time;
/// remove it when the handler compiles, or leave it.
///
/// ```
/// # use oncebox::Message;
/// # use serde::{Deserialize, Serialize};
/// # #[derive(Message, Serialize, Deserialize)]
/// # #[message(kind = "order.paid", key = "order_id")]
/// # struct OrderPaid { order_id: String }
/// #[oncebox::debug_handler]
/// async fn post_to_ledger(order: OrderPaid, db: &mut sqlx::SqliteConnection) -> Result<(), sqlx::Error> {
///     sqlx::query("insert into ledger values (?)").bind(order.order_id).execute(db).await?;
///     Ok(())
/// }
/// ```
///
/// `#[debug_handler(crate = path::to::oncebox)]` says where `oncebox` is found, if not at `::oncebox`.
#[proc_macro_attribute]
pub fn debug_handler(options: TokenStream, function: TokenStream) -> TokenStream {
    let options = parse_macro_input!(options with Punctuated::<Meta, Token![,]>::parse_terminated);
    let function = parse_macro_input!(function as ItemFn);
    debug_handler::expand(&options, &function).into()
}
