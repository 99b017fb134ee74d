//! Stores of clients into mapped files, written back to the file system.
//!
//! A call for which that is done, a sync, does it in parts: each takes the turn of the call's user
//! at the volume, and where the carrier takes requests back the next part is its client's next
//! turn.

use std::collections::BTreeSet;
use std::ops::Range;

use atoll_vfs::{Context, Errno, FileSystem, Ino, Rest, Result, Timespec};

use super::files::{File, STEP};
use super::memory::Memory;
use super::parts::length;
use super::{CHUNK, PAGE, data_from, volume_context};
use crate::guarded::Guarded;
use crate::leases::observer::{Content, Now};
use crate::open::handles::Open;
use crate::rights::identity::SessionId;
use crate::session::Session;
use crate::volume::{ITSELF, Volume};

/// The bytes that a part without any counts as: to find that there are none takes a search.
const SEARCH: u64 = 32 << 10;

/// The files whose stores are written back.
#[derive(Clone, Copy)]
pub(crate) enum Stores {
    /// One file.
    Of(Ino),
    /// All of them.
    All,
}

impl<F: FileSystem> Guarded<F> {
    /// Writes back what was stored into `range` of `ino`, at most [`STEP`] bytes of it. Returns
    /// where to go on, `None` at the end, and the first error. Stores that find no space are left
    /// out, and tried again the next time; those beside them are written.
    pub(crate) fn write_back_step(
        &mut self,
        cx: &Context,
        ino: Ino,
        range: Range<u64>,
    ) -> (Option<u64>, Result<()>) {
        let mut stored = Stored::default();
        let compared = self.compare(cx, ino, range, &mut stored);
        for range in stored.ranges {
            self.changed = true;
            let (offset, len) = (range.start, length(&range));
            let content = Content { ino, offset, len, now: Now::Same, grew: None };
            self.tell_content(cx, SessionId::VOLUME, content);
        }
        match compared {
            Ok(next) => (next, stored.result),
            Err(error) => (None, stored.result.and(Err(error))),
        }
    }

    /// The same; what is written goes to `stored`, and what could not be written.
    ///
    /// # Errors
    /// Those after which nothing can be compared any more.
    fn compare(
        &mut self,
        cx: &Context,
        ino: Ino,
        range: Range<u64>,
        stored: &mut Stored,
    ) -> Result<Option<u64>> {
        let Guarded { fs, mapped, .. } = self;
        let Some(file) = mapped.files.get(&ino) else { return Ok(None) };
        if !file.memories().any(|(_, memory)| memory.stores) {
            return Ok(None);
        }
        let (handle, size) = (file.open.handle, fs.getattr(cx, ino)?.size);
        let (mut memory, mut old) = (vec![0; CHUNK as usize], vec![0; CHUNK as usize]);
        let mut budget = STEP;
        let parts = file.within(range.start..range.end.min(size));
        for (Memory { pages, .. }, part) in parts.filter(|(memory, _)| memory.stores) {
            let mut at = part.start;
            while at < part.end {
                if budget == 0 {
                    return Ok(Some(at));
                }
                let data = data_from(fs, cx, file.open, at)?.unwrap_or(part.end);
                let empty = match pages.reach(at, part.end, 0)? {
                    (end, 0) => end,
                    _ => at,
                };
                let data = data.min(empty);
                if data > at {
                    // Both are zeros up to there.
                    budget = budget.saturating_sub(SEARCH);
                    at = (data / PAGE as u64 * PAGE as u64).max(at);
                }
                let len = CHUNK.min(part.end.saturating_sub(at)) as usize;
                if len == 0 {
                    break;
                }
                let (memory, old) = (&mut memory[..len], &mut old[..len]);
                pages.read(at, memory)?;
                old.fill(0);
                fs.read(cx, ino, handle, at, old)?;
                let mut from = 0;
                while let Some(new) = next_change(memory, old, from) {
                    let failed = stored.write(fs, cx, file.open, (at, memory), &new);
                    let took = new.len() as u64 + failed * SEARCH;
                    budget = budget.saturating_sub(took);
                    from = new.end;
                }
                at += len as u64;
                budget = budget.saturating_sub(len as u64);
            }
        }
        Ok(None)
    }
}

