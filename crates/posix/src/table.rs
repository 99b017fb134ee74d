//! Descriptors and the open file descriptions that they share.

use alloc::vec::Vec;

use atoll_vfs::{Errno, Handle, Ino, LockKind, OpenFlags, Result};

use crate::flags::OFlags;

/// The handle that an open file description holds of the file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Held {
    /// Nothing: a symbolic link or special file under O_PATH.
    Nothing,
    /// A handle of a regular file.
    File(Handle),
    /// A handle of a directory.
    Directory(Handle),
}

/// An open file description, which descriptors made by dup(2) share.
#[derive(Debug)]
pub(crate) struct OpenFile {
    /// Descriptors that name it; 0 for an unused place of the table.
    references: u32,
    /// The rights of read and write: READ and WRITE, for regular files only.
    pub rights: OpenFlags,
    /// Its lock of flock(2); where a server keeps it, that there may be one.
    pub flock: Option<LockKind>,
    /// Its number as an owner of locks of fcntl(2), or 0.
    pub owner: u64,
    pub status: OFlags,
    pub held: Held,
    pub ino: Ino,
    /// Bytes; for a directory the cookie to go on from. At most `i64::MAX`.
    pub offset: u64,
}

impl OpenFile {
    pub fn new(ino: Ino, held: Held, status: OFlags) -> Self {
        let mut rights = OpenFlags::empty();
        if matches!(held, Held::File(_)) && !status.contains(OFlags::PATH) {
            if !status.contains(OFlags::WRONLY) {
                rights |= OpenFlags::READ;
            }
            if status.intersects(OFlags::WRONLY | OFlags::RDWR) {
                rights |= OpenFlags::WRITE;
            }
        }
        OpenFile {
            references: 1,
            rights,
            flock: None,
            owner: 0,
            status: status & OFlags::STATUS,
            held,
            ino,
            offset: 0,
        }
    }

    /// The handle of a regular file open for `right`.
    #[inline]
    pub fn handle(&self, right: OpenFlags) -> Result<Handle> {
        match self.held {
            Held::File(handle) if self.rights.contains(right) => Ok(handle),
            _ => Err(self.refusal(right)),
        }
    }

    #[cold]
    fn refusal(&self, right: OpenFlags) -> Errno {
        let path_only = self.status.contains(OFlags::PATH);
        match self.held {
            Held::Directory(_) if !path_only && right == OpenFlags::READ => Errno::EISDIR,
            _ => Errno::EBADF,
        }
    }

    /// Fails for a descriptor that only names its file.
    #[inline]
    pub fn not_path_only(&self) -> Result<()> {
        if self.status.contains(OFlags::PATH) { Err(Errno::EBADF) } else { Ok(()) }
    }
}

/// One descriptor.
#[derive(Clone, Copy, Debug)]
struct Slot {
    /// Index of its open file description; [`FREE`] if the number is unused.
    file: u32,
    close_on_exec: bool,
}

const FREE: u32 = u32::MAX;
const FREE_SLOT: Slot = Slot { file: FREE, close_on_exec: false };

/// The descriptor table of a process.
#[derive(Debug)]
pub(crate) struct Table {
    /// The number of the first slot.
    first: u32,
    limit: usize,
    slots: Vec<Slot>,
    /// One bit for each slot that is in use, so that the lowest free one is found by words.
    used: Vec<u64>,
    /// No slot below this one is free.
    lowest_free: usize,
    files: Vec<OpenFile>,
    unused_files: Vec<u32>,
}

impl Table {
    pub fn new(first: i32, limit: usize) -> Self {
        let first = first.max(0) as u32;
        Table {
            first,
            // The highest number has to be an i32, and FREE no index.
            limit: limit.min((i32::MAX as u32 - first) as usize),
            slots: Vec::new(),
            used: Vec::new(),
            lowest_free: 0,
            files: Vec::new(),
            unused_files: Vec::new(),
        }
    }

    /// The slot of `fd`, in use or not; out of every table for a number below the first.
    #[inline]
    fn index(&self, fd: i32) -> usize {
        (fd as u32).wrapping_sub(self.first) as usize
    }

    #[inline]
    fn file_index(&self, fd: i32) -> Result<usize> {
        // A free slot's index lies beyond `files`, which the caller's access refuses.
        match self.slots.get(self.index(fd)) {
            Some(slot) => Ok(slot.file as usize),
            None => Err(Errno::EBADF),
        }
    }

    /// The open file description of `fd`.
    #[inline]
    pub fn get(&self, fd: i32) -> Result<&OpenFile> {
        self.files.get(self.file_index(fd)?).ok_or(Errno::EBADF)
    }

    /// The open file description of `fd`, to change.
    #[inline]
    pub fn get_mut(&mut self, fd: i32) -> Result<&mut OpenFile> {
        let index = self.file_index(fd)?;
        self.files.get_mut(index).ok_or(Errno::EBADF)
    }

    /// The lowest free slot from `from` on.
    fn lowest_free_from(&self, from: usize) -> Result<usize> {
        let from = from.max(self.lowest_free);
        let mut word = from / 64;
        // Bits below `from` in its word count as used.
        let mut bits = self.used.get(word).copied().unwrap_or(0) | ((1u64 << (from % 64)) - 1);
        while bits == u64::MAX {
            word += 1;
            bits = self.used.get(word).copied().unwrap_or(0);
        }
        let index = word * 64 + bits.trailing_ones() as usize;
        if index < self.limit { Ok(index) } else { Err(Errno::EMFILE) }
    }

