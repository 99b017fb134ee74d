//! Which files are mapped, and which parts of them are in memory.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::time::Duration;

use atoll_vfs::{Errno, Ino, Result};

use crate::host::{Host, PAGES_LEN, Pages};
use crate::leases::observer::{Change, Content, Now, Observer};
use crate::mapped::beyond::Beyond;
use crate::mapped::memory::{MapToken, Mapper, Memory, Place, piece_of};
use crate::open::handles::Open;
use crate::rights::identity::SessionId;

/// Bytes that are copied, compared or made zeros before others have their turn at the volume.
pub(crate) const STEP: u64 = 1 << 20;
/// The most covered parts that a step looks at.
const LOOKS: usize = 64;
/// The unit in which a file's memory is there.
const PAGE: u64 = 4096;

/// A token that nobody has been told of.
pub(crate) fn new_token(host: &dyn Host) -> Result<MapToken> {
    let mut bytes = [0; 16];
    host.random(&mut bytes)?;
    Ok(MapToken(bytes))
}

/// The answer to a client that wants to map an open file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// For it `Volume::mapped_memory` gives the memory.
    pub token: MapToken,
    /// Whether stores are allowed.
    pub writable: bool,
    /// How many of the bytes asked for are in that memory; those that follow are in another.
    pub len: u64,
}

/// A mapped file.
pub(crate) struct File {
    /// Keeps the inode while it is mapped.
    pub open: Open,
    /// The memory of all that has been mapped of it, but for the pieces.
    pub whole: Option<Memory>,
    /// The memories of pieces, by where those begin.
    pub pieces: BTreeMap<u64, Memory>,
    /// Not compared before this uptime of the host without anybody's asking.
    pub rests: Option<Duration>,
    /// Its mapping is to end.
    pub leaves: Option<Leaves>,
    /// What is in memory beyond its end.
    pub beyond: Beyond,
}

/// The write-back before a mapping ends.
#[derive(Clone, Copy)]
pub(crate) struct Leaves {
    /// The offset from which on it is still to be made; `None` when it is done.
    pub from: Option<u64>,
    /// The uptime of the host at the last step.
    pub when: Duration,
}

/// Memory that is no file's content any more and that clients still have: it counts on.
pub(crate) struct Orphan {
    pub pages: Box<dyn Pages>,
    pub mappers: Vec<Mapper>,
}

/// The mapped files of a volume.
#[derive(Default)]
pub(crate) struct Mappings {
    pub files: HashMap<Ino, File>,
    pub tokens: HashMap<MapToken, (Ino, Place)>,
    /// Files whose memory could not follow a change: it is their content no more.
    pub lost: Vec<Ino>,
    pub orphans: Vec<Orphan>,
    /// The file for which the call has to be made again after a step.
    pub first: Option<Ino>,
    /// The file beyond whose end the call has left what is not zeros yet.
    pub left: Option<Ino>,
    /// How often a memory has been asked for.
    pub asked: u64,
}

impl File {
    /// A file of which nothing is in memory.
    pub fn new(open: Open) -> File {
        let (rests, leaves, beyond) = (None, None, Beyond::default());
        File { open, whole: None, pieces: BTreeMap::new(), rests, leaves, beyond }
    }