/// The outcome of writing stores back.
struct Stored {
    /// The bytes that were written.
    ranges: Vec<Range<u64>>,
    /// The first error.
    result: Result<()>,
}

impl Default for Stored {
    fn default() -> Self {
        Stored { ranges: Vec::new(), result: Ok(()) }
    }
}

impl Stored {
    /// Writes the bytes `run` of `memory`, which are those of the file from `at` on: all at once,
    /// and where that fails by pages, so that one without space takes nothing from the others.
    /// Returns how many failed.
    fn write<F: FileSystem>(
        &mut self,
        fs: &mut F,
        cx: &Context,
        open: Open,
        (at, memory): (u64, &[u8]),
        run: &Range<usize>,
    ) -> u64 {
        let (mut from, mut end, mut failed) = (run.start, run.end, 0);
        while from < run.end {
            let offset = at + from as u64;
            match fs.write(cx, open.ino, open.handle, offset, &memory[from..end]) {
                Ok(written) if written.len > 0 => {
                    let len = written.len as u64;
                    match self.ranges.last_mut() {
                        Some(last) if last.end == offset => last.end += len,
                        _ => self.ranges.push(offset..offset + len),
                    }
                    from += written.len;
                    end = run.end;
                }
                refused => {
                    let page = (from + PAGE - from % PAGE).min(run.end);
                    if end > page {
                        end = page;
                        continue;
                    }
                    failed += 1;
                    let error = refused.map_or_else(|error| error, |_| Errno::EIO);
                    self.result = self.result.and(Err(error));
                    (from, end) = (page, run.end);
                }
            }
        }
        failed
    }
}

/// The first run of pages from `from` on in which `new` is another than `old`.
fn next_change(new: &[u8], old: &[u8], from: usize) -> Option<Range<usize>> {
    let pages = || (from..new.len()).step_by(PAGE).map(|at| at..(at + PAGE).min(new.len()));
    let mut changed = pages().skip_while(|page| new[page.clone()] == old[page.clone()]);
    let first = changed.next()?;
    let last = changed.take_while(|page| new[page.clone()] != old[page.clone()]).last();
    Some(first.start..last.map_or(first.end, |last| last.end))
}

impl<F: FileSystem + Send> Volume<F> {
    /// Writes back what was stored into `ino`, if it is mapped, in turns of the user `uid`.
    ///
    /// # Errors
    /// The first of those of [`FileSystem::write`]; what could not be written back stays to be.
    pub(crate) fn write_back_file(&self, uid: u32, ino: Ino, now: Timespec) -> Result<()> {
        self.write_back_range(uid, ino, 0..u64::MAX, now, &|| {})
    }

    /// The same of `range` alone; `goes_on` is called after each step.
    ///
    /// # Errors
    /// As [`write_back_file`](Self::write_back_file).
    pub(crate) fn write_back_range(
        &self,
        uid: u32,
        ino: Ino,
        range: Range<u64>,
        now: Timespec,
        goes_on: &dyn Fn(),
    ) -> Result<()> {
        let (mut at, mut result) = (Some(range.start), Ok(()));
        while let Some(from) = at {
            let mut state = self.take_turn(uid)?;
            let (next, written) = state.write_back_step(&volume_context(now), ino, from..range.end);
            (at, result) = (next, result.and(written));
            drop(state);
            goes_on();
        }
        result
    }

    /// Writes back what was stored into the files that `chosen` picks by the sessions that map
    /// them.
    fn write_back_some(
        &self,
        uid: u32,
        now: Timespec,
        chosen: impl Fn(&File) -> bool,
    ) -> Result<()> {
        // In order, so that one history of calls has one history of writes.
        let files: BTreeSet<Ino> = {
            let state = self.lock()?;
            if state.mapped.files.is_empty() {
                return Ok(());
            }
            let all = state.mapped.files.iter();
            all.filter(|(_, file)| chosen(file)).map(|(ino, _)| *ino).collect()
        };
        let mut result = Ok(());
        for ino in files {
            result = result.and(self.write_back_file(uid, ino, now));
        }
        result
    }

