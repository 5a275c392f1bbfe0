//! The hash of an author's function: scheme `n1`.
//!
//! SHA-256 over a normal form of the tokens, cut to 128 bits. What `rustfmt` may add or take away does not count:
//! spacing, comments, trailing commas, the braces of a match arm or closure that hold one expression, doubled
//! parentheses, the order of `use` lines, the semicolon after a last `return`. Doc comments and lint attributes
//! don't count either. Everything else does, the names of locals and the spelling of numbers included.
//!
//! A scheme never changes: runs in Postgres are bound to its hashes. Another normal form would be `n2`, beside this.

use std::fmt::Write as _;

use proc_macro2::{Delimiter, Group, TokenStream, TokenTree};
use quote::ToTokens;
use sha2::{Digest, Sha256};
use syn::parse::Parser as _;
use syn::{Block, Expr, ItemFn, Stmt};

/// The scheme's prefix.
pub(crate) const SCHEME: &str = "n1:";

/// Hexadecimal digits after the prefix.
pub(crate) const DIGITS: usize = 32;

/// The hash of `function`, known to the journal as `name`.
///
/// Its name, generics, arguments, result and body count; its attributes and visibility don't, so that the attribute
/// can name the hashes of older code without feeding on itself.
pub(crate) fn n1(name: &str, function: &ItemFn) -> String {
    let signature = &function.sig;
    let bounds = signature.generics.where_clause.as_ref();
    let mut hasher = Sha256::new();
    hasher.update(name);
    for part in [
        signature.generics.params.to_token_stream(),
        signature.inputs.to_token_stream(),
        signature.output.to_token_stream(),
        bounds.map_or_else(TokenStream::new, |clause| {
            clause.predicates.to_token_stream()
        }),
        function.block.to_token_stream(),
    ] {
        hasher.update([0]);
        let mut tokens = normalise(part);
        drop_trailing_comma(&mut tokens);
        feed(&mut hasher, &tokens);
    }
    let digest = hasher.finalize();
    digest[..DIGITS / 2]
        .iter()
        .fold(SCHEME.to_owned(), |mut text, byte| {
            write!(text, "{byte:02x}").expect("a string takes all that is written to it");
            text
        })
}

