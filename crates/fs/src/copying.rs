//! Copying from file to file: what is stored by way of memory, large holes as holes where the copy
//! grows over them.

use alloc::vec;

use atoll_block::{Addressable, BLOCK_SIZE};
use atoll_vfs::filesystem::{COPY_MAX, copied_len};
use atoll_vfs::{Context, Errno, FileAt, OpenFlags};

use crate::error::Result;
use crate::file::Sought;
use crate::fs::Fs;
use crate::inode::InodeRecord;

/// The least hole that is not copied as zeros, in bytes: each hole, and what is before it, is a
/// call of its own.
const HOLE_MIN: u64 = 16 * BLOCK_SIZE as u64;

impl<M: Addressable> Fs<M> {
    /// Copies what one transaction writes, or one hole. Returns how many bytes.
    pub(crate) fn do_copy(
        &mut self,
        cx: &Context,
        from: FileAt,
        to: FileAt,
        len: u64,
    ) -> Result<u64> {
        let source = self.handle(from.ino, from.handle)?;
        let target = self.handle(to.ino, to.handle)?;
        if !source.flags.contains(OpenFlags::READ)
            || !target.flags.contains(OpenFlags::WRITE)
            || target.flags.contains(OpenFlags::APPEND)
        {
            return Err(Errno::EBADF.into());
        }
        let InodeRecord { size, .. } = self.inodes.get(source.slot).record;
        if self.inodes.get(source.slot).record.is_dir() {
            return Err(Errno::EISDIR.into());
        }
        if self.store.is_read_only() {
            return Err(self.read_only_errno().into());
        }
        let len = copied_len(from, to, len, size)?;
        if len == 0 {
            return Ok(0);
        }
        let end = from.offset + len;
        let stored =
            self.stored_until(source.slot, from.offset, end.min(from.offset + COPY_MAX))?;
        let record = self.inodes.get(target.slot).record;
        if stored == from.offset && to.offset >= record.size {
            let inode = self.inodes.get_mut(source.slot);
            let len = self.store.seek_file(inode, stored, end, true)?.at() - from.offset;
            let grown =
                InodeRecord { size: to.offset + len, mtime: cx.now, ctime: cx.now, ..record };
            self.truncate(target.slot, &grown)?;
            return Ok(len);
        }
        // A hole where the copy has bytes already is copied as zeros.
        let until = if stored == from.offset { end.min(stored + COPY_MAX) } else { stored };
        let mut data = vec![0; (until - from.offset) as usize];
        self.store.read_file(self.inodes.get_mut(source.slot), from.offset, &mut data)?;
        Ok(self.do_write(cx, to.ino, to.handle, to.offset, data[..].into())?.len as u64)
    }

    /// Where the next large hole of a file begins, from `at` on and at most `end`, which the file
    /// reaches.
    fn stored_until(&mut self, slot: u32, at: u64, end: u64) -> Result<u64> {
        self.store.cache.begin_operation();
        let inode = self.inodes.get_mut(slot);
        let mut at = at;
        while at < end {
            let hole = match self.store.seek_file(inode, at, end, false)? {
                Sought::Found(hole) => hole,
                Sought::NotBefore(until) => return Ok(until),
            };
            let data = self.store.seek_file(inode, hole, hole + HOLE_MIN, true)?.at();
            if data - hole >= HOLE_MIN {
                return Ok(hole);
            }
            at = data;
        }
        Ok(end)
    }
}
