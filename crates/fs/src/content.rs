//! Content and attributes of single inodes.

use atoll_block::{Addressable, BLOCK_SIZE, BlockError};
use atoll_vfs::filesystem::{FILE_SIZE_MAX, checked_end};
use atoll_vfs::{
    Attr, Context, Data, Errno, FallocateMode, FileType, Handle, Ino, OpenFlags, Rest, Room,
    SeekTo, SetAttr, SetTime, Written,
};

use crate::error::{FsError, Result};
use crate::file::{FREE_BUDGET, Sought, WRITE_MAX};
use crate::fs::Fs;
use crate::inode::InodeRecord;
use crate::key::{Key, OFFSET_MAX};
use crate::store::Store;
use crate::table::Inode;

const BLOCK: u64 = BLOCK_SIZE as u64;

impl<M: Addressable> Fs<M> {
    #[inline]
    pub(crate) fn do_read(
        &mut self,
        ino: Ino,
        handle: Handle,
        offset: u64,
        buf: &mut [u8],
    ) -> Result<usize> {
        let file = self.handle(ino, handle)?;
        if !file.flags.contains(OpenFlags::READ) {
            return Err(Errno::EBADF.into());
        }
        let inode = self.inodes.get_mut(file.slot);
        if inode.record.is_dir() {
            return Err(Errno::EISDIR.into());
        }
        let n = inode.record.size.saturating_sub(offset).min(buf.len() as u64) as usize;
        // The common case: the whole range lies within the extent that was used last.
        if let Some(e) = inode.extent
            && !e.unwritten
            && offset >= e.file_block * BLOCK
            && offset + n as u64 <= e.end() * BLOCK
        {
            let at = e.start * BLOCK + (offset - e.file_block * BLOCK);
            self.store.load_data(at, &mut buf[..n])?;
            return Ok(n);
        }
        self.store.cache.begin_operation();
        self.store.read_file(inode, offset, &mut buf[..n])?;
        Ok(n)
    }

    /// Reads piece by piece: the first that is short is the end of the file.
    #[inline]
    pub(crate) fn do_read_vectored(
        &mut self,
        ino: Ino,
        handle: Handle,
        offset: u64,
        room: &mut Room<'_>,
    ) -> Result<usize> {
        if let Some(buf) = room.one() {
            return self.do_read(ino, handle, offset, buf);
        }
        let mut done = 0;
        for piece in room.iter_mut() {
            let n = self.do_read(ino, handle, offset.saturating_add(done as u64), piece)?;
            done += n;
            if n < piece.len() {
                break;
            }
        }
        Ok(done)
    }

    #[inline]
    pub(crate) fn do_write(
        &mut self,
        cx: &Context,
        ino: Ino,
        handle: Handle,
        offset: u64,
        data: Data<'_>,
    ) -> Result<Written> {
        let file = self.handle(ino, handle)?;
        if !file.flags.contains(OpenFlags::WRITE) {
            return Err(Errno::EBADF.into());
        }
        if self.store.is_read_only() {
            return Err(self.read_only_errno().into());
        }
        let inode = self.inodes.get_mut(file.slot);
        let append = file.flags.contains(OpenFlags::APPEND);
        let offset = if append { inode.record.size } else { offset };
        if data.is_empty() {
            return Ok(Written { len: 0, offset });
        }
        let end = checked_end(offset, data.len() as u64)?;
        // The common case: the whole range lies within the file and the extent that was used last.
        if end <= inode.record.size
            && let Some(e) = inode.extent
            && !e.unwritten
            && offset >= e.file_block * BLOCK
            && end <= e.end() * BLOCK
        {
            let at = e.start * BLOCK + (offset - e.file_block * BLOCK);
            self.store.store_pieces(at, data)?;
            if inode.set_times(cx.now) {
                self.inodes.note_dirty(file.slot);
            }
            return Ok(Written { len: data.len(), offset });
        }
        if end > inode.record.size {
            self.before_growth(ino, file.slot)?;
        }
        self.write_slowly(cx, file.slot, offset, data)
    }