/// A token of the normal form.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Token {
    Ident(String),
    Punct(char),
    Literal(String),
    Group(Bracket, Vec<Token>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Bracket {
    Parenthesis,
    Brace,
    Square,
}

fn feed(hasher: &mut Sha256, tokens: &[Token]) {
    for token in tokens {
        match token {
            Token::Ident(text) => feed_text(hasher, b'i', text),
            Token::Literal(text) => feed_text(hasher, b'l', text),
            Token::Punct(punct) => feed_text(hasher, b'p', punct.encode_utf8(&mut [0; 4])),
            Token::Group(bracket, inner) => {
                let (open, close) = match bracket {
                    Bracket::Parenthesis => (b'(', b')'),
                    Bracket::Brace => (b'{', b'}'),
                    Bracket::Square => (b'[', b']'),
                };
                hasher.update([open]);
                feed(hasher, inner);
                hasher.update([close]);
            }
        }
    }
}

/// The length in front keeps two texts from running into one another.
fn feed_text(hasher: &mut Sha256, kind: u8, text: &str) {
    hasher.update([kind]);
    hasher.update((text.len() as u64).to_le_bytes());
    hasher.update(text);
}

fn normalise(stream: TokenStream) -> Vec<Token> {
    let trees = without_attributes(flatten(stream));
    let has_arms = trees
        .windows(2)
        .any(|pair| is_fat_arrow(&pair[0], &pair[1]));
    let mut out = Vec::with_capacity(trees.len());
    // Whether the next token begins an arm; a bar there is optional.
    let mut begins_arm = has_arms;
    for tree in trees {
        let ends_arm =
            has_arms && (is_punct(&tree, ',') || follows_fat_arrow(&out) && is_block(&tree));
        match tree {
            TokenTree::Group(group) => push_group(&mut out, &group),
            TokenTree::Ident(ident) => out.push(Token::Ident(ident.to_string())),
            TokenTree::Literal(literal) => out.push(Token::Literal(literal.to_string())),
            TokenTree::Punct(punct) if begins_arm && punct.as_char() == '|' => {}
            TokenTree::Punct(punct) => push_punct(&mut out, punct.as_char(), has_arms),
        }
        begins_arm = ends_arm;
    }
    out
}

/// Groups without delimiters come from `macro_rules` and mean nothing here.
fn flatten(stream: TokenStream) -> Vec<TokenTree> {
    let mut trees = Vec::new();
    for tree in stream {
        match tree {
            TokenTree::Group(group) if group.delimiter() == Delimiter::None => {
                trees.extend(flatten(group.stream()));
            }
            other => trees.push(other),
        }
    }
    trees
}

/// Drops doc comments, lint levels and formatter settings.
fn without_attributes(trees: Vec<TokenTree>) -> Vec<TokenTree> {
    let mut out = Vec::with_capacity(trees.len());
    let mut rest = trees.into_iter().peekable();
    while let Some(tree) = rest.next() {
        if is_punct(&tree, '#') {
            let bang = rest.next_if(|next| is_punct(next, '!'));
            if rest.next_if(is_idle_attribute).is_some() {
                continue;
            }
            out.push(tree);
            out.extend(bang);
        } else {
            out.push(tree);
        }
    }
    out
}

fn is_idle_attribute(tree: &TokenTree) -> bool {
    let TokenTree::Group(group) = tree else {
        return false;
    };
    let first = group.stream().into_iter().next();
    group.delimiter() == Delimiter::Bracket
        && matches!(first, Some(TokenTree::Ident(word))
            if ["doc", "allow", "expect", "warn", "deny", "rustfmt"].iter().any(|idle| word == idle))
}

fn is_punct(tree: &TokenTree, wanted: char) -> bool {
    matches!(tree, TokenTree::Punct(punct) if punct.as_char() == wanted)
}

fn is_block(tree: &TokenTree) -> bool {
    matches!(tree, TokenTree::Group(group) if group.delimiter() == Delimiter::Brace)
}

fn is_fat_arrow(first: &TokenTree, second: &TokenTree) -> bool {
    is_punct(first, '=') && is_punct(second, '>')
}

/// Adds punctuation, without the commas that `rustfmt` adds or takes away.
fn push_punct(out: &mut Vec<Token>, punct: char, has_arms: bool) {
    match punct {
        ',' if out.last() == Some(&Token::Punct(',')) => {}
        // The comma after an arm's block is optional.
        ',' if has_arms && ends_in_block(out) => {}
        '>' => {
            drop_trailing_comma(out);
            out.push(Token::Punct('>'));
        }
        other => out.push(Token::Punct(other)),
    }
}

fn ends_in_block(out: &[Token]) -> bool {
    matches!(out.last(), Some(Token::Group(Bracket::Brace, _)))
}

fn follows_fat_arrow(out: &[Token]) -> bool {
    matches!(out, [.., Token::Punct('='), Token::Punct('>')])
}

fn drop_trailing_comma(out: &mut Vec<Token>) {
    out.pop_if(|last| *last == Token::Punct(','));
}

fn push_group(out: &mut Vec<Token>, group: &Group) {
    let mut inner = normalise(group.stream());
    match group.delimiter() {
        Delimiter::Parenthesis => {
            trim_parenthesis(&mut inner, takes_arguments(out));
            out.push(Token::Group(Bracket::Parenthesis, inner));
        }
        Delimiter::Brace => push_brace(out, inner, group.stream()),
        // Groups without delimiters are flattened before they come here.
        Delimiter::Bracket | Delimiter::None => {
            drop_trailing_comma(&mut inner);
            out.push(Token::Group(Bracket::Square, inner));
        }
    }
}

/// Drops a trailing comma unless it makes a tuple of one, and doubled parentheses unless they hold a tuple.
fn trim_parenthesis(inner: &mut Vec<Token>, are_arguments: bool) {
    let commas = inner.iter().filter(|t| **t == Token::Punct(',')).count();
    if commas != 1 || are_arguments {
        drop_trailing_comma(inner);
    }
    if let [Token::Group(Bracket::Parenthesis, nested)] = &inner[..]
        && !nested.is_empty()
        && !nested.contains(&Token::Punct(','))
    {
        *inner = nested.clone();
    }
}

/// Whether a parenthesis at this place holds the arguments of a call or macro, not a tuple.
fn takes_arguments(out: &[Token]) -> bool {
    const KEYWORDS: [&str; 15] = [
        "as", "box", "break", "else", "fn", "if", "in", "let", "match", "move", "mut", "ref",
        "return", "while", "yield",
    ];
    match out {
        [.., Token::Punct('=' | '-'), Token::Punct('>')] => false,
        [.., Token::Ident(word)] => !KEYWORDS.contains(&word.as_str()),
        [.., last] => matches!(last, Token::Group(..) | Token::Punct('>' | '!' | '?')),
        [] => false,
    }
}

/// Adds a block; without its braces where it is the body of an arm or closure and holds one expression.
fn push_brace(out: &mut Vec<Token>, mut inner: Vec<Token>, stream: TokenStream) {
    let statements = Block::parse_within.parse2(stream).unwrap_or_default();
    if ends_in_jump(&statements) {
        inner.pop_if(|last| *last == Token::Punct(';'));
    }
    drop_trailing_comma(&mut inner);
    let inner = with_sorted_uses(inner);
    let is_arm = follows_fat_arrow(out);
    let is_closure = out.last() == Some(&Token::Punct('|'));
    if !is_one_expression(&statements) || !(is_arm || is_closure) {
        out.push(Token::Group(Bracket::Brace, inner));
        return;
    }
    out.extend(inner);
    if is_arm && !ends_in_block(out) {
        out.push(Token::Punct(','));
    }
}

fn is_one_expression(statements: &[Stmt]) -> bool {
    match statements {
        [Stmt::Expr(_, None)] => true,
        [Stmt::Macro(statement)] => statement.semi_token.is_none(),
        _ => ends_in_jump(statements) && statements.len() == 1,
    }
}

fn ends_in_jump(statements: &[Stmt]) -> bool {
    matches!(
        statements.last(),
        Some(Stmt::Expr(
            Expr::Return(_) | Expr::Break(_) | Expr::Continue(_),
            Some(_)
        ))
    )
}

/// Sorts each run of `use` lines, and the names within their braces.
fn with_sorted_uses(tokens: Vec<Token>) -> Vec<Token> {
    let use_word = Token::Ident("use".to_owned());
    if !tokens.contains(&use_word) {
        return tokens;
    }
    let mut out = Vec::with_capacity(tokens.len());
    let mut run: Vec<Vec<Token>> = Vec::new();
    let mut rest = tokens.into_iter().peekable();
    while let Some(token) = rest.next() {
        let starts = matches!(
            out.last(),
            None | Some(Token::Punct(';') | Token::Group(Bracket::Brace, _))
        );
        if token != use_word || !starts && run.is_empty() {
            out.extend(sorted(&mut run));
            out.push(token);
            continue;
        }
        let mut line = vec![token];
        for token in rest.by_ref() {
            let is_end = token == Token::Punct(';');
            line.push(with_sorted_names(token));
            if is_end {
                break;
            }
        }
        run.push(line);
    }
    out.extend(sorted(&mut run));
    out
}

fn sorted(run: &mut Vec<Vec<Token>>) -> Vec<Token> {
    run.sort();
    std::mem::take(run).concat()
}

fn with_sorted_names(token: Token) -> Token {
    let Token::Group(Bracket::Brace, inner) = token else {
        return token;
    };
    let mut names: Vec<Vec<Token>> = inner
        .split(|t| *t == Token::Punct(','))
        .map(|name| name.iter().cloned().map(with_sorted_names).collect())
        .collect();
    names.sort();
    Token::Group(Bracket::Brace, names.join(&Token::Punct(',')))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hash(source: &str) -> String {
        n1("f", &syn::parse_str(source).expect(source))
    }

    #[track_caller]
    fn assert_same(left: &str, right: &str) {
        assert_eq!(hash(left), hash(right), "{left}\n{right}");
    }

    #[track_caller]
    fn assert_differ(left: &str, right: &str) {
        assert_ne!(hash(left), hash(right), "{left}\n{right}");
    }

    const ORDER: &str = r#"
        async fn order_flow(ctx: &WorkflowContext, order: Order) -> Result<Shipment, WorkflowError> {
            let receipt = ctx.activity(charge_card, Charge { cents: order.cents }).await?;
            match order.review { Some(_) => ctx.signal(order_flow::fraud_review).await?, None => return Ok(receipt) }
        }"#;

    /// These values are in the journals of runs. If this test fails, the scheme was changed; undo that, and add `n2`.
    #[test]
    fn scheme_n1_never_changes() {
        let golden = [
            ("fn f() {}", "n1:ad064ecb8d7aaf6c46055a62f6d96b84"),
            (ORDER, "n1:c1a090518aa59e0f8f7344412c0a152f"),
            (
                "fn f<T: Copy>(a: [T; 2],) -> (T,) where T: Eq, { use b::{d, c}; (a[0],) }",
                "n1:d1693d3c953b14a4474437193029fb28",
            ),
            (
                "fn f(x: u8) -> u8 { match x { | 1 | 2 => { g(|y| { y + 1 }) } _ => { return 3; } } }",
                "n1:d2b846904324fb6a09d906cd6441c251",
            ),
        ];
        let found: Vec<String> = golden.iter().map(|(source, _)| hash(source)).collect();
        let expected: Vec<&str> = golden.iter().map(|(_, hash)| *hash).collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn formatting_does_not_count() {
        assert_same(
            "fn f(a: u8, b: u8) { g(a, b) }",
            "fn f(\n a: u8,\n b: u8,\n) {\n g(\na,\nb,\n)\n}",
        );
        assert_same("fn f(a: u8) {}", "fn f(a: u8,) {}");
        assert_same(
            "fn f() { /* why */ g() }",
            "/// Doc.\nfn f() { g() // so\n }",
        );
        assert_same(
            "fn f() { #[allow(dead_code)] let x = 1; }",
            "fn f() { let x = 1; }",
        );
        assert_same(
            "fn f() -> Vec<u8> { vec![1, 2] }",
            "fn f() -> Vec<u8,> { vec![1, 2,] }",
        );
        assert_same("fn f() { g(|x| x + 1) }", "fn f() { g(|x| { x + 1 }) }");
        assert_same(
            "fn f() { g(move || h(1), 2) }",
            "fn f() { g(move || { h(1) }, 2,) }",
        );
        assert_same(
            "fn f() { if x { return 1 } }",
            "fn f() { if x { return 1; } }",
        );
        assert_same("fn f() { ((a + b)) * c }", "fn f() { (a + b) * c }");
        assert_same(
            "fn f() { use b; use a::{d, c}; g() }",
            "fn f() { use a::{c, d}; use b; g() }",
        );
    }

    #[test]
    fn the_shape_of_match_arms_does_not_count() {
        let plain = "fn f() { match x { 1 => g(), 2 => S { a }, 3 => { h(); i() } _ => j!(k) } }";
        assert_same(
            plain,
            "fn f() { match x { 1 => { g() } 2 => { S { a } } 3 => { h(); i() }, _ => { j!(k) } } }",
        );
        assert_same(
            plain,
            "fn f() { match x { | 1 => { g() }, 2 => S { a, }, | 3 => { h(); i() } | _ => j!(k), } }",
        );
        assert_same(
            "fn f() { match x { 1 => return 2, _ => 3 } }",
            "fn f() { match x { 1 => { return 2; } _ => 3, } }",
        );
    }

    #[test]
    fn what_means_something_counts() {
        assert_differ("fn f() { g(1) }", "fn f() { g(2) }");
        assert_differ("fn f() { g(\"a b\") }", "fn f() { g(\"a  b\") }");
        assert_differ("fn f() { (a,) }", "fn f() { (a) }");
        assert_differ("fn f() { g((a, b)) }", "fn f() { g(a, b) }");
        assert_differ("fn f() { g(()) }", "fn f() { g() }");
        assert_differ("fn f() { g(); h() }", "fn f() { h(); g() }");
        assert_differ("fn f() { g() }", "fn f() { g(); }");
        assert_differ("fn f(a: u8) {}", "fn f(a: u16) {}");
        assert_differ("fn f() -> u8 { 1 }", "fn f() -> u16 { 1 }");
        assert_differ("fn f() { a - b }", "fn f() { a + b }");
        assert_differ("fn f() { #[cfg(x)] g(); }", "fn f() { g(); }");
        assert_ne!(
            n1("a", &syn::parse_str("fn f() {}").unwrap()),
            n1("b", &syn::parse_str("fn f() {}").unwrap())
        );
    }

    #[test]
    fn source_made_by_macro_rules_has_the_hash_of_the_plain_source() {
        let literal: TokenTree = Group::new(Delimiter::None, "5".parse().unwrap()).into();
        let made: ItemFn = syn::parse2(quote::quote!(fn f() { g(#literal, 1) })).unwrap();
        assert_eq!(n1("f", &made), hash("fn f() { g(5, 1) }"));
    }

    #[test]
    fn rustfmt_does_not_change_a_hash() {
        let source = "async fn f(ctx: &C, order: Order) -> Result<(), E> { use b::{z, a}; use a::b;
            let (x,) = ctx.join_all(order.items.iter().map(|item| { ctx.activity(ship_the_whole_item, item.clone()) })).await;
            match x { | A | B => { ctx.sleep(Duration::from_secs(1)).await? } C { d, .. } => (), _ => { return Err(E::new(\"a long text of an error that needs room\", order.number_of_the_order)) } }
            if ((x)) { return Ok(()) } vec![a_long_name_of_something, another_long_name_of_something, a_third_long_name_of_it]; }";
        for width in ["60", "100"] {
            let formatted = rustfmt(source, width);
            assert_ne!(source, formatted);
            assert_same(source, &formatted);
        }
    }

    fn rustfmt(source: &str, width: &str) -> String {
        use std::io::Write as _;
        use std::process::{Command, Stdio};
        let mut child = Command::new("rustfmt")
            .args(["--edition", "2024", "--config"])
            .arg(format!("max_width={width}"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("rustfmt is part of the toolchain");
        let mut stdin = child.stdin.take().unwrap();
        stdin.write_all(source.as_bytes()).unwrap();
        drop(stdin);
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success());
        String::from_utf8(output.stdout).unwrap()
    }
}
