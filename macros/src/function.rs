//! What the attributes have in common: which functions they take, and how a function is taken apart.

use proc_macro2::{Ident, Span, TokenStream};
use quote::{ToTokens, format_ident, quote, quote_spanned};
use syn::ext::IdentExt as _;
use syn::spanned::Spanned as _;
use syn::{
    Attribute, Error, FnArg, GenericArgument, ItemFn, LitStr, Pat, PatType, PathArguments, Result,
    ReturnType, Signature, Type,
};

/// The longest name in the journal, in bytes; the same as in the schema.
const NAME_BYTES_MAX: usize = 128;

/// The two arguments of an activity or a workflow.
pub(crate) struct Arguments {
    pub(crate) context: Argument,
    pub(crate) input: Argument,
}

/// One argument: as the outer function names it, and its type.
pub(crate) struct Argument {
    pub(crate) name: Ident,
    pub(crate) ty: Type,
}

/// The types in `-> Result<T, E>`.
pub(crate) struct Returned {
    pub(crate) output: TokenStream,
    pub(crate) error: TokenStream,
}

/// Checks that `function` is async and free, without generics; `what` names the attribute's thing.
pub(crate) fn check_plain(function: &ItemFn, what: &str) -> Result<()> {
    let signature = &function.sig;
    if signature.asyncness.is_none() {
        return Err(Error::new(
            signature.fn_token.span,
            format!("{what} is an `async fn`"),
        ));
    }
    let generics = &signature.generics;
    if !generics.params.is_empty() {
        return Err(Error::new_spanned(
            &generics.params,
            format!("{what} has no generics: its name in the journal must mean one thing"),
        ));
    }
    if let Some(odd) = odd_qualifier(signature) {
        return Err(Error::new_spanned(
            odd,
            format!("{what} is a plain `async fn`"),
        ));
    }
    Ok(())
}

fn odd_qualifier(signature: &Signature) -> Option<TokenStream> {
    let unsafety = signature.unsafety.map(ToTokens::into_token_stream);
    let constness = signature.constness.map(ToTokens::into_token_stream);
    let abi = signature.abi.as_ref().map(ToTokens::to_token_stream);
    let variadic = signature.variadic.as_ref().map(ToTokens::to_token_stream);
    unsafety.or(constness).or(abi).or(variadic)
}

/// Takes the two arguments apart; `example` is the right form.
pub(crate) fn arguments(signature: &Signature, what: &str, example: &str) -> Result<Arguments> {
    if let Some(FnArg::Receiver(receiver)) = signature.inputs.first() {
        return Err(Error::new_spanned(
            receiver,
            format!(
                "{what} is a free function, not a method; shared values come from `ctx.state::<T>()`"
            ),
        ));
    }
    let arguments: Vec<&PatType> = signature
        .inputs
        .iter()
        .filter_map(|argument| match argument {
            FnArg::Typed(typed) => Some(typed),
            FnArg::Receiver(_) => None,
        })
        .collect();
    let [context, input] = arguments[..] else {
        let span = if signature.inputs.is_empty() {
            signature.paren_token.span.join()
        } else {
            signature.inputs.span()
        };
        return Err(Error::new(
            span,
            format!(
                "{what} takes the context and exactly one input, a struct or a tuple: `{example}`"
            ),
        ));
    };
    if let Type::Reference(reference) = &*input.ty {
        return Err(Error::new_spanned(
            reference,
            "the input comes from the journal, so it must be owned, not borrowed",
        ));
    }
    Ok(Arguments {
        context: argument(context, "ctx"),
        input: argument(input, "input"),
    })
}

/// Keeps the author's name, which editors show; a pattern gets the name that is usual.
fn argument(typed: &PatType, usual: &str) -> Argument {
    let name = match &*typed.pat {
        Pat::Ident(pattern) if pattern.subpat.is_none() => pattern.ident.clone(),
        other => Ident::new(usual, other.span()),
    };
    Argument {
        name,
        ty: (*typed.ty).clone(),
    }
}

