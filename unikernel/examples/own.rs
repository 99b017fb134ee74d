//! What a unikernel of your own brings to have volumes: a clock, an allocator (Rust's, here),
//! random bytes, and a disk. docs/OWN-UNIKERNEL.md goes through it.
//!
//! All but `main` compiles without an operating system: it uses `core`, `alloc` and four crates.
#![forbid(unsafe_code)]

extern crate alloc;

use alloc::collections::BTreeMap;
use core::sync::atomic::{AtomicU64, Ordering};

use atoll_block::{BLOCK_SIZE, BlockDevice, BlockError, BlockIndex, Cached};
use atoll_fs::{FormatOptions, Fs, FsError, MountOptions};
use atoll_posix::{Clock, OFlags, Options, Posix};
use atoll_vfs::{Errno, Timespec};

/// The clock: nanoseconds since 1970, which your timer's interrupt, or a counter of the processor,
/// moves on.
static NANOS: AtomicU64 = AtomicU64::new(1_700_000_000_000_000_000);

struct TimerClock;

impl Clock for TimerClock {
    fn now(&self) -> Timespec {
        let nanos = NANOS.load(Ordering::Relaxed);
        Timespec { sec: (nanos / 1_000_000_000) as i64, nsec: (nanos % 1_000_000_000) as u32 }
    }
}

/// The disk: your driver, behind four functions. Here it is blocks in a tree.
struct Disk {
    blocks: BTreeMap<u64, [u8; BLOCK_SIZE]>,
    count: u64,
}

impl BlockDevice for Disk {
    fn block_count(&self) -> u64 {
        self.count
    }

    fn read(&mut self, first: BlockIndex, buf: &mut [u8]) -> Result<(), BlockError> {
        // Whole blocks that are on the device, or nothing is done.
        atoll_block::device::block_range(self.count, first, buf.len())?;
        for (index, to) in (first.0..).zip(buf.chunks_exact_mut(BLOCK_SIZE)) {
            to.copy_from_slice(self.blocks.get(&index).unwrap_or(&[0; BLOCK_SIZE]));
        }
        Ok(())
    }

    fn write(&mut self, first: BlockIndex, data: &[u8]) -> Result<(), BlockError> {
        atoll_block::device::block_range(self.count, first, data.len())?;
        for (index, from) in (first.0..).zip(data.as_chunks().0) {
            self.blocks.insert(index, *from);
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<(), BlockError> {
        // What was written so far survives power loss once this returns.
        Ok(())
    }

    fn discard(&mut self, first: BlockIndex, count: u64) -> Result<(), BlockError> {
        let range = atoll_block::device::checked_blocks(self.count, first, count)?;
        self.blocks.retain(|index, _| !range.contains(index));
        Ok(())
    }
}

/// Bytes that are random, and secret: from the processor, or a device.
fn random() -> [u8; 16] {
    *b"not random at al"
}

/// A file system on the disk, through a cache of this many bytes; what a program's calls go to.
fn files(disk: Disk, cache: usize) -> Result<Posix<Fs<Cached<Disk>>, TimerClock>, FsError> {
    let mut device = Cached::new(disk, cache);
    let options = FormatOptions {
        uuid: random(),
        hash_key: random(),
        now: TimerClock.now(),
        ..FormatOptions::default()
    };
    atoll_fs::format(&mut device, &options)?;
    // The incarnation names the life of the memory that has what was written and not flushed. Zeros
    // are always right: then the end of this machine counts as power loss.
    let mount = MountOptions { cache_bytes: cache, ..MountOptions::default() };
    let fs = Fs::mount(device, &mount)?;
    Ok(Posix::new(fs, TimerClock, &Options { sole_user: true, ..Options::default() }))
}

/// A program: system calls are methods, with the errors that Linux has.
fn program<F: atoll_vfs::FileSystem>(files: &mut Posix<F, TimerClock>) -> Result<usize, Errno> {
    files.mkdir(b"/log", 0o755)?;
    let fd = files.open(b"/log/boot", OFlags::CREAT | OFlags::RDWR | OFlags::APPEND, 0o644)?;
    files.write(fd, b"up\n")?;
    files.fsync(fd, false)?;
    let mut text = [0; 16];
    let read = files.pread(fd, &mut text, 0)?;
    files.close(fd)?;
    Ok(read)
}

fn main() {
    let disk = Disk { blocks: BTreeMap::new(), count: 1024 };
    let mut files = files(disk, 1 << 20).expect("a volume");
    assert_eq!(program(&mut files), Ok(3));
    // All is written home; the next mount has nothing to recover.
    files.into_fs().unmount().expect("an end");
    println!("ok");
}
