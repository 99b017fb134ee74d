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
use std::collections::BTreeSet;
use std::collections::hash_map::Entry;
use std::ops::Range;
use std::time::Duration;

use atoll_vfs::{
    Context, Errno, FileSystem, Handle, Ino, OpenFlags, Rest, Result, Room, SeekTo, Timespec,
};

use crate::guarded::Guarded;
use crate::host::{PAGES_LEN, Pages};
use crate::leases::observer::{Change, Content, Now};
use crate::mapped::files::{File, Leaves, Orphan, STEP, new_token};
use crate::mapped::memory::{Mapper, Memory, Place, piece_of};
use crate::mapped::parts::{length, overlap};
use crate::open::handles::Open;
use crate::rights::identity::{Access, SessionId};
use crate::session::Session;
use crate::session::concerns::LOOK;
use crate::volume::Volume;

pub(crate) mod beyond;
pub(crate) mod files;
pub(crate) mod memory;
pub(crate) mod parts;
mod room;
pub(crate) mod write_back;
mod zeroing;

pub use files::Mapping;
pub use memory::MapToken;
pub use memory::PIECE;

/// The longest that a store waits until it is written back without anybody's asking.
pub const WRITE_BACK_INTERVAL: Duration = Duration::from_secs(1);
/// The most bytes of files that the mappings of one volume may have in memory.
pub const MAPPED_MAX: u64 = 4 << 30;
/// The most files of one volume that are mapped.
pub const MAPPED_FILES_MAX: usize = 1024;
/// The most memories of one volume; each takes a descriptor.
const MEMORIES_MAX: usize = MAPPED_FILES_MAX + (MAPPED_MAX / PIECE) as usize;

/// A file is left alone for this many times as long as comparing it took.
const REST: u32 = 50;
/// The unit of mapped parts, so that their list stays short.
const CHUNK: u64 = 64 << 10;
/// The unit in which stores are found.
const PAGE: usize = 4096;
/// A write-back before a mapping ends counts for so long: the call for which it ends may never be
/// made again.
const LEAVES: Duration = Duration::from_secs(10);

impl<F: FileSystem> Guarded<F> {
    /// Whether clients may change the content of `ino` without a call: nothing that has been read
    /// of it stays true. When a file becomes mapped, that is told as a change of all its content.
    #[inline]
    pub(crate) fn is_mapped(&self, ino: Ino) -> bool {
        !self.mapped.files.is_empty() && self.mapped.files.contains_key(&ino)
    }

