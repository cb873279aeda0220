//! Generation of the `impl Message`.

use proc_macro2::{Span, TokenStream};
use quote::{ToTokens, quote, quote_spanned};
use syn::{DeriveInput, Error, LitStr, Path, Result};

use crate::attribute::{KeySource, MessageAttribute};
use crate::fields::TypeFields;
use crate::template::{FieldPath, Purpose, Template, TemplatePiece};

pub(crate) fn expand(input: &DeriveInput) -> Result<TokenStream> {
    let fields = TypeFields::of(input)?;
    let MessageAttribute { kind, key, order_by, codec, oncebox } = MessageAttribute::of(input)?;
    let writer = ImplWriter { fields, oncebox: &oncebox };

    let key = key.map(|source| writer.key(&source)).transpose()?;
    let order_by = order_by.map(|text| writer.method(Purpose::OrderBy, &text)).transpose()?;
    let codec = match codec {
        Some(codec) => codec.into_token_stream(),
        None => {
            let span = Span::call_site().located_at(input.ident.span());
            let oncebox = located_at(&oncebox, span);
            quote_spanned!(span=> #oncebox::Json)
        }
    };
    let name = &input.ident;
    let (generics, arguments, bounds) = input.generics.split_for_impl();
    // Full paths, because `str` or `Option` may mean another type in the user's module.
    // A deprecated message or field warns at its uses; a warning in this `impl` would add nothing.
    Ok(quote! {
        #[automatically_derived]
        #[allow(deprecated)]
        impl #generics #oncebox::Message for #name #arguments #bounds {
            const KIND: &'static ::core::primitive::str = #kind;
            type Codec = #codec;
            #key
            #order_by
        }
    })
}

struct ImplWriter<'a> {
    fields: TypeFields<'a>,
    oncebox: &'a Path,
}

impl ImplWriter<'_> {
    fn key(&self, source: &KeySource) -> Result<TokenStream> {
        let oncebox = self.oncebox;
        match source {
            KeySource::Fields(text) => self.method(Purpose::Key, text),
            KeySource::Content => Ok(quote! {
                fn content_key(
                    &self,
                ) -> ::core::option::Option<::core::result::Result<#oncebox::Key, #oncebox::Error>> {
                    ::core::option::Option::Some(
                        #oncebox::__private::content_key(<Self as #oncebox::Message>::KIND, self),
                    )
                }
            }),
            // The type is written out, so that the error about a function with another signature shows the expected one.
            KeySource::Function(function) => Ok(quote! {
                fn key(&self) -> ::core::option::Option<#oncebox::Key> {
                    let key_fn: fn(&Self) -> ::core::option::Option<#oncebox::Key> = #function;
                    key_fn(self)
                }
            }),
        }
    }

    /// `fn key` or `fn order_by`, from the fields in the text.
    fn method(&self, purpose: Purpose, text: &LitStr) -> Result<TokenStream> {
        self.fields.require_any(text, purpose)?;
        let template =
            Template::parse(&text.value(), purpose).map_err(|reason| Error::new(text.span(), reason))?;
        let oncebox = self.oncebox;
        let body = match template.pieces() {
            // Without `compose`: one part needs no escapes, and an empty key counts as missing anyway.
            [TemplatePiece::Part(field)] => {
                let part = self.part(field, text)?;
                quote!(::core::option::Option::Some(#oncebox::Key::new(#part)))
            }
            pieces => {
                let pieces =
                    pieces.iter().map(|piece| self.piece(piece, text)).collect::<Result<Vec<_>>>()?;
                quote!(#oncebox::__private::compose(&[#(#pieces),*]))
            }
        };
        let name = match purpose {
            Purpose::Key => quote!(key),
            Purpose::OrderBy => quote!(order_by),
        };
        Ok(quote! {
            fn #name(&self) -> ::core::option::Option<#oncebox::Key> {
                #body
            }
        })
    }

    fn piece(&self, piece: &TemplatePiece, text: &LitStr) -> Result<TokenStream> {
        let oncebox = self.oncebox;
        match piece {
            TemplatePiece::Literal(literal) => Ok(quote!(#oncebox::__private::Piece::Literal(#literal))),
            TemplatePiece::Part(field) => {
                let part = self.part(field, text)?;
                Ok(quote!(#oncebox::__private::Piece::Part(#part)))
            }
        }
    }

    /// The bytes of one field. If the field is missing, the whole method returns `None`.
    fn part(&self, field: &FieldPath, text: &LitStr) -> Result<TokenStream> {
        let access = self.fields.access(field, text)?;
        let (expression, span) = (access.expression, access.span);
        let oncebox = located_at(self.oncebox, span);
        Ok(quote_spanned!(span=> #oncebox::KeyPart::key_part(#expression)?))
    }
}

/// The path with the span of another place, so that an error about it points only there.
fn located_at(path: &Path, span: Span) -> TokenStream {
    path.to_token_stream()
        .into_iter()
        .map(|mut token| {
            token.set_span(token.span().located_at(span));
            token
        })
        .collect()
}
