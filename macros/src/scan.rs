//! The first of three nets for determinism: a walk over the tokens of a workflow's body.
//!
//! It goes into the arguments of macros too, knows a use by the last segments of its path, and skips what may do
//! anything: the closures of `ctx.step(..)` and `nondeterministic!("reason", ..)`. Aliases, methods on values and
//! helpers slip through; the lints of `clippy.toml` and the match with the journal in replay are the other nets.

use proc_macro2::{Delimiter, Group, Ident, Span, TokenStream, TokenTree};
use quote::{ToTokens, quote_spanned};
use syn::Error;

/// A body after the walk.
pub(crate) struct Scanned {
    /// The body; the closures of its steps are freed from the lints that hold for workflows.
    pub(crate) body: TokenStream,
    /// Every use that a replay would not survive, as one error.
    pub(crate) error: Option<Error>,
}

/// Walks `body`.
pub(crate) fn scan(body: TokenStream) -> Scanned {
    let mut walk = Walk { error: None };
    let (body, _) = walk.stream(body);
    Scanned {
        body,
        error: walk.error,
    }
}

/// The attribute that frees code from what `clippy.toml` forbids to workflows.
pub(crate) fn allow_everything() -> TokenStream {
    quote_spanned! {Span::mixed_site()=>
        #[allow(clippy::disallowed_methods, clippy::disallowed_types, clippy::disallowed_macros)]
    }
}

struct Walk {
    error: Option<Error>,
}

impl Walk {
    /// The tokens after the walk, and whether they differ from those before. Groups that stay as they are keep the
    /// spans of their brackets, which the compiler's own messages point at.
    fn stream(&mut self, stream: TokenStream) -> (TokenStream, bool) {
        let trees: Vec<TokenTree> = stream.into_iter().collect();
        let mut out: Vec<TokenTree> = Vec::with_capacity(trees.len());
        let mut changed = false;
        let mut at = 0;
        while at < trees.len() {
            let is_member = follows_dot(&out);
            if let Some(path) = Path::at(&trees, at).filter(|_| !is_member) {
                at = self.path(&trees, &path, &mut out);
                continue;
            }
            if let Some(arguments) = step_arguments(&trees, at).filter(|_| is_member) {
                out.extend_from_slice(&trees[at..arguments]);
                if let TokenTree::Group(group) = &trees[arguments] {
                    out.push(self.step(group).into());
                }
                changed = true;
                at = arguments + 1;
                continue;
            }
            changed |= self.tree(&trees[at], &mut out);
            at += 1;
        }
        (out.into_iter().collect(), changed)
    }

    /// Walks one token; says whether it changed.
    fn tree(&mut self, tree: &TokenTree, out: &mut Vec<TokenTree>) -> bool {
        let TokenTree::Group(group) = tree else {
            out.push(tree.clone());
            return false;
        };
        let (inner, changed) = self.stream(group.stream());
        out.push(if changed {
            regroup(group, inner).into()
        } else {
            tree.clone()
        });
        changed
    }

    /// Judges a path; gives the place after it, which is after the macro's arguments where they may do anything.
    fn path(&mut self, trees: &[TokenTree], path: &Path, out: &mut Vec<TokenTree>) -> usize {
        let is_macro = trees.get(path.end).is_some_and(|t| is_punct(t, '!'))
            && matches!(trees.get(path.end + 1), Some(TokenTree::Group(_)));
        let is_escape = is_macro
            && path
                .segments
                .last()
                .is_some_and(|s| s == "nondeterministic");
        let end = if is_escape { path.end + 2 } else { path.end };
        out.extend_from_slice(&trees[path.start..end]);
        if let Some(reason) = judge(&path.segments, is_macro) {
            let tokens: TokenStream = trees[path.start..path.end].iter().cloned().collect();
            self.refuse(&tokens, &path.text(is_macro), &reason);
        }
        end
    }

