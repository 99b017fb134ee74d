//! The observers of changes: one interface for all that show a client what the volume has.
//!
//! A call that changes something says so in one place, `Guarded::tell`, which calls each
//! [`Observer`]: the Views, the kernels of mounts, the memory of mapped files. None of them is
//! asked, and nothing is looked up for their sake, while nobody listens; none is called through a
//! table of functions.

use atoll_vfs::{Data, Ino};

use crate::rights::identity::SessionId;

/// A change that a call has made. Inode numbers are the volume's own, whatever a session's subtree.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Change<'a> {
    /// Attributes of the inode: mode, owner, times, links, extended attributes.
    Attributes(Ino),
    /// The same, in a way that the calling kernel does not expect: the time of access that a read
    /// sets, set-ID bits and capabilities that a write takes.
    Unexpected(Ino),
    /// The mode or owner of a directory, and so who may search it.
    Rights(Ino),
    /// The content of a file, and with it its attributes.
    Content(Content<'a>),
    /// The inode that `name` stands for in the directory `parent`, if any, and the attributes of
    /// the directory. Those of the inodes concerned follow.
    Entry {
        /// The directory.
        parent: Ino,
        /// The name.
        name: &'a [u8],
    },
    /// Directories have another parent. The entries follow.
    Moved,
    /// The inode exists no more; its number is never used again.
    Gone(Ino),
}

/// A change of a file's content from `offset` for `len` bytes (`u64::MAX`: to the end, wherever it
/// was or is).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Content<'a> {
    /// The file.
    pub ino: Ino,
    /// The first byte.
    pub offset: u64,
    /// How many.
    pub len: u64,
    /// The content that is there now.
    pub now: Now<'a>,
    /// The file became longer: how long it was, and how long it is. Only where
    /// `Guarded::size_before` has said how long it was.
    pub grew: Option<(u64, u64)>,
}

/// The new content of a part of a file.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Now<'a> {
    /// These bytes, which are what the page cache of the caller's kernel has if they are `cached`
    /// there.
    Bytes {
        /// The bytes.
        data: Data<'a>,
        /// Whether they come from that page cache.
        cached: bool,
    },
    /// Bytes that nobody has at hand, of which this is the last. Not of a file that is mapped.
    Until(u8),
    /// Zeros, or nothing.
    Zeros,
    /// The same as before, with zeros after it; or what the file's mappings have in memory.
    Same,
}

impl Change<'_> {
    /// The inode that it is a change of, if it is of one.
    #[inline]
    pub fn ino(&self) -> Option<Ino> {
        match *self {
            Change::Attributes(ino)
            | Change::Unexpected(ino)
            | Change::Rights(ino)
            | Change::Content(Content { ino, .. })
            | Change::Entry { parent: ino, .. }
            | Change::Gone(ino) => Some(ino),
            Change::Moved => None,
        }
    }
}

/// Hears of every change, with the volume locked, before the call that made it returns to its
/// client.
pub(crate) trait Observer {
    /// Whether anybody listens.
    fn listens(&self) -> bool;

