//! Directories of the host against the contract, and by them Linux: the suite asks for nothing that
//! Linux does not do, and the model does what Linux does.

use std::path::{Path, PathBuf};

use atoll_host::directory::{Bounds, Options};
use atoll_tests::differential::{differential_proptest, differential_seeds};
use atoll_tests::hostdir::HostDir;
use atoll_tests::ops::Profile;
use atoll_tests::{Quirks, Subject, filesystem_conformance_subjects};

/// A directory on the file system that holds the build.
fn disk() -> Option<Subject> {
    on(env!("CARGO_TARGET_TMPDIR"))
}

/// A directory on tmpfs.
fn tmpfs() -> Option<Subject> {
    on("/dev/shm")
}

fn on(parent: &str) -> Option<Subject> {
    host(parent).map(|(fs, quirks)| Subject::new(fs, quirks))
}

fn host(parent: &str) -> Option<(HostDir, Quirks)> {
    match HostDir::new(&PathBuf::from(parent)) {
        Ok(host) => Some(host),
        Err(why) => {
            eprintln!("skipped on {parent}: {why}");
            None
        }
    }
}

filesystem_conformance_subjects!(conformance_on_disk, disk);
filesystem_conformance_subjects!(conformance_on_tmpfs, tmpfs);

/// The same where next to nothing stays open, so that inodes are found again by their names.
fn with_few_descriptors() -> Option<Subject> {
    let bounds = Bounds { directories: 1, files: 0, ..Bounds::default() };
    let options = Options { bounds, ..Options::default() };
    let made = HostDir::with(Path::new(env!("CARGO_TARGET_TMPDIR")), &options);
    made.ok().map(|(fs, quirks)| Subject::new(fs, quirks))
}

filesystem_conformance_subjects!(conformance_with_few_descriptors, with_few_descriptors);

/// The model, held against Linux by the same random operations.
fn differential(test: &str, parent: &str, seeds: u64) {
    // For an ordinary user whatever is made has one owner.
    if host(parent).is_none_or(|(_, quirks)| !quirks.ownership) {
        return;
    }
    let make = || host(parent).expect("was there before");
    differential_seeds(test, seeds, 1500, &Profile::DIFFERENTIAL, make);
    differential_proptest(test, seeds as u32 * 4, 150, Profile::DIFFERENTIAL, make);
}

#[test]
fn differential_on_disk() {
    differential("--test host differential_on_disk", env!("CARGO_TARGET_TMPDIR"), 10);
}

#[test]
fn differential_on_tmpfs() {
    differential("--test host differential_on_tmpfs", "/dev/shm", 20);
}
