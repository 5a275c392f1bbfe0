//! House rules that are tests.
//!
//! Each rule is a function from the tree's files to the list of its violations. Beside the test that
//! the tree keeps the rule stands one that the rule notices when it is broken.

use std::fs;
use std::path::{Path, PathBuf};

/// Files that may hold SQL and send it, each with the reason. Only what is no part of the product can be
/// excused: tests, benchmarks and examples; the product's SQL lives in `schema/` and `migrations/`.
const SQL_EXCUSED: &[(&str, &str)] = &[
    (
        "examples/src/also_bought/store.rs",
        "an author's own tables, as authors would write them",
    ),
    ("tests/it/tidy.rs", "samples for the scan itself"),
    (
        "tests/src/look.rs",
        "transactions that are held open in the middle, and lock waits",
    ),
    (
        "tests/src/tamper.rs",
        "damage that no query of the product does",
    ),
];

/// Crates that may be named in a member's `[dependencies]`. What is not listed is not allowed.
const DIRECTIONS: &[(&str, &[&str])] = &[
    ("schema", &[]),
    ("macros", &[]),
    ("bus", &["schema"]),
    ("worker", &["schema", "bus", "macros"]),
    ("examples", &["worker"]),
    ("tests", &["schema", "bus", "worker", "examples"]),
    ("benches", &["schema", "bus", "worker", "examples"]),
    (OUTSIDE, &["schema", "bus", "worker"]),
];

/// The package that is no member of the workspace, and so can't take its versions from there.
const OUTSIDE: &str = "fuzz";

const LINES_MAX: usize = 1500;

/// One text file of the tree.
#[derive(Clone)]
struct SourceFile {
    /// Relative to the root, with `/` between folders.
    path: String,
    text: String,
}

impl SourceFile {
    fn is_rust(&self) -> bool {
        self.path.ends_with(".rs")
    }

    fn is_in(&self, folders: &[&str]) -> bool {
        let top = self.path.split('/').next();
        top.is_some_and(|top| folders.contains(&top))
    }

    fn at(&self, line: usize, complaint: &str) -> String {
        format!("{}:{line}: {complaint}", self.path)
    }
}

/// Every text file of the tree but what was built, downloaded or generated.
fn tree() -> Vec<SourceFile> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut files = Vec::new();
    walk(&root, &root, &mut files);
    assert!(
        files.len() > 20,
        "the tree was not found at {}",
        root.display()
    );
    files
}

fn walk(root: &Path, folder: &Path, files: &mut Vec<SourceFile>) {
    let mut paths: Vec<PathBuf> = fs::read_dir(folder)
        .unwrap_or_else(|error| panic!("{}: {error}", folder.display()))
        .map(|entry| entry.unwrap().path())
        .collect();
    paths.sort();
    for path in paths {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if ["target", ".git", "Cargo.lock", "LICENSE"].contains(&name.as_str()) {
            continue;
        }
        if path.is_dir() {
            walk(root, &path, files);
        } else if let Ok(text) = fs::read_to_string(&path) {
            let relative = path.strip_prefix(root).unwrap();
            let path = relative.to_string_lossy().replace('\\', "/");
            files.push(SourceFile { path, text });
        }
    }
}

fn assert_clean(violations: &[String]) {
    assert!(violations.is_empty(), "\n{}\n", violations.join("\n"));
}

fn planted(path: &str, text: &str) -> Vec<SourceFile> {
    vec![SourceFile {
        path: path.to_owned(),
        text: text.to_owned(),
    }]
}

// ---------------------------------------------------------------------------------------------
// A look at Rust source that tells code from strings and comments.

#[derive(Debug, Clone, Copy, PartialEq)]
enum Kind {
    Code,
    Text,
    Comment,
}

/// A stretch of source of one kind. Of a string it is the inside, as written.
#[derive(Debug, PartialEq)]
struct Piece<'a> {
    kind: Kind,
    line: usize,
    text: &'a str,
}

