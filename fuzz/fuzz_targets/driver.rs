//! Drivers of virtio, whose devices are hostile.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| atoll_fuzz::driver::run(data));
