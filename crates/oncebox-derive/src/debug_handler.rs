//! `#[debug_handler]`: a separate check for each condition of a handler.
//!
//! Because of that the compiler points at the wrong parameter, not at the registration.

use proc_macro2::TokenStream;
use quote::{format_ident, quote, quote_spanned};
use syn::punctuated::Punctuated;
use syn::spanned::Spanned;
use syn::{
    Error, FnArg, GenericArgument, ItemFn, Meta, Path, PathArguments, Result, ReturnType, Token, Type,
    parse_quote,
};

/// The maximum number of parameters between the message and the connection; the same as in `oncebox_core`.
// A copy: this crate does not depend on `oncebox_core`.
const MAX_EXTRACTORS: usize = 5;

pub(crate) fn expand(options: &Punctuated<Meta, Token![,]>, function: &ItemFn) -> TokenStream {
    let checks = crate_path(options)
        .and_then(|oncebox| Signature::of(function).map(|signature| signature.checks(&oncebox)))
        .unwrap_or_else(Error::into_compile_error);
    quote! {
        #function
        #checks
    }
}

fn crate_path(options: &Punctuated<Meta, Token![,]>) -> Result<Path> {
    let mut oncebox = parse_quote!(::oncebox);
    for option in options {
        match option {
            Meta::NameValue(pair) if pair.path.is_ident("crate") => {
                let value = &pair.value;
                oncebox = syn::parse2(quote!(#value))?;
            }
            other => {
                return Err(Error::new_spanned(
                    other,
                    "unknown option: `debug_handler` takes only `crate = path::to::oncebox`",
                ));
            }
        }
    }
    Ok(oncebox)
}

/// A handler's parameters by their purpose.
struct Signature<'f> {
    function: &'f ItemFn,
    message: &'f Type,
    extractors: Vec<&'f Type>,
    connection: Option<&'f Type>,
}

impl<'f> Signature<'f> {
    fn of(function: &'f ItemFn) -> Result<Self> {
        let signature = &function.sig;
        if signature.asyncness.is_none() {
            return Err(Error::new_spanned(signature.fn_token, "a handler is an `async fn`: add `async`"));
        }
        if signature.generics.type_params().next().is_some() {
            return Err(Error::new_spanned(
                &signature.generics,
                "a generic handler cannot be checked: put `#[debug_handler]` on a function with concrete types",
            ));
        }
        let mut types = Vec::new();
        for input in &signature.inputs {
            match input {
                FnArg::Typed(parameter) => types.push(&*parameter.ty),
                FnArg::Receiver(receiver) => {
                    return Err(Error::new_spanned(
                        receiver,
                        "a handler is a function, not a method: pass what it needs as `State<T>`",
                    ));
                }
            }
        }
        let Some((&message, mut rest)) = types.split_first() else {
            return Err(Error::new_spanned(
                &signature.ident,
                "a handler takes the message as its first parameter",
            ));
        };
        if is_mutable_reference(message) {
            return Err(Error::new_spanned(
                message,
                "the message comes first and by value; the connection comes last",
            ));
        }
        let mut connection = None;
        if let Some((&last, before)) = rest.split_last()
            && is_mutable_reference(last)
        {
            (connection, rest) = (Some(last), before);
        }
        if let Some(misplaced) = rest.iter().find(|ty| is_mutable_reference(ty)) {
            return Err(Error::new_spanned(misplaced, "the connection is the last parameter"));
        }
        if let Some(surplus) = rest.get(MAX_EXTRACTORS) {
            return Err(Error::new_spanned(
                surplus,
                format!("a handler takes up to {MAX_EXTRACTORS} parameters between message and connection"),
            ));
        }
        Ok(Self { function, message, extractors: rest.to_vec(), connection })
    }

    fn checks(&self, oncebox: &Path) -> TokenStream {
        // With `Vec<M>` it is a set handler, whose parameters are filled from the whole batch.
        let (message, is_set) = match item_of_vec(self.message) {
            Some(item) => (item, true),
            None => (self.message, false),
        };
        let extractor_trait = match is_set {
            true => quote!(#oncebox::FromBatch),
            false => quote!(#oncebox::FromDelivery),
        };
        let message = check(message, &quote!(#oncebox::Input));
        let extractors = self.extractors.iter().map(|ty| check(ty, &extractor_trait));
        let returned = match &self.function.sig.output {
            ReturnType::Default => TokenStream::new(),
            ReturnType::Type(_, ty) => check(ty, &quote!(#oncebox::IntoReturned)),
        };
        let future = self.check_future();
        quote! {
            #message
            #(#extractors)*
            #returned
            #future
        }
    }

    /// Checks that the future is `Send`, because the engine runs handlers on any thread of the runtime.
    fn check_future(&self) -> TokenStream {
        let name = &self.function.sig.ident;
        let types: Vec<&Type> = std::iter::once(self.message)
            .chain(self.extractors.iter().copied())
            .chain(self.connection)
            .collect();
        // As parameters, because there lifetimes can be elided as in the handler itself.
        let values: Vec<_> = (0..types.len()).map(|n| format_ident!("parameter_{n}")).collect();
        quote_spanned! {name.span()=>
            #[allow(warnings, clippy::all, clippy::pedantic, clippy::restriction)]
            const _: () = {
                fn future_is_send(#(#values: #types),*) {
                    fn check<F: ::core::future::Future + ::core::marker::Send>(_: F) {}
                    check(#name(#(#values),*));
                }
            };
        }
    }
}

fn check(ty: &Type, required: &TokenStream) -> TokenStream {
    // An anonymous constant, so that the check's names cannot collide with the user's.
    quote_spanned! {ty.span()=>
        #[allow(warnings, clippy::all, clippy::pedantic, clippy::restriction)]
        const _: fn() = || {
            fn check<T: #required>() {}
            check::<#ty>();
        };
    }
}

fn is_mutable_reference(ty: &Type) -> bool {
    matches!(ty, Type::Reference(reference) if reference.mutability.is_some())
}

fn item_of_vec(ty: &Type) -> Option<&Type> {
    // By its name only: a macro sees no types, so an alias of `Vec` is not recognised.
    let Type::Path(path) = ty else { return None };
    let last = path.path.segments.last()?;
    let PathArguments::AngleBracketed(arguments) = &last.arguments else { return None };
    match arguments.args.first() {
        Some(GenericArgument::Type(item)) if last.ident == "Vec" => Some(item),
        _ => None,
    }
}
