//! What a kernel has removed and still knows: by a descriptor, a working directory, a name of
//! /proc.
//!
//! The call that takes the last name of an inode that the session's kernel knows (how often it was
//! given each is counted) opens the inode in its place, and the FORGET by which the kernel knows it
//! no more closes it: between these it is held, an orphan of the volume. What is opened implicitly
//! is always held, since nobody says whether the kernel has it open; all else as far as there is
//! room for open files and storage, and is `ESTALE` otherwise, as what others have removed. A
//! kernel forgets a little later than it removes, so that STATFS, ENOSPC and EDQUOT are answered
//! when the FORGETs that it has sent have been served, and what they leave has been freed.
//!
//! Others learn of no FORGET that nobody has read: where they look for room too, other sessions
//! that may change the volume or programs of the host, large files are not held. Nor are files of a
//! volume where FORGETs are read late, and nothing of virtual machines and other clients, which
//! forget much later. Links, pipes, sockets and devices cannot be open.

use atoll_vfs::{Attr, Context, FileSystem, FileType, Ino, OpenFlags, Rest, Result, Timespec};

use crate::open::handles::Open;
use crate::session::Session;
use crate::session::call::Call;
use crate::session::implicit::BOTH;
use crate::session::own::Holds;

/// A file that has more blocks of 512 bytes is large.
const BLOCKS: u64 = (1 << 20) / 512;
/// What is held takes such a part of the session's open files: a client that forgets late goes on
/// opening others.
const PART: usize = if cfg!(test) { 1 } else { 16 };

impl<F: FileSystem> Call<'_, F> {
    /// Opens `victim`, if its removal would take it from the client. For
    /// [`removed`](Self::removed).
    ///
    /// # Errors
    /// Those of opening what must be held.
    pub fn hold(&mut self, victim: Option<&Attr>) -> Result<Option<Open>> {
        let Call { state, cx, own, .. } = self;
        let Some(victim) = victim.filter(|_| own.holds != Holds::Nothing) else { return Ok(None) };
        let (ino, implicit) = (victim.ino, own.implicit.is_some());
        let file = match victim.file_type() {
            FileType::Directory => false,
            FileType::Regular if victim.nlink == 1 => true,
            _ => return Ok(None),
        };
        if !own.inodes.knows(ino) || own.held.contains_key(&ino) {
            return Ok(None);
        }
        if let Some((handle, _)) = own.implicit.as_mut().and_then(|all| all.remove(ino)) {
            return own.handles.remove(ino, handle, file).map(Some);
        }
        let alone = own.cache.as_ref().is_some_and(|cache| cache.is_alone()) && !state.counts;
        let large = victim.blocks > BLOCKS && !alone;
        let refused = file && (own.holds == Holds::Directories || large)
            || own.held.len() >= own.access.limits.open_files / PART
            || own.check_room().is_err();
        if refused && !implicit {
            return Ok(None);
        }
        let flags = file.then_some(if implicit { BOTH } else { OpenFlags::empty() });
        let opened = match flags {
            Some(flags) => state.fs.open(cx, ino, flags),
            None => state.fs.opendir(cx, ino),
        };
        match opened {
            Ok(handle) => {
                own.inodes.opened(ino);
                Ok(Some(Open { ino, handle, flags }))
            }
            Err(error) if implicit => Err(error),
            Err(_) => Ok(None),
        }
    }

    /// What is `held` has lost its name, if `gone`.
    pub fn removed(&mut self, held: Option<Open>, gone: bool) {
        let Some(open) = held else { return };
        if gone {
            self.own.held.insert(open.ino, open);
        } else {
            self.own.inodes.closed(open.ino);
            self.own.closed();
            let _ = self.state.close(&self.cx, (self.own.id, self.own.peer.uid), &open);
        }
    }
}

impl<F: FileSystem + Send> Session<F> {
    /// From now on what the client removes is held as long as it knows it: for a kernel of this
    /// host.
    pub fn hold_removed(&mut self) {
        // The FORGETs of a user whose rate is limited are read late.
        let late = self.meter.is_some() && !self.volume.is_foreign();
        self.own.holds = if late { Holds::Directories } else { Holds::All };
        self.own.inodes.count_lookups();
    }

