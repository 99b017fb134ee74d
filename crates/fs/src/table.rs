//! The inodes in memory: those that are open, and those of which the tree does not know everything.
//!
//! Each operation looks at a bounded number of them, however many there are. No operation goes
//! through the table: an inode that needs something later stands in a list for it.
//!
//! - `dirty`: its timestamps are ahead of its record. A commit writes them.
//! - `idle`: nobody has it open any more. There are no more than [`IDLE_MAX`] and a few of these:
//!   an operation that finds more writes those that have waited longest, and lets them go.
//! - `shortened`: the file was made shorter in a commit window that a crash may still undo. They go
//!   when that window is durable. Every one of them has a record in the journal since the last
//!   commit, so the ring's size bounds their number.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use atoll_vfs::{Ino, Timespec};
use hashbrown::HashMap;

use crate::inode::{Extent, InodeRecord, Remembered};

/// An inode in memory.
#[derive(Clone, Copy, Debug)]
pub struct Inode {
    /// Its number, 0 while the slot is free.
    pub ino: Ino,
    /// Its record, with timestamps that may be newer than those in the tree.
    pub record: InodeRecord,
    /// The extent that was used last.
    pub extent: Option<Extent>,
    /// The commit window in which the file was last made shorter: blocks that no crash can make
    /// longer again may be zeroed in place.
    pub shortened: u64,
    /// Where its record was last.
    pub place: Remembered,
    handles: u32,
    times_dirty: bool,
}

impl Inode {
    /// Open handles.
    #[inline]
    pub fn handles(&self) -> u32 {
        self.handles
    }

    /// Sets mtime and ctime. Returns whether the table is still [to be
    /// told](InodeTable::note_dirty).
    #[inline]
    #[must_use]
    pub fn set_times(&mut self, now: Timespec) -> bool {
        self.record.mtime = now;
        self.record.ctime = now;
        !self.times_dirty
    }
}

/// No slot.
const NONE: u32 = u32::MAX;

/// A slot's neighbours in a list.
#[derive(Clone, Copy, Debug)]
struct Link {
    before: u32,
    after: u32,
    listed: bool,
}

impl Link {
    const OUT: Link = Link { before: NONE, after: NONE, listed: false };
}

/// A list of slots, the oldest first.
#[derive(Debug)]
struct List {
    links: Vec<Link>,
    first: u32,
    last: u32,
    len: usize,
}

impl Default for List {
    fn default() -> List {
        List { links: Vec::new(), first: NONE, last: NONE, len: 0 }
    }
}

impl List {
    fn add(&mut self, slot: u32) {
        if self.links[slot as usize].listed {
            return;
        }
        self.links[slot as usize] = Link { before: self.last, after: NONE, listed: true };
        match self.last {
            NONE => self.first = slot,
            last => self.links[last as usize].after = slot,
        }
        self.last = slot;
        self.len += 1;
    }

    fn take_out(&mut self, slot: u32) {
        let Link { before, after, listed } = self.links[slot as usize];
        if !listed {
            return;
        }
        self.links[slot as usize] = Link::OUT;
        match before {
            NONE => self.first = after,
            before => self.links[before as usize].after = after,
        }
        match after {
            NONE => self.last = before,
            after => self.links[after as usize].before = before,
        }
        self.len -= 1;
    }

    fn iter(&self) -> impl Iterator<Item = u32> {
        let mut at = self.first;
        core::iter::from_fn(move || {
            let slot = (at != NONE).then_some(at)?;
            at = self.links[slot as usize].after;
            Some(slot)
        })
    }
}

/// The inodes in memory.
#[derive(Debug, Default)]
pub struct InodeTable {
    inodes: Vec<Inode>,
    by_ino: HashMap<u64, u32>,
    free: Vec<u32>,
    dirty: List,
    idle: List,
    /// Window, slot and number of files that were made shorter, in the order of the windows.
    shortened: VecDeque<(u64, u32, Ino)>,
    /// How many inodes were looked at to find those that need something.
    #[cfg(test)]
    looks: core::cell::Cell<u64>,
}

/// How many inodes without handles stay in memory for their timestamps.
pub const IDLE_MAX: usize = 4096;
/// How many of them are let go at a time.
const BATCH: usize = 64;
/// How many files one operation looks at whose last cut may have become durable.
const DURABLE_MAX: usize = 16;