    /// Begins to map what is wanted, or goes on with it: brings at most [`STEP`] bytes of it into
    /// memory. Returns in which memory the first part of it is when all of that is there.
    fn map(&mut self, cx: &Context, wanted: &Wanted<'_>) -> Result<Option<Lent>> {
        let Wanted { by, ino, access, .. } = *wanted;
        let known = self.mapped.files.get(&ino);
        if !known.is_some_and(|file| file.is_of(by)) {
            let own = self.mapped.files.values().filter(|file| file.is_of(by)).count();
            let all = self.mapped.files.len() + self.mapped.orphans.len();
            let room = known.is_some() || all < MAPPED_FILES_MAX;
            if own >= access.limits.mapped_files || !room {
                return Err(Errno::ENOMEM);
            }
        }
        let (place, end) = wanted.place(known);
        let range = &(wanted.range.start..end);
        if known.and_then(|file| file.memory(place)).is_none() {
            self.begin_memory(cx, by, ino, place)?;
        }
        let size = self.fs.getattr(cx, ino)?.size;
        let (all, own) = (self.mapped.bytes(), self.mapped.bytes_of(by));
        let Guarded { fs, mapped, .. } = self;
        mapped.asked += 1;
        let file = mapped.files.get_mut(&ino).ok_or(Errno::EIO)?;
        let open = file.open;
        let memory = file.memory_mut(place).ok_or(Errno::EIO)?;
        memory.touch(mapped.asked);
        let mapper = match memory.sessions.entry(by) {
            Entry::Occupied(mapper) => mapper.into_mut(),
            Entry::Vacant(place) => place.insert(Mapper::new(cx.uid, access)?),
        };
        mapper.uid = cx.uid;
        let lent = Lent { reader: memory.reader, writer: memory.writer, end };
        let Some(mut gap) = memory.covered.gap(range) else { return Ok(Some(lent)) };
        // Beyond the end there is nothing to copy, but maybe something to make zeros of.
        gap.end = match gap.start < size {
            true => gap.end.min(gap.start + STEP),
            false => memory.pages.reach(gap.start, gap.end, STEP)?.0,
        };
        let counted = match place {
            // In whole chunks, as writes are counted.
            Place::Whole => overlap(&gap, &(0..size.next_multiple_of(CHUNK))),
            // All at once, so that nobody's writes find no room.
            Place::Piece(_) if memory.counted.is_empty() => place.range(),
            Place::Piece(start) => start..start,
        };
        let bytes = length(&counted);
        if own + bytes > access.limits.mapped || all + bytes > MAPPED_MAX {
            return Err(Errno::ENOMEM);
        }
        if !memory.covered.takes(&gap) || bytes > 0 && !memory.counted.takes(&counted) {
            return Err(Errno::ENOMEM);
        }
        mapper.count(bytes)?;
        if let Err(error) = fill(fs, cx, open, &*memory.pages, &gap, size) {
            // The copied pages belong to nobody and are freed.
            let _ = memory.pages.zero(gap.start, gap.end);
            mapper.uncount(bytes);
            return Err(error);
        }
        memory.covered.add(gap)?;
        if bytes > 0 {
            memory.counted.add(counted)?;
        }
        Ok(memory.covered.gap(range).is_none().then_some(lent))
    }

    fn begin_memory(&mut self, cx: &Context, by: SessionId, ino: Ino, place: Place) -> Result<()> {
        if self.mapped.count() >= MEMORIES_MAX {
            return Err(Errno::ENOMEM);
        }
        let pages = self.host.pages()?;
        let (reader, writer) = (new_token(&*self.host)?, new_token(&*self.host)?);
        let is_new = !self.mapped.files.contains_key(&ino);
        if is_new {
            let both = OpenFlags::READ | OpenFlags::WRITE;
            let (handle, flags) = match self.fs.open(cx, ino, both) {
                Ok(handle) => (handle, both),
                Err(Errno::EROFS) => (self.fs.open(cx, ino, OpenFlags::READ)?, OpenFlags::READ),
                Err(error) => return Err(error),
            };
            let open = Open { ino, handle, flags: Some(flags) };
            self.mapped.files.insert(ino, File::new(open));
        }
        self.mapped.tokens.extend([(reader, (ino, place)), (writer, (ino, place))]);
        if let Some(file) = self.mapped.files.get_mut(&ino) {
            file.put(place, Memory::new(pages, reader, writer));
        }
        if is_new {
            let content = Content { ino, offset: 0, len: u64::MAX, now: Now::Same, grew: None };
            self.tell_content(cx, by, content);
        }
        Ok(())
    }

    /// Ends the mapping of `ino` by all sessions.
    fn end_mapping(&mut self, cx: &Context, ino: Ino) {
        let file = self.mapped.files.get(&ino);
        let places: Vec<_> = file.iter().flat_map(|file| file.memories()).map(|m| m.0).collect();
        for place in places {
            drop(self.end_memory(cx, ino, place));
        }
    }

