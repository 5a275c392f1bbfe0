//! `#[activity]`.

use proc_macro2::{Span, TokenStream};
use quote::quote;
use syn::meta::ParseNestedMeta;
use syn::parse::Parser as _;
use syn::{Error, Ident, ItemFn, LitFloat, LitInt, LitStr, Result, Type};

use crate::function::{self, Arguments, Returned};
use crate::{options, scan};

const WHAT: &str = "an activity";
const EXAMPLE: &str = "async fn charge_card(ctx: ActivityContext, input: Charge)";

/// Expands the attribute. Wrong options still leave the activity there, so that they are the only error.
pub(crate) fn expand(attribute: TokenStream, item: TokenStream) -> TokenStream {
    let function: ItemFn = match syn::parse2(item) {
        Ok(function) => function,
        Err(e) => return e.into_compile_error(),
    };
    let (options, error) = match Options::parse(attribute) {
        Ok(options) => (options, None),
        Err(e) => (Options::default(), Some(e.into_compile_error())),
    };
    let activity = Activity::new(&function, &options)
        .map_or_else(Error::into_compile_error, |activity| activity.tokens());
    quote!(#error #activity)
}

#[derive(Default)]
struct Options {
    name: Option<LitStr>,
    queue: Option<LitStr>,
    timeout_ms: Option<u64>,
    retry: Option<Retry>,
}

#[derive(Default)]
struct Retry {
    max_attempts: Option<u32>,
    initial_ms: Option<u64>,
    factor: Option<f64>,
    max_ms: Option<u64>,
}

impl Options {
    fn parse(attribute: TokenStream) -> Result<Self> {
        let mut options = Self::default();
        syn::meta::parser(|meta| options.option(&meta)).parse2(attribute)?;
        Ok(options)
    }

    fn option(&mut self, meta: &ParseNestedMeta<'_>) -> Result<()> {
        if meta.path.is_ident("name") {
            options::set(&mut self.name, meta.value()?.parse()?, meta)
        } else if meta.path.is_ident("queue") {
            let queue: LitStr = meta.value()?.parse()?;
            function::check_name(&queue.value(), queue.span())?;
            options::set(&mut self.queue, queue, meta)
        } else if meta.path.is_ident("timeout") {
            options::set(&mut self.timeout_ms, options::millis(meta)?, meta)
        } else if meta.path.is_ident("retry") {
            options::set(&mut self.retry, Retry::parse(meta)?, meta)
        } else {
            Err(options::unknown(meta, "name, queue, timeout, retry(..)"))
        }
    }
}

impl Retry {
    fn parse(meta: &ParseNestedMeta<'_>) -> Result<Self> {
        let mut retry = Self::default();
        meta.parse_nested_meta(|meta| retry.option(&meta))?;
        if let (Some(initial), Some(max)) = (retry.initial_ms, retry.max_ms)
            && initial > max
        {
            return Err(meta.error("the first wait is longer than the longest"));
        }
        Ok(retry)
    }

    fn option(&mut self, meta: &ParseNestedMeta<'_>) -> Result<()> {
        if meta.path.is_ident("max_attempts") {
            options::set(&mut self.max_attempts, attempts(meta)?, meta)
        } else if meta.path.is_ident("unlimited") {
            options::set(&mut self.max_attempts, 0, meta)
        } else if meta.path.is_ident("initial") {
            options::set(&mut self.initial_ms, options::millis(meta)?, meta)
        } else if meta.path.is_ident("factor") {
            options::set(&mut self.factor, factor(meta)?, meta)
        } else if meta.path.is_ident("max") {
            options::set(&mut self.max_ms, options::millis(meta)?, meta)
        } else {
            let known = "max_attempts, unlimited, initial, factor, max";
            Err(options::unknown(meta, known))
        }
    }

    /// The fields that differ from the default policy.
    fn tokens(&self) -> TokenStream {
        let Self {
            max_attempts,
            initial_ms,
            factor,
            max_ms,
        } = self;
        let max_attempts = max_attempts.iter();
        let initial_ms = initial_ms.iter();
        let factor = factor.iter();
        let max_ms = max_ms.iter();
        quote! {
            #(options.retry.max_attempts = #max_attempts;)*
            #(options.retry.initial_ms = #initial_ms;)*
            #(options.retry.factor = #factor;)*
            #(options.retry.max_ms = #max_ms;)*
        }
    }
}

fn attempts(meta: &ParseNestedMeta<'_>) -> Result<u32> {
    let literal: LitInt = meta.value()?.parse()?;
    match literal.base10_parse()? {
        0 => Err(Error::new(
            literal.span(),
            "at least one attempt is made; for attempts without end write `unlimited`",
        )),
        attempts => Ok(attempts),
    }
}

fn factor(meta: &ParseNestedMeta<'_>) -> Result<f64> {
    let value = meta.value()?;
    let (factor, span): (f64, Span) = if value.peek(LitInt) {
        let literal: LitInt = value.parse()?;
        (literal.base10_parse()?, literal.span())
    } else {
        let literal: LitFloat = value.parse()?;
        (literal.base10_parse()?, literal.span())
    };
    if factor.is_finite() && factor >= 1.0 {
        return Ok(factor);
    }
    Err(Error::new(span, "the factor must be at least 1"))
}

struct Activity<'a> {
    function: &'a ItemFn,
    options: &'a Options,
    name: String,
    arguments: Arguments,
    returned: Returned,
}

