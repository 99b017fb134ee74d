//! Between the types of the file seam and those of `fuser`.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use atoll_vfs::{Attr, Errno, FileType, Ino, OpenFlags, Result, SetTime, Timespec};
use fuser::{FileAttr, INodeNo, TimeOrNow};

/// The number that carries `error` to the kernel.
pub(super) fn errno(error: Errno) -> fuser::Errno {
    fuser::Errno::from_i32(error.raw())
}

/// The time of day. The file systems behind the seam read no clock: this is where it is read.
pub(crate) fn now() -> Timespec {
    match SystemTime::now().duration_since(UNIX_EPOCH) {
        Ok(since) => Timespec { sec: since.as_secs() as i64, nsec: since.subsec_nanos() },
        Err(_) => Timespec::default(),
    }
}

/// A time of the seam as `fuser` takes it. Seconds that [`SystemTime`] cannot hold become 0.
fn system_time(time: Timespec) -> SystemTime {
    let whole = Duration::from_secs(time.sec.unsigned_abs());
    let base =
        if time.sec >= 0 { UNIX_EPOCH.checked_add(whole) } else { UNIX_EPOCH.checked_sub(whole) };
    base.and_then(|t| t.checked_add(Duration::from_nanos(time.nsec.into()))).unwrap_or(UNIX_EPOCH)
}

/// A time that a program set, out of what `fuser` made of it.
///
/// The kernel sends seconds and nanoseconds that both count forward. For seconds below zero
/// `fuser` 0.18 subtracts the nanoseconds where it should add them; taking both apart again in the
/// same way gives what the kernel sent.
fn timespec(time: SystemTime) -> Timespec {
    match time.duration_since(UNIX_EPOCH) {
        Ok(since) => Timespec { sec: since.as_secs() as i64, nsec: since.subsec_nanos() },
        Err(before) => {
            let before = before.duration();
            Timespec { sec: (before.as_secs() as i64).wrapping_neg(), nsec: before.subsec_nanos() }
        }
    }
}

/// A time argument of setattr.
pub(super) fn set_time(time: TimeOrNow) -> SetTime {
    match time {
        TimeOrNow::Now => SetTime::Now,
        TimeOrNow::SpecificTime(time) => SetTime::To(timespec(time)),
    }
}

/// The type of a directory entry.
pub(super) fn file_type(kind: FileType) -> fuser::FileType {
    match kind {
        FileType::Regular => fuser::FileType::RegularFile,
        FileType::Directory => fuser::FileType::Directory,
        FileType::Symlink => fuser::FileType::Symlink,
        FileType::Fifo => fuser::FileType::NamedPipe,
        FileType::Socket => fuser::FileType::Socket,
        FileType::CharDevice => fuser::FileType::CharDevice,
        FileType::BlockDevice => fuser::FileType::BlockDevice,
    }
}

/// Attributes as stat(2) will show them.
pub(super) fn file_attr(attr: &Attr) -> FileAttr {
    FileAttr {
        ino: INodeNo(attr.ino.0),
        size: attr.size,
        blocks: attr.blocks,
        atime: system_time(attr.atime),
        mtime: system_time(attr.mtime),
        ctime: system_time(attr.ctime),
        crtime: system_time(attr.btime),
        kind: file_type(attr.file_type()),
        perm: (attr.mode & 0o7777) as u16,
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        rdev: attr.rdev,
        blksize: 4096,
        flags: 0,
    }
}

/// What the flags of open(2) ask of the seam.
///
/// O_APPEND is not among it: the kernel sends every write with its offset, which for O_APPEND is
/// the end of file, under the lock of the inode. A handle that appended by itself would go on to do
/// so after fcntl(2) cleared the flag.
pub(super) fn open_flags(flags: i32) -> OpenFlags {
    let mut out = match flags & libc::O_ACCMODE {
        libc::O_WRONLY => OpenFlags::WRITE,
        libc::O_RDWR => OpenFlags::READ | OpenFlags::WRITE,
        _ => OpenFlags::READ,
    };
    out.set(OpenFlags::TRUNC, flags & libc::O_TRUNC != 0);
    out.set(OpenFlags::EXCL, flags & libc::O_EXCL != 0);
    out
}

/// What the kernel is told of a name that is missing: inode 0.
pub(super) const NO_INODE: Attr = Attr {
    ino: Ino(0),
    mode: FileType::Regular.mode_bits(),
    nlink: 0,
    uid: 0,
    gid: 0,
    rdev: 0,
    size: 0,
    blocks: 0,
    atime: Timespec { sec: 0, nsec: 0 },
    mtime: Timespec { sec: 0, nsec: 0 },
    ctime: Timespec { sec: 0, nsec: 0 },
    btime: Timespec { sec: 0, nsec: 0 },
};

/// Whether the namespace of the attribute is one that a file system stores. `system.` is the
/// kernel's own (access control lists), and is not supported.
pub(super) fn storable(name: &[u8]) -> Result<&[u8]> {
    if [&b"user."[..], b"trusted.", b"security."].iter().any(|prefix| name.starts_with(prefix)) {
        Ok(name)
    } else {
        Err(Errno::EOPNOTSUPP)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_on_both_sides_of_the_epoch() {
        for (sec, nsec) in [(0, 0), (1, 999_999_999), (-1, 0), (-1, 500_000_000), (-7, 1)] {
            let time = Timespec { sec, nsec };
            let shown = system_time(time);
            let since = match shown.duration_since(UNIX_EPOCH) {
                Ok(since) => since.as_nanos() as i128,
                Err(before) => -(before.duration().as_nanos() as i128),
            };
            assert_eq!(since, i128::from(sec) * 1_000_000_000 + i128::from(nsec));
            // What fuser makes of the same pair when a program sets it.
            let set = if sec >= 0 {
                UNIX_EPOCH + Duration::new(sec as u64, nsec)
            } else {
                UNIX_EPOCH - Duration::new(-sec as u64, nsec)
            };
            assert_eq!(timespec(set), time);
        }
        let last = system_time(Timespec { sec: i64::MAX, nsec: 999_999_999 });
        assert_eq!(
            last.duration_since(UNIX_EPOCH).map(|d| d.as_secs()).ok(),
            Some(i64::MAX as u64)
        );
        let _ = system_time(Timespec { sec: i64::MIN, nsec: 0 });
    }

    #[test]
    fn append_is_left_to_the_kernel() {
        assert_eq!(open_flags(libc::O_WRONLY | libc::O_APPEND), OpenFlags::WRITE);
        assert_eq!(
            open_flags(libc::O_RDWR | libc::O_TRUNC | libc::O_EXCL),
            OpenFlags::READ | OpenFlags::WRITE | OpenFlags::TRUNC | OpenFlags::EXCL
        );
    }
}
