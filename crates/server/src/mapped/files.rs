//! Which files are mapped, and which parts of them are in memory.

use std::collections::HashMap;
use std::ops::Range;
use std::time::Duration;

use atoll_vfs::abi::MapToken;
use atoll_vfs::{Errno, Ino, Result};

use crate::host::{Host, PAGES_LEN, Pages};
use crate::leases::observer::{Change, Content, Now, Observer};
use crate::open::handles::Open;
use crate::rights::identity::SessionId;

/// A token that nobody has been told of.
pub(crate) fn new_token(host: &dyn Host) -> Result<MapToken> {
    let mut bytes = [0; 16];
    host.random(&mut bytes)?;
    Ok(MapToken(bytes))
}

/// The answer to a client that wants to map an open file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// For it `Volume::mapped_memory` gives the memory, and `Volume::sync_mapped` makes stores
    /// durable.
    pub token: MapToken,
    /// Whether stores are allowed.
    pub writable: bool,
}

/// A mapped file.
pub(crate) struct File {
    pub pages: Box<dyn Pages>,
    /// Keeps the inode while it is mapped.
    pub open: Open,
    /// The parts in memory, in order and apart from each other: elsewhere the memory says nothing.
    pub covered: Vec<Range<u64>>,
    pub reader: MapToken,
    pub writer: MapToken,
    /// Sessions that have mapped it, and how many bytes each has brought into memory.
    pub sessions: HashMap<SessionId, u64>,
    /// Whether a client could have stored something.
    pub stores: bool,
    pub grace: u32,
    /// Not compared before this uptime of the host without anybody's asking.
    pub rests: Option<Duration>,
    /// Nobody has the memory, nor has been given it since this was found.
    pub unused: bool,
}

/// The mapped files of a volume.
#[derive(Default)]
pub(crate) struct Mappings {
    pub files: HashMap<Ino, File>,
    pub tokens: HashMap<MapToken, Ino>,
    /// Files whose memory could not follow a change: it is their content no more.
    pub lost: Vec<Ino>,
}

pub(crate) fn overlap(a: &Range<u64>, b: &Range<u64>) -> Range<u64> {
    let start = a.start.max(b.start);
    start..a.end.min(b.end).max(start)
}

pub(crate) fn length(range: &Range<u64>) -> u64 {
    range.end.saturating_sub(range.start)
}

impl File {
    /// The first part of `range` that is not in memory.
    pub fn gap(&self, range: &Range<u64>) -> Option<Range<u64>> {
        let mut at = range.start;
        for covered in &self.covered {
            if covered.end <= at {
                continue;
            }
            if covered.start > at {
                return (at < range.end).then(|| at..covered.start.min(range.end));
            }
            at = covered.end;
        }
        (at < range.end).then_some(at..range.end)
    }

    /// Notes that `range`, a gap, is in memory.
    pub fn add(&mut self, range: Range<u64>) {
        let at = self.covered.partition_point(|covered| covered.start < range.start);
        self.covered.insert(at, range);
        self.covered.dedup_by(|next, before| {
            let joined = before.end == next.start;
            if joined {
                before.end = next.end;
            }
            joined
        });
    }

    /// The parts of `range` that are in memory.
    pub fn within(&self, range: Range<u64>) -> impl Iterator<Item = Range<u64>> + '_ {
        let from = self.covered.partition_point(|covered| covered.end <= range.start);
        self.covered[from..]
            .iter()
            .map(move |covered| overlap(covered, &range))
            .take_while(|part| part.start < part.end)
    }

    /// Bytes of a file of `size` that are in memory.
    pub fn bytes(&self, size: u64) -> u64 {
        self.within(0..size).map(|part| length(&part)).sum()
    }

    /// Puts into memory what a change has made of the content.
    fn change(&self, content: &Content<'_>) -> Result<()> {
        let at = content.offset;
        let end = at.saturating_add(content.len);
        if let Some((was, is)) = content.grew {
            // Clients may have stored where nothing of the file was.
            let until = if matches!(content.now, Now::Bytes { .. }) { at } else { is };
            self.zero(was..until)?;
        }
        match content.now {
            Now::Bytes { data, .. } => {
                for part in self.within(at..end) {
                    let place = (part.start - at) as usize..(part.end - at) as usize;
                    self.pages.write(part.start, &data[place])?;
                }
                Ok(())
            }
            Now::Zeros => self.zero(at..end.min(PAGES_LEN)),
            Now::Same => Ok(()),
        }
    }

    pub fn zero(&self, range: Range<u64>) -> Result<()> {
        for part in self.within(range) {
            self.pages.zero(part.start, part.end)?;
        }
        Ok(())
    }
}

impl Mappings {
    pub fn file(&self, token: MapToken) -> Result<(Ino, &File)> {
        let ino = *self.tokens.get(&token).ok_or(Errno::ESTALE)?;
        self.files.get(&ino).map(|file| (ino, file)).ok_or(Errno::ESTALE)
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
            && let Some(file) = self.files.get(&content.ino)
            && let Err(error) = file.change(content)
        {
            let ino = content.ino;
            log::error!("inode {} is not mapped any more, there is no memory: {error}", ino.0);
            self.lost.push(ino);
        }
    }
}
