//! libFuzzer's entry into [`continuum_fuzz::subject`].

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| continuum_fuzz::subject(data));
