//! Inodes that a kernel has removed and still knows: by a working directory, a descriptor of
//! O_PATH, a name in /proc. They live until it forgets them, as they do on any file system of
//! Linux.
//!
//! A file system keeps an inode as long as it has a name or is open. So the removal of the last
//! name leaves it open, by a handle that allows nothing and that no client can name; it counts
//! as an open file of the session's. Where that would be too many the inode is `ESTALE`, and
//! so is what other clients or programs of the host have removed.
//!
//! A kernel of this host forgets a little later than it removes, those of virtual machines and
//! other clients much later, for which nothing is held. Who removes files to have room must find
//! it, so what holds storage is not held: of a volume directories alone are, of a directory of the
//! host files too that are not large. Links, pipes, sockets and devices cannot be open.

use atoll_vfs::{Attr, Context, FileSystem, FileType, Ino, Name, OpenFlags, Timespec};

use crate::open::handles::Open;
use crate::session::Session;
use crate::session::call::Call;

/// A file that has more blocks of 512 bytes is large.
const BLOCKS: u64 = (1 << 20) / 512;
/// What is held takes such a part of the session's open files: a client that forgets late goes on
/// opening others.
const PART: usize = if cfg!(test) { 1 } else { 16 };

impl<F: FileSystem> Call<'_, F> {
    /// Opens what `name` in `dir` is, of which `known` are the attributes if they are known, if its
    /// removal would take it from the client. For [`removed`](Self::removed).
    pub fn hold(&mut self, dir: Ino, name: Name<'_>, known: Option<Attr>) -> Option<Open> {
        let implicit = self.own.implicit.is_some();
        if !self.own.holds || implicit || name.is_dot_or_dot_dot() {
            return None;
        }
        let attr = known.or_else(|| self.state.peek(&self.cx, dir, name).ok())?;
        let (ino, own) = (attr.ino, &mut *self.own);
        let file = self.state.counts && attr.file_type() == FileType::Regular;
        let goes = attr.is_dir() || file && attr.nlink == 1 && attr.blocks <= BLOCKS;
        let full = own.held.len() >= own.access.limits.open_files / PART;
        if !goes || full || own.inodes.has_forgotten(ino) || own.held.contains_key(&ino) {
            return None;
        }
        own.check_room().ok()?;
        let fs = &mut self.state.fs;
        let flags = (!attr.is_dir()).then_some(OpenFlags::empty());
        let handle = match flags {
            Some(flags) => fs.open(&self.cx, ino, flags),
            None => fs.opendir(&self.cx, ino),
        };
        Some(Open { ino, handle: handle.ok()?, flags })
    }

    /// What is `held` has lost its name, if `gone`.
    pub fn removed(&mut self, held: Option<Open>, gone: bool) {
        let Some(open) = held else { return };
        if gone {
            self.own.inodes.opened(open.ino);
            self.own.held.insert(open.ino, open);
        } else {
            let _ = self.state.close(&self.cx, (self.own.id, self.own.peer.uid), &open);
            self.own.closed();
        }
    }
}

