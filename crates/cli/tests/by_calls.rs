//! The contract of a file system and operations by chance, held against whatever answers system
//! calls: this machine's kernel, and the bare image, in which this very program runs.
#![allow(missing_docs)]

mod common;

#[path = "unikernel/image.rs"]
#[allow(dead_code)]
mod image;

#[path = "by_calls/inside.rs"]
mod inside;

use std::path::{Path, PathBuf};

use atoll_tests::by_calls::ByCalls;
use atoll_tests::differential::differential_seeds;
use atoll_tests::hostdir::{quirks_by_magic, quirks_of, raise_descriptor_limit};
use atoll_tests::ops::Profile;
use atoll_tests::{Quirks, Subject, filesystem_conformance_subjects};
use atoll_vfs::*;
use tempfile::TempDir;

/// Where the image runs this program: the directory to use.
const PLACE: &str = "ATOLL_PLACE";
/// What that is of: `volume`, or the number of the host's file system that a directory is on.
const OF: &str = "ATOLL_PLACE_OF";

/// A fresh directory by system calls, removed when this is dropped.
struct Fresh {
    fs: ByCalls,
    _dir: TempDir,
}

macro_rules! pass {
    ($self:ident $verb:ident ($($arg:ident),*)) => { $self.fs.$verb($($arg),*) };
}

impl FileSystem for Fresh {
    verbs!(pass: all);
}

/// A fresh directory with the quirks of where it is; none where those are not known.
fn fresh() -> Option<(Fresh, Quirks)> {
    let within = std::env::var_os(PLACE).map(PathBuf::from);
    let parent = within.as_deref().unwrap_or(Path::new(env!("CARGO_TARGET_TMPDIR")));
    let quirks = if within.is_some() { quirks_within() } else { quirks_of(parent).ok()? };
    raise_descriptor_limit();
    rustix::process::umask(rustix::fs::Mode::empty());
    let dir = tempfile::Builder::new()
        .prefix("by-calls-")
        .permissions(std::os::unix::fs::PermissionsExt::from_mode(0o755))
        .tempdir_in(parent)
        .expect("a directory");
    let fs = ByCalls::open(dir.path()).expect("it opens");
    Some((Fresh { fs, _dir: dir }, quirks))
}

fn quirks_within() -> Quirks {
    match std::env::var(OF).as_deref().map(|of| (of, of.parse())) {
        // What calls do not say: times, modes of links, attributes of what is neither a file nor a
        // directory.
        Ok(("volume", _)) => Quirks {
            caller_time: false,
            link_modes: false,
            xattr_everywhere: false,
            ..Quirks::default()
        },
        Ok((_, Ok(magic))) => quirks_by_magic(magic).expect("the host knows them"),
        _ => panic!("{OF} says what {PLACE} is of"),
    }
}

fn by_calls() -> Option<Subject> {
    fresh().map(|(fs, quirks)| Subject::new(fs, quirks))
}

filesystem_conformance_subjects!(conformance, by_calls);

#[test]
fn differential() {
    if fresh().is_none_or(|(_, quirks)| !quirks.ownership) {
        return;
    }
    let make = || fresh().expect("was there before");
    differential_seeds("--test by_calls differential", 3, 800, &Profile::DIFFERENTIAL, make);
}
