//! The fields of the type, and the expressions that read them in the generated code.

use proc_macro2::{Span, TokenStream};
use quote::quote_spanned;
use syn::ext::IdentExt;
use syn::spanned::Spanned;
use syn::{Data, DeriveInput, Error, Ident, Index, LitStr, Member, Result, Type};

use crate::template::{FieldPath, Purpose};

/// The fields that can be part of a key.
pub(crate) struct TypeFields<'a> {
    type_name: &'a Ident,
    is_enum: bool,
    fields: Vec<Field<'a>>,
}

struct Field<'a> {
    name: String,
    member: Member,
    ty: &'a Type,
}

/// A borrowed field in the generated code, and the place in the user's code for errors about its type.
pub(crate) struct Access {
    pub(crate) expression: TokenStream,
    pub(crate) span: Span,
}

impl<'a> TypeFields<'a> {
    pub(crate) fn of(input: &'a DeriveInput) -> Result<Self> {
        let fields = match &input.data {
            Data::Struct(data) => data
                .fields
                .members()
                .zip(&data.fields)
                .map(|(member, field)| Field::new(member, &field.ty))
                .collect(),
            Data::Enum(_) => Vec::new(),
            Data::Union(_) => {
                return Err(Error::new(
                    input.ident.span(),
                    "a union cannot be a message; use a struct or an enum",
                ));
            }
        };
        Ok(Self { type_name: &input.ident, is_enum: matches!(input.data, Data::Enum(_)), fields })
    }

    /// Refuses a type without fields, which can have neither a field key nor a template.
    pub(crate) fn require_any(&self, text: &LitStr, purpose: Purpose) -> Result<()> {
        if !self.fields.is_empty() {
            return Ok(());
        }
        let name = self.type_name;
        let lack = match self.is_enum {
            true => format!("`{name}` is an enum and has no fields of its own"),
            false => format!("`{name}` has no fields"),
        };
        let remedy = match purpose {
            Purpose::Key => {
                "to take the key from; use `key_fn = path::to::function` or `key = content`, or leave `key` out"
            }
            Purpose::OrderBy => {
                "to take the ordering key from; leave `order_by` out, or implement `Message` by hand"
            }
        };
        Err(Error::new(text.span(), format!("{lack} {remedy}")))
    }

