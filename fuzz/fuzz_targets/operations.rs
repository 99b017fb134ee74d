//! Operations on a volume and on the model.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| atoll_fuzz::operations::run(data));
