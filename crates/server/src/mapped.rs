//! Files that clients have mapped: memory that is the content for everybody.
//!
//! The first mapping of a part of a file copies that part into memory (`Pages`) whose descriptor
//! the client gets and maps. From then on, for as long as any client has it:
//!
//! - Reads by anybody come from the memory, so that a store is seen as soon as it is made.
//! - Writes, cuts and punched holes change the file system and the memory.
//! - Stores of clients are found by comparing the memory with the file system, and written back:
//!   for fsync(2) and msync(2), when a session that has the file mapped ends, every
//!   [`WRITE_BACK_INTERVAL`] (less often where comparing would take more than a fiftieth of the
//!   time), and when the server ends as it should.
//! - No cache of the server's holds data of the file (see `Guarded::is_mapped`).
//!
//! A crash of the server loses the stores since they were last written back, none of which was
//! promised to last, and nothing else: writing back is an ordinary write. The clients' memory then
//! belongs to no file any more.
//!
//! Stores beyond the end of the file go nowhere: they are zeros again when the file gets there.
//!
//! The server copies memory that clients may change before it looks at it. A client's change of the
//! memory by its descriptor is the same as a store.

use std::any::Any;
use std::cell::Cell;
use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap};
use std::ops::Range;
use std::time::Duration;

use atoll_vfs::{
    Context, Errno, FileSystem, Handle, Ino, OpenFlags, Rest, Result, Room, SeekTo, Timespec,
};

use crate::guarded::Guarded;
use crate::host::{PAGES_LEN, Pages};
use crate::leases::observer::{Change, Content, Now};
use crate::mapped::beyond::Beyond;
use crate::mapped::files::{File, Leaves, Mapper, Orphan, Parts, STEP, length, new_token, overlap};
use crate::open::handles::{Open, Origin};
use crate::rights::identity::{Access, SessionId};
use crate::session::Session;
use crate::session::concerns::LOOK;
use crate::volume::{ITSELF, Volume, Waits};

pub(crate) mod beyond;
pub(crate) mod files;
pub(crate) mod write_back;
mod zeroing;

pub use atoll_vfs::abi::MapToken;
pub use files::Mapping;

/// The longest that a store waits until it is written back without anybody's asking.
pub const WRITE_BACK_INTERVAL: Duration = Duration::from_secs(1);
/// The most bytes of files that the mappings of one volume may have in memory.
pub const MAPPED_MAX: u64 = 4 << 30;
/// The most files of one volume that are mapped; each takes a descriptor.
pub const MAPPED_FILES_MAX: usize = 1024;

/// A file is left alone for this many times as long as comparing it took.
const REST: u32 = 50;
/// The unit of mapped parts, so that their list stays short.
const CHUNK: u64 = 64 << 10;
/// The unit in which stores are found.
const PAGE: usize = 4096;
/// A write-back before a mapping ends counts for so long: the call for which it ends may never be
/// made again.
const LEAVES: Duration = Duration::from_secs(10);
/// How many times the memory is found unused before it is let go of: a client that was told the
/// token needs time to come for it.
const GRACE: u32 = 2;

impl<F: FileSystem> Guarded<F> {
    /// Whether clients may change the content of `ino` without a call: nothing that has been read
    /// of it stays true. When a file becomes mapped, that is told as a change of all its content.
    #[inline]
    pub(crate) fn is_mapped(&self, ino: Ino) -> bool {
        !self.mapped.files.is_empty() && self.mapped.files.contains_key(&ino)
    }

