//! `#[pure]`: helpers whose text counts for the hash of the workflows that use them.

use proc_macro2::{Ident, TokenStream};
use quote::{ToTokens as _, quote, quote_spanned};
use syn::meta::ParseNestedMeta;
use syn::parse::Parser as _;
use syn::spanned::Spanned as _;
use syn::{Attribute, Error, ItemFn, Path, Result};

use crate::scan::Scanned;
use crate::{function, hash, options, scan};

/// Expands the attribute: the function stays as it is, and a type of the same name carries its hash.
pub(crate) fn expand(attribute: TokenStream, item: TokenStream) -> TokenStream {
    let function: ItemFn = match syn::parse2(item) {
        Ok(function) => function,
        Err(e) => return e.into_compile_error(),
    };
    if let Some(receiver) = function.sig.receiver() {
        let message = "a pure helper is a free function, not a method";
        return Error::new_spanned(receiver, message).into_compile_error();
    }
    let (uses, error) = match uses(attribute) {
        Ok(uses) => (uses, None),
        Err(e) => (Vec::new(), Some(e.into_compile_error())),
    };
    let pure = helper(&function, &uses);
    quote!(#error #pure)
}

fn uses(attribute: TokenStream) -> Result<Vec<Path>> {
    let mut uses = None;
    let option = |meta: ParseNestedMeta<'_>| {
        if meta.path.is_ident("uses") {
            options::set(&mut uses, options::list(&meta)?, &meta)
        } else {
            Err(options::unknown(&meta, "uses(..)"))
        }
    };
    syn::meta::parser(option).parse2(attribute)?;
    Ok(uses.unwrap_or_default())
}

fn helper(function: &ItemFn, uses: &[Path]) -> TokenStream {
    let ItemFn {
        attrs,
        vis,
        sig,
        block,
    } = function;
    let marker = function::marker(function);
    let Scanned { body, error } = scan::scan(block.to_token_stream());
    let error = error.map(Error::into_compile_error);
    let own = hash::n1(&sig.ident.to_string(), function);
    let hashed = hashed(&function::cfg_attributes(function), &sig.ident, &own, uses);
    quote! {
        #error
        #marker
        #hashed
        #(#attrs)*
        #vis #sig #body
    }
}

/// Gives the type of a function's name the hash `own`, folded with those of the helpers that it uses.
pub(crate) fn hashed(cfg: &[&Attribute], ident: &Ident, own: &str, uses: &[Path]) -> TokenStream {
    let hash = if uses.is_empty() {
        quote!(#own)
    } else {
        folded(own, uses)
    };
    quote! {
        #(#cfg)*
        #[automatically_derived]
        #[allow(deprecated)]
        impl ::continuum_worker::Hashed for #ident {
            const HASH: &'static str = #hash;
        }
    }
}

fn folded(own: &str, uses: &[Path]) -> TokenStream {
    let helpers = uses
        .iter()
        .map(|path| quote_spanned!(path.span()=> <#path as ::continuum_worker::Hashed>::HASH));
    quote! {{
        const FOLDED: ::continuum_worker::__private::Folded =
            ::continuum_worker::__private::Folded::new(#own, &[#(#helpers),*]);
        FOLDED.as_str()
    }}
}