    /// Writes back what was stored into any file.
    ///
    /// # Errors
    /// The first; the other files are written back all the same.
    pub fn write_back(&self, now: Timespec) -> Result<()> {
        self.write_back_some(ITSELF, now, |_| true)
    }

    /// Writes back what the session `id` of the user `uid`, which ends, can have stored.
    pub(crate) fn write_back_session(&self, id: SessionId, uid: u32, now: Timespec) {
        if let Err(error) = self.write_back_some(uid, now, |file| file.is_of(id)) {
            log::error!("stores of a client that has ended could not be written back: {error}");
        }
    }

    /// A part of writing back `stores` for the session `id` of the user `uid`: in the file
    /// `from.0`, or in the next one that is mapped, from the offset `from.1` on. Returns where the
    /// next part begins, if there is one.
    ///
    /// # Errors
    /// Those of [`FileSystem::write`], of stores into the one file, or into one that either
    /// has mapped: what others cannot write back is no fault of theirs. After an error the volume
    /// writes the rest back when it next does that by itself.
    fn write_back_part(
        &self,
        (id, uid): (SessionId, u32),
        stores: Stores,
        from: (Ino, u64),
        now: Timespec,
    ) -> Result<Option<(Ino, u64)>> {
        let mut state = self.take_turn(uid)?;
        let files = &state.mapped.files;
        let ino = match stores {
            Stores::Of(ino) => Some(ino),
            Stores::All => files.keys().filter(|ino| **ino >= from.0).min().copied(),
        };
        let Some(ino) = ino else { return Ok(None) };
        let at = if ino == from.0 { from.1 } else { 0 };
        let own = |file: &File| {
            let mut mappers = file.memories().flat_map(|(_, memory)| &memory.sessions);
            mappers.any(|(by, mapper)| *by == id || mapper.uid == uid)
        };
        let counts = matches!(stores, Stores::Of(_)) || files.get(&ino).is_some_and(own);
        let (next, written) = state.write_back_step(&volume_context(now), ino, at..u64::MAX);
        if counts {
            written?;
        }
        Ok(match (next, stores) {
            (Some(at), _) => Some((ino, at)),
            (None, Stores::Of(_)) => None,
            (None, Stores::All) => ino.0.checked_add(1).map(|next| (Ino(next), 0)),
        })
    }
}

