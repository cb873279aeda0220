//! The grammar of `#[message(...)]` on the type; fields are looked up later.

use quote::ToTokens;
use syn::ext::IdentExt;
use syn::meta::ParseNestedMeta;
use syn::parse::{Parse, ParseStream};
use syn::{
    Attribute, Data, DeriveInput, Error, ExprPath, Fields, Ident, LitStr, Path, Result, Type, parse_quote,
};

use crate::kind;

const NAMES: &str = "`kind`, `key`, `key_fn`, `order_by`, `codec`, `crate`";

/// All settings of the type's `#[message(...)]`.
pub(crate) struct MessageAttribute {
    pub(crate) kind: LitStr,
    pub(crate) key: Option<KeySource>,
    pub(crate) order_by: Option<LitStr>,
    pub(crate) codec: Option<Type>,
    pub(crate) oncebox: Path,
}

/// The source of the key.
pub(crate) enum KeySource {
    /// `key = "order_id"` or `key = "{tenant}:{order_id}"`.
    Fields(LitStr),
    /// `key = content`.
    Content,
    /// `key_fn = path::to::function`.
    Function(ExprPath),
}

impl MessageAttribute {
    /// Reads all `#[message(...)]` attributes of the type as one.
    pub(crate) fn of(input: &DeriveInput) -> Result<Self> {
        refuse_inside(&input.data)?;
        let mut written = Written::default();
        for attribute in input.attrs.iter().filter(is_message) {
            attribute.meta.require_list().map_err(|_| {
                Error::new_spanned(attribute, "write this as `#[message(kind = \"...\", key = \"...\")]`")
            })?;
            attribute.parse_nested_meta(|item| written.read(&item))?;
        }
        written.check(&input.ident)
    }
}

/// The settings that have been read so far.
#[derive(Default)]
struct Written {
    kind: Option<LitStr>,
    key: Option<KeySource>,
    key_fn: Option<ExprPath>,
    order_by: Option<LitStr>,
    codec: Option<Type>,
    oncebox: Option<Path>,
}

impl Written {
    fn read(&mut self, item: &ParseNestedMeta<'_>) -> Result<()> {
        let name = item.path.to_token_stream().to_string();
        match name.as_str() {
            "kind" => set(&mut self.kind, item, Parse::parse),
            "key" => set(&mut self.key, item, key_source),
            "key_fn" => set(&mut self.key_fn, item, |value| unquoted(value, "key_fn = path::to::function")),
            "order_by" => set(&mut self.order_by, item, Parse::parse),
            "codec" => set(&mut self.codec, item, |value| unquoted(value, "codec = path::to::Codec")),
            "crate" => set(&mut self.oncebox, item, |value| {
                refuse_quotes(value, "crate = path::to::oncebox")?;
                // Without generic arguments, which the path of a crate cannot have.
                value.call(Path::parse_mod_style)
            }),
            _ => Err(item.error(format!("`#[message(...)]` has no setting `{name}`; it has {NAMES}"))),
        }
    }

    fn check(self, type_name: &Ident) -> Result<MessageAttribute> {
        let kind = self.kind.ok_or_else(|| {
            Error::new(
                type_name.span(),
                "#[message(kind = \"...\")] is required: the kind names this message on the wire and in the \
                 database, and outlives renames of the type",
            )
        })?;
        kind::check(&kind.value()).map_err(|reason| Error::new(kind.span(), reason))?;
        let key = match (self.key, self.key_fn) {
            (Some(_), Some(function)) => {
                return Err(Error::new_spanned(
                    function,
                    "`key` and `key_fn` both set the source of the key; keep one of them",
                ));
            }
            (key, function) => key.or(function.map(KeySource::Function)),
        };
        Ok(MessageAttribute {
            kind,
            key,
            order_by: self.order_by,
            codec: self.codec,
            // With `::`, because the user's module may have a name `oncebox` of its own.
            oncebox: self.oncebox.unwrap_or_else(|| parse_quote!(::oncebox)),
        })
    }
}

fn set<T>(
    slot: &mut Option<T>,
    item: &ParseNestedMeta<'_>,
    read: impl FnOnce(ParseStream<'_>) -> Result<T>,
) -> Result<()> {
    if slot.is_some() {
        return Err(item.error("this setting is given twice; keep one of them"));
    }
    *slot = Some(read(item.value()?)?);
    Ok(())
}

fn key_source(value: ParseStream<'_>) -> Result<KeySource> {
    if value.peek(LitStr) {
        return value.parse().map(KeySource::Fields);
    }
    let expected = "expected a field (\"order_id\"), a template (\"{tenant}:{order_id}\") or `content`";
    // Keywords too: for `key = self` the message below helps more than "expected identifier".
    if !value.peek(Ident::peek_any) {
        return Err(value.error(expected));
    }
    let word = value.call(Ident::parse_any)?;
    if word == "content" {
        return Ok(KeySource::Content);
    }
    Err(Error::new(
        word.span(),
        format!("{expected}; put a field in quotes, or set a function with `key_fn`"),
    ))
}

fn unquoted<T: Parse>(value: ParseStream<'_>, example: &str) -> Result<T> {
    refuse_quotes(value, example)?;
    value.parse()
}

/// Refuses quoted paths, which other derives take: editors can follow a path without quotes.
fn refuse_quotes(value: ParseStream<'_>, example: &str) -> Result<()> {
    match value.peek(LitStr) {
        true => Err(value.error(format!("expected a path without quotes: `{example}`"))),
        false => Ok(()),
    }
}

/// Refuses `#[message(...)]` on fields and variants, where the compiler allows it but it would have no effect.
fn refuse_inside(data: &Data) -> Result<()> {
    let on_field = match data {
        Data::Struct(data) => find_on_fields(&data.fields),
        Data::Enum(data) => data.variants.iter().find_map(|variant| {
            variant.attrs.iter().find(is_message).or_else(|| find_on_fields(&variant.fields))
        }),
        Data::Union(_) => None,
    };
    match on_field {
        Some(attribute) => Err(Error::new_spanned(
            attribute,
            "`#[message(...)]` belongs on the type; name the field there: `key = \"field\"`",
        )),
        None => Ok(()),
    }
}

fn find_on_fields(fields: &Fields) -> Option<&Attribute> {
    fields.iter().flat_map(|field| &field.attrs).find(is_message)
}

fn is_message(attribute: &&Attribute) -> bool {
    attribute.path().is_ident("message")
}
