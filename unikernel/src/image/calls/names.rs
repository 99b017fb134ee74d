//! Calls about paths: opening, names, attributes.

use atoll_posix::attributes::Target;
use atoll_posix::{AT_FDCWD, AccessMode, AtFlags, OFlags};
use atoll_unikernel::abi;
use atoll_vfs::{Attr, Errno, RenameFlags, SetTime, StatFs};

use super::{Answer, Error};
use crate::end::{Mark, mark};
use crate::process::files;
use crate::{mappings, memory};

/// UTIME_NOW and UTIME_OMIT.
const NOW: i64 = (1 << 30) - 1;
const OMIT: i64 = (1 << 30) - 2;
/// AT_EMPTY_PATH.
const EMPTY_PATH: u32 = 0x1000;
/// AT_NO_AUTOMOUNT and what statx(2) has besides, which mean nothing here.
const NO_MEANING: u32 = 0x6800;

#[inline]
fn done(outcome: atoll_vfs::Result<()>) -> Answer {
    outcome.map(|()| 0).map_err(Error::from)
}

/// The path at `path`.
fn path(path: u64) -> Result<&'static [u8], Error> {
    mark(Mark::File);
    memory::string(path)
}

fn at_flags(flags: u32) -> Result<AtFlags, Error> {
    Ok(AtFlags::from_bits(flags & !NO_MEANING).ok_or(Errno::EINVAL)?)
}

pub fn open(path: u64, flags: u32, mode: u32) -> Answer {
    openat(AT_FDCWD, path, flags, mode)
}

pub fn creat(path: u64, mode: u32) -> Answer {
    openat(AT_FDCWD, path, (OFlags::CREAT | OFlags::WRONLY | OFlags::TRUNC).bits(), mode)
}

pub fn openat(dirfd: i32, at: u64, flags: u32, mode: u32) -> Answer {
    // Bits that have no meaning are ignored, as open(2) does.
    let flags = OFlags::from_bits_truncate(flags);
    let fd = files().openat(dirfd, path(at)?, flags, mode)?;
    if flags.contains(OFlags::TRUNC) {
        mappings::follow();
    }
    Ok(fd.into())
}

pub fn stat(path: u64, to: u64) -> Answer {
    stat_path(AT_FDCWD, path, to, 0)
}

pub fn lstat(path: u64, to: u64) -> Answer {
    stat_path(AT_FDCWD, path, to, AtFlags::SYMLINK_NOFOLLOW.bits())
}

/// Writes what was found at `to`. It is taken where it lies: `?` would copy it first, which takes
/// as many instructions as it has words.
#[inline(always)]
fn put_stat(found: &atoll_vfs::Result<Attr>, to: u64) -> Answer {
    match found {
        Ok(attr) => abi::stat(attr, memory::array_mut(to)?),
        Err(error) => return Err((*error).into()),
    }
    Ok(0)
}

// One of the calls that programs make most: within the function of the table.
#[inline(always)]
pub fn fstat(fd: i32, to: u64) -> Answer {
    put_stat(&files().fstat(fd), to)
}

#[inline(always)]
pub fn newfstatat(dirfd: i32, at: u64, to: u64, flags: u32) -> Answer {
    // As glibc calls it for fstat(3).
    if flags == EMPTY_PATH && dirfd >= 0 && memory::bytes(at, 1)?.first() == Some(&0) {
        return fstat(dirfd, to);
    }
    stat_path(dirfd, at, to, flags)
}

#[inline(never)]
fn stat_path(dirfd: i32, at: u64, to: u64, flags: u32) -> Answer {
    put_stat(&files().fstatat(dirfd, path(at)?, at_flags(flags)?), to)
}

pub fn statx(dirfd: i32, at: u64, flags: u32, _mask: u32, to: u64) -> Answer {
    let attr = files().fstatat(dirfd, path(at)?, at_flags(flags)?)?;
    memory::put(to, &abi::statx(&attr))?;
    Ok(0)
}

fn put_statfs(to: u64, found: &StatFs) -> Answer {
    memory::put(to, &abi::statfs(found))?;
    Ok(0)
}

pub fn statfs(at: u64, to: u64) -> Answer {
    let found = files().statvfs(path(at)?)?;
    put_statfs(to, &found)
}

pub fn fstatfs(fd: i32, to: u64) -> Answer {
    let found = files().fstatvfs(fd)?;
    put_statfs(to, &found)
}

pub fn access(path: u64, mode: u32) -> Answer {
    faccessat2(AT_FDCWD, path, mode, 0)
}

pub fn faccessat(dirfd: i32, path: u64, mode: u32) -> Answer {
    faccessat2(dirfd, path, mode, 0)
}

pub fn faccessat2(dirfd: i32, at: u64, mode: u32, flags: u32) -> Answer {
    let mode = AccessMode::from_bits(mode).ok_or(Errno::EINVAL)?;
    done(files().faccessat(dirfd, path(at)?, mode, at_flags(flags)?))
}

pub fn truncate(at: u64, length: i64) -> Answer {
    files().truncate(path(at)?, length)?;
    mappings::follow();
    Ok(0)
}

pub fn getcwd(to: u64, len: u64) -> Answer {
    let found = files().getcwd()?;
    if found.len() as u64 >= len {
        return Err(Errno::ERANGE.into());
    }
    let to = memory::bytes_mut(to, found.len() as u64 + 1)?;
    to[..found.len()].copy_from_slice(found);
    to[found.len()] = 0;
    Ok(to.len() as i64)
}