impl<F: FileSystem + Send> Session<F> {
    /// Lets go of `ino`, the volume's number, if it is held and the client has forgotten it.
    pub(crate) fn let_go(&mut self, ino: Ino) {
        // Where it is not known how often it was given, a kernel forgets all at once.
        if self.own.inodes.is_counted() && !self.own.inodes.has_forgotten(ino) {
            return;
        }
        let Some(open) = self.own.held.remove(&ino) else { return };
        self.own.inodes.closed(ino);
        self.own.closed();
        let who = (self.own.id, self.own.peer.uid);
        // Closing stamps nothing.
        let cx = Context { uid: 0, gid: 0, now: Timespec::default() };
        if let Ok(mut state) = self.volume.lock() {
            let _ = state.close(&cx, who, &open);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use atoll_vfs::model::ModelFs;
    use atoll_vfs::{Errno, RenameFlags};

    use super::*;
    use crate::leases::caches::Lends;
    use crate::rights::limits::Limits;
    use crate::volume::Volume;
    use crate::{Access, Credentials, KnownMost};

    const CX: Context = Context { uid: 0, gid: 0, now: Timespec { sec: 0, nsec: 0 } };
    const ROOT: Ino = Ino::ROOT;

    fn name(text: &str) -> Name<'_> {
        Name::new(text.as_bytes()).unwrap()
    }

    /// A session of a kernel, or not, that may have so many files open.
    fn session(volume: &Arc<Volume<ModelFs>>, kernel: bool, open_files: usize) -> Session<ModelFs> {
        let limits = Limits { open_files, ..Limits::default() };
        let access = Access { limits, ..Access::default() };
        let mut session = volume.session(Credentials::default(), access).unwrap();
        if kernel {
            let mount = Arc::<crate::testing::Noted>::default();
            session.begin_cache(Lends::Pages, mount).unwrap();
            session.hold_removed();
        }
        session
    }

    #[test]
    fn what_a_kernel_removes_lives_until_it_is_forgotten() {
        for foreign in [true, false] {
            let volume = crate::testing::volume();
            if foreign {
                volume.set_foreign(KnownMost::default()).unwrap();
            }
            removes_in_every_way(&volume, foreign);
        }
    }

    fn removes_in_every_way(volume: &Arc<Volume<ModelFs>>, counted: bool) {
        let files = |volume: &Arc<Volume<ModelFs>>| {
            let all = volume.lock().unwrap().fs.statfs(&CX).unwrap();
            all.files - all.files_free
        };
        let before = files(volume);
        type Act = fn(&mut Session<ModelFs>) -> atoll_vfs::Result<()>;
        let ways: [(bool, Act); 4] = [
            (false, |s| s.unlink(&CX, ROOT, name("a"))),
            (false, |s| s.rename(&CX, ROOT, name("b"), ROOT, name("a"), RenameFlags::empty())),
            (true, |s| s.rmdir(&CX, ROOT, name("a"))),
            (true, |s| s.rename(&CX, ROOT, name("b"), ROOT, name("a"), RenameFlags::empty())),
        ];
        for (is_dir, way) in ways {
            for (kernel, room) in [(true, 1), (true, 0), (false, 1)] {
                let mut s = session(volume, kernel, room);
                let [gone, _] = ["a", "b"].map(|at| {
                    let made = match is_dir {
                        true => s.mkdir(&CX, ROOT, name(at), 0o755),
                        false => s.mknod(&CX, ROOT, name(at), 0o100_644, 0),
                    };
                    made.unwrap().ino
                });
                // Once more, as a lookup.
                s.lookup(&CX, ROOT, name("a")).unwrap();
                way(&mut s).unwrap();
                let lives = |s: &mut Session<ModelFs>| s.getattr(&CX, gone).map(|attr| attr.nlink);
                if !kernel || room == 0 || !counted && !is_dir {
                    assert_eq!(lives(&mut s), Err(Errno::ESTALE), "{kernel} {room}");
                } else {
                    assert_eq!(lives(&mut s), Ok(0));
                    // It counts, and is no handle of the client's.
                    assert_eq!(s.opendir(&CX, ROOT), Err(Errno::EMFILE));
                    for guess in 0..4 {
                        let handle = atoll_vfs::Handle(guess << 32);
                        assert_eq!(s.read(&CX, gone, handle, 0, &mut [0]), Err(Errno::EBADF));
                    }
                    if counted {
                        s.forget(gone, 1);
                        assert_eq!(lives(&mut s), Ok(0));
                    }
                    s.forget(gone, 1);
                    assert_eq!(lives(&mut s), Err(Errno::ESTALE));
                    assert!(s.opendir(&CX, ROOT).is_ok());
                }
                let remove = if is_dir { Session::rmdir } else { Session::unlink };
                for at in ["a", "b"] {
                    let _ = remove(&mut s, &CX, ROOT, name(at));
                }
                // The end of the session lets go of what is held.
                drop(s);
                assert_eq!(files(volume), before);
            }
        }
    }

    #[test]
    fn what_is_not_removed_is_not_held() {
        let volume = crate::testing::volume();
        volume.set_foreign(KnownMost::default()).unwrap();
        let mut s = session(&volume, true, 1);
        let full = s.mkdir(&CX, ROOT, name("full"), 0o755).unwrap().ino;
        let file = s.mknod(&CX, full, name("f"), 0o100_644, 0).unwrap().ino;
        s.link(&CX, file, full, name("g")).unwrap();
        for _ in 0..3 {
            assert_eq!(s.rmdir(&CX, ROOT, name("full")), Err(Errno::ENOTEMPTY));
            assert_eq!(s.unlink(&CX, ROOT, name("full")), Err(Errno::EISDIR));
        }
        s.unlink(&CX, full, name("g")).unwrap();
        assert!(s.opendir(&CX, ROOT).is_ok(), "there is room for one");
    }
}