    /// Begins to map `ino` for `by`, or goes on with it: brings at most [`STEP`] bytes of `range`,
    /// a multiple of [`CHUNK`], into memory. Returns the tokens, one for loads and one for stores
    /// too, when all is there.
    fn map(
        &mut self,
        cx: &Context,
        by: SessionId,
        ino: Ino,
        range: &Range<u64>,
        access: &Access,
    ) -> Result<Option<(MapToken, MapToken)>> {
        let files = &self.mapped.files;
        let known = files.get(&ino);
        if !known.is_some_and(|file| file.sessions.contains_key(&by)) {
            let own = files.values().filter(|file| file.sessions.contains_key(&by)).count();
            let all = files.len() + self.mapped.orphans.len();
            let room = known.is_some() || all < MAPPED_FILES_MAX;
            if own >= access.limits.mapped_files || !room {
                return Err(Errno::ENOMEM);
            }
        }
        if known.is_none() {
            self.begin_mapping(cx, by, ino)?;
        }
        let size = self.fs.getattr(cx, ino)?.size;
        let (all, others) = (self.mapped.bytes(), self.mapped.bytes_of(by, ino));
        let Guarded { fs, mapped, .. } = self;
        let file = mapped.files.get_mut(&ino).ok_or(Errno::EIO)?;
        file.grace = GRACE;
        file.unused = false;
        let mapper = match file.sessions.entry(by) {
            Entry::Occupied(mapper) => mapper.into_mut(),
            Entry::Vacant(place) => place.insert(Mapper::new(cx.uid, access)?),
        };
        mapper.uid = cx.uid;
        let Some(mut gap) = file.covered.gap(range) else {
            return Ok(Some((file.reader, file.writer)));
        };
        // Beyond the end there is nothing to copy, but maybe something to make zeros of.
        gap.end = match gap.start < size {
            true => gap.end.min(gap.start + STEP),
            false => file.pages.reach(gap.start, gap.end, STEP)?.0,
        };
        // In whole chunks, as writes are counted.
        let counted = overlap(&gap, &(0..size.next_multiple_of(CHUNK)));
        let bytes = length(&counted);
        let own = others + mapper.bytes + bytes;
        if own > access.limits.mapped || all + bytes > MAPPED_MAX {
            return Err(Errno::ENOMEM);
        }
        if !file.covered.takes(&gap) || bytes > 0 && !file.counted.takes(&counted) {
            return Err(Errno::ENOMEM);
        }
        mapper.count(bytes)?;
        if let Err(error) = fill(fs, cx, file.open, &*file.pages, &gap, size) {
            // The copied pages belong to nobody and are freed.
            let _ = file.pages.zero(gap.start, gap.end);
            mapper.uncount(bytes);
            return Err(error);
        }
        file.covered.add(gap)?;
        if bytes > 0 {
            file.counted.add(counted)?;
        }
        Ok(file.covered.gap(range).is_none().then_some((file.reader, file.writer)))
    }

    fn begin_mapping(&mut self, cx: &Context, by: SessionId, ino: Ino) -> Result<()> {
        let pages = self.host.pages()?;
        let (reader, writer) = (new_token(&*self.host)?, new_token(&*self.host)?);
        let both = OpenFlags::READ | OpenFlags::WRITE;
        let (handle, flags) = match self.fs.open(cx, ino, both) {
            Ok(handle) => (handle, both),
            Err(Errno::EROFS) => (self.fs.open(cx, ino, OpenFlags::READ)?, OpenFlags::READ),
            Err(error) => return Err(error),
        };
        let file = File {
            pages,
            open: Open { ino, handle, flags: Some(flags), origin: Origin::Own },
            covered: Parts::default(),
            counted: Parts::default(),
            reader,
            writer,
            sessions: HashMap::new(),
            stores: false,
            grace: GRACE,
            rests: None,
            unused: false,
            leaves: None,
            beyond: Beyond::default(),
        };
        self.mapped.tokens.extend([(reader, ino), (writer, ino)]);
        self.mapped.files.insert(ino, file);
        let content = Content { ino, offset: 0, len: u64::MAX, now: Now::Same, grew: None };
        self.tell_content(cx, by, content);
        Ok(())
    }

    /// Ends the mapping of `ino` by all sessions. Clients that still have the memory keep it, and
    /// it counts on: as after a crash of the server it belongs to no file any more, and msync(2)
    /// says EIO. Returns memory that nobody has, to be freed without the lock: that takes long.
    fn end_mapping(&mut self, cx: &Context, ino: Ino) -> Option<Box<dyn Pages>> {
        let file = self.mapped.files.remove(&ino)?;
        self.mapped.tokens.remove(&file.reader);
        self.mapped.tokens.remove(&file.writer);
        // The file was open for this alone.
        let _ = self.close(cx, (SessionId::VOLUME, 0), &file.open);
        if file.unused {
            return Some(file.pages);
        }
        let mappers = file.sessions.into_values().collect();
        self.mapped.orphans.push(Orphan { pages: file.pages, mappers });
        None
    }

