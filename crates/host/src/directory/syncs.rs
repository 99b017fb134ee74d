//! Syncs: of one file and the names that lead to it, or of everything.
//!
//! fsync(2) of a file says nothing of its name on the host. So the directories in which clients
//! have changed names are remembered until they are synced, and a file is synced with those of them
//! that lie above it: after that it is found by its name.

use std::collections::{BTreeMap, HashMap};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use atoll_vfs::{Errno, Handle, Ino, PendingSync, Result, SyncId};
use rustix::fs::{self as sys, OFlags};

use super::{HostDirectory, errno};
use crate::medium;

/// How many directories are remembered. Where clients change more, each counts as changed until
/// everything is synced.
const CHANGED_MAX: usize = 1 << 16;
/// How many directories are synced with a file. Where there are more, everything is.
const ABOVE_MAX: usize = 64;
/// How many directories one inode is looked for below. Of one that lies deeper everything is
/// synced.
const DEPTH_MAX: usize = 4096;
/// How many syncs may be under way. One that was never ended is forgotten.
const SYNCS_MAX: usize = 1024;

/// The names that are not durable yet.
#[derive(Debug, Default)]
pub(super) struct Unsynced {
    /// The directories in which clients have changed names, and when they did so last.
    dirs: HashMap<Ino, u64>,
    /// When directories were last too many to be remembered.
    any: Option<u64>,
    /// Counts the changes.
    clock: u64,
    /// What each sync under way covers.
    under_way: BTreeMap<u64, Covers>,
    syncs: u64,
}

#[derive(Debug)]
enum Covers {
    /// What was changed in these directories until then.
    Dirs(Vec<(Ino, u64)>),
    /// What was changed until then.
    All(u64),
}

impl Unsynced {
    /// Clients have changed names in `dir`.
    pub(super) fn changed(&mut self, dir: Ino) {
        self.clock += 1;
        self.dirs.insert(dir, self.clock);
        if self.dirs.len() > CHANGED_MAX {
            self.dirs.clear();
            self.any = Some(self.clock);
        }
    }

    fn has(&self, dir: Ino) -> bool {
        self.any.is_some() || self.dirs.contains_key(&dir)
    }

    fn begin(&mut self, covers: Covers) -> SyncId {
        self.syncs += 1;
        self.under_way.insert(self.syncs, covers);
        if self.under_way.len() > SYNCS_MAX {
            self.under_way.pop_first();
        }
        SyncId(self.syncs)
    }

    /// A sync has ended, and made durable what it covers if it went `well`.
    fn end(&mut self, SyncId(id): SyncId, well: bool) {
        let Some(covers) = self.under_way.remove(&id).filter(|_| well) else { return };
        match covers {
            Covers::Dirs(dirs) => {
                for (dir, until) in dirs {
                    if self.dirs.get(&dir).is_some_and(|changed| *changed <= until) {
                        self.dirs.remove(&dir);
                    }
                }
            }
            Covers::All(until) => {
                self.dirs.retain(|_, changed| *changed > until);
                self.any = self.any.filter(|any| *any > until);
            }
        }
    }
}

impl HostDirectory {
    /// The directories above `ino` in which names are not durable yet, the nearest first; `None`
    /// for more than can be synced at a time, or than are looked at.
    fn unsynced_above(&mut self, ino: Ino) -> Option<Vec<Ino>> {
        let mut found = Vec::new();
        let Ok(known) = self.table.get(ino) else { return Some(found) };
        for place in known.places() {
            let (mut at, mut depth) = (place, 0);
            loop {
                if self.unsynced.has(at) && !found.contains(&at) {
                    if found.len() == ABOVE_MAX {
                        return None;
                    }
                    found.push(at);
                }
                if HostDirectory::is_root(at) {
                    break;
                }
                // One that is not known any more is where nobody finds it.
                let Ok(known) = self.table.get(at) else { break };
                at = known.place.0;
                depth += 1;
                if depth == DEPTH_MAX {
                    return None;
                }
            }
        }
        Some(found)
    }

