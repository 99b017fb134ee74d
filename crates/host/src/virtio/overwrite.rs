//! Writes into files that a front end has handed over, which take the place of bytes that are
//! there: the files never grow by them.
//!
//! The front end shares the open file description, and can set its flags at any time. With O_APPEND
//! a write goes to the end of the file, wherever it was to go: each answer would make the front
//! end's memory longer, by pages that count as the server's, without end.
//!
//! Linux 6.9 and later can be told to write where they were asked to. Before, the flag is looked
//! for, and a file that has grown all the same is one that is not written any more: a front end
//! that is faster than that look has made it longer by one write.

use std::os::fd::OwnedFd;

use rustix::fs::{OFlags, fcntl_getfl, fstat};
use rustix::io::{Errno, ReadWriteFlags, Result, pwrite, retry_on_intr};
use rustix::process::{Resource, getrlimit};

/// RWF_NOAPPEND, which O_APPEND does not count against.
const NOAPPEND: ReadWriteFlags = ReadWriteFlags::from_bits_retain(0x20);

/// The bytes of `file`.
fn len(file: &OwnedFd) -> Result<u64> {
    Ok(fstat(file)?.st_size as u64)
}

/// Writes all of `data` at `at` of `file`, which has bytes there already. A file that is cut short
/// meanwhile grows up to the end of `data` at most, which is where it ended before.
///
/// # Errors
/// `ENXIO` for a file that ends before, or that appends what is written; `EFBIG` beyond the length
/// to which this process may write; those of pwrite(2). A part may have been written then.
pub(super) fn overwrite(file: &OwnedFd, at: u64, data: &[u8]) -> Result<()> {
    let end = at.checked_add(data.len() as u64).ok_or(Errno::FBIG)?;
    // A write beyond it would be answered by SIGXFSZ.
    if getrlimit(Resource::Fsize).current.is_some_and(|limit| end > limit) {
        return Err(Errno::FBIG);
    }
    let mut done = 0;
    while done < data.len() {
        if len(file)? < end {
            return Err(Errno::NXIO);
        }
        match retry_on_intr(|| put(file, at + done as u64, &data[done..]))? {
            0 => return Err(Errno::IO),
            wrote => done += wrote,
        }
    }
    Ok(())
}

/// Writes some of `data` at `at`.
fn put(file: &OwnedFd, at: u64, data: &[u8]) -> Result<usize> {
    match rustix::io::pwritev2(file, &[std::io::IoSlice::new(data)], at, NOAPPEND) {
        Err(Errno::OPNOTSUPP | Errno::INVAL) => put_by_flags(file, at, data),
        put => put,
    }
}

/// The same where the kernel cannot be told.
fn put_by_flags(file: &OwnedFd, at: u64, data: &[u8]) -> Result<usize> {
    let before = len(file)?;
    if fcntl_getfl(file)?.contains(OFlags::APPEND) {
        return Err(Errno::NXIO);
    }
    let wrote = pwrite(file, data, at)?;
    if len(file)? > before { Err(Errno::NXIO) } else { Ok(wrote) }
}

#[cfg(test)]
mod tests {
    use rustix::fs::{MemfdFlags, fcntl_setfl, ftruncate, memfd_create};
    use rustix::io::pread;

    use super::*;

    fn file() -> OwnedFd {
        let file = memfd_create("test", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, 100).unwrap();
        file
    }

    #[test]
    fn bytes_go_where_bytes_are() {
        let file = file();
        overwrite(&file, 90, b"0123456789").unwrap();
        let mut found = [0; 20];
        assert_eq!(pread(&file, &mut found, 89), Ok(11));
        assert_eq!(&found[..11], b"\x000123456789");
        overwrite(&file, 100, b"").unwrap();
        for at in [91, 100, u64::MAX - 3, u64::MAX] {
            assert!(overwrite(&file, at, b"0123456789").is_err(), "{at}");
        }
        assert_eq!(len(&file), Ok(100));
    }

    /// Whatever the flags of the description, on every kernel.
    #[test]
    fn no_file_grows() {
        let file = file();
        fcntl_setfl(&file, OFlags::APPEND).unwrap();
        let wrote = overwrite(&file, 10, b"there");
        let mut found = [0; 5];
        pread(&file, &mut found, 10).unwrap();
        assert!(wrote.is_err() || &found == b"there");
        assert_eq!(put_by_flags(&file, 10, b"there"), Err(Errno::NXIO));
        assert_eq!(len(&file), Ok(100));
        fcntl_setfl(&file, OFlags::empty()).unwrap();
        assert_eq!(put_by_flags(&file, 20, b"there"), Ok(5));
        assert_eq!(put_by_flags(&file, 98, b"there"), Err(Errno::NXIO), "it has grown");
    }
}
