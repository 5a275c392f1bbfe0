//! The fuzz targets on their committed corpus and on seeded mutations of it: what a gate can afford. `make fuzz` lets
//! libFuzzer breed inputs for as long as one likes.
//!
//! `FUZZ_ROUNDS` is the number of mutations of each input, `FUZZ_SEED` the seed of their chance.

use std::env;
use std::fs;
use std::panic::catch_unwind;
use std::path::{Path, PathBuf};

use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

// Not a dependency: libFuzzer would come with it.
#[expect(
    unreachable_pub,
    reason = "public in the crate of which this is the root"
)]
#[path = "../../fuzz/src/lib.rs"]
mod targets;

use targets::{Seed, TARGETS, Target, seeds};

/// Mutations of each input of the corpus, where nobody asks for another number.
const ROUNDS: u64 = 60;

/// What a decoder of lengths and of text stumbles over.
const TOKENS: [&[u8]; 14] = [
    b"\0",
    b"\xff\xff\xff\xff",
    b"\x7f\xff\xff\xff",
    b"\xdd\xff\xff\xff\xff",
    b"\xdf\x00\x00\x10\x00",
    b"\xc6\x7f\xff\xff\xff",
    b"\xc1",
    b"\r\n\r\n",
    b"\n",
    b".",
    b"*",
    b"\"",
    b"[[[[",
    b"\\ud800",
];

fn corpus_of(target: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../fuzz/corpus")
        .join(target)
}

fn path_of(seed: &Seed) -> PathBuf {
    corpus_of(seed.target).join(&seed.name)
}

/// The files of a target's corpus, in the order of their names.
fn corpus(target: &str) -> Vec<Vec<u8>> {
    let folder = corpus_of(target);
    let mut paths: Vec<PathBuf> = fs::read_dir(&folder)
        .unwrap_or_else(|error| panic!("{}: {error}", folder.display()))
        .map(|entry| entry.unwrap().path())
        .collect();
    paths.sort();
    paths.iter().map(|path| fs::read(path).unwrap()).collect()
}

fn number(variable: &str, default: u64) -> u64 {
    env::var(variable).map_or(default, |text| text.parse().unwrap())
}

/// Runs a target, and names the input that it fails on.
fn run((target, function): Target, input: &[u8]) {
    let outcome = catch_unwind(|| function(input));
    assert!(
        outcome.is_ok(),
        "the target {target} fails on b\"{}\"",
        input.escape_ascii()
    );
}

fn mutate(input: &mut Vec<u8>, others: &[Vec<u8>], chance: &mut ChaCha8Rng) {
    let at = chance.random_range(0..=input.len());
    let end = chance.random_range(at..=input.len().min(at + 16));
    match chance.random_range(0..7) {
        0 if at < input.len() => input[at] ^= 1 << chance.random_range(0..8),
        1 if at < input.len() => input[at] = chance.random(),
        2 => input.insert(at, chance.random()),
        3 => drop(input.drain(at..end)),
        4 => input.truncate(at),
        5 => {
            let token = TOKENS[chance.random_range(0..TOKENS.len())];
            input.splice(at..end, token.iter().copied());
        }
        _ => {
            let other = &others[chance.random_range(0..others.len())];
            let from = chance.random_range(0..=other.len());
            input.truncate(at);
            input.extend_from_slice(&other[from..]);
        }
    }
}

#[test]
fn no_target_fails_on_its_corpus_or_near_it() {
    let mut chance = ChaCha8Rng::seed_from_u64(number("FUZZ_SEED", 1));
    let rounds = number("FUZZ_ROUNDS", ROUNDS);
    for target in TARGETS {
        let corpus = corpus(target.0);
        for input in &corpus {
            run(target, input);
            for _ in 0..rounds {
                let mut mutant = input.clone();
                for _ in 0..chance.random_range(1..=4) {
                    mutate(&mut mutant, &corpus, &mut chance);
                }
                run(target, &mutant);
            }
        }
    }
}

/// The corpus begins at what is written today. A stored encoding that changes without a reason shows here first.
/// `FUZZ_WRITE_SEEDS=1` writes the files.
#[test]
fn the_corpus_holds_todays_encodings() {
    let is_writing = env::var_os("FUZZ_WRITE_SEEDS").is_some();
    for seed in seeds() {
        let path = path_of(&seed);
        if is_writing {
            fs::create_dir_all(corpus_of(seed.target)).unwrap();
            fs::write(&path, &seed.bytes).unwrap();
        }
        assert!(
            fs::read(&path).is_ok_and(|bytes| bytes == seed.bytes),
            "{} is another one than fuzz/src/seeds.rs makes: if its encoding was meant to change, rename the old file \
             so that it stays, and write the new one with FUZZ_WRITE_SEEDS=1",
            path.display()
        );
    }
}
