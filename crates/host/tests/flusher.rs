//! Flushes apart from their device: what the kernel has written when they return.
#![allow(unsafe_code)]

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::Path;

use atoll_block::{Addressable, BlockDevice, BlockError, BlockIndex};
use atoll_host::device::{Access, Create, HostDevice, OpenOptions, open};

const ACCESS: [Access; 2] = [Access::Mapped, Access::Direct { cache_bytes: 30_000 }];

fn make(path: &Path, access: Access) -> HostDevice {
    let options = OpenOptions {
        access,
        flusher: true,
        create: Create::IfMissing,
        blocks: Some(64),
        ..OpenOptions::default()
    };
    open(path, &options).unwrap()
}

/// How many pages of the file the kernel has yet to write: dirty ones, and those being written.
/// `None` where it does not tell (before Linux 6.5).
fn unwritten(path: &Path) -> Option<u64> {
    const SYS_CACHESTAT: libc::c_long = 451;
    #[repr(C)]
    #[derive(Default)]
    struct Stat {
        cache: u64,
        dirty: u64,
        writeback: u64,
        evicted: u64,
        recently_evicted: u64,
    }
    let file = File::open(path).unwrap();
    // The whole file.
    let range = [0u64; 2];
    let mut stat = Stat::default();
    // SAFETY: both are as linux/mman.h has them, and live until the call returns.
    let failed =
        unsafe { libc::syscall(SYS_CACHESTAT, file.as_raw_fd(), range.as_ptr(), &raw mut stat, 0) };
    (failed == 0).then_some(stat.dirty + stat.writeback)
}

#[test]
fn what_was_stored_is_written_when_it_returns() {
    let dir = tempfile::tempdir().unwrap();
    for (i, access) in ACCESS.into_iter().enumerate() {
        let path = dir.path().join(format!("{i}"));
        let mut device = make(&path, access);
        device.flush().unwrap();
        device.store(3 * 4096 + 5, b"stored").unwrap();
        if unwritten(&path).is_none_or(|pages| pages == 0) {
            println!("skipped: the kernel does not tell, or keeps nothing that it has to write");
            return;
        }
        let flusher = device.flusher(BlockIndex(2), 3).unwrap();
        // By another thread, while the device is in use.
        let flushing = std::thread::spawn(move || flusher.flush());
        let mut byte = [0];
        device.load(3 * 4096 + 5, &mut byte).unwrap();
        assert_eq!(flushing.join().unwrap(), Ok(()));
        assert_eq!(unwritten(&path), Some(0), "{access:?}");
    }
}

#[test]
fn a_file_that_became_shorter_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    for (i, access) in ACCESS.into_iter().enumerate() {
        let path = dir.path().join(format!("{i}"));
        let mut device = make(&path, access);
        device.store(0, &[1; 64 * 4096]).unwrap();
        let flusher = device.flusher(BlockIndex(0), 64).unwrap();
        File::options().write(true).open(&path).unwrap().set_len(10 * 4096).unwrap();
        assert_eq!(flusher.flush(), Err(BlockError::Io), "{access:?}");
    }
}

/// The file stays locked, whatever becomes of flushers; and where nothing is written, or only by
/// certain calls, there are none.
#[test]
fn where_there_are_flushers() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("v");
    for access in ACCESS {
        let mut device = make(&path, access);
        let flusher = device.flusher(BlockIndex(0), 64);
        assert!(flusher.is_some() && device.flusher(BlockIndex(1), 64).is_none());
        drop(flusher);
        assert!(open(&path, &OpenOptions::default()).is_err(), "it is in use");
        drop(device);
        let plain = OpenOptions { access, ..OpenOptions::default() };
        let with = OpenOptions { flusher: true, ..plain };
        for none in
            [plain, OpenOptions { read_only: true, ..with }, OpenOptions { sealable: true, ..with }]
        {
            let mut device = open(&path, &none).unwrap();
            assert!(device.flusher(BlockIndex(0), 1).is_none(), "{none:?}");
        }
    }
}