impl<F: FileSystem + Send> Session<F> {
    /// Writes back `stores`, all of them; or a part, where the carrier takes the request back.
    ///
    /// # Errors
    /// Those of [`FileSystem::write`]; `EAGAIN` when a part was done, and the rest is left.
    pub(crate) fn write_back_stores(&mut self, cx: &Context, stores: Stores) -> Result<()> {
        let first = match stores {
            Stores::Of(ino) => (ino, 0),
            Stores::All => (Ino(0), 0),
        };
        let mut from = self.stored.take().unwrap_or(first);
        let by = (self.own.id, self.own.peer.uid);
        while let Some(next) = self.volume.write_back_part(by, stores, from, cx.now)? {
            if self.yields() {
                self.left.set(Some(Rest::Stored(next.0, next.1)));
                return Err(Errno::EAGAIN);
            }
            from = next;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use atoll_vfs::model::ModelFs;
    use atoll_vfs::{FallocateMode, Handle, Name, OpenFlags, SeekTo, SetAttr, Written};

    use super::*;
    use crate::mapped::files::Leaves;
    use crate::rights::limits::Limits;
    use crate::syncs::queue::Ask;
    use crate::{Access, Credentials};

    const CX: Context = Context { uid: 0, gid: 0, now: Timespec { sec: 0, nsec: 0 } };
    const RW: OpenFlags = OpenFlags::READ.union(OpenFlags::WRITE);
    const LEN: u64 = 2 << 20;

    type Asks<'a> = dyn Fn(&mut Session<ModelFs>) -> Result<()> + 'a;

    fn session(volume: &Arc<Volume<ModelFs>>, uid: u32) -> Session<ModelFs> {
        let peer = Credentials { uid, gid: uid, ..Credentials::default() };
        let limits = Limits { mapped: u64::MAX, ..Limits::default() };
        volume.session(peer, Access { limits, ..Access::default() }).unwrap()
    }

    /// A file of `LEN` bytes, of which those of each chunk are there, mapped.
    fn mapped(session: &mut Session<ModelFs>, name: &str) -> (Ino, Handle) {
        let name = Name::new(name.as_bytes()).unwrap();
        let (attr, handle) = session.create(&CX, Ino::ROOT, name, 0o600, RW).unwrap();
        for at in (0..LEN).step_by(CHUNK as usize) {
            session.write(&CX, attr.ino, handle, at, b"old").unwrap();
        }
        session.write(&CX, attr.ino, handle, LEN - 1, b"!").unwrap();
        let token = session.map(&CX, attr.ino, handle, 0, LEN).unwrap().token;
        session.volume().mapped_memory(token, |_, _| Ok(())).unwrap();
        (attr.ino, handle)
    }

    fn store(volume: &Arc<Volume<ModelFs>>, ino: Ino, at: u64, data: &[u8]) {
        volume.lock().unwrap().mapped.files[&ino]
            .whole
            .as_ref()
            .unwrap()
            .pages
            .write(at, data)
            .unwrap();
    }

    fn content(volume: &Arc<Volume<ModelFs>>, (ino, handle): (Ino, Handle), at: u64) -> [u8; 3] {
        let mut found = [0; 3];
        let mut state = volume.lock().unwrap();
        let open = state.mapped.files[&ino].open;
        assert_ne!(open.handle, handle);
        state.fs.read(&CX, ino, open.handle, at, &mut found).unwrap();
        found
    }

    /// However much is stored, a turn of its client compares so much of it and no more.
    #[test]
    fn syncs_and_seeks_write_back_in_turns() {
        let volume = crate::testing::volume();
        let mut user = session(&volume, 7);
        let mut other = session(&volume, 8);
        let set = SetAttr { mode: Some(0o777), ..SetAttr::default() };
        session(&volume, 0).setattr(&CX, Ino::ROOT, None, &set).unwrap();
        let files = [mapped(&mut user, "a"), mapped(&mut user, "b"), mapped(&mut other, "c")];
        user.carried();
        let (ino, handle) = files[0];
        let whole = (LEN / STEP) as u32;
        let asks: [(u32, &Asks<'_>); 5] = [
            (1, &|user| {
                let ask = Ask::File { handle, data_only: true };
                user.prepare_sync(&CX, ino, ask).map(drop)
            }),
            (3, &|user| user.prepare_sync(&CX, Ino::ROOT, Ask::All).map(drop)),
            (1, &|user| user.fsync(&CX, ino, handle, false)),
            (1, &|user| user.seek(&CX, ino, handle, 0, SeekTo::Hole).map(drop)),
            (3, &|user| user.syncfs(&CX)),
        ];
        for (number, (count, ask)) in (b'0'..).zip(asks) {
            let stored = [b'n', b'o', number];
            let ends = files.iter().flat_map(|file| [(*file, 0), (*file, LEN - CHUNK)]);
            ends.clone().for_each(|(file, at)| store(&volume, file.0, at, &stored));
            let (mut rest, mut turns) = (None, 0);
            loop {
                user.begins(rest, true);
                let made = ask(&mut user);
                turns += 1;
                assert!(volume.state.try_lock().is_ok());
                rest = user.left.take();
                if rest.is_none() {
                    made.unwrap();
                    break;
                }
                assert_eq!(made, Err(Errno::EAGAIN));
            }
            assert!(turns >= whole * count && turns <= (whole + 1) * count, "{turns}");
            for (file, at) in ends.take(2 * count as usize) {
                assert_eq!(content(&volume, file, at), stored, "{number} {at}");
            }
        }
    }

    /// Parts in which nothing is take a search each.
    #[test]
    fn empty_parts_count_too() {
        let volume = crate::testing::volume();
        let mut user = session(&volume, 0);
        let name = Name::new(b"f").unwrap();
        let (attr, handle) = user.create(&CX, Ino::ROOT, name, 0o600, RW).unwrap();
        let set = SetAttr { size: Some(1 << 40), ..SetAttr::default() };
        user.setattr(&CX, attr.ino, None, &set).unwrap();
        for part in 0..1000 {
            user.map(&CX, attr.ino, handle, part << 30, 1).unwrap();
        }
        volume
            .lock()
            .unwrap()
            .mapped
            .files
            .get_mut(&attr.ino)
            .unwrap()
            .whole
            .as_mut()
            .unwrap()
            .stores = true;
        user.carried();
        let (mut rest, mut turns) = (None, 0);
        loop {
            user.begins(rest, true);
            let made = user.fsync(&CX, attr.ino, handle, false);
            rest = user.left.take();
            if rest.is_none() {
                break made.unwrap();
            }
            turns += 1;
        }
        assert_eq!(turns, 1000 * SEARCH / STEP);
    }

    /// Stores for which there is no space take nothing from others.
    #[test]
    fn what_one_cannot_write_back_is_no_fault_of_others() {
        let volume = crate::testing::volume();
        let mut user = session(&volume, 7);
        let mut other = session(&volume, 8);
        let set = SetAttr { mode: Some(0o777), ..SetAttr::default() };
        session(&volume, 0).setattr(&CX, Ino::ROOT, None, &set).unwrap();
        let file = mapped(&mut user, "a");
        let ours = mapped(&mut other, "b");
        // The file system takes nothing of the one file.
        let (ino, handle) = file;
        let open = volume.lock().unwrap().mapped.files[&ino].open;
        volume.lock().unwrap().fs.release(&CX, ino, open.handle).unwrap();
        store(&volume, ino, 0, b"no!");
        store(&volume, ours.0, 0, b"yes");
        assert!(user.fsync(&CX, ino, handle, false).is_err());
        assert!(user.syncfs(&CX).is_err());
        assert_eq!(other.syncfs(&CX), Ok(()));
        assert_eq!(content(&volume, ours, 0), *b"yes");
        let hole = FallocateMode::PUNCH_HOLE | FallocateMode::KEEP_SIZE;
        other.fallocate(&CX, ours.0, ours.1, CHUNK, 1, hole).unwrap();
        assert!(volume.commit(CX.now).is_err());
        assert!(!volume.lock().unwrap().changed, "all else is durable");
    }

    /// A file system without space for some of the bytes of files.
    struct Tight {
        fs: ModelFs,
        full: Vec<Range<u64>>,
    }

    macro_rules! pass {
        ($self:ident $verb:ident ($($arg:ident),*)) => { $self.fs.$verb($($arg),*) };
    }

    impl FileSystem for Tight {
        atoll_vfs::verbs!(pass: lookup forget getattr setattr readlink mknod mkdir symlink unlink
            rmdir rename link open create tmpfile read accessed copy_file_range fallocate seek fsync
            release opendir readdir releasedir fsyncdir syncfs begin_sync end_sync checkpoint_step
            work_in_steps take_rest free_step statfs setxattr getxattr listxattr removexattr);

        fn write(
            &mut self,
            cx: &Context,
            ino: Ino,
            handle: Handle,
            offset: u64,
            data: &[u8],
        ) -> Result<Written> {
            let end = offset + data.len() as u64;
            if self.full.iter().any(|full| full.start < end && offset < full.end) {
                return Err(Errno::ENOSPC);
            }
            self.fs.write(cx, ino, handle, offset, data)
        }
    }

    /// Stores that find no space, wherever they are in a file, take nothing from those that do.
    #[test]
    fn what_has_space_is_written_back_beside_what_has_none() {
        const BLOCK: u64 = PAGE as u64;
        type Way = dyn Fn(&mut Session<Tight>, Ino, Handle) -> Result<()>;
        let ways: [&Way; 7] = [
            &|s, ino, _| s.volume.clone().write_back_file(s.own.peer.uid, ino, CX.now),
            &|s, _, _| s.volume.clone().write_back(CX.now),
            &|s, ino, _| {
                // A step at a time, as for a mapping that is to end.
                let volume = s.volume.clone();
                let mut state = volume.lock().unwrap();
                let when = state.host.uptime();
                let leaves = Some(Leaves { from: Some(0), when });
                state.mapped.files.get_mut(&ino).unwrap().leaves = leaves;
                while state.leave_step(ino) == Some(false) {}
                Err(Errno::ENOSPC)
            },
            &|s, _, _| {
                s.volume.lock().unwrap().finish_mappings(CX.now);
                Err(Errno::ENOSPC)
            },
            &|s, _, _| {
                s.volume.write_back_session(s.own.id, s.own.peer.uid, CX.now);
                Err(Errno::ENOSPC)
            },
            // The caller is told; the rest is written when the volume next does that by itself.
            &|s, ino, handle| {
                s.fsync(&CX, ino, handle, false).or(s.volume.tend_mappings(CX.now, &|| {}))
            },
            &|s, _, _| s.syncfs(&CX).or(s.volume.tend_mappings(CX.now, &|| {})),
        ];
        for (number, way) in (b'0'..).zip(ways) {
            let fs = Tight { fs: ModelFs::default(), full: Vec::new() };
            let host = Arc::<crate::testing::StillHost>::default();
            let volume = Volume::new(fs, "v", host);
            let limits = Limits { mapped: u64::MAX, ..Limits::default() };
            let access = Access { limits, ..Access::default() };
            let mut user = volume.session(Credentials::default(), access).unwrap();
            let name = Name::new(b"f").unwrap();
            let (attr, handle) = user.create(&CX, Ino::ROOT, name, 0o600, RW).unwrap();
            let ino = attr.ino;
            let len = 320 * BLOCK;
            user.write(&CX, ino, handle, 0, &vec![b'-'; len as usize]).unwrap();
            let token = user.map(&CX, ino, handle, 0, len).unwrap().token;
            volume.mapped_memory(token, |_, _| Ok(())).unwrap();
            // The first block, some within a run of stores, and the end of a chunk.
            let full = [0..1, 3..5, 8..9, CHUNK / BLOCK - 1..CHUNK / BLOCK + 1, 300..301];
            let full = full.map(|blocks| blocks.start * BLOCK..blocks.end * BLOCK);
            volume.lock().unwrap().fs.full = full.to_vec();
            let runs = [0..12, CHUNK / BLOCK - 2..CHUNK / BLOCK + 2, 100..101, 299..303, 319..320];
            let blocks = || runs.iter().cloned().flatten().map(|block| block * BLOCK);
            for at in blocks() {
                let mut state = volume.lock().unwrap();
                let file = state.mapped.files.get_mut(&ino).unwrap();
                file.whole.as_mut().unwrap().pages.write(at + 5, &[number; 3]).unwrap();
            }
            assert_eq!(way(&mut user, ino, handle), Err(Errno::ENOSPC));
            let mut state = volume.lock().unwrap();
            let check = state.fs.open(&CX, ino, OpenFlags::READ).unwrap();
            for at in blocks() {
                let mut found = [0; 3];
                state.fs.read(&CX, ino, check, at + 5, &mut found).unwrap();
                let fits = !full.iter().any(|full| full.contains(&at));
                let right = if fits { [number; 3] } else { *b"---" };
                assert_eq!(found, right, "way {} block {}", number - b'0', at / BLOCK);
            }
            drop(state);
        }
    }
}