    fn write_slowly(
        &mut self,
        cx: &Context,
        slot: u32,
        offset: u64,
        data: Data<'_>,
    ) -> Result<Written> {
        let mut done = 0;
        let mut most = WRITE_MAX;
        while done < data.len() {
            let at = offset + done as u64;
            let rest = data.skip(done);
            let over = if most < WRITE_MAX { at % BLOCK } else { 0 };
            let chunk = rest.len().min((most - over) as usize);
            match self.write_chunk(slot, at, rest.limit(chunk)) {
                Ok(n) => done += n,
                // If all of it does not fit, perhaps half of it does.
                Err(FsError::Full | FsError::Quota | FsError::Device(BlockError::NoSpace))
                    if chunk as u64 > BLOCK - at % BLOCK =>
                {
                    most = (chunk as u64 / 2).next_multiple_of(BLOCK);
                }
                Err(e) if done == 0 => return Err(e),
                Err(_) => break,
            }
        }
        self.inodes.set_times(slot, cx.now);
        Ok(Written { len: done, offset })
    }

    fn write_chunk(&mut self, slot: u32, offset: u64, data: Data<'_>) -> Result<usize> {
        self.change(slot, false, |store, inode| store.write_file(inode, offset, data))
    }

    /// Runs a transaction on an inode in memory, which is what it was if that does not commit.
    fn change<T>(
        &mut self,
        slot: u32,
        frees_space: bool,
        mut body: impl FnMut(&mut Store<M>, &mut Inode) -> Result<T>,
    ) -> Result<T> {
        let inode = self.inodes.get_mut(slot);
        let before = *inode;
        let mut is_changed = false;
        let result = self.store.transact(frees_space, |store| {
            // A try before this one has failed.
            if core::mem::replace(&mut is_changed, true) {
                *inode = before;
            }
            body(store, inode)
        });
        if result.is_err() {
            *inode = before;
        }
        result
    }

    pub(crate) fn read_only_errno(&self) -> Errno {
        if self.store.has_failed() { Errno::EIO } else { Errno::EROFS }
    }

    /// Changes the length of a regular file to `record.size` and the rest of its record to
    /// `record`, whose block count is not looked at.
    pub(crate) fn truncate(&mut self, slot: u32, record: &InodeRecord) -> Result<()> {
        let size = record.size;
        let Inode { ino, record: InodeRecord { size: old, .. }, .. } = *self.inodes.get(slot);
        if size > old {
            self.before_growth(ino, slot)?;
        }
        let adopt = |store: &mut Store<M>, inode: &mut Inode| {
            inode.record = InodeRecord { blocks: inode.record.blocks, ..*record };
            let bytes = inode.record.emit();
            store.update_inode(inode, 0, &bytes)
        };
        if size >= old {
            self.change(slot, false, |store, inode| {
                store.zero_tail(inode, size)?;
                adopt(store, inode)
            })?;
            self.inodes.times_written(slot);
            return Ok(());
        }
        // A file without links is on the list of removals already, and so is one whose last cut is
        // not done.
        let listed = record.nlink == 0 || self.left.cut.contains(&ino);
        let done = self.change(slot, true, |store, inode| {
            let done = store.remove_blocks(inode, size.div_ceil(BLOCK), OFFSET_MAX, FREE_BUDGET)?;
            adopt(store, inode)?;
            if !done && !listed {
                store.insert(Key::orphan(ino), &[])?;
            }
            Ok(done)
        })?;
        self.inodes.times_written(slot);
        // The window counts in which the transaction ended: it may have begun in the one before.
        self.inodes.made_shorter(slot, self.store.window());
        if done && !self.left.cut.contains(&ino) {
            return Ok(());
        }
        self.free_later(ino, slot)
    }

