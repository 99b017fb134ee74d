//! A mounted volume: the store, the inodes in memory, the open handles.

use alloc::vec::Vec;

use atoll_block::{Addressable, BlockError};
use atoll_vfs::{Context, Errno, Handle, Ino, OpenFlags, StatFs, Timespec};

use crate::allocation::RESERVED_BLOCKS;
use crate::commit::Begun;
use crate::cookie::Cookies;
use crate::error::Result;
use crate::file::FREE_BUDGET;
use crate::inode::InodeRecord;
use crate::key::{Key, Kind};
use crate::layout::{self, Superblock, inode as inode_layout};
use crate::report::MountNote;
use crate::steps::Left;
use crate::store::Store;
use crate::table::InodeTable;
use crate::volume::{self, MountOptions};

/// An open file or directory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OpenFile {
    pub ino: Ino,
    /// The inode's slot in the inode table, good while the handle is open.
    pub slot: u32,
    pub flags: OpenFlags,
    /// Distinguishes the handles that this slot has had.
    serial: u32,
    open: bool,
}

/// A mounted volume.
///
/// Dropping it without [`unmount`](Self::unmount) is the end of a process: the next mount recovers
/// every acknowledged operation.
#[derive(Debug)]
pub struct Fs<M: Addressable> {
    pub(crate) store: Store<M>,
    pub(crate) inodes: InodeTable,
    pub(crate) cookies: Cookies,
    handles: Vec<OpenFile>,
    free_handles: Vec<u32>,
    times: Option<TimesLeft>,
    pub(crate) left: Left,
}

/// A commit in halves that has yet to write timestamps, before its first half.
#[derive(Debug)]
struct TimesLeft {
    /// Names the turn of others after which it goes on.
    number: u64,
    /// It has to write the times of so many inodes, those that have been ahead for longest.
    inodes: usize,
}

/// Inodes whose timestamps one transaction writes.
const TIMES_BATCH: usize = 64;
/// Inodes whose timestamps a commit in halves writes before others have their turn: a fraction of a
/// millisecond.
const TIMES_PIECE: usize = 4 * TIMES_BATCH;

/// The event that a commit in halves waits for.
pub(crate) enum Awaited {
    /// A turn of others. The number is for [`Fs::end_commit`].
    Turn(u64),
    /// A flush.
    Flush(Begun),
}

/// The facts about a volume as a whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeInfo {
    /// The superblock.
    pub superblock: Superblock,
    /// Blocks that are free, those that wait for a commit among them.
    pub free_blocks: u64,
    /// Inodes that exist.
    pub inodes: u64,
    /// Levels of the tree.
    pub tree_height: u32,
    /// Groups that have map blocks.
    pub groups: u64,
}

impl<M: Addressable> Fs<M> {
    /// Mounts the volume on `device`: replays its journal, and removes files that were unlinked but
    /// open.
    ///
    /// # Errors
    /// Those of the image or the device; nothing is written to a device that holds no valid volume.
    pub fn mount(device: M, options: &MountOptions) -> Result<Fs<M>> {
        let store = volume::mount(device, options)?;
        let mut fs = Fs {
            cookies: Cookies::new(&store.superblock.hash_key),
            store,
            inodes: InodeTable::default(),
            handles: Vec::new(),
            free_handles: Vec::new(),
            times: None,
            left: Left::default(),
        };
        let projects = fs.store.load_projects();
        if !options.read_only {
            // For looking they are not needed.
            projects?;
            fs.finish_removals()?;
        }
        Ok(fs)
    }

    /// Writes everything home and gives the device back. Open handles are closed; files that only
    /// they kept are removed.
    ///
    /// # Errors
    /// The device's, those of an earlier commit or checkpoint too: the volume is then as after the
    /// end of a process.
    pub fn unmount(mut self) -> Result<M> {
        if self.store.has_failed() {
            return Err(BlockError::Io.into());
        }
        if !self.store.is_read_only() {
            self.handles.clear();
            self.flush_times()?;
            self.inodes = InodeTable::default();
            self.left = Left::default();
            self.finish_removals()?;
            self.store.checkpoint_clean()?;
        }
        Ok(self.store.into_device())
    }

    /// Discards all free space but the smallest pieces, as fstrim(8) does. Returns how many blocks.
    ///
    /// # Errors
    /// The device's; `EROFS` for a volume that takes no changes. A crash within leaves part of it
    /// discarded.
    pub fn trim(&mut self) -> Result<u64> {
        self.store.trim()
    }

