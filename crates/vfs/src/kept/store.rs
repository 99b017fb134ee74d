//! What a client keeps: names, attributes and pages, each by a lease of the server's.

use alloc::vec::Vec;
use core::time::Duration;

use super::READ_MAX;
use super::halves::Halves;
use crate::lent::Lent;
use crate::types::{Attr, Ino, NAME_MAX, Name};
use crate::wire::notices::Notice;

/// The most names, and the most inodes with attributes.
const ENTRIES: usize = 8192;
/// The bytes of one piece of a file that is kept: what a read asks for at least.
pub(super) const BLOCK: usize = 32 << 10;
/// The least bytes of pages that are kept: a read, and what is around it.
const PAGES_MIN: usize = 2 * (READ_MAX + 2 * BLOCK);

/// What a server judges a lookup in a directory by: its mode, owner and group.
type Rights = (u32, u32, u32);

/// A name, by the inode that it stands for.
#[derive(Clone, Copy, Debug)]
struct Named {
    ino: Ino,
    until: Duration,
    at: u64,
    /// What the directory was judged by.
    rights: Option<Rights>,
}

/// Attributes. They stay when they are no longer valid, since names go by `since`.
#[derive(Clone, Copy, Debug)]
struct Known {
    attr: Attr,
    until: Duration,
    at: u64,
    /// Names that were kept before belong to another lease: the inode was forgotten meanwhile, or
    /// this lost sight of it.
    since: u64,
}

impl Known {
    fn rights(&self) -> Rights {
        (self.attr.mode, self.attr.uid, self.attr.gid)
    }
}

/// What is known of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// It stands for this.
    Is(Attr),
    /// It does, if the directory still is what it was; that is not known.
    Unjudged,
    /// Nothing.
    Unknown,
}

/// What is known of a piece of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Piece {
    /// So many bytes have been copied.
    Read(usize),
    /// It is kept, but how long the file is has to be asked.
    Unmeasured,
    /// Nothing.
    Unknown,
}

/// What a client keeps, and how many notices it has taken.
#[derive(Debug)]
pub struct Kept {
    taken: u64,
    /// Counts what is learnt.
    stamp: u64,
    /// Attributes that were learnt earlier are not valid.
    floor: u64,
    names: Halves<Vec<u8>, Named>,
    attributes: Halves<Ino, Known>,
    blocks: Halves<(Ino, u64), Vec<u8>>,
}

/// A directory and a name in it as the bytes of a key.
struct Key {
    bytes: [u8; 8 + NAME_MAX],
    len: usize,
}

impl Key {
    fn new(parent: Ino, name: &[u8]) -> Key {
        let mut key = Key { bytes: [0; 8 + NAME_MAX], len: 8 + name.len() };
        key.bytes[..8].copy_from_slice(&parent.0.to_be_bytes());
        key.bytes[8..key.len].copy_from_slice(name);
        key
    }

    fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

impl Kept {
    /// Nothing yet; later at most `pages` bytes of files.
    pub fn new(pages: usize) -> Kept {
        Kept {
            taken: 0,
            stamp: 0,
            floor: 0,
            names: Halves::new(ENTRIES),
            attributes: Halves::new(ENTRIES),
            blocks: Halves::new(pages.max(PAGES_MIN) / BLOCK),
        }
    }

    /// Does what a notice says, a message of FUSE's with its header. One that is none, or is not
    /// known here, drops all.
    pub fn take(&mut self, message: &[u8]) {
        self.taken += 1;
        match Notice::get(message) {
            Some(Notice::Inode { ino, pages }) => {
                self.drop_attributes(ino);
                if pages {
                    self.drop_pages(ino);
                }
            }
            // Of a file that has grown all is asked for anew.
            Some(Notice::Grown { ino }) => self.drop_content(ino),
            Some(Notice::Entry { parent, name }) => {
                self.names.remove(Key::new(parent, name.bytes()).bytes());
            }
            None => self.clear(),
        }
    }

    /// How many notices were taken.
    pub(super) fn taken(&self) -> u64 {
        self.taken
    }

    /// Drops all.
    pub fn clear(&mut self) {
        self.names.clear();
        self.attributes.clear();
        self.blocks.clear();
    }

    fn valid(&mut self, ino: Ino, now: Duration) -> Option<Known> {
        let floor = self.floor;
        let known = self.attributes.get(&ino)?;
        (known.at > floor && now < known.until).then_some(*known)
    }

    /// The attributes of `ino`, if they are valid at `now`.
    pub(super) fn attributes(&mut self, ino: Ino, now: Duration) -> Option<Attr> {
        self.valid(ino, now).map(|known| known.attr)
    }

    /// The inode that `name` surely stands for in `parent`: its lease holds, whatever the time.
    fn named(&mut self, key: &Key) -> Option<Named> {
        let named = *self.names.get(key.bytes())?;
        let known = self.attributes.get(&named.ino)?;
        (named.at >= known.since).then_some(named)
    }

