//! pread64(2) and pwrite64(2) of whole ranges, and what their errors mean for a device.

use std::io::IoSlice;
use std::os::fd::BorrowedFd;

use atoll_block::BlockError;
use rustix::io::Errno;

/// The most pieces of one call (`UIO_MAXIOV`).
const PIECES_MAX: usize = 1024;

/// The device's error for an error of the kernel.
pub(super) fn block_error(errno: Errno) -> BlockError {
    match errno {
        // A quota or the limits of the file system beneath are a lack of room too.
        Errno::NOSPC | Errno::DQUOT | Errno::FBIG => BlockError::NoSpace,
        Errno::ROFS => BlockError::ReadOnly,
        _ => BlockError::Io,
    }
}

/// Fills `buf` from the file's offset `at`. A file that ends before is an input error: it shrank.
pub(super) fn read_at(file: BorrowedFd<'_>, at: u64, buf: &mut [u8]) -> Result<(), BlockError> {
    let mut done = 0;
    while done < buf.len() {
        match rustix::io::pread(file, &mut buf[done..], at + done as u64) {
            Ok(0) => return Err(BlockError::Io),
            Ok(n) => done += n,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(block_error(errno)),
        }
    }
    Ok(())
}

/// Writes `data` at the file's offset `at`.
pub(super) fn write_at(file: BorrowedFd<'_>, at: u64, data: &[u8]) -> Result<(), BlockError> {
    write_counted(file, at, data).1
}

/// Writes `data` at the file's offset `at`, and says how many bytes were written even if not all.
pub(super) fn write_counted(
    file: BorrowedFd<'_>,
    at: u64,
    data: &[u8],
) -> (usize, Result<(), BlockError>) {
    let mut done = 0;
    while done < data.len() {
        match rustix::io::pwrite(file, &data[done..], at + done as u64) {
            Ok(0) => return (done, Err(BlockError::Io)),
            Ok(n) => done += n,
            Err(Errno::INTR) => {}
            Err(errno) => return (done, Err(block_error(errno))),
        }
    }
    (done, Ok(()))
}

/// Writes the bytes of `pieces`, one behind the other, at the file's offset `at`.
pub(super) fn write_pieces_at(
    file: BorrowedFd<'_>,
    mut at: u64,
    pieces: &[&[u8]],
) -> Result<(), BlockError> {
    let mut pieces: Vec<IoSlice<'_>> = pieces.iter().map(|piece| IoSlice::new(piece)).collect();
    let mut rest = &mut pieces[..];
    // Empty ones in front are no progress that the kernel could make.
    IoSlice::advance_slices(&mut rest, 0);
    while !rest.is_empty() {
        match rustix::io::pwritev(file, &rest[..rest.len().min(PIECES_MAX)], at) {
            Ok(0) => return Err(BlockError::Io),
            Ok(n) => {
                at += n as u64;
                IoSlice::advance_slices(&mut rest, n);
            }
            Err(Errno::INTR) => {}
            Err(errno) => return Err(block_error(errno)),
        }
    }
    Ok(())
}

/// Gives the storage of a range back, so that it reads as zeros; false where the file or its file
/// system cannot.
pub(super) fn punch_hole(file: BorrowedFd<'_>, at: u64, len: u64) -> Result<bool, BlockError> {
    use rustix::fs::FallocateFlags as Flags;
    loop {
        return match rustix::fs::fallocate(file, Flags::PUNCH_HOLE | Flags::KEEP_SIZE, at, len) {
            Ok(()) => Ok(true),
            Err(Errno::INTR) => continue,
            Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL | Errno::NODEV) => Ok(false),
            Err(errno) => Err(block_error(errno)),
        };
    }
}

/// Has storage set aside for a range, if the file system can.
pub(super) fn reserve(file: BorrowedFd<'_>, at: u64, len: u64) -> Result<(), BlockError> {
    use rustix::fs::FallocateFlags as Flags;
    loop {
        return match rustix::fs::fallocate(file, Flags::KEEP_SIZE, at, len) {
            Ok(()) => Ok(()),
            Err(Errno::INTR) => continue,
            // A disk has its storage.
            Err(_) if is_disk(file) => Ok(()),
            Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL | Errno::NODEV) => {
                Err(BlockError::Unsupported)
            }
            Err(errno) => Err(block_error(errno)),
        };
    }
}

fn is_disk(file: BorrowedFd<'_>) -> bool {
    rustix::fs::fstat(file).is_ok_and(|stat| {
        rustix::fs::FileType::from_raw_mode(stat.st_mode) == rustix::fs::FileType::BlockDevice
    })
}

/// Drops what the host caches of the file, so that what is read from now on comes from the medium.
///
/// After an error of writing back the kernel takes the pages that it could not write for clean:
/// they read as if they had been written, until they are dropped. Clean pages that nobody maps can
/// be. A medium that still fails, or a page that stays, is an error.
pub(super) fn forget_cached(file: BorrowedFd<'_>) -> Result<(), BlockError> {
    const TRIES: u32 = 40;
    const PAUSE: std::time::Duration = std::time::Duration::from_millis(5);
    // Such a file's medium is memory itself.
    if super::life::is_memory(file) {
        return Ok(());
    }
    // The first may tell of the failure that is known.
    let _ = rustix::fs::fdatasync(file);
    rustix::fs::fdatasync(file).map_err(block_error)?;
    for _ in 0..TRIES {
        rustix::fs::fadvise(file, 0, None, rustix::fs::Advice::DontNeed).map_err(block_error)?;
        match super::ioctls::cached_pages(file) {
            None | Some(0) => return Ok(()),
            Some(_) => std::thread::sleep(PAUSE),
        }
    }
    Err(BlockError::Io)
}

/// Checks that the file still has `length` bytes. By lseek(2) and not fstat(2): after a call that
/// shows timestamps the kernel gives the next write a new one of its own, and a flush after every
/// write then commits the inode every time (multigrain timestamps, Linux 6.13).
pub(super) fn check_length(file: BorrowedFd<'_>, length: u64) -> Result<(), BlockError> {
    match rustix::fs::seek(file, rustix::fs::SeekFrom::End(0)) {
        Ok(end) if end < length => Err(BlockError::Io),
        Ok(_) => Ok(()),
        Err(errno) => Err(block_error(errno)),
    }
}