    /// Replaces what was read at `offset` from the file system by the mapped parts of `ino`.
    /// Returns whether `ino` is mapped.
    #[inline]
    pub(crate) fn read_mapped(&self, ino: Ino, offset: u64, room: &mut Room<'_>) -> Result<bool> {
        if self.mapped.files.is_empty() {
            return Ok(false);
        }
        let Some(file) = self.mapped.files.get(&ino) else { return Ok(false) };
        let mut at = offset;
        for piece in room.iter_mut() {
            let end = at.saturating_add(piece.len() as u64);
            for part in file.within(at..end) {
                let place = (part.start - at) as usize..(part.end - at) as usize;
                file.pages.read(part.start, &mut piece[place])?;
            }
            at = end;
        }
        Ok(true)
    }

    /// The size of `ino` before `by` changes its content, and writes `range` of it, if an observer
    /// has to hear how long it was: its mappings, or another client's kernel that reads it through
    /// its page cache. Up to `zeros` the change puts nothing where the file ends before.
    ///
    /// The written bytes take memory where the file is mapped, and count as that of the sessions
    /// that have mapped it. Where they may have no more their mapping is let go of, so that
    /// nobody's mapping keeps another from writing.
    ///
    /// # Errors
    /// `ENOMEM` where there is no room, and nobody but the writing user has it mapped; `EAGAIN`
    /// where the call is to be made again, see `let_go` and [`before_growth`](Self::before_growth).
    pub(crate) fn size_before(
        &mut self,
        cx: &Context,
        by: SessionId,
        ino: Ino,
        range: Range<u64>,
        zeros: u64,
    ) -> Result<Option<u64>> {
        let mapped = self.is_mapped(ino);
        if !mapped && !self.caches.is_buffered(by, ino) {
            return Ok(None);
        }
        if mapped {
            self.count_write(cx, ino, &range)?;
        }
        let size = self.fs.getattr(cx, ino)?.size;
        self.before_growth(cx, ino, size, zeros)?;
        Ok(Some(size))
    }

    fn count_write(&mut self, cx: &Context, ino: Ino, range: &Range<u64>) -> Result<()> {
        let Some(mut file) = self.mapped.files.remove(&ino) else { return Ok(()) };
        let own: u64 = file.sessions.values().map(|mapper| mapper.bytes).sum();
        let room = MAPPED_MAX.saturating_sub(self.mapped.bytes() + own);
        let counted = file.count(range, CHUNK, |id| self.mapped.bytes_of(id, ino), room);
        let others = file.sessions.values().any(|mapper| mapper.uid != cx.uid);
        self.mapped.files.insert(ino, file);
        match counted {
            Err(_) if others => self.let_go(cx, ino),
            counted => {
                if let Some(file) = self.mapped.files.get_mut(&ino) {
                    file.leaves = None;
                }
                counted
            }
        }
    }

    /// Writes back what was stored into `ino`, and ends its mapping, though clients have it.
    ///
    /// # Errors
    /// `EAGAIN` where calls leave what takes long: the call is made again when enough
    /// [steps](Self::leave_step) have been made. Bytes that clients store meanwhile where a step
    /// has been are lost with the mapping.
    fn let_go(&mut self, cx: &Context, ino: Ino) -> Result<()> {
        let now = self.host.uptime();
        let Some(file) = self.mapped.files.get_mut(&ino) else { return Ok(()) };
        let begun = file.leaves.filter(|leaves| now.saturating_sub(leaves.when) < LEAVES);
        if begun.is_none_or(|leaves| leaves.from.is_some()) {
            if begun.is_none() {
                file.leaves = Some(Leaves { from: Some(0), when: now });
            }
            if self.removals.are_served() {
                self.mapped.first = Some(ino);
                return Err(Errno::EAGAIN);
            }
            while self.leave_step(ino) == Some(false) {}
        }
        log::warn!("inode {} is not mapped any more: its mappings have all they may", ino.0);
        self.end_mapping(&volume_context(cx.now), ino);
        Ok(())
    }