    /// `by` has made `change`: nothing else is shown from now on.
    fn changed(&mut self, by: SessionId, change: &Change<'_>);
}

#[cfg(test)]
impl Change<'_> {
    /// The change in words, for tests.
    pub fn words(&self) -> String {
        match *self {
            Change::Attributes(ino) => format!("attributes {ino}"),
            Change::Unexpected(ino) => format!("unexpected {ino}"),
            Change::Rights(ino) => format!("rights {ino}"),
            Change::Content(Content { ino, offset, len: u64::MAX, .. }) => {
                format!("content {ino} from {offset}")
            }
            Change::Content(Content { ino, offset, len, .. }) => {
                format!("content {ino} {offset}+{len}")
            }
            Change::Entry { parent, name } => {
                format!("entry {parent}/{}", String::from_utf8_lossy(name))
            }
            Change::Moved => "moved".into(),
            Change::Gone(ino) => format!("gone {ino}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use atoll_vfs::{
        Context, FallocateMode, FileAt, FileSystem, Name, OpenFlags, RenameFlags, SetAttr,
        Timespec, XattrFlags,
    };

    use super::*;
    use crate::{Access, Credentials};

    const ROOT: Ino = Ino::ROOT;
    const CX: Context = Context { uid: 0, gid: 0, now: Timespec { sec: 0, nsec: 0 } };

    fn name(name: &str) -> Name<'_> {
        Name::new(name.as_bytes()).unwrap()
    }

    /// Every verb that changes something says all of it, and one that only looks says nothing.
    #[test]
    fn every_change_is_told() {
        let volume = crate::testing::volume();
        let mut s = volume.session(Credentials::default(), Access::default()).unwrap();
        let told = |what: &[&str]| {
            let got = volume.lock().unwrap().told.replace(Vec::new()).unwrap_or_default();
            let expected: Vec<String> = what.iter().map(|text| format!("1: {text}")).collect();
            assert_eq!(got, expected);
        };
        told(&[]);
        let (cx, none) = (CX, RenameFlags::empty());
        let rw = OpenFlags::READ | OpenFlags::WRITE;
        let set = SetAttr::default();
        let (attr, handle) = s.create(&cx, ROOT, name("f"), 0o644, rw).unwrap();
        told(&["entry 1/f"]);
        let f = attr.ino;
        s.write(&cx, f, handle, 3, b"abc").unwrap();
        told(&["content 2 3+3"]);
        s.fallocate(&cx, f, handle, 1, 2, FallocateMode::empty()).unwrap();
        told(&["content 2 1+2"]);
        let at = |offset| FileAt { ino: f, handle, offset };
        assert_eq!(s.copy_file_range(&cx, at(3), at(0), 2), Ok(2));
        assert_eq!(s.copy_file_range(&cx, at(6), at(0), 2), Ok(0));
        told(&["content 2 0+2"]);
        s.setattr(&cx, f, None, &SetAttr { size: Some(4), ..set }).unwrap();
        told(&["content 2 from 4"]);
        s.setattr(&cx, f, None, &SetAttr { mode: Some(0o600), ..set }).unwrap();
        told(&["attributes 2"]);
        s.setxattr(&cx, f, b"user.a", b"", XattrFlags::empty()).unwrap();
        s.removexattr(&cx, f, b"user.a").unwrap();
        told(&["attributes 2", "attributes 2"]);
        s.setxattr(&cx, f, b"security.capability", b"c", XattrFlags::empty()).unwrap();
        s.write(&cx, f, handle, 0, b"a").unwrap();
        told(&["attributes 2", "unexpected 2", "content 2 0+1"]);
        let d = s.mkdir(&cx, ROOT, name("d"), 0o755).unwrap().ino;
        let e = s.mkdir(&cx, ROOT, name("e"), 0o755).unwrap().ino;
        told(&["entry 1/d", "entry 1/e"]);
        s.setattr(&cx, d, None, &SetAttr { mode: Some(0o700), ..set }).unwrap();
        told(&["rights 3"]);
        s.link(&cx, f, d, name("g")).unwrap();
        told(&["entry 3/g", "attributes 2"]);
        s.rename(&cx, ROOT, name("d"), e, name("d"), none).unwrap();
        told(&["moved", "entry 1/d", "entry 4/d", "attributes 3", "entry 3/.."]);
        let again = s.open(&cx, f, OpenFlags::WRITE | OpenFlags::TRUNC).unwrap();
        s.release(&cx, f, again).unwrap();
        told(&["content 2 from 0"]);
        let (_, again) = s.create(&cx, ROOT, name("f"), 0, rw | OpenFlags::TRUNC).unwrap();
        s.release(&cx, f, again).unwrap();
        told(&["content 2 from 0"]);
        s.unlink(&cx, ROOT, name("f")).unwrap();
        told(&["entry 1/f", "attributes 2"]);
        s.unlink(&cx, d, name("g")).unwrap();
        told(&["entry 3/g", "attributes 2"]);
        s.release(&cx, f, handle).unwrap();
        told(&["gone 2"]);
        s.rmdir(&cx, e, name("d")).unwrap();
        told(&["entry 4/d", "gone 3"]);
        s.lookup(&cx, ROOT, name("e")).unwrap();
        let listing = s.opendir(&cx, ROOT).unwrap();
        s.readdir(&cx, ROOT, listing, 0, &mut |_| true).unwrap();
        s.statfs(&cx).unwrap();
        told(&[]);
    }
}