    /// The facts about the volume.
    pub fn info(&self) -> VolumeInfo {
        VolumeInfo {
            superblock: self.store.superblock.clone(),
            free_blocks: self.store.state.free_blocks,
            inodes: self.store.state.inodes,
            tree_height: self.store.state.height,
            groups: self.store.state.groups,
        }
    }

    /// Damage that was found and mended, or left out, since the mount began, for the volume's
    /// operator. The list may grow while the volume is used.
    pub fn notes(&self) -> &[MountNote] {
        &self.store.notes
    }

    /// The device below.
    pub fn device(&self) -> &M {
        &self.store.device
    }

    /// The device below. Writing to it corrupts the volume.
    pub fn device_mut(&mut self) -> &mut M {
        &mut self.store.device
    }

    // ---- commits ----

    /// Makes everything durable, timestamps too unless `data_only`.
    pub(crate) fn commit(&mut self, data_only: bool) -> Result<()> {
        if !data_only {
            self.flush_times()?;
            // This covers a commit in halves that has yet to write them.
            self.times = None;
        }
        self.store.commit()
    }

    /// As [`commit`](Self::commit), in halves. Timestamps are written in pieces before the first
    /// half.
    pub(crate) fn begin_commit(&mut self, data_only: bool) -> Result<Option<Awaited>> {
        if data_only {
            return self.begin_half();
        }
        if self.times.is_some() {
            return self.commit(false).map(|()| None);
        }
        self.write_times_left(self.inodes.dirty_times())
    }

    /// Goes on with a commit after the event `number` that it waited for, whose result is
    /// `flushed`; as [`Store::end_commit`].
    pub(crate) fn end_commit(
        &mut self,
        number: u64,
        flushed: Result<()>,
    ) -> Result<Option<Awaited>> {
        match self.times.take_if(|times| times.number == number) {
            Some(times) if flushed.is_ok() => self.write_times_left(times.inodes),
            _ => Ok(self.store.end_commit(number, flushed)?.map(Awaited::Flush)),
        }
    }

    /// Writes some of the times of `inodes` inodes that a commit has left, and its first half after
    /// the last.
    ///
    /// An inode whose times become ahead meanwhile stands behind those that are left. So the commit
    /// comes to an end whatever others do.
    fn write_times_left(&mut self, inodes: usize) -> Result<Option<Awaited>> {
        self.write_oldest_times(inodes.min(TIMES_PIECE))?;
        let inodes = inodes.saturating_sub(TIMES_PIECE).min(self.inodes.dirty_times());
        if inodes == 0 || self.store.is_read_only() {
            return self.begin_half();
        }
        let number = self.store.number_commit();
        self.times = Some(TimesLeft { number, inodes });
        Ok(Some(Awaited::Turn(number)))
    }

    fn begin_half(&mut self) -> Result<Option<Awaited>> {
        Ok(self.store.begin_commit()?.map(Awaited::Flush))
    }

    /// Writes timestamps that are newer in memory to the tree.
    fn flush_times(&mut self) -> Result<()> {
        self.write_oldest_times(usize::MAX)
    }

    /// Writes timestamps of up to `most` inodes to the tree, those that have been newer in memory
    /// for longest.
    fn write_oldest_times(&mut self, most: usize) -> Result<()> {
        if self.store.is_read_only() {
            return Ok(());
        }
        for slots in self.inodes.with_dirty_times(most).chunks(TIMES_BATCH) {
            self.write_times(slots)?;
        }
        Ok(())
    }

    /// Writes the timestamps of some inodes to the tree, in one transaction.
    fn write_times(&mut self, slots: &[u32]) -> Result<()> {
        let inodes = &mut self.inodes;
        self.store.transact(true, |store| {
            for &slot in slots {
                let inode = inodes.get_mut(slot);
                let mut b = [0; 36];
                layout::put_time(&mut b, 0, inode.record.mtime);
                layout::put_time(&mut b, 12, inode.record.ctime);
                layout::put_time(&mut b, 24, inode.record.atime);
                store.update_inode(inode, inode_layout::MTIME, &b)?;
            }
            Ok(())
        })?;
        for &slot in slots {
            self.inodes.times_written(slot);
        }
        Ok(())
    }

    /// Keeps the number of inodes in memory within bounds.
    #[inline]
    pub(crate) fn trim_inodes(&mut self) -> Result<()> {
        self.inodes.forget_shortened(self.store.durable_window());
        if self.inodes.is_crowded() && !self.store.is_read_only() {
            self.let_idle_go()?;
        }
        Ok(())
    }

    #[cold]
    fn let_idle_go(&mut self) -> Result<()> {
        let slots = self.inodes.longest_idle();
        self.write_times(&slots)?;
        for slot in slots {
            self.inodes.rest(slot, self.store.durable_window());
        }
        Ok(())
    }