impl InodeTable {
    #[inline]
    fn look(&self) {
        #[cfg(test)]
        self.looks.set(self.looks.get() + 1);
    }

    /// The slot of `ino`, if it is in memory.
    #[inline]
    pub fn slot(&self, ino: Ino) -> Option<u32> {
        self.by_ino.get(&ino.0).copied()
    }

    /// The inode in `slot`.
    #[inline]
    pub fn get(&self, slot: u32) -> &Inode {
        &self.inodes[slot as usize]
    }

    /// The inode in `slot`.
    #[inline]
    pub fn get_mut(&mut self, slot: u32) -> &mut Inode {
        &mut self.inodes[slot as usize]
    }

    /// Brings an inode into memory. The caller must then open it, set its times, or let it
    /// [`rest`](Self::rest).
    pub fn insert(&mut self, ino: Ino, record: InodeRecord) -> u32 {
        let inode = Inode {
            ino,
            record,
            extent: None,
            shortened: 0,
            place: Remembered::default(),
            handles: 0,
            times_dirty: false,
        };
        let slot = match self.free.pop() {
            Some(slot) => {
                self.inodes[slot as usize] = inode;
                slot
            }
            None => {
                self.inodes.push(inode);
                self.dirty.links.push(Link::OUT);
                self.idle.links.push(Link::OUT);
                (self.inodes.len() - 1) as u32
            }
        };
        self.by_ino.insert(ino.0, slot);
        slot
    }

    /// Lets an inode go.
    pub fn remove(&mut self, ino: Ino) {
        if let Some(slot) = self.by_ino.remove(&ino.0) {
            // An inode number of 0 belongs to nobody: stale handles do not match.
            self.inodes[slot as usize].ino = Ino(0);
            self.dirty.take_out(slot);
            self.idle.take_out(slot);
            self.free.push(slot);
        }
    }

    /// Counts another handle.
    #[inline]
    pub fn open(&mut self, slot: u32) {
        self.inodes[slot as usize].handles += 1;
        self.idle.take_out(slot);
    }

    /// Counts a handle less, and returns how many are left. With none the inode is to
    /// [`rest`](Self::rest), or to be removed.
    #[inline]
    pub fn close(&mut self, slot: u32) -> u32 {
        let inode = &mut self.inodes[slot as usize];
        inode.handles -= 1;
        inode.handles
    }

    /// Lets an inode go that nobody has open, if the tree knows everything of it; else puts it in a
    /// list for later. `durable` is the last commit window of which everything is durable.
    pub fn rest(&mut self, slot: u32, durable: u64) {
        let inode = self.get(slot);
        let (ino, dirty, shortened) = (inode.ino, inode.times_dirty, inode.shortened);
        if inode.handles > 0 || ino.0 == 0 {
            return;
        }
        if dirty {
            self.idle.add(slot);
        } else if shortened <= durable {
            self.remove(ino);
        } else {
            // The list of files that were made shorter has it.
            self.idle.take_out(slot);
        }
    }

    /// Sets mtime and ctime in memory.
    #[inline]
    pub fn set_times(&mut self, slot: u32, now: Timespec) {
        if self.inodes[slot as usize].set_times(now) {
            self.note_dirty(slot);
        }
    }

    /// Sets atime in memory.
    pub fn set_atime(&mut self, slot: u32, now: Timespec) {
        self.inodes[slot as usize].record.atime = now;
        self.note_dirty(slot);
    }

    /// Notes that the timestamps in memory are ahead.
    #[inline(never)]
    pub fn note_dirty(&mut self, slot: u32) {
        let inode = &mut self.inodes[slot as usize];
        inode.times_dirty = true;
        if inode.handles == 0 {
            self.idle.add(slot);
        }
        self.dirty.add(slot);
    }

    /// Notes that the record in the tree has the timestamps.
    pub fn times_written(&mut self, slot: u32) {
        self.inodes[slot as usize].times_dirty = false;
        self.dirty.take_out(slot);
    }

    /// Notes that a file was made shorter in the commit window `window`.
    pub fn made_shorter(&mut self, slot: u32, window: u64) {
        let inode = &mut self.inodes[slot as usize];
        if inode.shortened != window {
            inode.shortened = window;
            self.shortened.push_back((window, slot, inode.ino));
        }
    }

