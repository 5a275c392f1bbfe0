//! `#[workflow]`.

use proc_macro2::{Span, TokenStream};
use quote::{ToTokens as _, quote, quote_spanned};
use syn::ext::IdentExt as _;
use syn::meta::ParseNestedMeta;
use syn::parse::{Parse, ParseStream, Parser as _};
use syn::punctuated::Punctuated;
use syn::spanned::Spanned as _;
use syn::{Attribute, Error, Ident, ItemFn, LitInt, LitStr, Path, Result, Token, Type, bracketed};

use crate::function::{self, Arguments, Returned};
use crate::scan::Scanned;
use crate::{hash, options, pure, scan};

const WHAT: &str = "a workflow";
const EXAMPLE: &str = "async fn order_flow(ctx: &WorkflowContext, order: Order)";

/// Expands the attribute. Wrong options and uses that are not deterministic still leave the workflow there, so that
/// they are the only errors.
pub(crate) fn expand(attribute: TokenStream, item: TokenStream) -> TokenStream {
    let function: ItemFn = match syn::parse2(item) {
        Ok(function) => function,
        Err(e) => return e.into_compile_error(),
    };
    let (options, error) = match Options::parse(attribute) {
        Ok(options) => (options, None),
        Err(e) => (Options::default(), Some(e.into_compile_error())),
    };
    let workflow = Workflow::new(&function, &options)
        .map_or_else(Error::into_compile_error, |workflow| workflow.tokens());
    quote!(#error #workflow)
}

#[derive(Default)]
struct Options {
    name: Option<LitStr>,
    version: Option<u32>,
    compatible: Option<Vec<LitStr>>,
    signals: Option<Vec<Signal>>,
    uses: Option<Vec<Path>>,
}

/// `fraud_review: Review`
struct Signal {
    name: Ident,
    ty: Type,
}

impl Parse for Signal {
    fn parse(input: ParseStream<'_>) -> Result<Self> {
        let name: Ident = input.parse()?;
        function::check_name(&name.unraw().to_string(), name.span())?;
        input.parse::<Token![:]>()?;
        let ty = input.parse()?;
        Ok(Self { name, ty })
    }
}

impl Options {
    fn parse(attribute: TokenStream) -> Result<Self> {
        let mut options = Self::default();
        syn::meta::parser(|meta| options.option(&meta)).parse2(attribute)?;
        if options.version.is_none() {
            let message = "say which version of the workflow this is: `#[workflow(version = 1)]`";
            return Err(Error::new(Span::call_site(), message));
        }
        Ok(options)
    }

    fn option(&mut self, meta: &ParseNestedMeta<'_>) -> Result<()> {
        if meta.path.is_ident("name") {
            options::set(&mut self.name, meta.value()?.parse()?, meta)
        } else if meta.path.is_ident("version") {
            let version: LitInt = meta.value()?.parse()?;
            options::set(&mut self.version, version.base10_parse()?, meta)
        } else if meta.path.is_ident("compatible") {
            options::set(&mut self.compatible, compatible(meta)?, meta)
        } else if meta.path.is_ident("signals") {
            options::set(&mut self.signals, signals(meta)?, meta)
        } else if meta.path.is_ident("uses") {
            options::set(&mut self.uses, options::list(meta)?, meta)
        } else {
            let known = "name, version, compatible, signals(..), uses(..)";
            Err(options::unknown(meta, known))
        }
    }
}

fn signals(meta: &ParseNestedMeta<'_>) -> Result<Vec<Signal>> {
    let signals: Vec<Signal> = options::list(meta)?;
    for (at, signal) in signals.iter().enumerate() {
        if signals[..at].iter().any(|other| other.name == signal.name) {
            let message = format!("the signal `{}` stands here twice", signal.name);
            return Err(Error::new(signal.name.span(), message));
        }
    }
    Ok(signals)
}

fn compatible(meta: &ParseNestedMeta<'_>) -> Result<Vec<LitStr>> {
    let content;
    let value = meta.value()?;
    bracketed!(content in value);
    let hashes = Punctuated::<LitStr, Token![,]>::parse_terminated(&content)?;
    for hash in &hashes {
        check_hash(hash)?;
    }
    Ok(hashes.into_iter().collect())
}

fn check_hash(literal: &LitStr) -> Result<()> {
    let text = literal.value();
    let is_hash = text.split_once(':').is_some_and(|(scheme, digits)| {
        scheme.starts_with('n')
            && digits.len() == hash::DIGITS
            && digits
                .bytes()
                .all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
    });
    if is_hash {
        return Ok(());
    }
    Err(Error::new(
        literal.span(),
        format!(
            "not the hash of a workflow: `{}` and {} hexadecimal digits, as the run's record shows it",
            hash::SCHEME,
            hash::DIGITS
        ),
    ))
}

struct Workflow<'a> {
    function: &'a ItemFn,
    options: &'a Options,
    name: String,
    arguments: Arguments,
    returned: Returned,
}

