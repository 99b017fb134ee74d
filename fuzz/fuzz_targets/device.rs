//! Guests and front ends to a virtio-fs device.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| atoll_fuzz::device::run(data));