    /// A step of writing back what was stored into `ino`, whose mapping is to end. Returns whether
    /// it was the last; `None` where there is none to be made.
    pub(crate) fn leave_step(&mut self, ino: Ino) -> Option<bool> {
        let from = self.mapped.files.get(&ino)?.leaves?.from?;
        let own = volume_context(self.host.now());
        let (from, written) = self.write_back_step(&own, ino, from);
        if let Err(error) = written {
            // Another's stores that find no space are no fault of this write.
            log::error!("stores into inode {} are lost: {error}", ino.0);
        }
        let when = self.host.uptime();
        self.mapped.files.get_mut(&ino)?.leaves = Some(Leaves { from, when });
        Some(from.is_none())
    }

    /// Tells of a change of content, and ends the mappings in which it could not be made.
    pub(crate) fn tell_content(&mut self, cx: &Context, by: SessionId, content: Content<'_>) {
        self.tell(by, Change::Content(content));
        while let Some(ino) = self.mapped.lost.pop() {
            self.end_mapping(cx, ino);
        }
        self.leave_beyond();
    }

    /// Writes everything back and ends all mappings, before the file system is taken out.
    pub(crate) fn finish_mappings(&mut self, now: Timespec) {
        let cx = volume_context(now);
        for ino in self.mapped.files.keys().copied().collect::<BTreeSet<_>>() {
            let mut at = Some(0);
            while let Some(from) = at {
                let (next, written) = self.write_back_step(&cx, ino, from);
                if let Err(error) = written {
                    log::error!("stores into inode {} are lost: {error}", ino.0);
                }
                at = next;
            }
            self.end_mapping(&cx, ino);
        }
    }
}

/// Brings what the file system has of `gap`, a part of a file of `size` bytes, into `pages`.
fn fill<F: FileSystem>(
    fs: &mut F,
    cx: &Context,
    open: Open,
    pages: &dyn Pages,
    gap: &Range<u64>,
    size: u64,
) -> Result<()> {
    // Clients may have written where nothing of the file was.
    pages.zero(gap.start, gap.end)?;
    let mut buffer = vec![0; CHUNK as usize];
    let mut at = gap.start;
    while at < gap.end.min(size) {
        match data_from(fs, cx, open, at)? {
            Some(data) => at = data,
            None => break,
        }
        let end = gap.end.min(size).min(at.saturating_add(CHUNK));
        if at >= end {
            break;
        }
        let part = &mut buffer[..(end - at) as usize];
        let read = fs.read(cx, open.ino, open.handle, at, part)?;
        if read == 0 {
            break;
        }
        pages.write(at, &part[..read])?;
        at += read as u64;
    }
    Ok(())
}

/// An offset from `at` on before which the file system has nothing, as far as that can be said
/// without a long search; `None` at the end. No call before it has left a rest.
pub(crate) fn data_from<F: FileSystem>(
    fs: &mut F,
    cx: &Context,
    open: Open,
    at: u64,
) -> Result<Option<u64>> {
    let before = fs.work_in_steps(true);
    let found = fs.seek(cx, open.ino, open.handle, at, SeekTo::Data);
    let rest = fs.take_rest();
    fs.work_in_steps(before);
    match (found, rest) {
        (_, Some(Rest::From(next))) => Ok(Some(next)),
        (Err(Errno::ENXIO), _) => Ok(None),
        (found, _) => found.map(Some),
    }
}

/// The context with which the volume itself works.
fn volume_context(now: Timespec) -> Context {
    Context { uid: 0, gid: 0, now }
}

impl<F: FileSystem + Send> Volume<F> {
    /// Maps `range` of `ino` for the session `by` of the user `uid`, within what `access` allows.
    pub(crate) fn map(
        &self,
        cx: &Context,
        by: SessionId,
        ino: Ino,
        range: Range<u64>,
        (uid, access): (u32, &Access),
    ) -> Result<(MapToken, MapToken)> {
        if range.end > PAGES_LEN {
            return Err(Errno::EFBIG);
        }
        let range = range.start / CHUNK * CHUNK..range.end.next_multiple_of(CHUNK);
        loop {
            let mut state = self.take_turn(uid)?;
            if let Some(tokens) = state.map(cx, by, ino, &range, access)? {
                return Ok(tokens);
            }
        }
    }

