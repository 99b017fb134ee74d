//! Hostile images, mounted and used.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| atoll_fuzz::mount::run(data));