pub fn chdir(at: u64) -> Answer {
    done(files().chdir(path(at)?))
}

pub fn fchdir(fd: i32) -> Answer {
    done(files().fchdir(fd))
}

pub fn rename(old: u64, new: u64) -> Answer {
    renameat2(AT_FDCWD, old, AT_FDCWD, new, 0)
}

pub fn renameat(old_dir: i32, old: u64, new_dir: i32, new: u64) -> Answer {
    renameat2(old_dir, old, new_dir, new, 0)
}

pub fn renameat2(old_dir: i32, old: u64, new_dir: i32, new: u64, flags: u32) -> Answer {
    let flags = RenameFlags::from_bits(flags).ok_or(Errno::EINVAL)?;
    done(files().renameat2(old_dir, path(old)?, new_dir, path(new)?, flags))
}

pub fn mkdir(path: u64, mode: u32) -> Answer {
    mkdirat(AT_FDCWD, path, mode)
}

pub fn mkdirat(dirfd: i32, at: u64, mode: u32) -> Answer {
    done(files().mkdirat(dirfd, path(at)?, mode))
}

pub fn rmdir(path: u64) -> Answer {
    unlinkat(AT_FDCWD, path, AtFlags::REMOVEDIR.bits())
}

pub fn unlink(path: u64) -> Answer {
    unlinkat(AT_FDCWD, path, 0)
}

pub fn unlinkat(dirfd: i32, at: u64, flags: u32) -> Answer {
    done(files().unlinkat(dirfd, path(at)?, AtFlags::from_bits(flags).ok_or(Errno::EINVAL)?))
}

pub fn link(old: u64, new: u64) -> Answer {
    linkat(AT_FDCWD, old, AT_FDCWD, new, 0)
}

pub fn linkat(old_dir: i32, old: u64, new_dir: i32, new: u64, flags: u32) -> Answer {
    let flags = AtFlags::from_bits(flags).ok_or(Errno::EINVAL)?;
    done(files().linkat(old_dir, path(old)?, new_dir, path(new)?, flags))
}

pub fn symlink(target: u64, path: u64) -> Answer {
    symlinkat(target, AT_FDCWD, path)
}

pub fn symlinkat(target: u64, dirfd: i32, at: u64) -> Answer {
    done(files().symlinkat(path(target)?, dirfd, path(at)?))
}

pub fn readlink(path: u64, to: u64, len: u64) -> Answer {
    readlinkat(AT_FDCWD, path, to, len)
}

pub fn readlinkat(dirfd: i32, at: u64, to: u64, len: u64) -> Answer {
    let to = memory::bytes_mut(to, len.min(atoll_posix::PATH_MAX as u64))?;
    Ok(files().readlinkat(dirfd, path(at)?, to)? as i64)
}

pub fn chmod(path: u64, mode: u32) -> Answer {
    fchmodat(AT_FDCWD, path, mode)
}

pub fn fchmodat(dirfd: i32, at: u64, mode: u32) -> Answer {
    done(files().chmod(Target::Path(dirfd, path(at)?, AtFlags::empty()), mode))
}

pub fn fchmod(fd: i32, mode: u32) -> Answer {
    done(files().chmod(Target::Descriptor(fd), mode))
}

pub fn chown(path: u64, uid: u32, gid: u32) -> Answer {
    fchownat(AT_FDCWD, path, uid, gid, 0)
}

pub fn lchown(path: u64, uid: u32, gid: u32) -> Answer {
    fchownat(AT_FDCWD, path, uid, gid, AtFlags::SYMLINK_NOFOLLOW.bits())
}

/// An identity to set; all ones leave it.
fn id(id: u32) -> Option<u32> {
    (id != u32::MAX).then_some(id)
}

pub fn fchown(fd: i32, uid: u32, gid: u32) -> Answer {
    done(files().chown(Target::Descriptor(fd), id(uid), id(gid)))
}

pub fn fchownat(dirfd: i32, at: u64, uid: u32, gid: u32, flags: u32) -> Answer {
    let target = Target::Path(dirfd, path(at)?, at_flags(flags)?);
    done(files().chown(target, id(uid), id(gid)))
}

pub fn umask(mask: u32) -> Answer {
    Ok(files().umask(mask).into())
}

pub fn mknod(path: u64, mode: u32, device: u32) -> Answer {
    mknodat(AT_FDCWD, path, mode, device)
}

pub fn mknodat(dirfd: i32, at: u64, mode: u32, device: u32) -> Answer {
    done(files().mknodat(dirfd, path(at)?, mode, device))
}

pub fn utimensat(dirfd: i32, at: u64, times: u64, flags: u32) -> Answer {
    let mut set = [Some(SetTime::Now); 2];
    if times != 0 {
        for (index, set) in set.iter_mut().enumerate() {
            let (sec, nsec) = abi::read_timespec(&memory::array(times + 16 * index as u64)?);
            *set = match nsec {
                NOW => Some(SetTime::Now),
                OMIT => None,
                0..1_000_000_000 => {
                    let nsec = nsec as u32;
                    Some(SetTime::To(atoll_vfs::Timespec { sec, nsec }))
                }
                _ => return Err(Errno::EINVAL.into()),
            };
        }
    }
    // Without a path it is about the descriptor.
    let target = match at {
        0 => Target::Descriptor(dirfd),
        at => Target::Path(dirfd, path(at)?, at_flags(flags)?),
    };
    done(files().utimens(target, set))
}