fn pieces(source: &str) -> Vec<Piece<'_>> {
    let mut pieces = Vec::new();
    let mut code_start = 0;
    let mut position = 0;
    while position < source.len() {
        let Some(found) = special(source, position) else {
            position += char_len(source, position);
            continue;
        };
        push(&mut pieces, source, Kind::Code, code_start..position);
        push(&mut pieces, source, found.kind, found.inside.clone());
        position = found.end;
        code_start = found.end;
    }
    push(&mut pieces, source, Kind::Code, code_start..source.len());
    pieces
}

fn push<'a>(
    pieces: &mut Vec<Piece<'a>>,
    source: &'a str,
    kind: Kind,
    range: std::ops::Range<usize>,
) {
    if !range.is_empty() {
        let line = 1 + source[..range.start].matches('\n').count();
        let text = &source[range];
        pieces.push(Piece { kind, line, text });
    }
}

struct Special {
    kind: Kind,
    inside: std::ops::Range<usize>,
    end: usize,
}

/// The string, character or comment that begins at `start`, if one does.
fn special(source: &str, start: usize) -> Option<Special> {
    let rest = &source[start..];
    if rest.starts_with("//") {
        let end = start + rest.find('\n').unwrap_or(rest.len());
        return Some(Special {
            kind: Kind::Comment,
            inside: start..end,
            end,
        });
    }
    if rest.starts_with("/*") {
        let end = start + block_comment_len(rest);
        return Some(Special {
            kind: Kind::Comment,
            inside: start..end,
            end,
        });
    }
    if rest.starts_with('"') {
        return Some(quoted(source, start));
    }
    if rest.starts_with('r') && !continues_a_name(source, start) {
        return raw_string(source, start);
    }
    rest.starts_with('\'')
        .then(|| character(source, start))
        .flatten()
}

fn quoted(source: &str, start: usize) -> Special {
    let inside = start + 1;
    let mut end = inside;
    let bytes = source.as_bytes();
    while end < bytes.len() && bytes[end] != b'"' {
        end += if bytes[end] == b'\\' { 2 } else { 1 };
    }
    let end = end.min(source.len());
    Special {
        kind: Kind::Text,
        inside: inside..end,
        end: (end + 1).min(source.len()),
    }
}

fn raw_string(source: &str, start: usize) -> Option<Special> {
    let after_r = &source[start + 1..];
    let hashes = after_r.len() - after_r.trim_start_matches('#').len();
    if !after_r[hashes..].starts_with('"') {
        return None; // A name that begins with r, or a raw identifier.
    }
    let inside = start + 1 + hashes + 1;
    let close = format!("\"{}", "#".repeat(hashes));
    let end = source[inside..]
        .find(&close)
        .map_or(source.len(), |length| inside + length);
    Some(Special {
        kind: Kind::Text,
        inside: inside..end,
        end: (end + close.len()).min(source.len()),
    })
}

/// A character literal; nothing for a lifetime. Matters because of `'"'`.
fn character(source: &str, start: usize) -> Option<Special> {
    let rest = &source[start + 1..];
    let length = if let Some(escape) = rest.strip_prefix('\\') {
        let first = escape.chars().next()?.len_utf8();
        1 + first + escape[first..].find('\'')?
    } else {
        let first = rest.chars().next()?.len_utf8();
        rest[first..].starts_with('\'').then_some(first)?
    };
    let end = start + 1 + length;
    Some(Special {
        kind: Kind::Text,
        inside: start + 1..end,
        end: end + 1,
    })
}

fn block_comment_len(rest: &str) -> usize {
    let mut depth = 0;
    let mut position = 0;
    while position < rest.len() {
        let here = &rest[position..];
        if here.starts_with("/*") {
            depth += 1;
            position += 2;
        } else if here.starts_with("*/") {
            depth -= 1;
            position += 2;
            if depth == 0 {
                return position;
            }
        } else {
            position += char_len(rest, position);
        }
    }
    rest.len()
}

fn char_len(source: &str, position: usize) -> usize {
    source[position..].chars().next().map_or(1, char::len_utf8)
}