    /// What `name` is in `parent` at `now`.
    pub(super) fn name(&mut self, parent: Ino, name: Name<'_>, now: Duration) -> Found {
        let Some(named) = self.named(&Key::new(parent, name.bytes())) else {
            return Found::Unknown;
        };
        if now >= named.until {
            return Found::Unknown;
        }
        let Some(known) = self.valid(named.ino, now) else { return Found::Unknown };
        match (self.valid(parent, now).map(|dir| dir.rights()), named.rights) {
            (Some(now), Some(then)) if now == then => Found::Is(known.attr),
            (Some(_), Some(_)) => Found::Unknown,
            (None, _) | (_, None) => Found::Unjudged,
        }
    }

    /// Keeps attributes that were asked for at `now`.
    pub(super) fn keep_attributes(&mut self, attr: &Attr, lent: Lent, now: Duration) {
        self.stamp += 1;
        let at = self.stamp;
        // Nobody tells when a file that has no name any more is gone.
        let valid = if attr.nlink > 0 { lent.attributes } else { Duration::ZERO };
        let until = now.saturating_add(valid);
        match self.attributes.get(&attr.ino) {
            Some(known) => *known = Known { attr: *attr, until, at, since: known.since },
            // What is kept to say for how long names hold is worth its place only with a name.
            None if valid.is_zero() => {}
            None => self.attributes.insert(attr.ino, Known { attr: *attr, until, at, since: at }),
        }
    }

    /// Keeps that `name` in `parent` is `attr`, which was asked for at `now`.
    pub(super) fn keep_name(
        &mut self,
        parent: Ino,
        name: Name<'_>,
        attr: &Attr,
        lent: Lent,
        now: Duration,
    ) {
        self.keep_attributes(attr, lent, now);
        let key = Key::new(parent, name.bytes());
        if lent.name.is_zero() || name.is_dot_or_dot_dot() {
            self.names.remove(key.bytes());
            return;
        }
        let floor = self.floor;
        // Whether it is valid is asked when the name is used.
        let rights = self.attributes.get(&parent).filter(|dir| dir.at > floor);
        let rights = rights.filter(|dir| !dir.until.is_zero()).map(|dir| dir.rights());
        let until = now.saturating_add(lent.name);
        let named = Named { ino: attr.ino, until, at: self.stamp, rights };
        self.names.insert(key.bytes().to_vec(), named);
    }

    /// Keeps a piece of `ino` that begins at block `number`.
    pub(super) fn keep_pages(&mut self, ino: Ino, number: u64, data: &[u8]) {
        for (number, block) in (number..).zip(data.chunks(BLOCK)) {
            self.blocks.insert((ino, number), block.to_vec());
        }
    }

    /// Reads from `offset` on, as much of `buf` as the file has.
    pub(super) fn read(&mut self, ino: Ino, offset: u64, buf: &mut [u8], now: Duration) -> Piece {
        let Some(attr) = self.attributes(ino, now) else {
            let is_kept = self.blocks.get(&(ino, offset / BLOCK as u64)).is_some();
            return if is_kept { Piece::Unmeasured } else { Piece::Unknown };
        };
        let whole = attr.size.saturating_sub(offset).min(buf.len() as u64) as usize;
        let mut done = 0;
        while done < whole {
            let at = offset + done as u64;
            let (number, skip) = (at / BLOCK as u64, (at % BLOCK as u64) as usize);
            let len = (BLOCK - skip).min(whole - done);
            let block = self.blocks.get(&(ino, number));
            let Some(data) = block.and_then(|block| block.get(skip..skip + len)) else {
                return Piece::Unknown;
            };
            buf[done..done + len].copy_from_slice(data);
            done += len;
        }
        Piece::Read(whole)
    }

    /// The attributes of `ino` have changed.
    pub(super) fn drop_attributes(&mut self, ino: Ino) {
        if let Some(known) = self.attributes.get(&ino) {
            known.until = Duration::ZERO;
        }
    }

    /// What `ino` has in it has changed.
    pub(super) fn drop_pages(&mut self, ino: Ino) {
        self.blocks.remove_range((ino, 0)..=(ino, u64::MAX));
    }

    /// Both have.
    pub(super) fn drop_content(&mut self, ino: Ino) {
        self.drop_attributes(ino);
        self.drop_pages(ino);
    }

    /// `name` in `parent` may stand for something else; what it stood for has one name fewer.
    pub(super) fn drop_name(&mut self, parent: Ino, name: Name<'_>) {
        let key = Key::new(parent, name.bytes());
        match self.named(&key) {
            Some(named) => self.drop_attributes(named.ino),
            // It may be any.
            None => self.drop_all_attributes(),
        }
        self.names.remove(key.bytes());
        self.drop_attributes(parent);
    }

    /// Attributes of nobody knows which inodes have changed.
    pub(super) fn drop_all_attributes(&mut self) {
        self.floor = self.stamp;
    }

    /// The server is told that `ino` is not known here any more, and with that its leases end.
    pub(super) fn forget(&mut self, ino: Ino) {
        self.attributes.remove(&ino);
        self.drop_pages(ino);
    }
}