    // ---- inodes ----

    /// The record of `ino`, timestamps as new as can be.
    #[inline]
    pub(crate) fn record(&mut self, ino: Ino) -> Result<InodeRecord> {
        match self.inodes.slot(ino) {
            Some(slot) => Ok(self.inodes.get(slot).record),
            None => self.read_record(ino),
        }
    }

    /// As [`record`](Self::record), for a look at it that does not copy all of it.
    #[inline]
    pub(crate) fn with_record<T>(
        &mut self,
        ino: Ino,
        look: impl FnOnce(&InodeRecord) -> T,
    ) -> Result<T> {
        match self.inodes.slot(ino) {
            Some(slot) => Ok(look(&self.inodes.get(slot).record)),
            None => Ok(look(&self.read_record(ino)?)),
        }
    }

    fn read_record(&mut self, ino: Ino) -> Result<InodeRecord> {
        if !self.left.dying.is_empty() && self.left.dying.contains(&ino) {
            return Err(Errno::ESTALE.into());
        }
        self.store.cache.begin_operation();
        self.store.read_inode(ino)
    }

    /// The inode's slot in memory, brought there if need be, which
    /// [obliges](InodeTable::insert).
    pub(crate) fn load(&mut self, ino: Ino) -> Result<u32> {
        match self.inodes.slot(ino) {
            Some(slot) => Ok(slot),
            None => {
                let record = self.read_record(ino)?;
                Ok(self.inodes.insert(ino, record))
            }
        }
    }

    /// The record of a directory that may get entries.
    pub(crate) fn directory(&mut self, ino: Ino) -> Result<InodeRecord> {
        let record = self.record(ino)?;
        if !record.is_dir() {
            return Err(Errno::ENOTDIR.into());
        }
        Ok(record)
    }

    /// Sets mtime and ctime of `ino` in memory; they reach the tree with the next commit.
    pub(crate) fn touch(&mut self, ino: Ino, now: Timespec) -> Result<()> {
        let slot = self.load(ino)?;
        self.inodes.set_times(slot, now);
        self.trim_inodes()
    }

    /// Sets atime of `ino` in memory if it is due, which takes no record; it reaches the tree with
    /// the next commit. Returns whether it has.
    pub(crate) fn note_access(&mut self, ino: Ino, now: Timespec) -> Result<bool> {
        if self.store.is_read_only() || !self.record(ino)?.attr(ino).access_is_due(now) {
            return Ok(false);
        }
        let slot = self.load(ino)?;
        self.inodes.set_atime(slot, now);
        // This one is set, whatever becomes of others.
        let _ = self.trim_inodes();
        Ok(true)
    }

    /// Takes over a record that a transaction wrote to the tree.
    pub(crate) fn adopt(&mut self, ino: Ino, record: &InodeRecord) {
        if let Some(slot) = self.inodes.slot(ino) {
            self.inodes.get_mut(slot).record = *record;
            self.inodes.times_written(slot);
        }
    }

    // ---- removal ----

    /// Within a transaction: removes items and blocks of an inode without links, as much as one
    /// transaction may. Returns whether the inode is gone.
    pub(crate) fn purge(store: &mut Store<M>, ino: Ino) -> Result<bool> {
        let project = store.project_of(ino)?;
        for step in 0..FREE_BUDGET {
            if step > 0 && !store.has_room() {
                break;
            }
            let place = store.seek(Key::inode(ino.0).next())?;
            let Some(place) = place.filter(|p| p.key.ino == ino.0) else {
                store.remove(Key::inode(ino.0))?;
                store.discharge_inode(project);
                store.state.inodes = store.state.inodes.saturating_sub(1);
                return Ok(true);
            };
            if place.key.kind() == Some(Kind::Extent) {
                let e = store.parse_extent(&place)?;
                store.free(e.start, e.len, false)?;
                store.discharge_blocks(project, e.len);
            } else {
                store.discharge_item(project, store.value(&place).len());
            }
            store.remove(place.key)?;
        }
        Ok(false)
    }

    /// Removes an inode that was noted as to be removed, in as many transactions as it takes.
    pub(crate) fn remove_orphan(&mut self, ino: Ino) -> Result<()> {
        while !self.remove_step(ino)? {}
        self.inodes.remove(ino);
        Ok(())
    }

    /// One transaction of a removal that was noted. Returns whether it was the last.
    pub(crate) fn remove_step(&mut self, ino: Ino) -> Result<bool> {
        self.store.transact(true, |store| {
            let done = Self::purge(store, ino)?;
            if done {
                store.remove(Key::orphan(ino))?;
            }
            Ok(done)
        })
    }

