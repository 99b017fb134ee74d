//! Hostile programs, loaded.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| atoll_fuzz::program::run(data));