    /// Lets go of `ino`, the volume's number, if the client does not know it any more.
    pub(crate) fn let_go(&mut self, ino: Ino) {
        if self.own.inodes.knows(ino) {
            return;
        }
        self.close_implicitly(ino);
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

    /// Whether something is held that the client may have forgotten, in requests that stand and are
    /// read soon.
    pub(crate) fn holds_any(&self) -> bool {
        !self.own.held.is_empty() && self.meter.is_none()
    }

    /// The call that was made, when so many removals had ended, is made again if some have not, or
    /// did meanwhile.
    pub(crate) fn waits_for_removals(&self, ended: u64) {
        if self.own.holds != Holds::All || self.volume.is_foreign() {
            return;
        }
        if let Some(ino) = self.volume.removals.any(self.own.peer.uid, ended) {
            self.left.set(Some(Rest::Until(ino)));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use atoll_vfs::model::ModelFs;
    use atoll_vfs::{Errno, Name, RenameFlags};

    use super::*;
    use crate::leases::caches::Lends;
    use crate::rights::accounts::{Accounts, Shares};
    use crate::rights::limits::Limits;
    use crate::rights::rates::Rates;
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
            removes_in_every_way(&volume);
        }
    }

    fn removes_in_every_way(volume: &Arc<Volume<ModelFs>>) {
        let files = |volume: &Arc<Volume<ModelFs>>| {
            let all = volume.lock().unwrap().fs.statfs(&CX).unwrap();
            all.files - all.files_free
        };
        let before = files(volume);
        type Act = fn(&mut Session<ModelFs>) -> Result<()>;
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
                assert_eq!(s.holds_any(), kernel && room > 0);
                if !kernel || room == 0 {
                    assert_eq!(lives(&mut s), Err(Errno::ESTALE), "{kernel} {room}");
                } else {
                    assert_eq!(lives(&mut s), Ok(0));
                    // It counts, and is no handle of the client's.
                    assert_eq!(s.opendir(&CX, ROOT), Err(Errno::EMFILE));
                    for guess in 0..4 {
                        let handle = atoll_vfs::Handle(guess << 32);
                        assert_eq!(s.read(&CX, gone, handle, 0, &mut [0]), Err(Errno::EBADF));
                    }
                    s.forget(gone, 1);
                    assert_eq!(lives(&mut s), Ok(0));
                    s.forget(gone, 1);
                    assert_eq!(lives(&mut s), Err(Errno::ESTALE));
                    assert!(!s.holds_any() && s.opendir(&CX, ROOT).is_ok());
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

    /// Of files that hold storage as many as others can do without.
    #[test]
    fn files_that_others_need_are_not_held() {
        let rates = Rates { operations: Some(9), bytes: None };
        for (foreign, others, late, held) in [
            (false, false, false, [true, true]),
            (false, true, false, [true, false]),
            (false, false, true, [false, false]),
            (true, false, false, [true, false]),
            (true, false, true, [true, false]),
        ] {
            let volume = crate::testing::volume();
            if foreign {
                volume.set_foreign(KnownMost::default()).unwrap();
            }
            let _other = others.then(|| session(&volume, false, 9));
            let account = late.then(|| Accounts::new(Shares::UNLIMITED).open(0, Shares::UNLIMITED));
            let limits = Limits { rates, ..Limits::default() };
            let access = Access { limits, account, ..Access::default() };
            let mut s = volume.session(Credentials::default(), access).unwrap();
            s.begin_cache(Lends::Pages, Arc::<crate::testing::Noted>::default()).unwrap();
            s.hold_removed();
            for (len, held) in [BLOCKS * 512, BLOCKS * 512 + 1].into_iter().zip(held) {
                let flags = OpenFlags::WRITE;
                let (file, handle) = s.create(&CX, ROOT, name("f"), 0o600, flags).unwrap();
                s.write(&CX, file.ino, handle, 0, &vec![1; len as usize]).unwrap();
                s.release(&CX, file.ino, handle).unwrap();
                s.unlink(&CX, ROOT, name("f")).unwrap();
                assert_eq!(s.getattr(&CX, file.ino).is_ok(), held, "{foreign} {others} {late}");
                assert_eq!(s.holds_any(), held && !late);
                s.forget(file.ino, 1);
            }
            let dir = s.mkdir(&CX, ROOT, name("d"), 0o700).unwrap().ino;
            s.rmdir(&CX, ROOT, name("d")).unwrap();
            assert!(s.getattr(&CX, dir).is_ok());
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