    fn refuse(&mut self, tokens: &TokenStream, what: &str, reason: &Reason) {
        let Reason { because, instead } = reason;
        let message = format!(
            "`{what}` can't be used in a workflow: {because}\n  \
             help: {instead}\n  \
             help: if you know that it is safe: `continuum_worker::nondeterministic!(\"reason\", ..)`"
        );
        let error = Error::new_spanned(tokens, message);
        match &mut self.error {
            Some(errors) => errors.combine(error),
            None => self.error = Some(error),
        }
    }

    /// Walks the name of a step and frees its closure from the lints. The attribute needs a statement: attributes on
    /// expressions are not stable.
    fn step(&mut self, arguments: &Group) -> Group {
        let trees: Vec<TokenTree> = arguments.stream().into_iter().collect();
        let comma = trees.iter().position(|t| is_punct(t, ','));
        let (name, closure) = trees.split_at(comma.map_or(trees.len(), |comma| comma + 1));
        let (name, _) = self.stream(name.iter().cloned().collect());
        let closure = match closure.split_last() {
            Some((last, rest)) if is_punct(last, ',') => rest,
            _ => closure,
        };
        if closure.is_empty() {
            return regroup(arguments, name);
        }
        let closure: TokenStream = closure.iter().cloned().collect();
        let allow = allow_everything();
        let step = quote_spanned! {Span::mixed_site()=>
            #name { #allow let step = #closure; step }
        };
        regroup(arguments, step)
    }
}

fn regroup(old: &Group, inner: TokenStream) -> Group {
    let mut group = Group::new(old.delimiter(), inner);
    group.set_span(old.span());
    group
}

fn is_punct(tree: &TokenTree, wanted: char) -> bool {
    matches!(tree, TokenTree::Punct(punct) if punct.as_char() == wanted)
}

/// Whether the next token names a field or method; after the two dots of a range it doesn't.
fn follows_dot(out: &[TokenTree]) -> bool {
    match out {
        [.., before, dot] => is_punct(dot, '.') && !is_punct(before, '.'),
        _ => false,
    }
}

/// Where the arguments of `step(..)` or `step::<T>(..)` at `at` are, if they hold a closure in their second place.
fn step_arguments(trees: &[TokenTree], at: usize) -> Option<usize> {
    matches!(&trees[at], TokenTree::Ident(word) if word == "step").then_some(())?;
    let found = trees[at..].iter().position(
        |t| matches!(t, TokenTree::Group(group) if group.delimiter() == Delimiter::Parenthesis),
    )?;
    let is_turbofish = trees.get(at + 1).is_some_and(|t| is_punct(t, ':'));
    let TokenTree::Group(group) = &trees[at + found] else {
        return None;
    };
    let mut inner = group.stream().into_iter().skip_while(|t| !is_punct(t, ','));
    let is_closure = match inner.nth(1) {
        Some(TokenTree::Ident(word)) => word == "move" || word == "async",
        Some(tree) => is_punct(&tree, '|'),
        None => false,
    };
    (is_closure && (found == 1 || is_turbofish)).then_some(at + found)
}

/// A path in the token stream, up to its generic arguments.
struct Path {
    start: usize,
    end: usize,
    segments: Vec<String>,
}

impl Path {
    fn at(trees: &[TokenTree], start: usize) -> Option<Self> {
        let mut end = start;
        if is_separator(trees, end) {
            end += 2;
        }
        let mut segments = Vec::new();
        while let Some(TokenTree::Ident(ident)) = trees.get(end) {
            if is_keyword(ident) {
                break;
            }
            segments.push(ident.to_string());
            end += 1;
            if !(is_separator(trees, end)
                && matches!(trees.get(end + 2), Some(TokenTree::Ident(_))))
            {
                break;
            }
            end += 2;
        }
        (!segments.is_empty()).then_some(Self {
            start,
            end,
            segments,
        })
    }

    fn text(&self, is_macro: bool) -> String {
        let mut text = self.segments.join("::");
        if is_macro {
            text.push('!');
        }
        text
    }
}

fn is_keyword(ident: &Ident) -> bool {
    syn::parse2::<syn::Ident>(ident.to_token_stream()).is_err()
}