impl<'a> Workflow<'a> {
    fn new(function: &'a ItemFn, options: &'a Options) -> Result<Self> {
        function::check_plain(function, WHAT)?;
        let arguments = function::arguments(&function.sig, WHAT, EXAMPLE)?;
        let context = &arguments.context.ty;
        if !matches!(context, Type::Reference(r) if r.mutability.is_none()) {
            let message = "a workflow borrows its context: write `ctx: &WorkflowContext`";
            return Err(Error::new_spanned(context, message));
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
        let Scanned { body, error } = scan::scan(self.function.block.to_token_stream());
        let error = error.map(Error::into_compile_error);
        let inherent = self.inherent(&body);
        let hashed = self.hashed();
        let implementation = self.implementation();
        let function = self.outer_function();
        quote!(#error #marker #inherent #hashed #implementation #function)
    }

    fn signals(&self) -> &[Signal] {
        self.options.signals.as_deref().unwrap_or_default()
    }

    /// The author's own function, with its tokens untouched but for the steps, and the names of the signals.
    fn inherent(&self, body: &TokenStream) -> TokenStream {
        let cfg = function::cfg_attributes(self.function);
        let ItemFn {
            attrs, vis, sig, ..
        } = self.function;
        let (ident, inputs, output) = (&sig.ident, &sig.inputs, &sig.output);
        let lints = attrs.iter().filter(|a| is_lint_level(a));
        let signals = self.signals().iter().map(|Signal { name, ty }| {
            let text = name.unraw().to_string();
            let doc = format!("The signal `{text}`.");
            quote_spanned! {name.span()=>
                #[doc = #doc]
                #[allow(non_upper_case_globals, dead_code)]
                #vis const #name: ::continuum_worker::SignalName<#ty> = ::continuum_worker::SignalName::new(#text);
            }
        });
        quote! {
            #(#cfg)*
            #[allow(deprecated)]
            impl #ident {
                #(#signals)*

                #(#lints)*
                #[allow(clippy::unused_async)]
                async fn __run(#inputs) #output #body
            }
        }
    }

    fn hashed(&self) -> TokenStream {
        let cfg = function::cfg_attributes(self.function);
        let own = hash::n1(&self.name, self.function);
        let uses = self.options.uses.as_deref().unwrap_or_default();
        pure::hashed(&cfg, &self.function.sig.ident, &own, uses)
    }

    fn implementation(&self) -> TokenStream {
        let cfg = function::cfg_attributes(self.function);
        let (ident, name) = (&self.function.sig.ident, &self.name);
        let input = &self.arguments.input.ty;
        let convert = self.convert_error();
        let mut types = function::associated("Input", input);
        types.extend(function::associated("Output", &self.returned.output));
        let version = self.options.version.unwrap_or_default();
        let compatible = self.options.compatible.as_deref().unwrap_or_default();
        let signals = self.signals().iter().map(|s| s.name.unraw().to_string());
        quote! {
            #(#cfg)*
            #[automatically_derived]
            #[allow(deprecated, clippy::useless_conversion)]
            impl ::continuum_worker::Workflow for #ident {
                #types
                const NAME: &'static str = #name;
                const VERSION: u32 = #version;
                const HASH: &'static str = <Self as ::continuum_worker::Hashed>::HASH;
                const COMPATIBLE: &'static [&'static str] = &[#(#compatible),*];
                const SIGNALS: &'static [&'static str] = &[#(#signals),*];

                fn run(
                    ctx: ::continuum_worker::WorkflowContext,
                    input: Self::Input,
                ) -> ::continuum_worker::__private::BoxFuture<
                    'static,
                    ::std::result::Result<Self::Output, ::continuum_worker::WorkflowError>,
                > {
                    ::std::boxed::Box::pin(async move { Self::__run(&ctx, input).await #convert })
                }
            }
        }
    }

    /// Turns the author's error into the workflow's; a message that it can't be belongs at the error's type.
    fn convert_error(&self) -> TokenStream {
        let span = self.returned.error.span();
        quote_spanned!(span=> .map_err(::std::convert::Into::<::continuum_worker::WorkflowError>::into))
    }

    /// The function that keeps the author's name: a handle for `registry!` and clients, and a plain call in another
    /// workflow.
    fn outer_function(&self) -> TokenStream {
        let ItemFn {
            attrs, vis, sig, ..
        } = self.function;
        let ident = &sig.ident;
        let attrs = attrs.iter().filter(|a| !is_lint_level(a));
        let (ctx, ctx_ty) = (&self.arguments.context.name, &self.arguments.context.ty);
        let (input, input_ty) = (&self.arguments.input.name, &self.arguments.input.ty);
        let convert = self.convert_error();
        quote! {
            #(#attrs)*
            #[allow(clippy::useless_conversion)]
            #vis fn #ident(#ctx: #ctx_ty, #input: #input_ty) -> ::continuum_worker::WorkflowCall<'_, #ident> {
                ::continuum_worker::WorkflowCall::new(async move { #ident::__run(#ctx, #input).await #convert })
            }
        }
    }
}

/// Lint levels belong to the author's code, which is the inner function.
fn is_lint_level(attribute: &Attribute) -> bool {
    let levels = ["allow", "expect", "warn", "deny"];
    levels.iter().any(|level| attribute.path().is_ident(level))
}