    /// Ends a memory of `ino`. Clients that still have it keep it, and it counts on: as after a
    /// crash of the server it belongs to no file any more, and msync(2) says EIO. Returns memory
    /// that nobody has, to be freed without the lock: that takes long.
    fn end_memory(&mut self, cx: &Context, ino: Ino, place: Place) -> Option<Box<dyn Pages>> {
        let file = self.mapped.files.get_mut(&ino)?;
        let memory = file.take(place)?;
        let is_last = file.memories().next().is_none();
        self.mapped.tokens.remove(&memory.reader);
        self.mapped.tokens.remove(&memory.writer);
        if is_last && let Some(file) = self.mapped.files.remove(&ino) {
            // The file was open for this alone.
            let _ = self.close(cx, (SessionId::VOLUME, 0), &file.open);
        }
        if memory.unused {
            return Some(memory.pages);
        }
        let mappers = memory.sessions.into_values().collect();
        self.mapped.orphans.push(Orphan { pages: memory.pages, mappers });
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
            for (memory, part) in file.within(at..end) {
                let place = (part.start - at) as usize..(part.end - at) as usize;
                memory.pages.read(part.start, &mut piece[place])?;
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
        // All of a piece counts.
        let whole = self.mapped.files.get_mut(&ino).and_then(|file| file.whole.take());
        let Some(mut whole) = whole else { return Ok(()) };
        let own: u64 = whole.sessions.values().map(|mapper| mapper.bytes).sum();
        let room = MAPPED_MAX.saturating_sub(self.mapped.bytes() + own);
        let counted = whole.count(range, CHUNK, |id| self.mapped.bytes_of(id), room);
        let others = whole.sessions.values().any(|mapper| mapper.uid != cx.uid);
        if let Some(file) = self.mapped.files.get_mut(&ino) {
            file.whole = Some(whole);
            file.leaves = file.leaves.filter(|_| counted.is_err());
        }
        match counted {
            Err(_) if others => self.let_go(cx, ino),
            counted => counted,
        }
    }

    /// Writes back what was stored into `ino`, and ends its whole memory, though clients have it.
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
        drop(self.end_memory(&volume_context(cx.now), ino, Place::Whole));
        Ok(())
    }

    /// A step of writing back what was stored into `ino`, whose mapping is to end. Returns whether
    /// it was the last; `None` where there is none to be made.
    pub(crate) fn leave_step(&mut self, ino: Ino) -> Option<bool> {
        let from = self.mapped.files.get(&ino)?.leaves?.from?;
        let own = volume_context(self.host.now());
        let (from, written) = self.write_back_step(&own, ino, from..u64::MAX);
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
                let (next, written) = self.write_back_step(&cx, ino, from..u64::MAX);
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

/// What a session wants to map.
struct Wanted<'a> {
    by: SessionId,
    ino: Ino,
    range: Range<u64>,
    /// In a memory of its own, which no border of pieces crosses.
    piece: bool,
    access: &'a Access,
}

impl Wanted<'_> {
    /// The memory of the file, if one is mapped, in which the beginning is to be, and where that
    /// part ends.
    fn place(&self, file: Option<&File>) -> (Place, u64) {
        let piece = Place::Piece(piece_of(self.range.start));
        let Some(file) = file else {
            let place = if self.piece { piece } else { Place::Whole };
            return (place, self.range.end);
        };
        match file.place_of(&self.range) {
            // Where a program has mapped a part of it, all is with that.
            (Place::Whole, _) if self.piece && !file.is_whole(piece.range()) => {
                (piece, self.range.end)
            }
            place => place,
        }
    }
}

/// The tokens of a memory, one for loads and one for stores too, and where the part ends that is
/// in it.
pub(crate) struct Lent {
    reader: MapToken,
    writer: MapToken,
    end: u64,
}

/// The context with which the volume itself works.
fn volume_context(now: Timespec) -> Context {
    Context { uid: 0, gid: 0, now }
}

