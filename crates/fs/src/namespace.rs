//! Names: making, finding, moving and removing inodes.

use atoll_block::Addressable;
use atoll_vfs::{
    Attr, Context, Errno, FileType, Handle, Ino, LINK_MAX, Name, OpenFlags, RenameFlags,
};

use crate::dir::Entry;
use crate::error::{Corruption, Result};
use crate::fs::Fs;
use crate::inode::{DIRECTORY_LINK_MAX, InodeRecord};
use crate::key::Key;
use crate::store::Store;

/// An inode to be made under a new name.
pub(crate) struct NewInode<'a> {
    pub mode: u32,
    pub rdev: u32,
    /// The target of a symbolic link, else empty.
    pub target: &'a [u8],
}

fn plain(name: Name<'_>) -> Result<&[u8]> {
    if name.is_dot_or_dot_dot() {
        return Err(Errno::EINVAL.into());
    }
    Ok(name.bytes())
}

impl<M: Addressable> Fs<M> {
    /// A directory in which names can be made: it has not been removed.
    fn live_directory(&mut self, ino: Ino) -> Result<InodeRecord> {
        let record = self.directory(ino)?;
        if record.nlink == 0 {
            return Err(Errno::ENOENT.into());
        }
        Ok(record)
    }

    fn entry(&mut self, dir: Ino, name: &[u8]) -> Result<Entry> {
        self.store.cache.begin_operation();
        self.store.find_entry(dir, name)?.ok_or(Errno::ENOENT.into())
    }

    pub(crate) fn do_lookup(&mut self, parent: Ino, name: Name<'_>) -> Result<Attr> {
        let (is_dir, above) = self.with_record(parent, |dir| (dir.is_dir(), dir.parent))?;
        if !is_dir {
            return Err(Errno::ENOTDIR.into());
        }
        let ino = match name.bytes() {
            b"." => parent,
            b".." => Ino(above),
            bytes => self.entry(parent, bytes)?.ino,
        };
        self.with_record(ino, |record| record.attr(ino))
    }

    /// Within a transaction: an inode record under a new number.
    fn insert_inode(store: &mut Store<M>, record: &InodeRecord) -> Result<Ino> {
        let ino = Ino(store.state.next_ino);
        if ino.0 > crate::key::OFFSET_MAX {
            return Err(Errno::ENOSPC.into());
        }
        store.state.next_ino += 1;
        store.state.inodes += 1;
        store.charge_inode(record.project);
        store.insert(Key::inode(ino.0), &record.emit())?;
        Ok(ino)
    }

    pub(crate) fn make(
        &mut self,
        cx: &Context,
        parent: Ino,
        name: Name<'_>,
        new: &NewInode<'_>,
    ) -> Result<(Ino, InodeRecord)> {
        let bytes = plain(name)?;
        let dir = self.live_directory(parent)?;
        let mut record = self.new_record(cx, &dir, new.mode);
        record.rdev = new.rdev;
        record.size = new.target.len() as u64;
        let is_dir = record.is_dir();
        if is_dir {
            record.nlink = 2;
            record.parent = parent.0;
        }
        let mut dir_record = dir;
        dir_record.nlink = dir_record.nlink.saturating_add(u32::from(is_dir));
        dir_record.mtime = cx.now;
        dir_record.ctime = cx.now;
        if is_dir && dir_record.nlink > DIRECTORY_LINK_MAX {
            return Err(Errno::EMLINK.into());
        }
        let ino = self.store.transact(false, |store| {
            let key = store.new_entry(parent, bytes)?;
            let ino = Self::insert_inode(store, &record)?;
            if !new.target.is_empty() {
                store.insert_target(record.project, ino, new.target)?;
            }
            store.insert_entry(dir.project, key, bytes, ino, record.file_type())?;
            if is_dir {
                store.write_inode(parent, &dir_record)?;
            }
            Ok(ino)
        })?;
        if is_dir {
            self.adopt(parent, &dir_record);
        } else {
            self.touch(parent, cx.now)?;
        }
        Ok((ino, record))
    }