impl<'a> Activity<'a> {
    fn new(function: &'a ItemFn, options: &'a Options) -> Result<Self> {
        function::check_plain(function, WHAT)?;
        let arguments = function::arguments(&function.sig, WHAT, EXAMPLE)?;
        if let Type::Reference(reference) = &arguments.context.ty {
            let message = "an activity owns its context: write `ctx: ActivityContext`";
            return Err(Error::new_spanned(reference, message));
        }
        Ok(Self {
            name: function::journal_name(options.name.as_ref(), &function.sig.ident)?,
            returned: function::returned(&function.sig, WHAT)?,
            function,
            options,
            arguments,
        })
    }

    fn tokens(&self) -> TokenStream {
        let marker = function::marker(self.function);
        let implementation = self.implementation();
        let function = self.outer_function();
        quote!(#marker #implementation #function)
    }

    fn implementation(&self) -> TokenStream {
        let cfg = function::cfg_attributes(self.function);
        let (ident, name) = (&self.function.sig.ident, &self.name);
        let input = &self.arguments.input.ty;
        let Returned { output, error } = &self.returned;
        let mut types = function::associated("Input", input);
        types.extend(function::associated("Output", output));
        types.extend(function::associated("Error", error));
        let queue = self.options.queue.iter();
        let timeout_ms = self.options.timeout_ms.iter();
        let retry = self.options.retry.as_ref().map(Retry::tokens);
        quote! {
            #(#cfg)*
            #[automatically_derived]
            #[allow(unused_mut, deprecated)]
            impl ::continuum_worker::Activity for #ident {
                #types
                const NAME: &'static str = #name;

                fn options() -> ::continuum_worker::__private::ActivityOptions {
                    let mut options = ::continuum_worker::__private::default_options();
                    #(options.queue = ::std::string::String::from(#queue);)*
                    #(options.timeout_ms = #timeout_ms;)*
                    #retry
                    options
                }

                fn call(
                    ctx: ::continuum_worker::ActivityContext,
                    input: Self::Input,
                ) -> ::continuum_worker::ActivityCall<Self> {
                    #ident(ctx, input)
                }
            }
        }
    }

    /// The function that keeps the author's name. The author's own becomes an inner one, with its tokens untouched.
    fn outer_function(&self) -> TokenStream {
        let ItemFn {
            attrs,
            vis,
            sig,
            block,
            ..
        } = self.function;
        let ident = &sig.ident;
        let (ctx, ctx_ty) = (&self.arguments.context.name, &self.arguments.context.ty);
        let (input, input_ty) = (&self.arguments.input.name, &self.arguments.input.ty);
        let (inputs, output) = (&sig.inputs, &sig.output);
        let body = Ident::new("__body", Span::mixed_site());
        let allow = scan::allow_everything();
        quote! {
            #(#attrs)*
            #allow
            #vis fn #ident(#ctx: #ctx_ty, #input: #input_ty) -> ::continuum_worker::ActivityCall<#ident> {
                #[allow(clippy::unused_async)]
                async fn #body(#inputs) #output #block
                ::continuum_worker::ActivityCall::new(#body(#ctx, #input))
            }
        }
    }
}