    /// Its memories.
    pub fn memories(&self) -> impl Iterator<Item = (Place, &Memory)> + '_ {
        let whole = self.whole.iter().map(|memory| (Place::Whole, memory));
        whole.chain(self.pieces.iter().map(|(start, memory)| (Place::Piece(*start), memory)))
    }

    /// The same, to be changed.
    pub fn memories_mut(&mut self) -> impl Iterator<Item = (Place, &mut Memory)> + '_ {
        let whole = self.whole.iter_mut().map(|memory| (Place::Whole, memory));
        let pieces = self.pieces.iter_mut();
        whole.chain(pieces.map(|(start, memory)| (Place::Piece(*start), memory)))
    }

    /// One of them.
    pub fn memory(&self, place: Place) -> Option<&Memory> {
        match place {
            Place::Whole => self.whole.as_ref(),
            Place::Piece(start) => self.pieces.get(&start),
        }
    }

    /// The same, to be changed.
    pub fn memory_mut(&mut self, place: Place) -> Option<&mut Memory> {
        match place {
            Place::Whole => self.whole.as_mut(),
            Place::Piece(start) => self.pieces.get_mut(&start),
        }
    }

    /// Adds a memory.
    pub fn put(&mut self, place: Place, memory: Memory) {
        match place {
            Place::Whole => self.whole = Some(memory),
            Place::Piece(start) => drop(self.pieces.insert(start, memory)),
        }
    }

    /// Takes a memory out.
    pub fn take(&mut self, place: Place) -> Option<Memory> {
        match place {
            Place::Whole => self.whole.take(),
            Place::Piece(start) => self.pieces.remove(&start),
        }
    }

    /// Whether the session `by` has something of it mapped.
    pub fn is_of(&self, by: SessionId) -> bool {
        self.memories().any(|(_, memory)| memory.sessions.contains_key(&by))
    }

    /// The memory in which `range` is to be from its beginning on, and where in `range` that ends.
    pub fn place_of(&self, range: &Range<u64>) -> (Place, u64) {
        let piece = Place::Piece(piece_of(range.start));
        if self.memory(piece).is_some() {
            return (piece, range.end.min(piece.range().end));
        }
        let next = self.pieces.range(range.start..range.end.max(range.start)).next();
        (Place::Whole, next.map_or(range.end, |(start, _)| *start))
    }

    /// Whether some of `range` is in the whole memory.
    pub fn is_whole(&self, range: Range<u64>) -> bool {
        self.whole.as_ref().is_some_and(|whole| whole.covered.within(range).next().is_some())
    }

    /// The parts of `range` that are in memory, in order.
    pub fn within(&self, range: Range<u64>) -> impl Iterator<Item = (&Memory, Range<u64>)> + '_ {
        let pieces = piece_of(range.start)..range.end.max(piece_of(range.start));
        let (all, each) = (range.clone(), range);
        let whole = self.whole.iter();
        let mut whole = whole
            .flat_map(move |memory| memory.covered.within(all.clone()).map(move |p| (memory, p)))
            .peekable();
        let mut pieces = self
            .pieces
            .range(pieces)
            .flat_map(move |(_, memory)| {
                memory.covered.within(each.clone()).map(move |part| (memory, part))
            })
            .peekable();
        std::iter::from_fn(move || match (whole.peek(), pieces.peek()) {
            (Some(first), Some(second)) if second.1.start < first.1.start => pieces.next(),
            (Some(_), _) => whole.next(),
            (None, _) => pieces.next(),
        })
    }

    /// Puts into memory what a change has made of the content. Returns whether it has left
    /// something beyond the end.
    fn change(&mut self, content: &Content<'_>) -> Result<bool> {
        let at = content.offset;
        let end = at.saturating_add(content.len);
        if let Some((was, is)) = content.grew {
            // Clients may have stored where nothing of the file was. But for the page in which it
            // ended that has gone before.
            let until = if matches!(content.now, Now::Bytes { .. }) { at } else { is };
            self.zero(was..until.min(was.next_multiple_of(PAGE)))?;
            self.beyond.grew(is);
        }
        match content.now {
            Now::Bytes { data, .. } => {
                for (memory, part) in self.within(at..end) {
                    let (skip, len) = (part.start - at, part.end - part.start);
                    let mut to = part.start;
                    for piece in data.skip(skip as usize).limit(len as usize).iter() {
                        memory.pages.write(to, piece)?;
                        to += piece.len() as u64;
                    }
                }
            }
            // The mapping ends rather than show what was there.
            Now::Until(_) => return Err(Errno::EIO),
            Now::Zeros if content.len == u64::MAX && content.grew.is_none() => {
                self.beyond.cut(at);
                return self.zero_step(at).map(|done| !done);
            }
            Now::Zeros if content.len == u64::MAX => {}
            Now::Zeros => self.zero(at..end.min(PAGES_LEN))?,
            Now::Same => {}
        }
        Ok(false)
    }

    /// Where a part of `range` from its beginning ends, of which no more than `most` bytes are in
    /// memory, and which takes no long search.
    pub fn at_once(&self, range: &Range<u64>, most: u64) -> Result<u64> {
        let mut left = most;
        let mut parts = self.within(range.clone());
        let mut last = range.start;
        for (memory, part) in parts.by_ref().take(LOOKS) {
            let (end, bytes) = memory.pages.reach(part.start, part.end, left)?;
            left = left.saturating_sub(bytes);
            last = end;
            if end < part.end || left == 0 {
                return Ok(end);
            }
        }
        Ok(if parts.next().is_some() { last } else { range.end })
    }

    /// A step of making zeros of what is beyond the end, `size`. Returns whether it was the last.
    pub fn zero_step(&mut self, size: u64) -> Result<bool> {
        self.beyond.done(size);
        let Some(first) = self.beyond.first().cloned() else { return Ok(true) };
        let end = self.at_once(&first, STEP)?;
        self.zero(first.start..end)?;
        self.beyond.done(end);
        Ok(self.beyond.first().is_none())
    }

    pub fn zero(&self, range: Range<u64>) -> Result<()> {
        for (memory, part) in self.within(range) {
            memory.pages.zero(part.start, part.end)?;
        }
        Ok(())
    }
}

impl Mappings {
    fn memories(&self) -> impl Iterator<Item = &Memory> + '_ {
        self.files.values().flat_map(File::memories).map(|(_, memory)| memory)
    }

    /// How many memories there are, of files and of what was let go of: each takes a descriptor.
    pub fn count(&self) -> usize {
        self.memories().count() + self.orphans.len()
    }

    /// Bytes in memory that count, of all files and of what was let go of.
    pub fn bytes(&self) -> u64 {
        let files = self.memories().flat_map(|memory| memory.sessions.values());
        files.chain(self.orphans.iter().flat_map(|orphan| &orphan.mappers)).map(|m| m.bytes).sum()
    }

    /// Bytes that count as those of the session `by`.
    pub fn bytes_of(&self, by: SessionId) -> u64 {
        let own = self.memories().filter_map(|memory| memory.sessions.get(&by));
        own.map(|mapper| mapper.bytes).sum()
    }

    pub fn file(&self, token: MapToken) -> Result<(Ino, Place, &Memory)> {
        let (ino, place) = *self.tokens.get(&token).ok_or(Errno::ESTALE)?;
        let memory = self.files.get(&ino).and_then(|file| file.memory(place));
        memory.map(|memory| (ino, place, memory)).ok_or(Errno::ESTALE)
    }
}

impl Observer for Mappings {
    #[inline]
    fn listens(&self) -> bool {
        !self.files.is_empty()
    }

    #[inline]
    fn changed(&mut self, _by: SessionId, change: &Change<'_>) {
        if let Change::Content(content) = change
            && !self.files.is_empty()
            && let Some(file) = self.files.get_mut(&content.ino)
        {
            let ino = content.ino;
            match file.change(content) {
                Ok(false) => {}
                Ok(true) => self.left = Some(ino),
                Err(error) => {
                    log::error!(
                        "inode {} is not mapped any more, there is no memory: {error}",
                        ino.0
                    );
                    self.lost.push(ino);
                }
            }
        }
    }
}