    pub(crate) fn make_tmpfile(
        &mut self,
        cx: &Context,
        parent: Ino,
        mode: u32,
        flags: OpenFlags,
    ) -> Result<(Attr, Handle)> {
        let dir = self.live_directory(parent)?;
        let mut record = self.new_record(cx, &dir, mode);
        record.nlink = 0;
        let ino = self.store.transact(false, |store| {
            let ino = Self::insert_inode(store, &record)?;
            store.insert(Key::orphan(ino), &[])?;
            Ok(ino)
        })?;
        let slot = self.inodes.insert(ino, record);
        let handle = self.open_slot(ino, slot, flags)?;
        Ok((record.attr(ino), handle))
    }

    /// Whether anybody has `ino` open.
    fn is_open(&self, ino: Ino) -> bool {
        self.inodes.slot(ino).is_some_and(|slot| self.inodes.get(slot).handles() > 0)
    }

    pub(crate) fn remove_name(
        &mut self,
        cx: &Context,
        parent: Ino,
        name: Name<'_>,
        directory: bool,
    ) -> Result<()> {
        let bytes = plain(name)?;
        let mut dir = self.directory(parent)?;
        let entry = self.entry(parent, bytes)?;
        let is_dir = entry.file_type == FileType::Directory;
        match (directory, is_dir) {
            (true, false) => return Err(Errno::ENOTDIR.into()),
            (false, true) => return Err(Errno::EISDIR.into()),
            _ => {}
        }
        let mut record = self.record(entry.ino)?;
        if record.is_dir() != is_dir {
            return Err(Corruption::Item.into());
        }
        if is_dir && self.store.is_quota_root(entry.ino) {
            return Err(Errno::EBUSY.into());
        }
        if is_dir && !self.store.is_empty_directory(entry.ino)? {
            return Err(Errno::ENOTEMPTY.into());
        }
        record.nlink = if is_dir { 0 } else { record.nlink.saturating_sub(1) };
        record.ctime = cx.now;
        if is_dir {
            dir.nlink = dir.nlink.saturating_sub(1);
            dir.mtime = cx.now;
            dir.ctime = cx.now;
        }
        let open = self.is_open(entry.ino);
        let listed = self.left.cut.contains(&entry.ino);
        let gone = self.store.transact(true, |store| {
            store.remove_entry(dir.project, entry.key, bytes)?;
            if is_dir {
                store.write_inode(parent, &dir)?;
            }
            Self::unlink_inode(store, (entry.ino, listed), &record, open)
        })?;
        if is_dir {
            self.adopt(parent, &dir);
        }
        self.unlinked(entry.ino, &record, open, gone)?;
        if !is_dir {
            self.touch(parent, cx.now)?;
        }
        Ok(())
    }

    /// Within a transaction: writes the record of an inode that lost a link, or removes it with the
    /// last. One that is `listed` has blocks left of a cut. Returns whether it is gone.
    fn unlink_inode(
        store: &mut Store<M>,
        (ino, listed): (Ino, bool),
        record: &InodeRecord,
        open: bool,
    ) -> Result<bool> {
        if record.nlink == 0 && !open && Self::purge(store, ino)? {
            if listed {
                store.remove(Key::orphan(ino))?;
            }
            return Ok(true);
        }
        // The record must say that removal is due, in case it takes more than one transaction.
        store.write_inode(ino, record)?;
        if record.nlink == 0 && !listed {
            store.insert(Key::orphan(ino), &[])?;
        }
        Ok(false)
    }

    /// After the transaction of [`unlink_inode`](Self::unlink_inode).
    fn unlinked(&mut self, ino: Ino, record: &InodeRecord, open: bool, gone: bool) -> Result<()> {
        self.adopt(ino, record);
        if gone {
            self.inodes.remove(ino);
        } else if record.nlink == 0 && !open {
            self.remove_later(ino)?;
        }
        if record.nlink == 0 && !open {
            self.left.cut.remove(&ino);
        }
        Ok(())
    }

