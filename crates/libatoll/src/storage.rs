//! How volumes on this host are opened and made: the one place for all programs.

use std::io;
use std::path::Path;

use atoll_block::{BLOCK_SIZE, BlockDevice, BlockError, BlockIndex};
use atoll_fs::{FormatOptions, MountOptions};
use atoll_host::device::{self, HostDevice, OpenError, OpenOptions};
use atoll_host::memory;
use atoll_posix::{Clock, Credentials};
use rustix::rand::{GetRandomFlags, getrandom};

use crate::clock::HostClock;

/// Opens the storage of a volume.
///
/// # Errors
/// The fault; `InUse` also for a volume that another process has, although no lock says so. A file
/// is then as long as it was.
pub fn open(path: &Path, options: &OpenOptions) -> Result<HostDevice, OpenError> {
    let mut device = device::open(path, options)?;
    // Storage that holds no volume has no owner.
    let mark = atoll_fs::owner(&mut device).unwrap_or_default();
    match device::living_owner(&mark) {
        Some(pid) => {
            device.close_as_found();
            Err(OpenError::InUse { pid: Some(pid) })
        }
        None => Ok(device),
    }
}

/// Whether `device`, which was blank before it was locked, holds something by now: another process
/// has made a volume there.
///
/// # Errors
/// The device's.
pub fn was_taken(device: &mut HostDevice) -> Result<bool, BlockError> {
    let mut block = [0; BLOCK_SIZE];
    device.read(BlockIndex(0), &mut block)?;
    Ok(block.iter().any(|&byte| byte != 0))
}

/// How a volume on `device` is mounted, with so much memory for cached metadata:
/// [`memory::cache_bytes`] if nobody says how much.
pub fn mounting(device: &HostDevice, read_only: bool, cache_bytes: usize) -> MountOptions {
    MountOptions {
        read_only,
        incarnation: device.incarnation(),
        owner: device::owner(),
        discard: !read_only && device.gives_back(),
        cache_bytes,
        new_slab: Some(memory::use_huge_pages),
        listener: None,
    }
}

/// Gives back the storage of what `device` held before a volume is made there.
///
/// # Errors
/// The device's.
pub fn empty(device: &mut HostDevice) -> Result<(), BlockError> {
    let blocks = device.block_count();
    if device.gives_back() { device.discard(BlockIndex(0), blocks) } else { Ok(()) }
}

/// A new volume, with random names of its own, whose root directory is `owner`'s.
///
/// # Errors
/// When the host has no random numbers.
pub fn new_volume(owner: Credentials) -> io::Result<FormatOptions<'static>> {
    let mut random = [0; 32];
    // No file: a root directory may have no devices.
    let got = getrandom(&mut random[..], GetRandomFlags::empty())?;
    if got < random.len() {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let mut options = FormatOptions {
        now: HostClock.now(),
        uid: owner.uid,
        gid: owner.gid,
        ..FormatOptions::default()
    };
    options.uuid.copy_from_slice(&random[..16]);
    // Version 4, variant 1: made of random bits (RFC 9562).
    options.uuid[6] = options.uuid[6] & 0x0f | 0x40;
    options.uuid[8] = options.uuid[8] & 0x3f | 0x80;
    options.hash_key.copy_from_slice(&random[16..]);
    Ok(options)
}
