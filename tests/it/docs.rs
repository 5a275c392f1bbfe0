//! The documentation is held against the tree: quoted code is the code, and what is linked or named exists.
//!
//! The Rust code in a page is quoted from a file that is compiled: the line before a block is
//! `<!-- quoted from PATH -->`. A block that is only a fragment says `rust,ignore`.

#[allow(dead_code, reason = "its page needs no more than that it compiles")]
mod discount;
#[expect(dead_code, reason = "the `main` of a page is not that of the tests")]
mod orders;
#[expect(dead_code, reason = "the `main` of a page is not that of the tests")]
mod sign_up;

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};

use continuum_worker::metrics;

/// The folders whose files a page may name.
const FOLDERS: [&str; 12] = [
    "schema",
    "migrations",
    "bus",
    "macros",
    "worker",
    "examples",
    "tests",
    "benches",
    "docs",
    "deploy",
    "scripts",
    ".ci",
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// One page, with its path from the root.
struct Page {
    path: String,
    text: String,
}

fn pages() -> Vec<Page> {
    let mut found = Vec::new();
    for folder in ["", "docs", "docs/decisions", "benches"] {
        let entries = fs::read_dir(root().join(folder)).unwrap();
        for path in entries.map(|entry| entry.unwrap().path()) {
            if path.extension().is_some_and(|ending| ending == "md") {
                let name = path.file_name().unwrap().to_string_lossy().into_owned();
                let separator = if folder.is_empty() { "" } else { "/" };
                found.push(Page {
                    path: format!("{folder}{separator}{name}"),
                    text: read(&path),
                });
            }
        }
    }
    assert!(found.len() > 10, "the documentation was not found");
    found
}

/// A fenced block: its language, its content, and the line before it.
struct Block<'a> {
    language: &'a str,
    content: String,
    before: &'a str,
}

/// A page taken apart: its blocks, and the lines outside of them with their numbers.
fn parts(text: &str) -> (Vec<Block<'_>>, Vec<(usize, &str)>) {
    let (mut blocks, mut prose) = (Vec::new(), Vec::new());
    let mut before = "";
    let mut open: Option<Block<'_>> = None;
    for (index, line) in text.lines().enumerate() {
        match (line.trim_start().strip_prefix("```"), open.take()) {
            (Some(_), Some(block)) => blocks.push(block),
            (Some(language), None) => {
                open = Some(Block {
                    language: language.trim(),
                    content: String::new(),
                    before,
                });
            }
            (None, Some(mut block)) => {
                block.content.push_str(line);
                block.content.push('\n');
                open = Some(block);
            }
            (None, None) => prose.push((index + 1, line)),
        }
        before = line;
    }
    assert!(open.is_none(), "a block is not closed");
    (blocks, prose)
}

/// What is wrong with the code of a page; `source` reads a file of the tree.
fn wrong_quotes(page: &Page, source: impl Fn(&str) -> Option<String>) -> Vec<String> {
    let mut wrong = Vec::new();
    for block in parts(&page.text).0 {
        if block.language != "rust" {
            continue;
        }
        let first = block.content.lines().next().unwrap_or_default();
        let marker = block.before.strip_prefix("<!-- quoted from ");
        let Some(path) = marker.and_then(|rest| rest.strip_suffix(" -->")) else {
            wrong.push(format!(
                "{}: the block {first:?} says not where it is quoted from",
                page.path
            ));
            continue;
        };
        if !source(path).is_some_and(|text| text.contains(&block.content)) {
            wrong.push(format!(
                "{}: the block {first:?} does not stand like this in {path}",
                page.path
            ));
        }
    }
    wrong
}

#[test]
fn quoted_code_is_the_code() {
    let source = |path: &str| fs::read_to_string(root().join(path)).ok();
    let wrong: Vec<String> = pages()
        .iter()
        .flat_map(|page| wrong_quotes(page, source))
        .collect();
    assert!(wrong.is_empty(), "\n{}\n", wrong.join("\n"));
}

#[test]
fn a_quote_that_has_gone_stale_is_noticed() {
    let wrong = |text: &str| {
        let page = Page {
            path: "a.md".into(),
            text: text.into(),
        };
        wrong_quotes(&page, |path| {
            (path == "a.rs").then(|| "fn a() {}\nfn b() {}\n".to_owned())
        })
        .len()
    };
    assert_eq!(
        wrong("<!-- quoted from a.rs -->\n```rust\nfn b() {}\n```\n"),
        0
    );
    assert_eq!(
        wrong("<!-- quoted from a.rs -->\n```rust\nfn c() {}\n```\n"),
        1
    );
    assert_eq!(
        wrong("<!-- quoted from b.rs -->\n```rust\nfn b() {}\n```\n"),
        1
    );
    assert_eq!(wrong("```rust\nfn b() {}\n```\n"), 1);
    assert_eq!(wrong("```rust,ignore\nfn c() {}\n```\n"), 0);
}

/// The targets of the links in a line.
fn links(line: &str) -> Vec<&str> {
    let after = line.split("](").skip(1);
    after
        .filter_map(|rest| rest.split_once(')').map(|(target, _)| target))
        .collect()
}

/// The texts in backquotes in a line.
fn code_spans(line: &str) -> Vec<&str> {
    line.split('`').skip(1).step_by(2).collect()
}

/// The name by which a heading is linked to.
fn anchor(heading: &str) -> String {
    let kept = heading
        .trim()
        .chars()
        .filter(|c| c.is_alphanumeric() || " -_".contains(*c));
    kept.collect::<String>().to_lowercase().replace(' ', "-")
}