    pub(crate) fn add_link(
        &mut self,
        cx: &Context,
        ino: Ino,
        parent: Ino,
        name: Name<'_>,
    ) -> Result<Attr> {
        let bytes = plain(name)?;
        let dir = self.live_directory(parent)?;
        let mut record = self.record(ino)?;
        if record.is_dir() {
            return Err(Errno::EPERM.into());
        }
        if record.project != dir.project {
            return Err(Errno::EXDEV.into());
        }
        if record.nlink >= LINK_MAX {
            return Err(Errno::EMLINK.into());
        }
        let was_orphan = record.nlink == 0;
        // It has blocks left of a cut.
        let listed = self.left.cut.contains(&ino);
        record.nlink += 1;
        record.ctime = cx.now;
        self.store.transact(false, |store| {
            let key = store.new_entry(parent, bytes)?;
            if was_orphan && !listed {
                store.remove(Key::orphan(ino))?;
            }
            store.insert_entry(dir.project, key, bytes, ino, record.file_type())?;
            store.write_inode(ino, &record)
        })?;
        self.adopt(ino, &record);
        self.touch(parent, cx.now)?;
        Ok(record.attr(ino))
    }

    /// Whether `dir` is the directory `moved` or lies below it. `parent` is the one that has
    /// `moved`.
    ///
    /// Goes up from `dir`, as far as `parent` or the root: directories that are moved to near
    /// places, and those that have no directories below them, cost nothing, and the depth of others
    /// has no bound but the number of inodes.
    fn is_within(&mut self, dir: Ino, moved: Ino, parent: Ino) -> Result<bool> {
        if dir == moved {
            return Ok(true);
        }
        if dir == parent || self.record(moved)?.nlink <= 2 {
            return Ok(false);
        }
        let mut at = dir;
        // In a damaged volume the way can lead back to itself. Then it meets again the place where
        // it was after some power of two steps (Brent 1980).
        let mut met = dir;
        let mut steps: u64 = 0;
        loop {
            if at == Ino::ROOT {
                return Ok(false);
            }
            at = Ino(self.directory(at)?.parent);
            if at == moved || at == parent {
                return Ok(at == moved);
            }
            if at == met {
                return Err(Corruption::Item.into());
            }
            steps += 1;
            if steps.is_power_of_two() {
                met = at;
            }
        }
    }