impl<F: FileSystem + Send> Volume<F> {
    /// Maps what is wanted, for the user `uid`: its first part, which is in one memory.
    fn map(&self, cx: &Context, uid: u32, mut wanted: Wanted<'_>) -> Result<Lent> {
        let Range { start, end } = wanted.range;
        if end > PAGES_LEN {
            return Err(Errno::EFBIG);
        }
        wanted.range = start / CHUNK * CHUNK..end.next_multiple_of(CHUNK);
        if !wanted.piece {
            self.end_unused_pieces(wanted.ino, &wanted.range, cx.now)?;
        }
        loop {
            let mut state = self.take_turn(uid)?;
            if let Some(lent) = state.map(cx, &wanted)? {
                return Ok(lent);
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
        let (ino, place, memory) = state.mapped.file(token)?;
        let writable = token == memory.writer;
        let given = give(&*memory.pages, writable)?;
        state.mapped.asked += 1;
        let asked = state.mapped.asked;
        let file = state.mapped.files.get_mut(&ino);
        if let Some(memory) = file.and_then(|file| file.memory_mut(place)) {
            memory.stores |= writable;
            memory.touch(asked);
        }
        Ok((given, writable))
    }

    /// Whether all `tokens` are this volume's.
    pub fn are_mapped(&self, mut tokens: impl Iterator<Item = MapToken>) -> bool {
        self.lock().is_ok_and(|state| tokens.all(|token| state.mapped.file(token).is_ok()))
    }
}

impl<F: FileSystem + Send> Session<F> {
    /// Maps `len` bytes of an open file from `offset` on, for loads and, if it is open for writing
    /// too, for stores, which all others see at once (see the [module](self)). They may be in
    /// several memories: what is mapped is the first part of them.
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
        self.map_as(cx, (ino, handle), (offset, len), false)
    }

    /// The same for bytes that are to be in a memory of their own, if nobody else has mapped them,
    /// so that it can go without the file's others.
    ///
    /// # Errors
    /// As [`map`](Self::map); `EINVAL` for bytes of several pieces.
    pub(crate) fn map_piece(
        &mut self,
        cx: &Context,
        file: (Ino, Handle),
        (offset, len): (u64, u64),
    ) -> Result<Mapping> {
        let last = offset.checked_add(len).and_then(|end| end.checked_sub(1));
        if last.is_none_or(|last| piece_of(last) != piece_of(offset)) {
            return Err(Errno::EINVAL);
        }
        self.map_as(cx, file, (offset, len), true)
    }

    fn map_as(
        &mut self,
        cx: &Context,
        (ino, handle): (Ino, Handle),
        (offset, len): (u64, u64),
        piece: bool,
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
        let (by, uid, access) = (self.own.id, self.own.peer.uid, &self.own.access);
        let wanted = Wanted { by, ino: open.ino, range: offset..end, piece, access };
        let lent = self.volume.map(&self.judge.context(cx), uid, wanted)?;
        // No kernel has it in its cache when this is answered.
        let mut call = self.enter(cx, LOOK)?;
        call.state.involved.add(open.ino);
        // Loads are no calls: as on Linux, mapping counts as the access.
        let counts = !call.own.access.read_only && !flags.contains(OpenFlags::NOATIME);
        if call.state.relatime && counts {
            call.state.accessed(&call.cx, call.own.id, open.ino);
        }
        let token = if writable { lent.writer } else { lent.reader };
        Ok(Mapping { token, writable, len: lent.end.min(end) - offset })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    use atoll_vfs::model::ModelFs;
    use atoll_vfs::{Name, Rest};

    use super::memory::GRACE;
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
            volume.lock().unwrap().mapped.files[&attr.ino]
                .whole
                .as_ref()
                .unwrap()
                .pages
                .write(at, data)
                .unwrap();
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
            assert!(volume.are_mapped([token].into_iter()), "until all is written back");
        };
        assert_eq!(written.map(|written| written.len), Ok(5));
        // Two steps a turn.
        assert_eq!(turns, LEN / STEP / 2);
        assert!(!volume.are_mapped([token].into_iter()));
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
                volume.lock().unwrap().end_mapping(&CX, attr.ino);
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
