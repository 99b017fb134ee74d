//! The shared memory of a hostile client.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| atoll_fuzz::channel::run(data));
