//! Requests to a server of the file seam.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| atoll_fuzz::requests::run(data));