    /// Begins a sync of what is open as `handle`, and of the names that lead there. `None` where
    /// everything has to be synced for that.
    pub(super) fn begin_one(
        &mut self,
        ino: Ino,
        handle: Handle,
        data_only: bool,
    ) -> Result<Option<PendingSync>> {
        self.table.get(ino)?;
        let open = self.open.get(&handle.0).filter(|open| open.ino == ino).ok_or(Errno::EBADF)?;
        let (file, is_dir) = (Arc::clone(&open.fd), open.is_dir());
        if self.read_only {
            let id = self.unsynced.begin(Covers::Dirs(Vec::new()));
            return Ok(Some(PendingSync::new(id, || Ok(()))));
        }
        self.copies.meet(ino, 0..u64::MAX)?;
        let Some(above) = self.unsynced_above(ino) else { return Ok(None) };
        // With itself, if it is a directory.
        let mut covered = Vec::from_iter(is_dir.then_some((ino, self.unsynced.clock)));
        let mut dirs: Vec<OwnedFd> = Vec::new();
        for dir in above {
            let opened = self.fd(dir).and_then(|fd| {
                self.anew(&fd, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NONBLOCK)
            });
            match opened {
                Ok(fd) => {
                    covered.push((dir, self.unsynced.clock));
                    dirs.push(fd);
                }
                // The host has removed it, or moved it away.
                Err(Errno::ESTALE) => {}
                // The server may not look into it.
                Err(_) => return Ok(None),
            }
        }
        let id = self.unsynced.begin(Covers::Dirs(covered));
        Ok(Some(PendingSync::new(id, move || {
            if data_only { sys::fdatasync(&file) } else { sys::fsync(&file) }.map_err(errno)?;
            dirs.iter().try_for_each(|dir| sys::fsync(dir).map_err(errno))
        })))
    }

    /// Syncs what is open as `handle`, and waits.
    pub(super) fn sync_one(&mut self, ino: Ino, handle: Handle, data_only: bool) -> Result<()> {
        let begun = match self.begin_one(ino, handle, data_only)? {
            Some(begun) => begun,
            None => match self.begin_all()? {
                Some(begun) => begun,
                None => return Ok(()),
            },
        };
        let (id, flushed) = medium::wait_for(|| begun.flush());
        self.unsynced.end(id, flushed.is_ok());
        flushed
    }

    /// Begins a sync of the host's whole file system, and of those mounted in the directory that
    /// clients have come to; `None` where nothing is changed.
    ///
    /// # Errors
    /// Those of writing what guests have stored into copies.
    pub(super) fn begin_all(&mut self) -> Result<Option<PendingSync>> {
        if self.read_only {
            return Ok(None);
        }
        self.copies.meet_all()?;
        let id = self.unsynced.begin(Covers::All(self.unsynced.clock));
        let roots = [&[Arc::clone(&self.root)][..], &self.mounts.roots()].concat();
        Ok(Some(PendingSync::new(id, move || {
            // All of them, whatever one says.
            let outcomes = roots.iter().map(|root| sys::syncfs(root).map_err(errno));
            outcomes.fold(Ok(()), Result::and)
        })))
    }

    /// Ends either.
    pub(super) fn synced(&mut self, id: SyncId, flushed: Result<()>) -> Result<()> {
        self.unsynced.end(id, flushed.is_ok());
        flushed
    }
}

#[cfg(test)]
mod tests {
    use atoll_vfs::{Context, FileSystem, Name, OpenFlags, RenameFlags, Timespec};

    use super::super::Options;
    use super::*;

    const RW: OpenFlags = OpenFlags::READ.union(OpenFlags::WRITE);

