//! The facts about a file or block device from ioctl(2), and from a call that has no name in the
//! libraries. The kernel or the file system may know none of them: then there is no answer.
#![allow(unsafe_code)]

use std::os::fd::BorrowedFd;

use rustix::ioctl::{Getter, Opcode, Updater, ioctl};

const BLKGETDISKSEQ: Opcode = 0x8008_1280;
const FS_IOC_GETVERSION: Opcode = rustix::ioctl::opcode::read::<core::ffi::c_long>(b'v', 1);
const BTRFS_IOC_FS_INFO: Opcode = 0x8400_941f;
const LOOP_GET_STATUS64: Opcode = 0x4c05;
/// The number of cachestat(2), on every architecture.
pub(crate) const SYS_CACHESTAT: libc::c_long = 451;

/// The number of a disk, counted since the host started: each one that is attached, or gets another
/// medium or backing file, has a new one (Linux 5.15). A partition has that of its disk.
pub(super) fn disk_sequence(device: BorrowedFd<'_>) -> Option<u64> {
    // SAFETY: the call stores 64 bits.
    unsafe { ioctl(device, Getter::<BLKGETDISKSEQ, u64>::new()) }.ok()
}

/// The number that tells an inode from an earlier one with the same number.
pub(super) fn inode_generation(file: BorrowedFd<'_>) -> Option<u32> {
    // The call stores an int, though its number says long.
    let mut generation = [0u32; 2];
    // SAFETY: the call stores 32 bits, for which there is room.
    unsafe { ioctl(file, Updater::<FS_IOC_GETVERSION, [u32; 2]>::new(&mut generation)) }.ok()?;
    Some(generation[0])
}

/// The UUID by which sysfs knows the btrfs that a file is on.
pub(super) fn btrfs_uuid(file: BorrowedFd<'_>) -> Option<[u8; 16]> {
    const LEN: usize = 1024;
    const UUID: usize = 16;
    // Asks for nothing more than has always been there.
    let mut info = [0u8; LEN];
    // SAFETY: the call stores a structure of 1024 bytes.
    unsafe { ioctl(file, Updater::<BTRFS_IOC_FS_INFO, [u8; LEN]>::new(&mut info)) }.ok()?;
    info[UUID..UUID + 16].try_into().ok()
}

/// The file behind a loop device: the device of its file system, and its inode number.
pub(super) fn loop_file(device: BorrowedFd<'_>) -> Option<(u64, u64)> {
    const LEN: usize = 232;
    let mut status = [0u64; LEN / 8];
    // SAFETY: the call stores a structure of 232 bytes.
    unsafe { ioctl(device, Updater::<LOOP_GET_STATUS64, [u64; LEN / 8]>::new(&mut status)) }
        .ok()?;
    Some((status[0], status[1]))
}

/// How many pages of a file the host caches (Linux 6.5).
pub(super) fn cached_pages(file: BorrowedFd<'_>) -> Option<u64> {
    // All of it.
    page_counts(file, 0, 0).map(|counts| counts[0]).ok()
}

/// How many of the pages that `len` bytes from `offset` on touch are cached, dirty, being written,
/// evicted, and evicted recently (cachestat(2), Linux 6.5). Takes no lock of the inode's.
///
/// # Errors
/// `ENOSYS`; what the system refuses.
pub(crate) fn page_counts(
    file: BorrowedFd<'_>,
    offset: u64,
    len: u64,
) -> Result<[u64; 5], rustix::io::Errno> {
    use std::os::fd::AsRawFd;
    let range = [offset, len];
    let mut counts = [0u64; 5];
    // SAFETY: the call reads two numbers and stores five.
    let result =
        unsafe { libc::syscall(SYS_CACHESTAT, file.as_raw_fd(), &range, &mut counts, 0u32) };
    if result == 0 {
        return Ok(counts);
    }
    let error = std::io::Error::last_os_error().raw_os_error();
    Err(error.map_or(rustix::io::Errno::NOSYS, rustix::io::Errno::from_raw_os_error))
}