    /// Frees blocks beyond the end of a listed file, as many as one transaction does, and takes it
    /// out of the list with the last. Returns whether none are left.
    pub(crate) fn free_beyond(&mut self, slot: u32) -> Result<bool> {
        self.change(slot, true, |store, inode| {
            let from = inode.record.size.div_ceil(BLOCK);
            let done = store.remove_blocks(inode, from, OFFSET_MAX, FREE_BUDGET)?;
            store.update_size(inode)?;
            // A file without links stays listed.
            if done && inode.record.nlink > 0 {
                store.remove(Key::orphan(inode.ino))?;
            }
            Ok(done)
        })
    }

    /// Ends a truncation that a crash interrupted.
    pub(crate) fn finish_truncate(&mut self, ino: Ino) -> Result<()> {
        let slot = self.load(ino)?;
        while !self.free_beyond(slot)? {}
        self.inodes.rest(slot, self.store.durable_window());
        Ok(())
    }

    pub(crate) fn set_attributes(
        &mut self,
        cx: &Context,
        ino: Ino,
        handle: Option<Handle>,
        set: &SetAttr,
    ) -> Result<Attr> {
        let mut record = self.record(ino)?;
        if *set == SetAttr::default() {
            return Ok(record.attr(ino));
        }
        if let Some(size) = set.size {
            match record.file_type() {
                FileType::Regular => {}
                FileType::Directory => return Err(Errno::EISDIR.into()),
                _ => return Err(Errno::EINVAL.into()),
            }
            if let Some(handle) = handle
                && !self.handle(ino, handle)?.flags.contains(OpenFlags::WRITE)
            {
                return Err(Errno::EBADF.into());
            }
            if size > FILE_SIZE_MAX {
                return Err(Errno::EFBIG.into());
            }
            record.size = size;
            record.mtime = cx.now;
        }
        if let Some(mode) = set.mode {
            record.mode = (record.mode & !0o7777) | (mode & 0o7777);
        }
        record.uid = set.uid.unwrap_or(record.uid);
        record.gid = set.gid.unwrap_or(record.gid);
        let resolve = |t: SetTime| match t {
            SetTime::Now => Ok(cx.now),
            SetTime::To(t) if t.nsec < 1_000_000_000 => Ok(t),
            SetTime::To(_) => Err(Errno::EINVAL),
        };
        if let Some(t) = set.atime {
            record.atime = resolve(t)?;
        }
        if let Some(t) = set.mtime {
            record.mtime = resolve(t)?;
        }
        record.ctime = cx.now;
        if set.size.is_some() {
            let slot = self.load(ino)?;
            let done = self.truncate(slot, &record);
            record = self.inodes.get(slot).record;
            self.inodes.rest(slot, self.store.durable_window());
            done?;
            self.trim_inodes()?;
        } else {
            self.store.transact(true, |store| store.write_inode(ino, &record))?;
            self.adopt(ino, &record);
        }
        Ok(record.attr(ino))
    }

    /// The handle's inode, if it may be written to and is a regular file.
    fn writable(&mut self, ino: Ino, handle: Handle) -> Result<u32> {
        let file = self.handle(ino, handle)?;
        if !file.flags.contains(OpenFlags::WRITE) {
            return Err(Errno::EBADF.into());
        }
        Ok(file.slot)
    }

    pub(crate) fn do_fallocate(
        &mut self,
        cx: &Context,
        ino: Ino,
        handle: Handle,
        range: (u64, u64),
        mode: FallocateMode,
    ) -> Result<()> {
        let slot = self.writable(ino, handle)?;
        let (offset, len) = range;
        if len == 0 {
            return Err(Errno::EINVAL.into());
        }
        let end = checked_end(offset, len)?;
        let keep_size = mode.contains(FallocateMode::KEEP_SIZE);
        let kind = mode.difference(FallocateMode::KEEP_SIZE);
        if kind == FallocateMode::PUNCH_HOLE && keep_size {
            self.punch(slot, offset, end)?;
        } else if kind == FallocateMode::ZERO_RANGE {
            // Reserving may fail for want of space, so it comes first: of all of it, if it is done
            // at once.
            self.before_growth(ino, slot)?;
            self.reserve(slot, offset, end, keep_size)?;
            let end = self.left.rest.map_or(end, |rest| match rest {
                Rest::From(offset) => end.min(offset),
                _ => end,
            });
            self.zero(slot, offset, end)?;
        } else if kind.is_empty() {
            self.before_growth(ino, slot)?;
            self.reserve(slot, offset, end, keep_size)?;
        } else {
            return Err(Errno::EOPNOTSUPP.into());
        }
        self.inodes.set_times(slot, cx.now);
        Ok(())
    }