    fn name(text: &str) -> Name<'_> {
        Name::new(text.as_bytes()).unwrap()
    }

    fn cx() -> Context {
        let uid = rustix::process::geteuid().as_raw();
        let gid = rustix::process::getegid().as_raw();
        Context { uid, gid, now: Timespec::default() }
    }

    fn changed(fs: &HostDirectory) -> Vec<Ino> {
        let mut dirs: Vec<Ino> = fs.unsynced.dirs.keys().copied().collect();
        dirs.sort();
        dirs
    }

    fn sync(fs: &mut HostDirectory, ino: Ino, handle: Handle) {
        let begun = fs.begin_fsync(&cx(), ino, handle, false).unwrap().unwrap();
        let (id, flushed) = begun.flush();
        assert!(matches!(fs.end_sync(id, flushed), Ok(None)));
    }

    fn sorted<const N: usize>(mut dirs: [Ino; N]) -> [Ino; N] {
        dirs.sort();
        dirs
    }

    /// A file is synced with every directory above it in which a name is new, and no other.
    #[test]
    fn a_file_is_synced_with_the_names_that_lead_to_it() {
        let folder = tempfile::tempdir().unwrap();
        let mut fs = HostDirectory::open(folder.path(), &Options::default()).unwrap();
        let cx = cx();
        let a = fs.mkdir(&cx, Ino::ROOT, name("a"), 0o700).unwrap().ino;
        let b = fs.mkdir(&cx, a, name("b"), 0o700).unwrap().ino;
        let other = fs.mkdir(&cx, Ino::ROOT, name("other"), 0o700).unwrap().ino;
        fs.symlink(&cx, other, name("l"), b"x").unwrap();
        let (file, handle) = fs.create(&cx, b, name("f"), 0o600, RW).unwrap();
        let file = file.ino;
        assert_eq!(changed(&fs), sorted([Ino::ROOT, a, b, other]));
        sync(&mut fs, file, handle);
        assert_eq!(changed(&fs), [other]);
        // Nothing is new but the data.
        fs.write(&cx, file, handle, 0, b"x").unwrap();
        assert_eq!(fs.unsynced_above(file), Some(Vec::new()));
        // Each change of a name counts, those of hard links at all their places.
        fs.link(&cx, file, a, name("g")).unwrap();
        assert_eq!(changed(&fs), sorted([a, other]));
        fs.link(&cx, file, other, name("h")).unwrap();
        sync(&mut fs, file, handle);
        assert_eq!(changed(&fs), []);
        fs.rename(&cx, b, name("f"), other, name("i"), RenameFlags::empty()).unwrap();
        assert_eq!(changed(&fs), sorted([b, other]));
        sync(&mut fs, file, handle);
        assert_eq!(changed(&fs), []);
        for (dir, at) in [(a, "g"), (other, "i"), (other, "h")] {
            fs.unlink(&cx, dir, name(at)).unwrap();
        }
        assert_eq!(changed(&fs), sorted([a, other]));
        // A directory by its own handle.
        let listing = fs.opendir(&cx, a).unwrap();
        sync(&mut fs, a, listing);
        assert_eq!(changed(&fs), [other]);
        // Everything.
        let begun = fs.begin_sync(&cx, false).unwrap().unwrap();
        let late = fs.mkdir(&cx, other, name("late"), 0o700).unwrap().ino;
        let (id, flushed) = begun.flush();
        fs.end_sync(id, flushed).unwrap();
        assert_eq!(changed(&fs), [other], "what came after it began");
        assert!(fs.unsynced.under_way.is_empty());
        // Without a server the wait is in the call.
        let listing = fs.opendir(&cx, late).unwrap();
        fs.fsyncdir(&cx, late, listing).unwrap();
        assert_eq!(changed(&fs), []);
    }

    /// What changes while a sync is under way is left to the next, and all that a sync which failed
    /// was to cover.
    #[test]
    fn a_sync_covers_what_was_before_it() {
        let folder = tempfile::tempdir().unwrap();
        let mut fs = HostDirectory::open(folder.path(), &Options::default()).unwrap();
        let cx = cx();
        let (file, handle) = fs.create(&cx, Ino::ROOT, name("f"), 0o600, RW).unwrap();
        let begun = fs.begin_fsync(&cx, file.ino, handle, true).unwrap().unwrap();
        fs.mkdir(&cx, Ino::ROOT, name("d"), 0o700).unwrap();
        let (id, flushed) = begun.flush();
        fs.end_sync(id, flushed).unwrap();
        assert_eq!(changed(&fs), [Ino::ROOT]);
        let begun = fs.begin_fsync(&cx, file.ino, handle, true).unwrap().unwrap();
        let (id, _) = begun.flush();
        assert!(matches!(fs.end_sync(id, Err(Errno::EIO)), Err(Errno::EIO)));
        assert_eq!(changed(&fs), [Ino::ROOT]);
        assert_eq!(fs.begin_fsync(&cx, file.ino, Handle(99), true).map(drop), Err(Errno::EBADF));
    }

    /// More than are remembered count as changed, each of them, until everything is synced.
    #[test]
    fn directories_without_end_take_no_memory() {
        let mut unsynced = Unsynced::default();
        for dir in 0..3 * CHANGED_MAX as u64 {
            unsynced.changed(Ino(dir));
            assert!(unsynced.dirs.len() <= CHANGED_MAX);
        }
        assert!(unsynced.has(Ino(0)) && unsynced.has(Ino(u64::MAX)));
        let one = unsynced.begin(Covers::Dirs(vec![(Ino(5), u64::MAX)]));
        unsynced.end(one, true);
        assert!(unsynced.has(Ino(5)));
        let all = unsynced.begin(Covers::All(unsynced.clock));
        unsynced.changed(Ino(7));
        unsynced.end(all, true);
        assert!(unsynced.has(Ino(7)) && !unsynced.has(Ino(5)));
        // Nor do syncs that nobody ends.
        for _ in 0..3 * SYNCS_MAX {
            let _ = unsynced.begin(Covers::All(0));
        }
        assert_eq!(unsynced.under_way.len(), SYNCS_MAX);
    }
}