/// The types that the function gives. `Result<T, E>` is read as written, so that messages point at `T` or `E`; an
/// alias such as `anyhow::Result<T>` goes through a trait.
pub(crate) fn returned(signature: &Signature, what: &str) -> Result<Returned> {
    let no_result =
        format!("{what} returns a `Result<_, _>`, or an alias whose name ends in `Result`");
    let ReturnType::Type(_, ty) = &signature.output else {
        let end = signature.paren_token.span.close();
        return Err(Error::new(end, no_result));
    };
    if !is_result(ty) {
        return Err(Error::new_spanned(ty, no_result));
    }
    if let Some([output, error]) = result_arguments(ty) {
        return Ok(Returned {
            output: output.to_token_stream(),
            error: error.to_token_stream(),
        });
    }
    let projection = |name: &str| {
        let name = format_ident!("{name}", span = ty.span());
        quote_spanned!(ty.span()=> <#ty as ::continuum_worker::__private::Fallible>::#name)
    };
    Ok(Returned {
        output: projection("Output"),
        error: projection("Error"),
    })
}

fn is_result(ty: &Type) -> bool {
    let Type::Path(path) = ty else { return false };
    let last = path.path.segments.last();
    last.is_some_and(|segment| segment.ident.to_string().ends_with("Result"))
}

fn result_arguments(ty: &Type) -> Option<[&Type; 2]> {
    let Type::Path(path) = ty else { return None };
    let last = path.path.segments.last()?;
    let PathArguments::AngleBracketed(arguments) = &last.arguments else {
        return None;
    };
    let types: Vec<&Type> = arguments
        .args
        .iter()
        .filter_map(|argument| match argument {
            GenericArgument::Type(ty) => Some(ty),
            _ => None,
        })
        .collect();
    let [output, error] = types[..] else {
        return None;
    };
    (last.ident == "Result").then_some([output, error])
}

/// The name in the journal: the one in the attribute, else the function's own.
pub(crate) fn journal_name(explicit: Option<&LitStr>, function: &Ident) -> Result<String> {
    let (name, span) = match explicit {
        Some(literal) => (literal.value(), literal.span()),
        None => (function.unraw().to_string(), function.span()),
    };
    check_name(&name, span)?;
    Ok(name)
}

/// Checks a name against the journal's alphabet.
pub(crate) fn check_name(name: &str, span: Span) -> Result<()> {
    let is_name = name
        .chars()
        .all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-');
    if is_name && (1..=NAME_BYTES_MAX).contains(&name.len()) {
        return Ok(());
    }
    Err(Error::new(
        span,
        format!("`{name}` is not a name: 1 to {NAME_BYTES_MAX} characters of A-Z a-z 0-9 _ -"),
    ))
}

/// The attributes that the type of the same name takes over: documentation and what decides whether it exists.
pub(crate) fn shared_attributes(function: &ItemFn) -> Vec<&Attribute> {
    let shared = ["doc", "cfg", "deprecated"];
    function
        .attrs
        .iter()
        .filter(|a| shared.iter().any(|name| a.path().is_ident(name)))
        .collect()
}

/// Only the attributes that decide whether an item exists.
pub(crate) fn cfg_attributes(function: &ItemFn) -> Vec<&Attribute> {
    let cfgs = function.attrs.iter();
    cfgs.filter(|a| a.path().is_ident("cfg")).collect()
}

/// `type Input = Charge;`, all of it at the place of the type, where messages about its bounds and visibility belong.
pub(crate) fn associated(name: &str, ty: &dyn ToTokens) -> TokenStream {
    let ty = ty.to_token_stream();
    let name = format_ident!("{name}", span = ty.span());
    quote_spanned!(ty.span()=> type #name = #ty;)
}

/// The type of the function's name. With braces it lives among the types only, so the function keeps the name among
/// the values, and `let charge_card = ..` stays a new variable.
pub(crate) fn marker(function: &ItemFn) -> TokenStream {
    let attributes = shared_attributes(function);
    let (vis, name) = (&function.vis, &function.sig.ident);
    quote! {
        #(#attributes)*
        #[allow(non_camel_case_types, dead_code, missing_docs, unreachable_pub)]
        #vis struct #name {}
    }
}