    /// How many inodes have timestamps that are ahead.
    pub fn dirty_times(&self) -> usize {
        self.dirty.len
    }

    /// Up to `most` inodes whose timestamps are ahead, those that have been so for longest, by
    /// number.
    pub fn with_dirty_times(&self, most: usize) -> Vec<u32> {
        let mut slots = Vec::with_capacity(self.dirty.len.min(most));
        slots.extend(self.dirty.iter().inspect(|_| self.look()).take(most));
        slots.sort_unstable_by_key(|&s| self.get(s).ino);
        slots
    }

    /// Whether idle inodes should be let go.
    #[inline]
    pub fn is_crowded(&self) -> bool {
        self.idle.len >= IDLE_MAX + BATCH
    }

    /// The inodes that have been idle for longest, by number.
    pub fn longest_idle(&self) -> arrayvec::ArrayVec<u32, BATCH> {
        let mut slots = arrayvec::ArrayVec::new();
        slots.extend(self.idle.iter().inspect(|_| self.look()).take(BATCH));
        slots.sort_unstable_by_key(|&s| self.get(s).ino);
        slots
    }

    /// Lets go of some files that stayed only because they were made shorter, in windows that have
    /// become durable since.
    #[inline]
    pub fn forget_shortened(&mut self, durable: u64) {
        for _ in 0..DURABLE_MAX {
            match self.shortened.front() {
                Some(&(window, slot, ino)) if window <= durable => {
                    self.look();
                    self.shortened.pop_front();
                    // The slot may be another's by now, and the file may have been made shorter
                    // again.
                    if self.get(slot).ino == ino {
                        self.rest(slot, durable);
                    }
                }
                _ => break,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::format;
    use std::vec::Vec;

    use atoll_block::RamDevice;
    use atoll_vfs::{Context, FileSystem, Handle, Ino, Name, OpenFlags, SetAttr, Timespec};

    use super::{BATCH, DURABLE_MAX, IDLE_MAX};
    use crate::{FormatOptions, Fs, MountOptions, format};

    const CX: Context = Context { uid: 0, gid: 0, now: Timespec { sec: 1, nsec: 0 } };
    const RW: OpenFlags = OpenFlags::READ.union(OpenFlags::WRITE);
    /// The most inodes that one operation may look at: a batch that is written and the files that
    /// have become durable, twice, as an operation can change a file and a directory.
    const LOOKS_MAX: u64 = 2 * (BATCH + DURABLE_MAX) as u64;

    fn volume() -> Fs<RamDevice> {
        let mut device = RamDevice::new(1 << 14);
        format(&mut device, &FormatOptions::default()).unwrap();
        Fs::mount(device, &MountOptions::default()).unwrap()
    }

    fn create(fs: &mut Fs<RamDevice>, name: &str) -> (Ino, Handle) {
        let name = Name::new(name.as_bytes()).unwrap();
        let (attr, handle) = fs.create(&CX, Ino::ROOT, name, 0o644, RW).unwrap();
        (attr.ino, handle)
    }

    /// Runs an operation. Returns its result and how many inodes it looked at.
    fn counted<T>(fs: &mut Fs<RamDevice>, body: impl FnOnce(&mut Fs<RamDevice>) -> T) -> (T, u64) {
        let before = fs.inodes.looks.get();
        let value = body(fs);
        (value, fs.inodes.looks.get() - before)
    }

    /// A thousand operations of every kind that changes how an inode stands in the table.
    /// Returns the most inodes that one of them looked at, and all of them together.
    fn operations(fs: &mut Fs<RamDevice>) -> (u64, u64) {
        let (mut most, mut all) = (0, 0);
        let mut note = |looks: u64| {
            most = looks.max(most);
            all += looks;
        };
        for at in 0..200 {
            let text = format!("new{at}");
            let ((ino, handle), looks) = counted(fs, |fs| create(fs, &text));
            note(looks);
            note(counted(fs, |fs| fs.write(&CX, ino, handle, 0, &[1; 100]).unwrap()).1);
            let shorter = SetAttr { size: Some(10), ..SetAttr::default() };
            note(counted(fs, |fs| fs.setattr(&CX, ino, None, &shorter).unwrap()).1);
            note(counted(fs, |fs| fs.release(&CX, ino, handle).unwrap()).1);
            let name = Name::new(text.as_bytes()).unwrap();
            note(counted(fs, |fs| fs.unlink(&CX, Ino::ROOT, name).unwrap()).1);
        }
        (most, all)
    }

    #[test]
    fn an_operation_looks_at_few_inodes_however_many_are_open() {
        let mut fs = volume();
        let mut open = Vec::new();
        for at in 0..3 * IDLE_MAX {
            let (ino, handle) = create(&mut fs, &format!("open{at}"));
            fs.write(&CX, ino, handle, 0, b"content").unwrap();
            open.push((ino, handle));
        }
        // Dirty, then clean.
        for _ in 0..2 {
            let (most, all) = operations(&mut fs);
            assert!(most <= LOOKS_MAX && all < 5_000, "{most} at once, {all}");
            fs.syncfs(&CX).unwrap();
        }
        for (ino, handle) in open {
            let looks = counted(&mut fs, |fs| fs.release(&CX, ino, handle).unwrap()).1;
            assert!(looks <= LOOKS_MAX, "{looks}");
        }
        assert!(fs.inodes.by_ino.len() <= 1, "only the directory may wait for its times");
    }

    #[test]
    fn an_operation_looks_at_few_inodes_however_many_were_made_shorter() {
        let mut fs = volume();
        let mut files = Vec::new();
        for at in 0..3 * IDLE_MAX {
            let (ino, handle) = create(&mut fs, &format!("file{at}"));
            fs.write(&CX, ino, handle, 0, b"content").unwrap();
            fs.release(&CX, ino, handle).unwrap();
            files.push(ino);
        }
        assert!(fs.inodes.idle.len <= IDLE_MAX + BATCH);
        fs.syncfs(&CX).unwrap();
        let mut all = 0;
        for &ino in &files {
            let (handle, looks) =
                counted(&mut fs, |fs| fs.open(&CX, ino, RW | OpenFlags::TRUNC).unwrap());
            assert!(looks <= LOOKS_MAX, "{looks}");
            all += looks;
            let looks = counted(&mut fs, |fs| fs.release(&CX, ino, handle).unwrap()).1;
            assert!(looks <= LOOKS_MAX, "{looks}");
            all += looks;
        }
        assert!(all <= 4 * files.len() as u64, "{all} for {} files", files.len());
        // Those of the last window are all here until it is durable; then they go, some with each
        // operation.
        let before = fs.inodes.by_ino.len();
        fs.syncfs(&CX).unwrap();
        for at in 0..files.len() / DURABLE_MAX + 1 {
            let (ino, handle) = create(&mut fs, &format!("more{at}"));
            fs.release(&CX, ino, handle).unwrap();
        }
        assert!(before > IDLE_MAX / 4, "{before}: too few to show anything");
        assert!(fs.inodes.by_ino.len() <= 1, "{} are left", fs.inodes.by_ino.len());
        assert!(fs.inodes.shortened.is_empty());
    }

    /// Every way in which an inode comes into memory without being opened lets it go again.
    #[test]
    fn nothing_stays_in_memory_that_has_nothing_to_wait_for() {
        let mut fs = volume();
        let (ino, handle) = create(&mut fs, "file");
        fs.release(&CX, ino, handle).unwrap();
        for size in [Some(100), Some(3), None] {
            let set = SetAttr { size, mode: Some(0o600), ..SetAttr::default() };
            fs.setattr(&CX, ino, None, &set).unwrap();
        }
        let sub = fs.mkdir(&CX, Ino::ROOT, Name::new(b"sub").unwrap(), 0o755).unwrap();
        let handle = fs.opendir(&CX, sub.ino).unwrap();
        fs.releasedir(&CX, sub.ino, handle).unwrap();
        fs.syncfs(&CX).unwrap();
        let handle = fs.opendir(&CX, sub.ino).unwrap();
        fs.releasedir(&CX, sub.ino, handle).unwrap();
        let left: Vec<u64> = fs.inodes.by_ino.keys().copied().collect();
        assert!(left.iter().all(|&left| left == Ino::ROOT.0), "{left:?}");
        assert!(fs.inodes.idle.len <= 1 && fs.inodes.dirty.len == 0);
    }
}