    /// Passes the memory that is the content of a mapped file to `give`, for a client. Returns the
    /// result, and whether the memory is for stores too. An offset in the memory is the same offset
    /// in the file; only what was mapped with [`Session::map`] is in it, and nothing beyond the end
    /// of the file stays.
    ///
    /// # Errors
    /// `ESTALE` if nobody has the file mapped any more; those of `give`.
    pub fn mapped_memory<T>(
        &self,
        token: MapToken,
        give: impl FnOnce(&dyn Any, bool) -> Result<T>,
    ) -> Result<(T, bool)> {
        let mut state = self.lock()?;
        let (ino, file) = state.mapped.file(token)?;
        let writable = token == file.writer;
        let memory = give(&*file.pages, writable)?;
        if let Some(file) = state.mapped.files.get_mut(&ino) {
            file.stores |= writable;
            file.grace = GRACE;
            file.unused = false;
        }
        Ok((memory, writable))
    }

    /// Whether `token` is one of this volume's.
    pub fn has_mapped(&self, token: MapToken) -> bool {
        self.lock().is_ok_and(|state| state.mapped.file(token).is_ok())
    }

    /// Makes durable what was stored into a mapped file until now, for the user `uid`: msync(2).
    ///
    /// # Errors
    /// `ESTALE` if nobody has the file mapped any more: then everything has been written back, and
    /// lasts from the next commit on. Those of [`FileSystem::write`] and [`FileSystem::fsync`].
    pub fn sync_mapped(&self, token: MapToken, uid: u32, now: Timespec) -> Result<()> {
        let ino = self.lock()?.mapped.file(token)?.0;
        self.write_back_file(uid, ino, now)?;
        self.sync(false)?;
        // No kernel shows the times of before when this returns.
        let left = Cell::default();
        self.enter(Waits::Here, 0, &left)?.involved.add(ino);
        Ok(())
    }

    /// Writes back what is due, and ends the mappings that nobody uses: to be called every
    /// [`WRITE_BACK_INTERVAL`]. `goes_on` is called after each step.
    ///
    /// # Errors
    /// As [`write_back`](Self::write_back).
    pub fn tend_mappings(&self, now: Timespec, goes_on: &dyn Fn()) -> Result<()> {
        let due: Vec<(Ino, bool)> = {
            // Freed when the lock has been released.
            let _gone: Vec<Orphan>;
            let mut guard = self.lock()?;
            let mapped = &mut guard.mapped;
            _gone = mapped.orphans.extract_if(.., |orphan| !orphan.pages.is_shared()).collect();
            let mut due = Vec::new();
            let mut rested = false;
            for (ino, file) in &mut mapped.files {
                // One of them, so that it takes no time.
                rested = rested || file.pages.rest();
                file.unused = file.grace == 0 && !file.pages.is_shared();
                file.grace = file.grace.saturating_sub(1);
                if file.unused || file.rests.is_none_or(|until| until <= self.host.uptime()) {
                    due.push((*ino, file.unused));
                }
            }
            due
        };
        let mut result = Ok(());
        for (ino, unused) in due {
            let begun = self.host.uptime();
            result = result.and(self.write_back_steps(ITSELF, ino, now, goes_on));
            let _gone;
            let mut state = self.lock()?;
            let Some(file) = state.mapped.files.get_mut(&ino) else { continue };
            let ended = self.host.uptime();
            file.rests = Some(ended + ended.saturating_sub(begun) * REST);
            // Stores from before the last client let go have been written back.
            if unused && file.unused {
                _gone = state.end_mapping(&volume_context(now), ino);
            }
        }
        result
    }

    /// Ends the mappings that nobody uses now, for one who wants to map and finds no room. Who was
    /// told a token and has not come for the memory yet begins again.
    pub fn end_unused_mappings(&self, now: Timespec) {
        let unused: Vec<Ino> = {
            let _gone: Vec<Orphan>;
            let Ok(mut guard) = self.lock() else { return };
            let mapped = &mut guard.mapped;
            _gone = mapped.orphans.extract_if(.., |orphan| !orphan.pages.is_shared()).collect();
            let files = mapped.files.iter_mut();
            files
                .filter_map(|(ino, file)| {
                    file.unused = !file.pages.is_shared();
                    file.unused.then_some(*ino)
                })
                .collect()
        };
        for ino in unused {
            if self.write_back_file(ITSELF, ino, now).is_err() {
                continue;
            }
            let _gone;
            let Ok(mut state) = self.lock() else { return };
            if state.mapped.files.get(&ino).is_some_and(|file| file.unused) {
                _gone = state.end_mapping(&volume_context(now), ino);
            }
        }
    }
}

