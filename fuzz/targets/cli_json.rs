//! libFuzzer's entry into [`continuum_fuzz::cli_json`].

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| continuum_fuzz::cli_json(data));