    pub(crate) fn move_name(
        &mut self,
        cx: &Context,
        from: (Ino, Name<'_>),
        to: (Ino, Name<'_>),
        flags: RenameFlags,
    ) -> Result<()> {
        let (old_name, new_name) = (plain(from.1)?, plain(to.1)?);
        let exchange = flags.contains(RenameFlags::EXCHANGE);
        if !flags.agree() {
            return Err(Errno::EINVAL.into());
        }
        let project = self.directory(from.0)?.project;
        if self.live_directory(to.0)?.project != project {
            return Err(Errno::EXDEV.into());
        }
        let old = self.entry(from.0, old_name)?;
        self.store.cache.begin_operation();
        let new = self.store.find_entry(to.0, new_name)?;
        let old_is_dir = old.file_type == FileType::Directory;
        let new_is_dir = new.is_some_and(|n| n.file_type == FileType::Directory);
        if new.is_some() && flags.contains(RenameFlags::NOREPLACE) {
            return Err(Errno::EEXIST.into());
        }
        if self.store.is_quota_root(old.ino) || new.is_some_and(|n| self.store.is_quota_root(n.ino))
        {
            return Err(Errno::EBUSY.into());
        }
        if old_is_dir && self.is_within(to.0, old.ino, from.0)? {
            return Err(Errno::EINVAL.into());
        }
        if exchange {
            let Some(n) = new else { return Err(Errno::ENOENT.into()) };
            if new_is_dir && self.is_within(from.0, n.ino, to.0)? {
                return Err(Errno::EINVAL.into());
            }
        }
        if let Some(n) = new {
            if n.ino == old.ino {
                return Ok(());
            }
            if !exchange {
                match (old_is_dir, new_is_dir) {
                    (true, false) => return Err(Errno::ENOTDIR.into()),
                    (false, true) => return Err(Errno::EISDIR.into()),
                    _ => {}
                }
                if new_is_dir && !self.store.is_empty_directory(n.ino)? {
                    return Err(Errno::ENOTEMPTY.into());
                }
            }
        }
        self.carry_out_move(cx, from.0, to.0, (old, old_name), (new, new_name), flags)
    }

    fn carry_out_move(
        &mut self,
        cx: &Context,
        old_dir: Ino,
        new_dir: Ino,
        (old, old_name): (Entry, &[u8]),
        (new, new_name): (Option<Entry>, &[u8]),
        flags: RenameFlags,
    ) -> Result<()> {
        let exchange = flags.contains(RenameFlags::EXCHANGE);
        let is_dir = |e: Entry| e.file_type == FileType::Directory;
        // Every inode whose record changes, each once, with its new record.
        let mut from = self.record(old_dir)?;
        let mut to = self.record(new_dir)?;
        let mut moved = self.record(old.ino)?;
        moved.ctime = cx.now;
        let mut other = match new {
            Some(n) => Some((n.ino, self.record(n.ino)?)),
            None => None,
        };
        let whiteout = flags.contains(RenameFlags::WHITEOUT).then(|| {
            let mode = FileType::CharDevice.mode_bits();
            self.new_record(cx, &from, mode)
        });
        for dir in [&mut from, &mut to] {
            dir.mtime = cx.now;
            dir.ctime = cx.now;
        }
        // Subdirectories count as links of their directory; within one directory only a replaced
        // one makes a difference.
        let leaves = u32::from(is_dir(old));
        let goes = u32::from(new.is_some_and(is_dir));
        if exchange {
            if old_dir != new_dir {
                from.nlink = from.nlink.saturating_sub(leaves).saturating_add(goes);
                to.nlink = to.nlink.saturating_sub(goes).saturating_add(leaves);
            }
        } else if old_dir == new_dir {
            from.nlink = from.nlink.saturating_sub(goes);
            to.nlink = from.nlink;
        } else {
            from.nlink = from.nlink.saturating_sub(leaves);
            to.nlink = to.nlink.saturating_sub(goes).saturating_add(leaves);
        }
        if to.nlink > DIRECTORY_LINK_MAX || from.nlink > DIRECTORY_LINK_MAX {
            return Err(Errno::EMLINK.into());
        }
        if is_dir(old) {
            moved.parent = new_dir.0;
        }
        let mut open = false;
        if let Some((ino, record)) = &mut other {
            record.ctime = cx.now;
            if exchange {
                if record.is_dir() {
                    record.parent = old_dir.0;
                }
            } else {
                record.nlink = if record.is_dir() { 0 } else { record.nlink.saturating_sub(1) };
                open = self.is_open(*ino);
            }
        }
        let listed = new.is_some_and(|n| self.left.cut.contains(&n.ino));
        // One name more takes space, even if another one goes, and so does an inode.
        let frees_space = new.is_some() && whiteout.is_none();
        let gone = self.store.transact(frees_space, |store| {
            match (new, &whiteout) {
                (Some(n), _) if exchange => store.replace_entry(old.key, n.ino, n.file_type)?,
                (_, Some(record)) => {
                    let left = Self::insert_inode(store, record)?;
                    store.replace_entry(old.key, left, record.file_type())?;
                }
                (_, None) => store.remove_entry(from.project, old.key, old_name)?,
            }
            match new {
                Some(n) => store.replace_entry(n.key, old.ino, old.file_type)?,
                None => {
                    let key = store.new_entry(new_dir, new_name)?;
                    store.insert_entry(to.project, key, new_name, old.ino, old.file_type)?;
                }
            }
            store.write_inode(old_dir, &from)?;
            if new_dir != old_dir {
                store.write_inode(new_dir, &to)?;
            }
            store.write_inode(old.ino, &moved)?;
            match &other {
                Some((ino, record)) if exchange => store.write_inode(*ino, record).map(|()| false),
                Some((ino, record)) => Self::unlink_inode(store, (*ino, listed), record, open),
                None => Ok(false),
            }
        })?;
        self.adopt(old_dir, &from);
        if new_dir != old_dir {
            self.adopt(new_dir, &to);
        }
        self.adopt(old.ino, &moved);
        match other {
            Some((ino, record)) if exchange => self.adopt(ino, &record),
            Some((ino, record)) => self.unlinked(ino, &record, open, gone)?,
            None => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use atoll_block::RamDevice;
    use atoll_vfs::{Context, Errno, FileSystem, Ino, Name, RenameFlags, Result, Timespec};

    use crate::inode::DIRECTORY_LINK_MAX;
    use crate::{FormatOptions, Fs, MountOptions, format};

    const CX: Context = Context { uid: 0, gid: 0, now: Timespec { sec: 1, nsec: 0 } };

    fn volume() -> Fs<RamDevice> {
        let mut device = RamDevice::new(1 << 11);
        format(&mut device, &FormatOptions::default()).unwrap();
        Fs::mount(device, &MountOptions::default()).unwrap()
    }

    fn mkdir(fs: &mut Fs<RamDevice>, dir: Ino, text: &str) -> Result<Ino> {
        Ok(fs.mkdir(&CX, dir, Name::new(text.as_bytes())?, 0o755)?.ino)
    }

    fn rename(fs: &mut Fs<RamDevice>, from: Ino, text: &str, to: Ino) -> Result<()> {
        let name = Name::new(text.as_bytes())?;
        fs.rename(&CX, from, name, to, name, RenameFlags::empty())
    }

    /// Changes the record of `ino`, as damage would.
    fn patch(fs: &mut Fs<RamDevice>, ino: Ino, change: impl Fn(&mut super::InodeRecord)) {
        let mut record = fs.record(ino).unwrap();
        change(&mut record);
        fs.store.transact(false, |store| store.write_inode(ino, &record)).unwrap();
        fs.adopt(ino, &record);
    }

    /// A move costs in proportion to its depth only where it must go up the tree; elsewhere depth
    /// costs nothing.
    #[test]
    fn moves_go_no_farther_up_than_they_have_to() {
        const DEPTH: u64 = 2_000;
        const FEW: u64 = 30;
        let mut fs = volume();
        let mut ways = Vec::new();
        for top in ["one", "two"] {
            let mut way = std::vec![mkdir(&mut fs, Ino::ROOT, top).unwrap()];
            for _ in 0..DEPTH {
                way.push(mkdir(&mut fs, way[way.len() - 1], "d").unwrap());
            }
            ways.push(way);
        }
        let [one, two] = [0, 1].map(|at: usize| ways[at][DEPTH as usize]);
        let near = ways[0][DEPTH as usize - 1];
        let leaf = mkdir(&mut fs, one, "leaf").unwrap();
        let tree = mkdir(&mut fs, one, "tree").unwrap();
        mkdir(&mut fs, tree, "below").unwrap();
        let mut steps = |from, text, to| {
            let before = fs.store.cache.operation();
            rename(&mut fs, from, text, to).unwrap();
            fs.store.cache.operation() - before
        };
        assert!(steps(one, "leaf", two) < FEW, "nothing can be below a leaf");
        assert!(steps(one, "tree", near) > DEPTH, "up from there is where it could be");
        assert!(steps(near, "tree", one) < FEW, "the way up meets where it came from");
        assert!(steps(one, "tree", leaf) > DEPTH, "a far place");
        assert!(steps(leaf, "tree", two) < FEW + DEPTH, "and back to where it is near");
    }

    #[test]
    fn a_way_up_that_leads_back_to_itself_ends() {
        for len in [1, 2, 3, 100] {
            let mut fs = volume();
            let moved = mkdir(&mut fs, Ino::ROOT, "moved").unwrap();
            mkdir(&mut fs, moved, "below").unwrap();
            let first = mkdir(&mut fs, Ino::ROOT, "d").unwrap();
            let mut last = first;
            for _ in 1..len {
                last = mkdir(&mut fs, last, "d").unwrap();
            }
            let bottom = mkdir(&mut fs, last, "bottom").unwrap();
            patch(&mut fs, first, |record| record.parent = last.0);
            assert_eq!(rename(&mut fs, Ino::ROOT, "moved", bottom), Err(Errno::EUCLEAN), "{len}");
        }
    }

    #[test]
    fn the_last_subdirectory_is_refused() {
        let mut fs = volume();
        let full = mkdir(&mut fs, Ino::ROOT, "full").unwrap();
        mkdir(&mut fs, Ino::ROOT, "other").unwrap();
        patch(&mut fs, full, |record| record.nlink = DIRECTORY_LINK_MAX - 1);
        mkdir(&mut fs, full, "last").unwrap();
        assert_eq!(mkdir(&mut fs, full, "more"), Err(Errno::EMLINK));
        assert_eq!(rename(&mut fs, Ino::ROOT, "other", full), Err(Errno::EMLINK));
        assert_eq!(fs.getattr(&CX, full).unwrap().nlink, DIRECTORY_LINK_MAX);
    }
}
