//! Several clients of one file system: what they see has a sequential order.

use atoll_block::RamDevice;
use atoll_fs::{FormatOptions, Fs, MountOptions, format};
use atoll_tests::linear::clients::Locked;
use atoll_tests::linear::history::Mix;
use atoll_tests::linear::planted::{Defect, Planted};
use atoll_tests::linear::run::{linearizable, run};
use atoll_vfs::model::ModelFs;

/// Seeds in which a planted defect has to show.
const PATIENCE: u64 = 3000;

fn volume() -> Fs<RamDevice> {
    let mut device = RamDevice::new(2048);
    format(&mut device, &FormatOptions::default()).expect("format");
    Fs::mount(device, &MountOptions::default()).expect("mount")
}

#[test]
fn locked_model() {
    linearizable("--test sharing locked_model", 300, |n| Locked::clients(ModelFs::default(), n));
}

#[test]
fn locked_volume() {
    linearizable("--test sharing locked_volume", 100, |n| Locked::clients(volume(), n));
}

/// Each defect is found, with a history that says so.
#[test]
fn defects_are_found() {
    for defect in Defect::ALL {
        let found = (0..PATIENCE).find_map(|seed| {
            let clients = Planted::clients(ModelFs::default(), 3, defect);
            run(seed, clients, &Mix::ALL).err().map(|error| (seed, error))
        });
        let (seed, error) = found.unwrap_or_else(|| panic!("{defect:?} was never seen"));
        assert!(error.contains("no order explains"), "{defect:?}: {error}");
        println!("{defect:?}, seed {seed}: {error}");
    }
}
