//! Calls about open files: data, offsets, descriptors, locks.

use atoll_posix::{OFlags, Whence};
use atoll_vfs::{Errno, FallocateMode, LockKind};

use super::{Answer, Error};
use crate::process::{DESCRIPTORS, files};
use crate::{mappings, memory};

/// The most that one call moves (MAX_RW_COUNT).
const MOVED_MAX: u64 = 0x7fff_f000;
/// The most pieces of a vectored call (UIO_MAXIOV).
const PIECES_MAX: u64 = 1024;
/// Bytes that sendfile(2) copies at a time.
const COPIED: usize = 64 << 10;

#[inline]
fn count(len: usize) -> Answer {
    Ok(len as i64)
}

#[inline(always)]
pub fn read(fd: i32, to: u64, len: u64) -> Answer {
    count(files().read(fd, memory::bytes_mut(to, len.min(MOVED_MAX))?)?)
}

pub fn write(fd: i32, from: u64, len: u64) -> Answer {
    count(files().write(fd, memory::bytes(from, len.min(MOVED_MAX))?)?)
}

#[inline(always)]
pub fn pread64(fd: i32, to: u64, len: u64, offset: i64) -> Answer {
    count(files().pread(fd, memory::bytes_mut(to, len.min(MOVED_MAX))?, offset)?)
}

pub fn pwrite64(fd: i32, from: u64, len: u64, offset: i64) -> Answer {
    count(files().pwrite(fd, memory::bytes(from, len.min(MOVED_MAX))?, offset)?)
}

/// The pieces of a vectored call.
fn pieces(list: u64, count: u64) -> Result<impl Iterator<Item = (u64, u64)>, Error> {
    if count > PIECES_MAX {
        return Err(Errno::EINVAL.into());
    }
    let list = memory::bytes(list, count * 16)?;
    let word = |bytes: &[u8]| bytes.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte));
    Ok(list.chunks_exact(16).map(move |piece| (word(&piece[..8]), word(&piece[8..]))))
}

/// Does `each` for the pieces of a vectored call until one moves less than it could.
fn vectored(list: u64, count: u64, mut each: impl FnMut(u64, u64, u64) -> Answer) -> Answer {
    let mut done = 0;
    for (at, len) in pieces(list, count)?.filter(|(_, len)| *len > 0) {
        match each(at, len, done) {
            Err(_) if done > 0 => break,
            moved => {
                let moved = moved? as u64;
                done += moved;
                if moved < len {
                    break;
                }
            }
        }
    }
    Ok(done as i64)
}

pub fn readv(fd: i32, list: u64, count: u64) -> Answer {
    // A descriptor that may not be read is one, without any pieces too.
    files().read(fd, &mut [])?;
    vectored(list, count, |at, len, _| read(fd, at, len))
}

pub fn writev(fd: i32, list: u64, count: u64) -> Answer {
    files().write(fd, &[])?;
    vectored(list, count, |at, len, _| write(fd, at, len))
}

pub fn preadv(fd: i32, list: u64, count: u64, offset: i64) -> Answer {
    files().pread(fd, &mut [], offset)?;
    vectored(list, count, |at, len, done| pread64(fd, at, len, offset + done as i64))
}

pub fn pwritev(fd: i32, list: u64, count: u64, offset: i64) -> Answer {
    files().pwrite(fd, &[], offset)?;
    vectored(list, count, |at, len, done| pwrite64(fd, at, len, offset + done as i64))
}

pub fn close(fd: i32) -> Answer {
    files().close(fd)?;
    Ok(0)
}

#[inline(always)]
pub fn lseek(fd: i32, offset: i64, whence: u32) -> Answer {
    let whence = match whence {
        0 => Whence::Set,
        1 => Whence::Current,
        2 => Whence::End,
        3 => Whence::Data,
        4 => Whence::Hole,
        _ => return Err(Errno::EINVAL.into()),
    };
    Ok(files().lseek(fd, offset, whence)?)
}

pub fn dup(fd: i32) -> Answer {
    Ok(files().dup(fd)?.into())
}

pub fn dup2(fd: i32, to: i32) -> Answer {
    Ok(files().dup2(fd, to)?.into())
}

pub fn dup3(fd: i32, to: i32, flags: u32) -> Answer {
    Ok(files().dup3(fd, to, OFlags::from_bits_retain(flags))?.into())
}

