//! `select!`: the first branch that is ready, asked in source order.

use proc_macro2::{Ident, Span, TokenStream};
use quote::{format_ident, quote, quote_spanned};
use syn::parse::{Parse, ParseStream};
use syn::spanned::Spanned as _;
use syn::{Error, Expr, Pat, Result, Token};

/// Expands the macro.
pub(crate) fn expand(input: TokenStream) -> TokenStream {
    match syn::parse2::<Select>(input) {
        Ok(select) => select.tokens(),
        Err(e) => e.into_compile_error(),
    }
}

struct Select {
    branches: Vec<Branch>,
}

/// `pattern = future, if guard => handler`
struct Branch {
    pattern: Pat,
    future: Expr,
    guard: Option<Expr>,
    handler: Expr,
}

impl Parse for Select {
    fn parse(input: ParseStream<'_>) -> Result<Self> {
        let mut branches = Vec::new();
        while !input.is_empty() {
            refuse_tokio_forms(input)?;
            let branch: Branch = input.parse()?;
            let needs_comma = !matches!(branch.handler, Expr::Block(_)) && !input.is_empty();
            if needs_comma || input.peek(Token![,]) {
                input.parse::<Token![,]>()?;
            }
            branches.push(branch);
        }
        if branches.is_empty() {
            let message = "`select!` needs a branch: `value = future => handler`";
            return Err(Error::new(input.span(), message));
        }
        Ok(Self { branches })
    }
}

fn refuse_tokio_forms(input: ParseStream<'_>) -> Result<()> {
    if input.peek(Token![else]) {
        return Err(input.error("this `select!` has no `else`: it always waits for a branch"));
    }
    if input
        .fork()
        .parse::<Ident>()
        .is_ok_and(|word| word == "biased")
        && input.peek2(Token![;])
    {
        let message =
            "this `select!` always asks its branches in source order; leave `biased;` out";
        return Err(input.error(message));
    }
    Ok(())
}

impl Parse for Branch {
    fn parse(input: ParseStream<'_>) -> Result<Self> {
        let pattern = Pat::parse_single(input)?;
        input.parse::<Token![=]>()?;
        let future = input.parse()?;
        let guard = if input.peek(Token![,]) {
            input.parse::<Token![,]>()?;
            input.parse::<Token![if]>()?;
            Some(input.parse()?)
        } else {
            None
        };
        input.parse::<Token![=>]>()?;
        let handler = Expr::parse_with_earlier_boundary_rule(input)?;
        Ok(Self {
            pattern,
            future,
            guard,
            handler,
        })
    }
}

impl Select {
    /// The futures are dropped before the handler runs, so that it may use what they borrowed and so that what a
    /// branch gave up stands in the journal before what the handler does.
    fn tokens(&self) -> TokenStream {
        let names = |prefix: &str| -> Vec<Ident> {
            let span = Span::mixed_site();
            let numbers = 0..self.branches.len();
            numbers
                .map(|n| format_ident!("{prefix}{n}", span = span))
                .collect()
        };
        let (variants, futures, guards) = (names("Branch"), names("future"), names("guard"));
        let conditions = self.branches.iter().map(|b| match &b.guard {
            Some(guard) => quote!(#guard),
            None => quote!(true),
        });
        let pins = self.branches.iter().zip(&futures).map(|(branch, name)| {
            let future = &branch.future;
            quote_spanned!(future.span()=> let mut #name = ::std::pin::pin!(#future);)
        });
        let arms = self
            .branches
            .iter()
            .zip(&variants)
            .map(|(branch, variant)| {
                let Branch {
                    pattern, handler, ..
                } = branch;
                quote!(#[allow(unused_braces)] Selected::#variant(value) => { let #pattern = value; #handler })
            });
        quote_spanned! {Span::mixed_site()=> {
            enum Selected<#(#variants),*> { #(#variants(#variants)),* }
            let selected = {
                #(let #guards: bool = #conditions;)*
                ::std::assert!(#(#guards)||*, "every branch of this `select!` is switched off by its guard");
                #(#pins)*
                ::std::future::poll_fn(|cx| {
                    #(if #guards
                        && let ::std::task::Poll::Ready(value) =
                            ::std::future::Future::poll(#futures.as_mut(), cx)
                    {
                        return ::std::task::Poll::Ready(Selected::#variants(value));
                    })*
                    ::std::task::Poll::Pending
                })
                .await
            };
            match selected { #(#arms)* }
        }}
    }
}