impl<F: FileSystem + Send> Session<F> {
    /// Maps `len` bytes of an open file from `offset` on, for loads and, if it is open for writing
    /// too, for stores, which all others see at once (see the [module](self)).
    ///
    /// # Errors
    /// `EBADF`; `EACCES` for a file that is not open for reading; `EINVAL` for no bytes; `EFBIG`;
    /// `ENOMEM` beyond the limits; `ENOSYS` where the system lacks what it takes.
    pub fn map(
        &mut self,
        cx: &Context,
        ino: Ino,
        handle: Handle,
        offset: u64,
        len: u64,
    ) -> Result<Mapping> {
        if self.volume.is_foreign() {
            return Err(Errno::ENOSYS);
        }
        let open = self.file(ino, handle)?;
        let flags = open.flags.unwrap_or(OpenFlags::empty());
        if !flags.contains(OpenFlags::READ) {
            return Err(Errno::EACCES);
        }
        let end = offset.checked_add(len).ok_or(Errno::EFBIG)?;
        if len == 0 {
            return Err(Errno::EINVAL);
        }
        let writable = flags.contains(OpenFlags::WRITE) && !self.own.access.read_only;
        let (id, access) = (self.own.id, (self.own.peer.uid, &self.own.access));
        let judged = self.judge.context(cx);
        let (reader, writer) = self.volume.map(&judged, id, open.ino, offset..end, access)?;
        // No kernel has it in its cache when this is answered.
        let mut call = self.enter(cx, LOOK)?;
        call.state.involved.add(open.ino);
        // Loads are no calls: as on Linux, mapping counts as the access.
        let counts = !call.own.access.read_only && !flags.contains(OpenFlags::NOATIME);
        if call.state.relatime && counts {
            call.state.accessed(&call.cx, call.own.id, open.ino);
        }
        Ok(Mapping { token: if writable { writer } else { reader }, writable })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    use atoll_vfs::model::ModelFs;
    use atoll_vfs::{Name, Rest};

    use super::*;
    use crate::removals::Remover;
    use crate::rights::accounts::{Accounts, Resource, Shares};
    use crate::rights::limits::Limits;
    use crate::testing::{FREED, Noted, StillHost};
    use crate::{Credentials, Volume};

    const CX: Context = Context { uid: 0, gid: 0, now: Timespec { sec: 0, nsec: 0 } };

    /// Stored bytes are written back in steps when a mapping has to end, for a write that is made
    /// again after each.
    #[test]
    fn mappings_are_let_go_of_in_steps() {
        const LEN: u64 = 4 << 20;
        let volume = crate::testing::volume();
        let _remover = Remover::new(&volume, Arc::new(Noted::default()));
        let both = OpenFlags::READ | OpenFlags::WRITE;
        let mut owner = volume.session(Credentials::default(), Access::default()).unwrap();
        let name = Name::new(b"f").unwrap();
        let (attr, handle) = owner.create(&CX, Ino::ROOT, name, 0o666, both).unwrap();
        for at in (0..LEN).step_by(CHUNK as usize) {
            owner.write(&CX, attr.ino, handle, at, b"old").unwrap();
        }
        owner.write(&CX, attr.ino, handle, LEN - 1, b"!").unwrap();
        let limits = Limits { mapped: LEN, ..Limits::default() };
        let other = Credentials { uid: 7, gid: 7, ..Credentials::default() };
        let mut user = volume.session(other, Access { limits, ..Access::default() }).unwrap();
        let ino = user.lookup(&CX, Ino::ROOT, name).unwrap().ino;
        let by = user.open(&CX, ino, both).unwrap();
        let token = user.map(&CX, ino, by, 0, 2 * LEN).unwrap().token;
        volume.mapped_memory(token, |_, _| Ok(())).unwrap();
        let store = |at, data: &[u8]| {
            volume.lock().unwrap().mapped.files[&attr.ino].pages.write(at, data).unwrap();
        };
        store(5, b"first");
        store(LEN - CHUNK, b"last");
        owner.carried();
        let mut turns = 0;
        let written = loop {
            owner.begins(None, true);
            let written = owner.write(&CX, attr.ino, handle, LEN, b"grows");
            match owner.left.take() {
                None => break written,
                Some(rest) => assert_eq!((rest, written.is_err()), (Rest::After(attr.ino), true)),
            }
            turns += 1;
            assert!(volume.has_mapped(token), "until all is written back");
        };
        assert_eq!(written.map(|written| written.len), Ok(5));
        // Two steps a turn.
        assert_eq!(turns, LEN / STEP / 2);
        assert!(!volume.has_mapped(token));
        let mut read = |at| {
            let mut read = [0; 5];
            owner.read(&CX, attr.ino, handle, at, &mut read).unwrap();
            read
        };
        assert_eq!([read(5), read(LEN - CHUNK), read(LEN)], [*b"first", *b"last\0", *b"grows"]);
    }

    /// To free the memory of a file takes long: others do not wait for it.
    #[test]
    fn memory_is_freed_without_the_lock() {
        let host = Arc::new(StillHost::default());
        let volume = Volume::new(ModelFs::default(), "v", Arc::<StillHost>::clone(&host));
        let mut session = volume.session(Credentials::default(), Access::default()).unwrap();
        let both = OpenFlags::READ | OpenFlags::WRITE;
        let name = Name::new(b"f").unwrap();
        let (attr, handle) = session.create(&CX, Ino::ROOT, name, 0o600, both).unwrap();
        for orphan in [false, true] {
            host.unshare(false);
            session.map(&CX, attr.ino, handle, 0, 1).unwrap();
            if orphan {
                assert!(volume.lock().unwrap().end_mapping(&CX, attr.ino).is_none());
            }
            let free = Arc::new(AtomicU32::new(0));
            let (looked_at, held) = (Arc::clone(&free), Arc::clone(&volume));
            let look = move || {
                looked_at.store(1 + u32::from(held.state.try_lock().is_ok()), Ordering::Relaxed);
            };
            FREED.set(Some(Box::new(look)));
            host.unshare(true);
            for _ in 0..=GRACE {
                volume.tend_mappings(CX.now, &|| {}).unwrap();
            }
            assert_eq!(free.load(Ordering::Relaxed), 2, "{orphan}");
        }
    }

    /// A mapping that fails takes nothing of its user's share, and a write that ends behind all
    /// that a file can have leaves the volume alive.
    #[test]
    fn what_fails_is_not_charged() {
        let host = Arc::new(StillHost::default());
        let volume = Volume::new(ModelFs::default(), "v", Arc::<StillHost>::clone(&host));
        let account = Accounts::new(Shares::UNLIMITED).open(1, Shares::UNLIMITED);
        let access = Access { account: Some(Arc::clone(&account)), ..Access::default() };
        let mut session = volume.session(Credentials::default(), access).unwrap();
        let flags = OpenFlags::READ | OpenFlags::WRITE;
        let name = Name::new(b"f").unwrap();
        let (attr, handle) = session.create(&CX, Ino::ROOT, name, 0o600, flags).unwrap();
        session.write(&CX, attr.ino, handle, 0, b"content").unwrap();
        let before = account.has(Resource::Memory);
        host.fill(true);
        for _ in 0..3 {
            assert_eq!(session.map(&CX, attr.ino, handle, 0, 1), Err(Errno::ENOMEM));
            assert_eq!(account.has(Resource::Memory), before);
        }
        host.fill(false);
        session.map(&CX, attr.ino, handle, 0, 1).unwrap();
        assert_eq!(account.has(Resource::Memory), before + CHUNK);
        assert!(session.write(&CX, attr.ino, handle, u64::MAX - 2, b"far away").is_err());
        assert!(session.write(&CX, attr.ino, handle, 1, b"on").is_ok());
        assert_eq!(account.has(Resource::Memory), before + CHUNK);
    }
}