    /// Ends removals that were under way when the volume was last used: those of inodes without
    /// links, and of blocks beyond the end of files that were being made shorter. A file that is
    /// too damaged for that stays listed.
    fn finish_removals(&mut self) -> Result<()> {
        for ino in volume::orphans(&mut self.store)? {
            let done = self.finish_removal(ino);
            if done.is_err() && self.store.has_failed() {
                return done;
            }
            if done.is_err() {
                // The inode in memory may differ from the disk.
                self.inodes.remove(ino);
                self.store.note(MountNote::Orphan { ino: ino.0 });
            }
        }
        Ok(())
    }

    fn finish_removal(&mut self, ino: Ino) -> Result<()> {
        let record = self.record(ino)?;
        if record.nlink == 0 { self.remove_orphan(ino) } else { self.finish_truncate(ino) }
    }

    // ---- handles ----

    /// Opens `ino`.
    pub(crate) fn open_handle(&mut self, ino: Ino, flags: OpenFlags) -> Result<Handle> {
        let slot = self.load(ino)?;
        self.open_slot(ino, slot, flags)
    }

    /// Opens `ino`, which is in memory at `slot`.
    pub(crate) fn open_slot(&mut self, ino: Ino, slot: u32, flags: OpenFlags) -> Result<Handle> {
        if self.handles.len() >= u32::MAX as usize && self.free_handles.is_empty() {
            self.inodes.rest(slot, self.store.durable_window());
            return Err(Errno::ENFILE.into());
        }
        self.inodes.open(slot);
        let index = match self.free_handles.pop() {
            Some(index) => index,
            None => {
                let file = OpenFile { ino, slot, flags, serial: 0, open: false };
                self.handles.push(file);
                (self.handles.len() - 1) as u32
            }
        };
        let serial = self.handles[index as usize].serial.wrapping_add(1);
        self.handles[index as usize] = OpenFile { ino, slot, flags, serial, open: true };
        Ok(Handle(u64::from(serial) << 32 | u64::from(index)))
    }

    /// The open file behind `handle`, if it belongs to `ino`.
    #[inline]
    pub(crate) fn handle(&self, ino: Ino, handle: Handle) -> Result<OpenFile> {
        match self.handles.get(handle.0 as u32 as usize) {
            Some(h) if h.open && h.ino == ino && u64::from(h.serial) == handle.0 >> 32 => Ok(*h),
            _ => Err(Errno::EBADF.into()),
        }
    }

    /// Whether anything is open.
    pub(crate) fn has_open(&self) -> bool {
        self.handles.iter().any(|file| file.open)
    }

    /// Closes a handle; with the last one goes an inode without links.
    pub(crate) fn close_handle(&mut self, ino: Ino, handle: Handle) -> Result<()> {
        let file = self.handle(ino, handle)?;
        let index = handle.0 as u32;
        self.handles[index as usize].open = false;
        self.free_handles.push(index);
        if self.inodes.close(file.slot) > 0 {
            return Ok(());
        }
        if self.inodes.get(file.slot).record.nlink == 0 {
            if self.store.is_read_only() {
                // The next mount that may write removes it.
                return Ok(());
            }
            self.left.cut.remove(&ino);
            return self.remove_later(ino);
        }
        self.inodes.rest(file.slot, self.store.durable_window());
        self.trim_inodes()
    }

    /// The answer to statfs(2).
    pub(crate) fn stat_fs(&self) -> StatFs {
        let sb = &self.store.superblock;
        let free = self.store.state.free_blocks.saturating_sub(RESERVED_BLOCKS);
        // An inode with its directory entry takes some 160 bytes of tree.
        let files_free = free.saturating_mul(layout::node::CAPACITY as u64 / 160);
        StatFs {
            block_size: atoll_block::BLOCK_SIZE as u32,
            blocks: sb.usable_blocks(),
            blocks_free: free,
            blocks_available: free,
            files: self.store.state.inodes.saturating_add(files_free),
            files_free,
            name_max: atoll_vfs::NAME_MAX as u32,
        }
    }

    /// A record for a new inode in directory `dir`.
    pub(crate) fn new_record(&self, cx: &Context, dir: &InodeRecord, mode: u32) -> InodeRecord {
        const SETGID: u32 = 0o2000;
        let (uid, gid, project) = (cx.uid, cx.gid, dir.project);
        let mut record = InodeRecord { mode, uid, gid, project, ..InodeRecord::new(cx.now) };
        if dir.mode & SETGID != 0 {
            record.gid = dir.gid;
            if record.is_dir() {
                record.mode |= SETGID;
            }
        }
        record
    }
}