/// Whether the character before `position` belongs to the same name; `br"…"` does not count.
fn continues_a_name(source: &str, position: usize) -> bool {
    let before = &source[..position];
    let before = before.strip_suffix('b').unwrap_or(before);
    before
        .chars()
        .next_back()
        .is_some_and(|last| last.is_alphanumeric() || last == '_')
}

/// The names and numbers in a piece of code, with their lines.
fn words<'a>(piece: &Piece<'a>) -> impl Iterator<Item = (usize, &'a str)> {
    let first = piece.line;
    piece
        .text
        .split('\n')
        .enumerate()
        .flat_map(move |(index, line)| {
            line.split(|c: char| !c.is_alphanumeric() && c != '_')
                .filter(|word| !word.is_empty())
                .map(move |word| (first + index, word))
        })
}

fn code_words(file: &SourceFile) -> Vec<(usize, &str)> {
    let pieces = pieces(&file.text);
    let code = pieces.iter().filter(|piece| piece.kind == Kind::Code);
    code.flat_map(words).collect()
}

#[test]
fn the_scan_tells_code_from_strings_and_comments() {
    let source = r##"let a = "in \" one"; // not "text"
let q = '"'; fn f<'a>() {} /* nested /* "no" */ */ let b = r#"raw " two"#; var"##;
    let found = pieces(source);
    let text_of = |kind| -> Vec<&str> {
        let pieces = found.iter().filter(|piece| piece.kind == kind);
        pieces.map(|piece| piece.text).collect()
    };
    assert_eq!(text_of(Kind::Text), [r#"in \" one"#, "\"", "raw \" two"]);
    assert_eq!(
        text_of(Kind::Comment),
        [r#"// not "text""#, r#"/* nested /* "no" */ */"#]
    );
    let raw = found.iter().find(|piece| piece.text.starts_with("raw"));
    assert_eq!(raw.unwrap().line, 2);
}

// ---------------------------------------------------------------------------------------------
// Only schema speaks SQL.

fn sql_outside_schema(files: &[SourceFile], excused: &[(&str, &str)]) -> Vec<String> {
    let mut violations = Vec::new();
    for file in files {
        let is_excused = excused.iter().any(|(path, _)| file.path == *path);
        if !file.is_rust() || file.is_in(&["schema"]) || is_excused {
            continue;
        }
        for piece in pieces(&file.text) {
            if piece.kind == Kind::Text && is_sql(piece.text) {
                violations.push(file.at(piece.line, "SQL; it belongs into schema/queries"));
            }
        }
    }
    violations
}

/// Whether a string holds a statement in capitals, or is one in small letters from its beginning.
/// Prose with a capital at the start ("Select a run from the list") is neither.
fn is_sql(text: &str) -> bool {
    let words: Vec<&str> = text
        .split(|c: char| c.is_whitespace() || "(),;".contains(c))
        .filter(|word| !word.is_empty())
        .collect();
    let shouted = (0..words.len()).any(|start| is_statement(&words[start..], str::to_owned));
    let whispered = words.first().is_some_and(|first| {
        first.chars().all(|c| c.is_ascii_lowercase())
            && is_statement(&words, |word| word.to_uppercase())
    });
    shouted || whispered
}

fn is_statement(words: &[&str], fold: fn(&str) -> String) -> bool {
    let word = |index: usize| words.get(index).map(|word| fold(word)).unwrap_or_default();
    let later = |wanted: &str| words.iter().skip(2).any(|word| fold(word) == wanted);
    let objects = ["TABLE", "SCHEMA", "FUNCTION", "INDEX", "VIEW", "DATABASE"];
    match word(0).as_str() {
        "SELECT" => later("FROM") || word(1).contains("PG_") || word(1) == "1",
        "INSERT" => word(1) == "INTO",
        "DELETE" => word(1) == "FROM",
        "UPDATE" => word(2) == "SET",
        "CREATE" | "ALTER" | "DROP" => objects.contains(&word(1).as_str()),
        "TRUNCATE" => word(1) == "TABLE",
        "LOCK" => word(1) == "TABLE",
        _ => false,
    }
}

#[test]
fn only_schema_holds_sql() {
    assert_clean(&sql_outside_schema(&tree(), SQL_EXCUSED));
}

#[test]
fn sql_is_noticed_in_strings_and_not_in_prose() {
    for statement in [
        "SELECT id FROM runs",
        "  \n with_prefix SELECT a, b\n FROM t",
        "INSERT INTO t VALUES (1)",
        "update t set a = 1",
        "delete from t",
        "CREATE TABLE t (a int)",
        "DROP SCHEMA s CASCADE",
        "SELECT 1",
    ] {
        let source = format!("fn f() {{ run({statement:?}); }}");
        let found = sql_outside_schema(&planted("worker/src/a.rs", &source), &[]);
        assert_eq!(found.len(), 1, "{statement}");
    }
    for harmless in [
        "Select a run from the list",
        "the update was set aside",
        "could not insert into the queue",
        "Delete from here",
    ] {
        assert!(!is_sql(harmless), "{harmless}");
    }
    let comment = planted("worker/src/a.rs", "// runs \"SELECT a FROM b\"");
    assert_clean(&sql_outside_schema(&comment, &[]));
    let home = planted("schema/src/a.rs", "\"SELECT a FROM b\"");
    assert_clean(&sql_outside_schema(&home, &[]));
}

/// Every excuse has a reason, is for test code, and is still needed.
fn bad_excuses(files: &[SourceFile], excused: &[(&str, &str)]) -> Vec<String> {
    let mut violations = Vec::new();
    for (path, reason) in excused {
        if reason.trim().is_empty() {
            violations.push(format!("{path}: excused without a reason"));
        }
        let folders = ["tests/", "benches/", "examples/"];
        if !folders.iter().any(|folder| path.starts_with(folder)) {
            violations.push(format!("{path}: the product cannot be excused"));
        }
        let this: Vec<SourceFile> = files
            .iter()
            .filter(|file| file.path == *path)
            .cloned()
            .collect();
        if sql_outside_schema(&this, &[]).is_empty() {
            violations.push(format!("{path}: needs no excuse any more"));
        }
    }
    violations
}

#[test]
fn excuses_are_justified() {
    assert_clean(&bad_excuses(&tree(), SQL_EXCUSED));
    let files = planted("worker/src/a.rs", "fn a() {}");
    assert_eq!(bad_excuses(&files, &[("worker/src/a.rs", " ")]).len(), 3);
}

fn queries_outside_schema(files: &[SourceFile], excused: &[(&str, &str)]) -> Vec<String> {
    let always = [
        "query_as",
        "query_scalar",
        "raw_sql",
        "QueryBuilder",
        "query_file",
    ];
    let mut violations = Vec::new();
    for file in files.iter().filter(|file| file.is_rust()) {
        let is_excused = excused.iter().any(|(path, _)| file.path == *path);
        if file.is_in(&["schema"]) || is_excused {
            continue;
        }
        let words = code_words(file);
        let uses_sqlx = words.iter().any(|(_, word)| *word == "sqlx");
        for pair in words.windows(2) {
            let [(_, before), (line, word)] = *pair else {
                continue;
            };
            let is_query = always.contains(&word) || (before == "sqlx" && word == "query");
            if uses_sqlx && is_query {
                violations.push(file.at(line, "a query; only schema sends statements"));
            }
        }
    }
    violations
}

#[test]
fn only_schema_sends_queries() {
    assert_clean(&queries_outside_schema(&tree(), SQL_EXCUSED));
}

#[test]
fn a_query_elsewhere_is_noticed() {
    for source in [
        "fn f() { sqlx::query(text) }",
        "use sqlx::{query, Row};",
        "use sqlx::Row; fn f() { query_as(text) }",
        "use sqlx::QueryBuilder;",
    ] {
        let found = queries_outside_schema(&planted("tests/it/a.rs", source), &[]);
        assert_eq!(found.len(), 1, "{source}");
    }
    let harmless = "// sqlx::query\nfn query_pairs() {}";
    let harmless = planted("worker/src/a.rs", harmless);
    assert_clean(&queries_outside_schema(&harmless, &[]));
}

/// A commit that notifies takes one lock of the whole server, and a listener that stands still fills a queue that then
/// fails commits. Whoever is to be woken is told over NATS, after the commit.
fn notices_of_postgres(files: &[SourceFile]) -> Vec<String> {
    let is_sql = |file: &&SourceFile| file.is_in(&["schema", "migrations"]);
    let mut violations = Vec::new();
    for file in files
        .iter()
        .filter(is_sql)
        .filter(|file| file.path.ends_with(".sql"))
    {
        for (number, line) in (1..).zip(file.text.lines()) {
            let code = line
                .split("--")
                .next()
                .unwrap_or_default()
                .to_ascii_lowercase();
            let words = code.split(|c: char| !c.is_alphanumeric() && c != '_');
            if words
                .into_iter()
                .any(|w| matches!(w, "notify" | "pg_notify" | "listen"))
            {
                violations.push(file.at(
                    number,
                    "LISTEN and NOTIFY are not used; see docs/clustering.md",
                ));
            }
        }
    }
    violations
}

#[test]
fn no_commit_waits_for_the_notification_lock_since_nothing_notifies() {
    assert_clean(&notices_of_postgres(&tree()));
    let planted = planted(
        "schema/queries/a/b.sql",
        "SELECT 1;\nSELECT pg_notify('a', '')",
    );
    assert_eq!(notices_of_postgres(&planted).len(), 1);
}

fn misused_query_files(files: &[SourceFile]) -> Vec<String> {
    let mut violations = Vec::new();
    let literals: Vec<&str> = files
        .iter()
        .filter(|file| file.is_rust() && file.path.starts_with("schema/src/"))
        .flat_map(|file| pieces(&file.text))
        .filter(|piece| piece.kind == Kind::Text)
        .map(|piece| piece.text)
        .collect();
    for file in files {
        let Some(name) = file.path.strip_prefix("schema/queries/") else {
            continue;
        };
        let is_statement = name.ends_with(".sql") && name.matches('/').count() == 1;
        if !is_statement {
            violations.push(file.at(1, "not of the form schema/queries/<noun>/<verb>.sql"));
            continue;
        }
        let uses = literals
            .iter()
            .filter(|text| names_file(text, name))
            .count();
        if uses != 1 {
            violations.push(file.at(1, &format!("used {uses} times; one function calls it")));
        }
    }
    violations
}

/// Whether a literal is the path of the query `name`, in full or without folder or ending.
fn names_file(literal: &str, name: &str) -> bool {
    let literal = literal.strip_suffix(".sql").unwrap_or(literal);
    let name = name.strip_suffix(".sql").unwrap_or(name);
    literal == name
        || literal
            .strip_suffix(name)
            .is_some_and(|folder| folder.ends_with("queries/"))
}

#[test]
fn each_query_file_has_one_caller() {
    assert_clean(&misused_query_files(&tree()));
}

#[test]
fn an_orphaned_or_shared_query_file_is_noticed() {
    let with_callers = |source: &str, query: &str| {
        let mut files = planted("schema/src/lease.rs", source);
        files.extend(planted(query, "select 1"));
        misused_query_files(&files)
    };
    let claim = "schema/queries/lease/claim.sql";
    assert_clean(&with_callers(r#"f("queries/lease/claim.sql")"#, claim));
    assert_clean(&with_callers(r#"f("../queries/lease/claim.sql")"#, claim));
    assert_eq!(with_callers("// lease/claim.sql", claim).len(), 1);
    assert_eq!(
        with_callers(r#"f("queries/lease/reclaim.sql")"#, claim).len(),
        1
    );
    let twice = r#"f("queries/lease/claim.sql"); f("queries/lease/claim.sql")"#;
    assert_eq!(with_callers(twice, claim).len(), 1);
    assert_eq!(with_callers("", "schema/queries/claim.sql").len(), 1);
}

// ---------------------------------------------------------------------------------------------
// Only bus speaks NATS; only main code ends the process.

fn nats_outside_bus(files: &[SourceFile]) -> Vec<String> {
    let mut violations = Vec::new();
    for file in files.iter().filter(|file| file.is_rust()) {
        // Tests publish as a foreign client does.
        if file.is_in(&["bus", "tests"]) {
            continue;
        }
        for (line, word) in code_words(file) {
            if word == "async_nats" {
                violations.push(file.at(line, "NATS; only bus speaks it"));
            }
        }
    }
    violations
}

#[test]
fn only_bus_speaks_nats() {
    assert_clean(&nats_outside_bus(&tree()));
    let source = "use async_nats::Client;";
    assert_eq!(
        nats_outside_bus(&planted("worker/src/a.rs", source)).len(),
        1
    );
    assert_clean(&nats_outside_bus(&planted("bus/src/a.rs", source)));
}

fn exits_outside_main(files: &[SourceFile]) -> Vec<String> {
    let mut violations = Vec::new();
    for file in files.iter().filter(|file| file.is_rust()) {
        if file.path.ends_with("/main.rs") || file.path.contains("/src/bin/") {
            continue;
        }
        for pair in code_words(file).windows(2) {
            let [(_, before), (line, word)] = *pair else {
                continue;
            };
            if before == "process" && word == "exit" {
                violations.push(file.at(line, "ends the process; return an error instead"));
            }
        }
    }
    violations
}

#[test]
fn only_main_code_ends_the_process() {
    assert_clean(&exits_outside_main(&tree()));
    let source = "fn f() { std::process::exit(1) }";
    assert_eq!(
        exits_outside_main(&planted("worker/src/a.rs", source)).len(),
        1
    );
    assert_clean(&exits_outside_main(&planted("worker/src/bin/a.rs", source)));
}

// ---------------------------------------------------------------------------------------------
// Text of every kind.

fn unfinished_business(files: &[SourceFile]) -> Vec<String> {
    // Put together here, so that this file does not complain about itself.
    let markers = [
        ["TO", "DO"].concat(),
        ["FIX", "ME"].concat(),
        ["X", "XX"].concat(),
    ];
    let is_marker = |word: &str| markers.iter().any(|marker| marker == word);
    let mut violations = Vec::new();
    for file in files {
        for (index, line) in file.text.lines().enumerate() {
            let mut words = line.split(|c: char| !c.is_alphanumeric());
            if words.any(is_marker) {
                violations.push(file.at(index + 1, "unfinished; do it, or open an issue"));
            }
        }
    }
    violations
}

#[test]
fn nothing_is_left_to_do() {
    assert_clean(&unfinished_business(&tree()));
    let marked = format!("fine\n// {}{}: later", "TO", "DO");
    assert_eq!(
        unfinished_business(&planted("docs/a.md", &marked)),
        ["docs/a.md:2: unfinished; do it, or open an issue"]
    );
}

fn machine_paths(files: &[SourceFile]) -> Vec<String> {
    // Without their first slash, so that this file does not complain about itself.
    let roots = ["home/", "root/", "Users/", "work/"];
    let mut violations = Vec::new();
    for file in files {
        for (index, line) in file.text.lines().enumerate() {
            let found = line.match_indices('/').any(|(slash, _)| {
                // A slash after a name is the middle of a path or of an address.
                let inner = line[..slash]
                    .chars()
                    .next_back()
                    .is_some_and(|before| before.is_alphanumeric() || "./-_}~*".contains(before));
                !inner && roots.iter().any(|root| line[slash + 1..].starts_with(root))
            });
            if found {
                violations.push(file.at(index + 1, "a path that exists on one machine only"));
            }
        }
    }
    violations
}

#[test]
fn no_path_of_a_single_machine_is_named() {
    assert_clean(&machine_paths(&tree()));
    let source = format!("cd {}home/ada/continuum", "/");
    assert_eq!(machine_paths(&planted("docs/a.md", &source)).len(), 1);
    let harmless = "see docs/home/index.md, https://example.org/root/a and target/work/b";
    assert_clean(&machine_paths(&planted("docs/a.md", harmless)));
}

fn oversized_files(files: &[SourceFile]) -> Vec<String> {
    let rust = files.iter().filter(|file| file.is_rust());
    rust.filter_map(|file| {
        let lines = file.text.lines().count();
        let complaint = format!("{lines} lines, more than {LINES_MAX}; split it by its nouns");
        (lines > LINES_MAX).then(|| file.at(lines, &complaint))
    })
    .collect()
}

#[test]
fn no_file_is_too_long_to_read() {
    assert_clean(&oversized_files(&tree()));
    let long = "\n".repeat(LINES_MAX + 1);
    assert_eq!(oversized_files(&planted("worker/src/a.rs", &long)).len(), 1);
}

// ---------------------------------------------------------------------------------------------
// Dependencies.

/// The lines of one section of a manifest, with their numbers.
fn section<'a>(manifest: &'a SourceFile, name: &str) -> Vec<(usize, &'a str)> {
    let header = format!("[{name}]");
    let lines = manifest.text.lines().enumerate();
    lines
        .skip_while(|(_, line)| line.trim() != header)
        .skip(1)
        .take_while(|(_, line)| !line.starts_with('['))
        .map(|(index, line)| (index + 1, line.trim()))
        .filter(|(_, line)| !line.is_empty() && !line.starts_with('#'))
        .collect()
}

/// What follows the first `#` outside of quotes.
fn reason_of(line: &str) -> Option<&str> {
    let mut quoted = false;
    for (index, character) in line.char_indices() {
        match character {
            '"' => quoted = !quoted,
            '#' if !quoted => return Some(line[index + 1..].trim()).filter(|r| !r.is_empty()),
            _ => {}
        }
    }
    None
}

fn unreasoned_dependencies(files: &[SourceFile]) -> Vec<String> {
    let mut violations = Vec::new();
    for manifest in files.iter().filter(|file| file.path == "Cargo.toml") {
        for (line, text) in section(manifest, "workspace.dependencies") {
            if !text.contains("path = ") && reason_of(text).is_none() {
                violations.push(manifest.at(line, "a dependency without its reason"));
            }
        }
    }
    violations
}

#[test]
fn each_dependency_has_its_reason() {
    let files = tree();
    assert!(files.iter().any(|file| file.path == "Cargo.toml"));
    assert_clean(&unreasoned_dependencies(&files));

    let manifest = "[workspace.dependencies]\na = { path = \"a\" }\nb = \"1\" # why\nc = \"#1\"\n[x]\nd = \"1\"";
    assert_eq!(
        unreasoned_dependencies(&planted("Cargo.toml", manifest)),
        ["Cargo.toml:4: a dependency without its reason"]
    );
}

fn wrong_directions(files: &[SourceFile]) -> Vec<String> {
    let mut violations = Vec::new();
    for manifest in files {
        let Some(member) = manifest.path.strip_suffix("/Cargo.toml") else {
            continue;
        };
        let allowed = DIRECTIONS.iter().find(|(name, _)| *name == member);
        let Some((_, allowed)) = allowed else {
            violations.push(manifest.at(1, "a member that the directions do not name"));
            continue;
        };
        for (line, text) in section(manifest, "dependencies") {
            let name = text.split(['.', ' ', '=']).next().unwrap_or_default();
            let inner = name.strip_prefix("continuum-");
            if inner.is_some_and(|inner| !allowed.contains(&inner)) {
                violations.push(manifest.at(line, "a dependency against the direction"));
            }
            if !text.contains("workspace = true") && member != OUTSIDE {
                violations.push(manifest.at(line, "versions are stated in the root manifest"));
            }
        }
    }
    violations
}

#[test]
fn dependencies_point_one_way() {
    assert_clean(&wrong_directions(&tree()));

    let check = |path: &str, line: &str| {
        wrong_directions(&planted(path, &format!("[dependencies]\n{line}"))).len()
    };
    assert_eq!(
        check("bus/Cargo.toml", "continuum-schema.workspace = true"),
        0
    );
    assert_eq!(
        check("schema/Cargo.toml", "continuum-bus.workspace = true"),
        1
    );
    assert_eq!(check("bus/Cargo.toml", "bytes = \"1\""), 1);
    assert_eq!(check("stray/Cargo.toml", ""), 1);
}