fn has_anchor(text: &str, wanted: &str) -> bool {
    let headings = parts(text)
        .1
        .into_iter()
        .filter(|(_, line)| line.starts_with('#'));
    headings
        .map(|(_, line)| anchor(line.trim_start_matches('#')))
        .any(|found| found == wanted)
}

fn is_broken(page: &Page, target: &str) -> bool {
    if target.contains("://") {
        return false;
    }
    let (file, wanted) = target.split_once('#').unwrap_or((target, ""));
    let folder = Path::new(&page.path).parent().unwrap_or(Path::new(""));
    let path = root().join(if file.is_empty() {
        PathBuf::from(&page.path)
    } else {
        folder.join(file)
    });
    !path.exists() || (!wanted.is_empty() && !has_anchor(&read(&path), wanted))
}

#[test]
fn every_link_leads_somewhere() {
    let mut broken = Vec::new();
    for page in pages() {
        for (number, line) in parts(&page.text).1 {
            for target in links(line)
                .into_iter()
                .filter(|target| is_broken(&page, target))
            {
                broken.push(format!("{}:{number}: {target}", page.path));
            }
        }
    }
    assert!(
        broken.is_empty(),
        "links that lead nowhere:\n{}\n",
        broken.join("\n")
    );
}

#[test]
fn broken_links_and_anchors_are_noticed() {
    let page = Page {
        path: "docs/a.md".into(),
        text: String::new(),
    };
    assert_eq!(links("see [a](b.md) and [c](d.md#e)"), ["b.md", "d.md#e"]);
    assert!(is_broken(&page, "nowhere.md"));
    assert!(is_broken(&page, "../README.md#nowhere"));
    assert!(!is_broken(&page, "../README.md#two-commands"));
    assert!(!is_broken(&page, "https://example.org/a"));
    assert_eq!(
        anchor("Why the functions lock first, and then read"),
        "why-the-functions-lock-first-and-then-read"
    );
}

/// Whether a text in backquotes names a file or folder of the tree that is not there.
fn is_missing(span: &str) -> bool {
    let is_path = span
        .chars()
        .all(|c| c.is_alphanumeric() || "/._-".contains(c));
    let top = span.split('/').next().unwrap_or_default();
    is_path && span.contains('/') && FOLDERS.contains(&top) && !root().join(span).exists()
}

#[test]
fn every_file_that_is_named_exists() {
    assert!(is_missing("worker/src/nowhere.rs") && !is_missing("worker/src/client/mod.rs"));
    let mut missing = Vec::new();
    for page in pages() {
        for (number, line) in parts(&page.text).1 {
            let spans = code_spans(line).into_iter().filter(|span| is_missing(span));
            missing.extend(spans.map(|span| format!("{}:{number}: {span}", page.path)));
        }
    }
    assert!(
        missing.is_empty(),
        "files that are not there:\n{}\n",
        missing.join("\n")
    );
}

/// The words of the database in a text: tables, functions and error codes of our own.
fn database_words(text: &str) -> HashSet<String> {
    let crates = [
        "worker",
        "schema",
        "bus",
        "macros",
        "examples",
        "tests",
        "migrations",
    ];
    let words = text.split(|c: char| !c.is_alphanumeric() && c != '_');
    let ours = words.filter(|word| {
        word.strip_prefix("continuum_")
            .is_some_and(|rest| !rest.is_empty() && !crates.contains(&rest))
            || word
                .strip_prefix("CTM")
                .is_some_and(|rest| rest.chars().all(|c| c.is_ascii_digit()))
    });
    ours.map(str::to_owned).collect()
}

/// Metrics look like words of the database.
#[test]
fn every_table_function_code_and_metric_that_is_named_exists() {
    let mut known: HashSet<String> = metrics::names().into_iter().collect();
    for entry in fs::read_dir(root().join("migrations")).unwrap() {
        known.extend(database_words(&read(&entry.unwrap().path())));
    }
    for page in pages() {
        let unknown: Vec<String> = database_words(&page.text)
            .difference(&known)
            .cloned()
            .collect();
        assert!(
            unknown.is_empty(),
            "{}: neither in the migrations nor a metric: {unknown:?}",
            page.path
        );
    }
}

/// A test named as `file::test`, or as `file::*`, that is not in `tests/it`.
fn is_missing_test(span: &str) -> bool {
    let Some((file, test)) = span.split_once("::") else {
        return false;
    };
    let is_word = |text: &str| {
        text.bytes()
            .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_')
    };
    if !is_word(file) || !(test == "*" || is_word(test)) {
        return false;
    }
    let path = root().join(format!("tests/it/{file}.rs"));
    match fs::read_to_string(path) {
        Ok(_) if test == "*" => false,
        Ok(source) => !source.contains(&format!("fn {test}(")),
        Err(_) => true,
    }
}

#[test]
fn every_test_that_the_failure_model_names_exists() {
    let page = read(&root().join("docs/failure-model.md"));
    let (_, lines) = parts(&page);
    let named: Vec<&str> = lines
        .iter()
        .flat_map(|(_, line)| code_spans(line))
        .filter(|span| span.contains("::"))
        .collect();
    assert!(named.len() > 20, "the names of tests were not found");
    let missing: Vec<&&str> = named.iter().filter(|span| is_missing_test(span)).collect();
    assert!(
        missing.is_empty(),
        "docs/failure-model.md names no test of the tree: {missing:#?}"
    );
    assert!(is_missing_test("faults::there_is_no_such_test") && is_missing_test("nowhere::*"));
}