    /// Fails if no descriptor can be given out: asked before anything is created.
    #[inline]
    pub fn check_room(&self) -> Result<()> {
        self.lowest_free_from(0).map(drop)
    }

    fn occupy(&mut self, index: usize, slot: Slot) -> i32 {
        if index >= self.slots.len() {
            self.slots.resize(index + 1, FREE_SLOT);
            self.used.resize(index / 64 + 1, 0);
        }
        self.slots[index] = slot;
        self.used[index / 64] |= 1 << (index % 64);
        if index == self.lowest_free {
            self.lowest_free += 1;
        }
        (self.first + index as u32) as i32
    }

    /// Gives `file` the lowest free descriptor.
    pub fn insert(&mut self, file: OpenFile, close_on_exec: bool) -> Result<i32> {
        let index = self.lowest_free_from(0)?;
        let file_index = match self.unused_files.pop() {
            Some(unused) => {
                self.files[unused as usize] = file;
                unused
            }
            None => {
                self.files.push(file);
                self.files.len() as u32 - 1
            }
        };
        Ok(self.occupy(index, Slot { file: file_index, close_on_exec }))
    }

    /// Another descriptor, the lowest free one from `minimum` on, for the description of `fd`.
    pub fn duplicate(&mut self, fd: i32, minimum: i32, close_on_exec: bool) -> Result<i32> {
        self.get(fd)?;
        let from = i64::from(minimum) - i64::from(self.first);
        if minimum < 0 || from >= self.limit as i64 {
            return Err(Errno::EINVAL);
        }
        let index = self.lowest_free_from(from.max(0) as usize)?;
        self.share(fd, index, close_on_exec)
    }

    /// Makes `to` another descriptor of the description of `fd`. Returns the description that `to`
    /// named before, if it was the last to do so.
    pub fn replace(&mut self, fd: i32, to: i32, close_on_exec: bool) -> Result<Option<OpenFile>> {
        self.get(fd)?;
        let index = self.index(to);
        if index >= self.limit {
            return Err(Errno::EBADF);
        }
        let before = match self.get(to) {
            Ok(_) => self.remove(to)?,
            Err(_) => None,
        };
        self.share(fd, index, close_on_exec)?;
        Ok(before)
    }

    fn share(&mut self, fd: i32, index: usize, close_on_exec: bool) -> Result<i32> {
        let file = self.file_index(fd)?;
        self.files[file].references += 1;
        Ok(self.occupy(index, Slot { file: file as u32, close_on_exec }))
    }

    /// Frees the number `fd`. Returns its description if no other descriptor names it.
    pub fn remove(&mut self, fd: i32) -> Result<Option<OpenFile>> {
        self.get(fd)?;
        let index = self.index(fd);
        let file_index = self.slots[index].file;
        self.slots[index] = FREE_SLOT;
        self.used[index / 64] &= !(1 << (index % 64));
        self.lowest_free = self.lowest_free.min(index);
        Ok(self.let_go(file_index as usize))
    }

    /// Keeps the open file description of `fd` as a descriptor does, until
    /// [`let_go`](Self::let_go) is told of what is returned.
    pub fn hold(&mut self, fd: i32) -> Result<usize> {
        self.get_mut(fd)?.references += 1;
        self.file_index(fd)
    }

    /// Takes one reference from the description at `index`. Returns it if that was the last.
    pub fn let_go(&mut self, index: usize) -> Option<OpenFile> {
        let file = self.files.get_mut(index)?;
        file.references = file.references.saturating_sub(1);
        if file.references > 0 {
            return None;
        }
        let unused = OpenFile {
            references: 0,
            rights: OpenFlags::empty(),
            flock: None,
            owner: 0,
            status: OFlags::empty(),
            held: Held::Nothing,
            ino: file.ino,
            offset: 0,
        };
        let file = core::mem::replace(file, unused);
        self.unused_files.push(index as u32);
        Some(file)
    }

    pub fn close_on_exec(&self, fd: i32) -> Result<bool> {
        self.get(fd)?;
        Ok(self.slots[self.index(fd)].close_on_exec)
    }

    pub fn set_close_on_exec(&mut self, fd: i32, close_on_exec: bool) -> Result<()> {
        self.get(fd)?;
        let index = self.index(fd);
        self.slots[index].close_on_exec = close_on_exec;
        Ok(())
    }

    /// Sets the flock of the description of `fd`, if no other description of its file conflicts.
    pub fn set_flock(&mut self, fd: i32, lock: Option<LockKind>) -> Result<()> {
        let index = self.file_index(fd)?;
        let ino = self.get(fd)?.ino;
        let conflicts = |other: &OpenFile| {
            let exclusive = Some(LockKind::Exclusive);
            lock == exclusive && other.flock.is_some() || lock.is_some() && other.flock == exclusive
        };
        let others = self.files.iter().enumerate();
        if others.filter(|(i, f)| *i != index && f.ino == ino).any(|(_, f)| conflicts(f)) {
            return Err(Errno::EAGAIN);
        }
        self.files[index].flock = lock;
        Ok(())
    }

    /// Every descriptor in use.
    pub fn descriptors(&self) -> Vec<i32> {
        let used = self.slots.iter().enumerate().filter(|(_, slot)| slot.file != FREE);
        used.map(|(index, _)| (self.first + index as u32) as i32).collect()
    }
}
