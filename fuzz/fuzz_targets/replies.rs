//! Replies to a client of the file seam.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| atoll_fuzz::replies::run(data));