fn is_separator(trees: &[TokenTree], at: usize) -> bool {
    let colon = |at: usize| trees.get(at).is_some_and(|t| is_punct(t, ':'));
    colon(at) && colon(at + 1)
}

/// Why a use is refused, and what to write instead.
struct Reason {
    because: &'static str,
    instead: &'static str,
}

const CLOCK: Reason = Reason {
    because: "a replay would see another time",
    instead: "use `ctx.now()`, or `ctx.sleep(..)` to wait",
};
const RANDOM: Reason = Reason {
    because: "a replay would see another value",
    instead: "use `ctx.random()` or `ctx.uuid()`",
};
const OUTSIDE: Reason = Reason {
    because: "what it does or finds is not in the journal, and a replay would do or find it again",
    instead: "do it in an activity, or in `ctx.step(\"name\", || async { .. })`",
};
const FOREIGN: Reason = Reason {
    because: "it waits for or starts something that the journal doesn't know",
    instead: "use the effects of `ctx` (`sleep`, `timeout`, `join_all`, ..), or do it in an activity or a step",
};
const SELECT: Reason = Reason {
    because: "only Continuum's own polls its branches in the same order in every replay",
    instead: "write `continuum_worker::select!`, with its full path",
};
const JOIN: Reason = Reason {
    because: "a bare name may be `tokio::join!`, which polls its branches in a changing order",
    instead: "write `futures::join!`, with its full path",
};
const OUTPUT: Reason = Reason {
    because: "it would print again in every replay",
    instead: "do it in an activity or a step",
};
const ORDER: Reason = Reason {
    because: "its order is another one in every process",
    instead: "use `BTreeMap` or `BTreeSet`",
};
const LOCK: Reason = Reason {
    because: "it can block the worker's thread, and what it guards is not in the journal",
    instead: "use local variables; the branches of one run never run at the same time",
};

/// Says why a path may not stand in a workflow.
fn judge(segments: &[String], is_macro: bool) -> Option<Reason> {
    let segments: Vec<&str> = segments.iter().map(String::as_str).collect();
    if is_macro {
        return judge_macro(&segments);
    }
    if let Some(reason) = segments.iter().find_map(|segment| judge_type(segment)) {
        return Some(reason);
    }
    judge_root(&segments).or_else(|| judge_tail(&segments))
}

fn judge_macro(path: &[&str]) -> Option<Reason> {
    match path {
        ["tokio" | "futures" | "futures_util", "select"] | ["select"] => Some(SELECT),
        ["join" | "try_join"] => Some(JOIN),
        ["tokio", ..] => Some(FOREIGN),
        ["tracing" | "log", ..] => Some(OUTPUT),
        [.., "println" | "print" | "eprintln" | "eprint" | "dbg"] => Some(OUTPUT),
        ["trace" | "debug" | "info" | "warn" | "error"] => Some(OUTPUT),
        [.., "thread_local"] => Some(OUTSIDE),
        _ => None,
    }
}

/// Types that are refused wherever they are named.
fn judge_type(segment: &str) -> Option<Reason> {
    match segment {
        "HashMap" | "HashSet" | "RandomState" => Some(ORDER),
        "Mutex" | "RwLock" | "Condvar" => Some(LOCK),
        _ => None,
    }
}

/// Crates and modules that are refused as a whole.
fn judge_root(path: &[&str]) -> Option<Reason> {
    match path {
        ["tokio" | "async_std" | "smol", _, ..] => Some(FOREIGN),
        ["rand" | "fastrand" | "getrandom", _, ..] => Some(RANDOM),
        ["std", "env" | "fs" | "net" | "process", ..] => Some(OUTSIDE),
        ["std", "thread", ..] => Some(FOREIGN),
        _ => None,
    }
}

