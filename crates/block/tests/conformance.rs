//! The devices of this crate against the contract of the seam.

use atoll_block::conformance::{BLOCKS, limits, random_operations};
use atoll_block::{Cached, FaultDevice, RamDevice};

#[test]
fn ram() {
    limits(&mut RamDevice::new(BLOCKS));
    random_operations("atoll-block", "ram", 300, || RamDevice::new(BLOCKS));
}

#[test]
fn fault() {
    limits(&mut FaultDevice::new(BLOCKS));
    random_operations("atoll-block", "fault", 300, || FaultDevice::new(BLOCKS));
}

#[test]
fn cached() {
    for frames in [0, 5, 13, 1000] {
        let open = || Cached::new(RamDevice::new(BLOCKS), frames * 4300);
        limits(&mut open());
        random_operations("atoll-block", "cached", 300, open);
    }
}

#[test]
fn by_reference() {
    let mut device = RamDevice::new(BLOCKS);
    limits(&mut &mut device);
}
