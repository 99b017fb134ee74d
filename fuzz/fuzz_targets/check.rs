//! Hostile images, checked and repaired.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| atoll_fuzz::check::run(data));