    /// The expression that borrows the field; only its first name can be checked here, the compiler checks
    /// the others.
    pub(crate) fn access(&self, path: &FieldPath, text: &LitStr) -> Result<Access> {
        let field = self
            .fields
            .iter()
            .find(|field| field.name == path.first)
            .ok_or_else(|| Error::new(text.span(), self.no_such_field(path)))?;
        let place = if path.rest.is_empty() { field.ty.span() } else { text.span() };
        // Errors point at the user's text, but names resolve as in the rest of the generated code. Otherwise `self` would be
        // a different one for a struct from a `macro_rules!`.
        let span = Span::call_site().located_at(place);
        let member = &field.member;
        let mut expression = quote_spanned!(span=> &self.#member);
        for segment in &path.rest {
            let member = member_of(segment, span).ok_or_else(|| {
                Error::new(text.span(), format!("`{segment}` in `{path}` is not the name of a field"))
            })?;
            expression.extend(quote_spanned!(span=> .#member));
        }
        Ok(Access { expression, span })
    }

    fn no_such_field(&self, path: &FieldPath) -> String {
        let names: Vec<_> = self.fields.iter().map(|field| format!("`{}`", field.name)).collect();
        let (type_name, wanted, names) = (self.type_name, &path.first, names.join(", "));
        let hint = match wanted.as_str() {
            "content" => "; for a key made from the whole message write `key = content`, without quotes",
            wanted if wanted.contains(|c: char| !c.is_alphanumeric() && c != '_') => {
                "; to put text beside a field, put the field in braces, e.g. \"order:{order_id}\""
            }
            _ => "",
        };
        format!("`{type_name}` has no field `{wanted}`; it has {names}{hint}")
    }
}

impl<'a> Field<'a> {
    fn new(member: Member, ty: &'a Type) -> Self {
        let name = match &member {
            // The attribute names the field `type`, not `r#type`.
            Member::Named(name) => name.unraw().to_string(),
            Member::Unnamed(index) => index.index.to_string(),
        };
        Self { name, member, ty }
    }
}

/// The field of that name in a type that the macro cannot see; `None` if the name is not a valid field name.
fn member_of(name: &str, span: Span) -> Option<Member> {
    if let Ok(index) = name.parse::<u32>() {
        // Rust has no field `01`: other spellings of a number are refused.
        return (index.to_string() == name).then_some(Member::Unnamed(Index { index, span }));
    }
    // A keyword is a valid field name only as a raw identifier, such as `r#type`.
    let mut ident = syn::parse_str::<Ident>(name).or_else(|_| syn::parse_str(&format!("r#{name}"))).ok()?;
    ident.set_span(span);
    Some(Member::Named(ident))
}

#[cfg(test)]
mod tests {
    use syn::parse_quote;

    use super::*;
    use crate::template::{Template, TemplatePiece};

    fn access(input: &DeriveInput, text: &str) -> std::result::Result<String, String> {
        let literal = LitStr::new(text, Span::call_site());
        let template = Template::parse(text, Purpose::Key).unwrap();
        let [TemplatePiece::Part(path)] = template.pieces() else { panic!("{text} is one part") };
        let fields = TypeFields::of(input).map_err(|error| error.to_string())?;
        let access = fields.access(path, &literal).map_err(|error| error.to_string())?;
        Ok(access.expression.to_string().replace(' ', ""))
    }

    #[test]
    fn fields_are_found_by_their_names_as_written_in_the_attribute() {
        let named: DeriveInput = parse_quote!(
            struct Order {
                id: u64,
                r#type: Type,
                buyer: Buyer,
            }
        );
        let tuple: DeriveInput = parse_quote!(
            struct Order(u64, Buyer);
        );
        for (input, text, expected) in [
            (&named, "id", "&self.id"),
            (&named, "type", "&self.r#type"),
            (&named, "buyer.id", "&self.buyer.id"),
            (&named, "buyer.type", "&self.buyer.r#type"),
            (&named, "buyer.address.0", "&self.buyer.address.0"),
            (&tuple, "0", "&self.0"),
            (&tuple, "1.id", "&self.1.id"),
            (&tuple, "1.0.2", "&self.1.0.2"),
        ] {
            assert_eq!(access(input, text).as_deref(), Ok(expected), "{text}");
        }
    }

    #[test]
    fn the_error_of_an_unknown_field_lists_the_fields() {
        let named: DeriveInput = parse_quote!(
            struct Order {
                id: u64,
                buyer: Buyer,
            }
        );
        let tuple: DeriveInput = parse_quote!(
            struct Order(u64, Buyer);
        );
        for (input, text, reason) in [
            (&named, "order_id", "`Order` has no field `order_id`; it has `id`, `buyer`"),
            (&named, "0", "`Order` has no field `0`"),
            (&named, "content", "write `key = content`, without quotes"),
            (&named, "buyer:id", "put the field in braces"),
            (&named, "{ id }", "`Order` has no field ` id `"),
            (&named, "buyer.na me", "`na me` in `buyer.na me` is not the name of a field"),
            (&named, "buyer.self", "`self` in `buyer.self` is not the name of a field"),
            (&named, "buyer.01", "`01` in `buyer.01` is not the name of a field"),
            (&tuple, "2", "`Order` has no field `2`; it has `0`, `1`"),
            (&tuple, "00", "`Order` has no field `00`"),
        ] {
            let error = access(input, text).unwrap_err();
            assert!(error.contains(reason), "{text}: {error}");
        }
    }
}
