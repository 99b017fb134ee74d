//! Whether storage holds anything, which whoever makes a volume of it asks first.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use atoll_block::{BLOCK_SIZE, BlockDevice, BlockIndex};
use rustix::fs::SeekFrom;

use super::guest_disk::GuestDisk;
use crate::guest;

/// How much of each end of a block device must be zeros: every file system and partition table has
/// something there.
const ENDS: u64 = 1 << 20;
const PIECE: u64 = 1 << 16;

/// Whether the file at `path` holds nothing but zeros or holes, or the block device, or the disk of
/// a back end, nothing else at its two ends, a mebibyte each.
///
/// # Errors
/// The host's; `InvalidInput` for what is neither.
pub fn is_blank(path: &Path) -> io::Result<bool> {
    use std::os::unix::fs::FileTypeExt;
    if let Some(socket) = guest::disk_socket(path) {
        let attached = GuestDisk::attach(socket, true);
        let mut disk = attached.map_err(|error| io::Error::other(error.to_string()))?;
        let len = BlockIndex(disk.block_count()).byte_offset();
        // The ends and the pieces are whole blocks.
        return ends_are_zeros(len, |piece, at| {
            let read = disk.read(BlockIndex(at / BLOCK_SIZE as u64), piece);
            read.map(|()| piece.len()).map_err(|error| io::Error::other(error.to_string()))
        });
    }
    let kind = std::fs::metadata(path)?.file_type();
    if !kind.is_file() && !kind.is_block_device() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let file = File::open(path)?;
    let len = rustix::fs::seek(&file, SeekFrom::End(0))?;
    if kind.is_file() {
        return file_is_blank(&file, len);
    }
    ends_are_zeros(len, |piece, at| file.read_at(piece, at))
}

/// Whether both ends of `len` bytes are zeros, which `read` reads as pread(2) does.
fn ends_are_zeros(
    len: u64,
    mut read: impl FnMut(&mut [u8], u64) -> io::Result<usize>,
) -> io::Result<bool> {
    Ok(zeros(&mut read, 0, ENDS.min(len))? && zeros(&mut read, len.saturating_sub(ENDS), len)?)
}

fn file_is_blank(file: &File, len: u64) -> io::Result<bool> {
    let zeros = |at, end| zeros(|piece, at| file.read_at(piece, at), at, end);
    let mut at = 0;
    while at < len {
        // Holes are passed over, where the file system knows them.
        let start = match rustix::fs::seek(file, SeekFrom::Data(at)) {
            Ok(start) => start,
            Err(rustix::io::Errno::NXIO) => return Ok(true),
            Err(rustix::io::Errno::INVAL) => return zeros(at, len),
            Err(error) => return Err(error.into()),
        };
        let end = rustix::fs::seek(file, SeekFrom::Hole(start))?;
        if !zeros(start, end)? {
            return Ok(false);
        }
        at = end;
    }
    Ok(true)
}

/// Whether the bytes from `at` to `end` are zeros, or those of them that are there.
fn zeros(
    mut read: impl FnMut(&mut [u8], u64) -> io::Result<usize>,
    mut at: u64,
    end: u64,
) -> io::Result<bool> {
    let mut piece = vec![0; PIECE as usize];
    while at < end {
        let len = read(&mut piece[..PIECE.min(end - at) as usize], at)?;
        if len == 0 {
            break;
        }
        if piece[..len].iter().any(|&byte| byte != 0) {
            return Ok(false);
        }
        at += len as u64;
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One byte anywhere is enough, however long the file is.
    #[test]
    fn a_byte_anywhere_is_found() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("f");
        for len in [0, 1, 100, 4096, 70_001, 3 << 20] {
            let file = File::create(&path).unwrap();
            file.set_len(len).unwrap();
            assert!(is_blank(&path).unwrap(), "{len}");
            for at in [0, len / 3, len / 2, len.saturating_sub(1)] {
                file.set_len(0).unwrap();
                file.set_len(len).unwrap();
                if at < len {
                    file.write_all_at(&[1], at).unwrap();
                    assert!(!is_blank(&path).unwrap(), "{at} of {len}");
                    file.write_all_at(&[0], at).unwrap();
                    assert!(is_blank(&path).unwrap(), "a zero at {at} of {len}");
                }
            }
        }
        assert!(is_blank(folder.path()).is_err());
    }
}