/// Functions that are known by the end of their path.
fn judge_tail(path: &[&str]) -> Option<Reason> {
    match path {
        [
            ..,
            "SystemTime" | "Instant" | "Utc" | "Local" | "Zoned" | "Timestamp",
            "now",
        ]
        | [.., "OffsetDateTime", "now_utc" | "now_local"] => Some(CLOCK),
        [
            ..,
            "Uuid",
            "new_v1" | "new_v4" | "new_v6" | "new_v7" | "now_v1" | "now_v6" | "now_v7",
        ]
        | [.., "thread_rng"] => Some(RANDOM),
        [.., "thread", "sleep" | "spawn" | "park" | "scope"] | [.., "block_on"] => Some(FOREIGN),
        [
            ..,
            "env",
            "var" | "var_os" | "vars" | "args" | "current_dir" | "temp_dir",
        ]
        | [
            ..,
            "fs",
            "read" | "read_dir" | "read_to_string" | "write" | "copy" | "remove_file",
        ]
        | [.., "File", "open" | "create"] => Some(OUTSIDE),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(source: &str) -> Vec<String> {
        let scanned = scan(source.parse().expect(source));
        scanned
            .error
            .into_iter()
            .flatten()
            .map(|e| {
                e.to_string()
                    .split('`')
                    .nth(1)
                    .unwrap_or_default()
                    .to_owned()
            })
            .collect()
    }

    #[test]
    fn every_planted_use_is_found() {
        for (source, found) in [
            (
                "let t = std::time::SystemTime::now();",
                "std::time::SystemTime::now",
            ),
            ("f(Instant::now)", "Instant::now"),
            ("S { a, ..rand::random() }", "rand::random"),
            ("vec![Uuid::new_v4()]", "Uuid::new_v4"),
            ("tokio::time::sleep(d).await", "tokio::time::sleep"),
            ("let x: u8 = rand::random();", "rand::random"),
            ("if ::std::env::var(\"X\").is_ok() {}", "std::env::var"),
            ("fs::read(\"x\")", "fs::read"),
            ("std::thread::spawn(|| {})", "std::thread::spawn"),
            ("match x { _ => println!(\"{y}\") }", "println!"),
            ("tracing::info!(x, \"y\")", "tracing::info!"),
            (
                "let m = Mutex::new(HashMap::<u8, u8>::new());",
                "Mutex::new",
            ),
            ("tokio::select! { x = a => x }", "tokio::select!"),
            ("select! { x = a => x }", "select!"),
            (
                "futures::executor::block_on(a)",
                "futures::executor::block_on",
            ),
        ] {
            assert_eq!(
                refused(source).first().map(String::as_str),
                Some(found),
                "{source}"
            );
        }
    }

    #[test]
    fn honest_code_passes() {
        for source in [
            "let t = ctx.now(); order.env.var.fs; let rand = 3; rand + 1",
            "continuum_worker::select! { x = a => x, y = b => y }",
            "futures::join!(a, b)",
            "let net = order.net(); net.process::<u8>()",
            "x.now().step(3)",
            "env.fs::<Local>()",
        ] {
            assert_eq!(refused(source), Vec::<String>::new(), "{source}");
        }
    }

    #[test]
    fn the_closure_of_a_step_and_the_escape_may_do_anything() {
        for source in [
            "ctx.step(\"a\", || async { Ok(Uuid::new_v4()) }).await",
            "ctx.step::<Uuid>(\"a\", move || async move { println!(\"x\"); Ok(1) },).await",
            "futures::join!(ctx.step(\"a\", || async { std::fs::read(\"x\") }), b)",
            "continuum_worker::nondeterministic!(\"only a log line\", println!(\"x\"))",
        ] {
            assert_eq!(refused(source), Vec::<String>::new(), "{source}");
        }
        assert_eq!(
            refused("ctx.step(rand::random(), || async { Uuid::new_v4() })"),
            ["rand::random"]
        );
    }

    #[test]
    fn only_the_closures_of_steps_are_rewritten() {
        let plain = "let x = ctx . step_by (3) ; f (x . step (1 , 2))";
        let stream: TokenStream = plain.parse().unwrap();
        assert_eq!(scan(stream.clone()).body.to_string(), stream.to_string());
        let step = scan("ctx.step(\"a\", || f())".parse().unwrap())
            .body
            .to_token_stream();
        assert!(step.to_string().contains("let step = || f ()"), "{step}");
    }
}
