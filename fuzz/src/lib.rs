//! What reads foreign bytes, fed with bytes that nobody meant.
//!
//! Each target is a plain function from bytes to nothing. It panics where the code under it panics or breaks a promise;
//! refusing an input is no fault. Two things feed them: libFuzzer (`make fuzz`), which breeds inputs for as long as it
//! is let, and the integration test `fuzz`, which runs the committed corpus and a bounded number of its mutations in
//! every `make test`.
//!
//! The corpus is `corpus/<target>/`. The files of [`seeds`] are written from real encodings; any other file there is an
//! input that once found a fault, and stays.

mod cli_json;
mod event;
mod payload;
mod replay;
mod seeds;
mod signal;
mod subject;

pub use cli_json::cli_json;
pub use event::event;
pub use payload::payload;
pub use replay::replay;
pub use seeds::{Seed, seeds};
pub use signal::signal;
pub use subject::subject;

/// A target: the folder of its corpus, and its function.
pub type Target = (&'static str, fn(&[u8]));

/// Every target.
pub const TARGETS: [Target; 6] = [
    ("event", event),
    ("payload", payload),
    ("subject", subject),
    ("signal", signal),
    ("cli_json", cli_json),
    ("replay", replay),
];

/// What stands before the first `separator`, and what after it; everything and nothing if there is none.
fn split<'a>(data: &'a [u8], separator: &[u8]) -> (&'a [u8], &'a [u8]) {
    let found = data
        .windows(separator.len())
        .position(|window| window == separator);
    match found {
        Some(at) => (&data[..at], &data[at + separator.len()..]),
        None => (data, &[]),
    }
}