pub fn fcntl(fd: i32, command: u32, argument: u64) -> Answer {
    match command {
        // F_DUPFD and F_DUPFD_CLOEXEC.
        0 | 1030 => {
            let least = i32::try_from(argument).map_err(|_| Errno::EINVAL)?;
            if least as usize >= DESCRIPTORS {
                return Err(Errno::EINVAL.into());
            }
            Ok(files().dup_from(fd, least, command == 1030)?.into())
        }
        // F_GETFD and F_SETFD.
        1 => Ok(files().descriptor_flags(fd)?.into()),
        2 => {
            files().set_descriptor_flags(fd, argument & 1 != 0)?;
            Ok(0)
        }
        // F_GETFL, with O_LARGEFILE as on every 64-bit machine, and F_SETFL.
        3 => Ok((files().status_flags(fd)?.bits() | 0o100_000).into()),
        4 => {
            files().set_status_flags(fd, OFlags::from_bits_truncate(argument as u32))?;
            Ok(0)
        }
        // F_GETLK, F_SETLK, F_SETLKW, and those of open files: no other process is here, so that
        // each is granted and none is in the way.
        5 | 36 => {
            files().status_flags(fd)?;
            // F_UNLCK.
            memory::put(argument, &2_u16.to_le_bytes())?;
            Ok(0)
        }
        6 | 7 | 37 | 38 => {
            files().status_flags(fd)?;
            memory::bytes(argument, 32)?;
            Ok(0)
        }
        _ => Err(Errno::EINVAL.into()),
    }
}

pub fn flock(fd: i32, operation: u32) -> Answer {
    let lock = match operation & !4 {
        1 => Some(LockKind::Shared),
        2 => Some(LockKind::Exclusive),
        8 => None,
        _ => return Err(Errno::EINVAL.into()),
    };
    // To wait would be for ever: the one who has the lock is the one who waits.
    files().flock(fd, lock, false)?;
    Ok(0)
}

pub fn fsync(fd: i32) -> Answer {
    files().fsync(fd, false)?;
    Ok(0)
}

pub fn fdatasync(fd: i32) -> Answer {
    files().fsync(fd, true)?;
    Ok(0)
}

pub fn sync() -> Answer {
    // It returns nothing, not even an error.
    let _ = files().sync();
    Ok(0)
}

pub fn syncfs(fd: i32) -> Answer {
    files().status_flags(fd)?;
    files().sync()?;
    Ok(0)
}

pub fn sync_file_range(fd: i32) -> Answer {
    // It promises nothing about metadata, and so nothing.
    files().status_flags(fd)?;
    Ok(0)
}

pub fn fadvise64(fd: i32) -> Answer {
    files().status_flags(fd)?;
    Ok(0)
}

pub fn ftruncate(fd: i32, length: i64) -> Answer {
    files().ftruncate(fd, length)?;
    mappings::follow();
    Ok(0)
}

pub fn fallocate(fd: i32, mode: u32, offset: i64, len: i64) -> Answer {
    let mode = FallocateMode::from_bits(mode).ok_or(Errno::EOPNOTSUPP)?;
    files().fallocate(fd, mode, offset, len)?;
    mappings::follow();
    Ok(0)
}

pub fn getdents64(fd: i32, to: u64, len: u64) -> Answer {
    count(files().getdents(fd, memory::bytes_mut(to, len.min(MOVED_MAX))?)?)
}

/// The offset at `at`, if there is one.
fn offset(at: u64) -> Result<Option<i64>, Error> {
    if at == 0 { Ok(None) } else { Ok(Some(i64::from_le_bytes(memory::array(at)?))) }
}

pub fn copy_file_range(from: i32, from_at: u64, to: i32, to_at: u64, len: u64) -> Answer {
    let (mut source, mut target) = (offset(from_at)?, offset(to_at)?);
    let len = len.min(MOVED_MAX) as usize;
    let copied = files().copy_file_range((from, source.as_mut()), (to, target.as_mut()), len)?;
    for (at, offset) in [(from_at, source), (to_at, target)] {
        if let Some(offset) = offset {
            memory::put(at, &offset.to_le_bytes())?;
        }
    }
    count(copied)
}

pub fn sendfile(to: i32, from: i32, offset_at: u64, len: u64) -> Answer {
    let place = offset(offset_at)?;
    let mut buf = alloc::vec![0; COPIED.min(len as usize)];
    let mut done = 0_u64;
    while done < len.min(MOVED_MAX) {
        let most = buf.len().min((len - done) as usize);
        let read = match place {
            Some(place) => files().pread(from, &mut buf[..most], place + done as i64),
            None => files().read(from, &mut buf[..most]),
        };
        let read = match read {
            Err(_) if done > 0 => break,
            read => read?,
        };
        let written = match files().write(to, &buf[..read]) {
            Err(_) if done > 0 => break,
            written => written?,
        };
        done += written as u64;
        if written < most {
            break;
        }
    }
    if let Some(place) = place {
        memory::put(offset_at, &(place + done as i64).to_le_bytes())?;
    }
    Ok(done as i64)
}