    /// Makes a range a hole, or a part of it in steps.
    fn punch(&mut self, slot: u32, offset: u64, end: u64) -> Result<()> {
        let (first, last) =
            self.change(slot, true, |store, inode| store.zero_edges(inode, offset, end))?;
        self.in_steps(slot, true, (first, last), |store, inode, at| {
            store.free_blocks(inode, at, last)
        })
    }

    /// Makes a range that has no holes read as zeros, or a part of it in steps.
    fn zero(&mut self, slot: u32, offset: u64, end: u64) -> Result<()> {
        let (first, last) =
            self.change(slot, true, |store, inode| store.zero_edges(inode, offset, end))?;
        self.in_steps(slot, true, (first, last), |store, inode, at| {
            store.mark_unwritten(inode, at, last)
        })
    }

    /// Allocates the holes of a range, or of a part of it in steps.
    fn reserve(&mut self, slot: u32, offset: u64, end: u64, keep_size: bool) -> Result<()> {
        let stop = end.div_ceil(BLOCK);
        // The host may take long for storage, so a step sets no more aside than a write takes.
        let most = if self.left.in_steps { WRITE_MAX / BLOCK } else { u64::MAX };
        self.in_steps(slot, false, (offset / BLOCK, stop), |store, inode, at| {
            store.preallocate(inode, at, stop.min(at.saturating_add(most)))
        })?;
        let end = match self.left.rest {
            Some(Rest::From(offset)) => end.min(offset),
            _ => end,
        };
        let record = self.inodes.get(slot).record;
        if !keep_size && end > record.size {
            self.truncate(slot, &InodeRecord { size: end, ..record })?;
        }
        Ok(())
    }

    /// Goes over the file blocks `first..last` in transactions, each from where the one before says
    /// that it has ended: in steps only one, after which there may be a rest.
    fn in_steps(
        &mut self,
        slot: u32,
        frees_space: bool,
        (first, last): (u64, u64),
        mut step: impl FnMut(&mut Store<M>, &mut Inode, u64) -> Result<u64>,
    ) -> Result<()> {
        let mut at = first;
        while at < last {
            at = self.change(slot, frees_space, |store, inode| {
                let next = step(store, inode, at)?;
                store.update_size(inode)?;
                Ok(next)
            })?;
            if self.left.in_steps && at < last {
                self.left.rest = Some(Rest::From(at * BLOCK));
                break;
            }
        }
        Ok(())
    }

    pub(crate) fn do_seek(
        &mut self,
        ino: Ino,
        handle: Handle,
        offset: u64,
        to: SeekTo,
    ) -> Result<u64> {
        let file = self.handle(ino, handle)?;
        let inode = self.inodes.get_mut(file.slot);
        let size = inode.record.size;
        if offset >= size {
            return Err(Errno::ENXIO.into());
        }
        let mut at = offset;
        loop {
            self.store.cache.begin_operation();
            match self.store.seek_file(inode, at, size, to == SeekTo::Data)? {
                Sought::Found(found) => return Ok(found),
                // The end of file counts as a hole.
                Sought::NotBefore(end) if end >= size && to == SeekTo::Hole => return Ok(size),
                Sought::NotBefore(end) if end >= size => return Err(Errno::ENXIO.into()),
                Sought::NotBefore(next) if self.left.in_steps => {
                    self.left.rest = Some(Rest::From(next));
                    return Err(Errno::EAGAIN.into());
                }
                Sought::NotBefore(next) => at = next,
            }
        }
    }
}
