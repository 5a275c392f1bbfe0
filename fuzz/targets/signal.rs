//! libFuzzer's entry into [`continuum_fuzz::signal`].

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| continuum_fuzz::signal(data));
