//! A client that names what it was never given: it gets errors, and nothing changes.

use atoll_server::{LockKind, LockOwner, LockRange, LockRequest, Token};
use atoll_vfs::{Errno, FileSystem, Handle, Ino, Name, SetAttr};

use crate::world::{Outcome, World, trace};

impl World {
    /// The hostile client number `at` asks for what it was never given.
    pub(crate) fn hostile_request(&mut self, at: usize) -> Outcome<()> {
        let rng = &mut self.rng;
        let ino = Ino(match rng.within(0..3) {
            0 => rng.within(2..40),
            1 => u64::MAX - rng.within(0..3),
            _ => rng.number(),
        });
        let handle = Handle(rng.pick(&[0, 1, 1 << 32, u64::MAX, rng.clone().number()]));
        let offset = rng.pick(&[0, 1, i64::MAX as u64, u64::MAX, 4095]);
        let way = rng.within(0..13);
        // A directory that is there may be named by whoever could walk to it.
        let ino = if matches!(way, 1 | 8 | 9) { Ino(ino.0 | 1 << 40) } else { ino };
        let seat = &mut self.seats[at];
        let cx = seat.role.context(Default::default());
        let session = &mut seat.session;
        let name = Name::new(b"a").expect("a name");
        let lock = LockRequest {
            owner: LockOwner::Process(offset),
            range: LockRange { start: offset, end: u64::MAX },
            kind: Some(LockKind::Exclusive),
            pid: 1,
        };
        let done: Result<(), Errno> = match way {
            0 => session.getattr(&cx, ino).map(drop),
            1 => session.lookup(&cx, ino, name).map(drop),
            2 => session.read(&cx, ino, handle, offset, &mut [0; 64]).map(drop),
            3 => session.write(&cx, ino, handle, offset, &[1; 64]).map(drop),
            4 => session.release(&cx, ino, handle),
            5 => {
                let set = SetAttr { size: Some(offset), ..SetAttr::default() };
                session.setattr(&cx, ino, Some(handle), &set).map(drop)
            }
            6 => session.setlk(ino, handle, &lock),
            7 => session.link(&cx, ino, Ino::ROOT, name).map(drop),
            8 => session.rename(&cx, ino, name, ino, name, atoll_vfs::RenameFlags::empty()),
            9 => session.unlink(&cx, ino, name),
            10 => session.adopt(Token([offset, handle.0])).map(drop),
            11 => session.fsync(&cx, ino, handle, false),
            _ => session.fallocate(
                &cx,
                Ino::ROOT,
                handle,
                offset,
                u64::MAX,
                atoll_vfs::FallocateMode::empty(),
            ),
        };
        let _ = session.take_needs();
        session.forget(ino, offset);
        trace!(self, "a hostile client asks for inode {ino} ({way}): {done:?}");
        self.counts.calls += 1;
        self.note(&[17, way, done.map_or_else(|error| error.raw() as u64, |()| 0)]);
        match done {
            Err(_) => Ok(()),
            Ok(()) => Err(format!("a client was allowed what it was never given ({way})")),
        }
    }
}
