//! A server that lies in its numbers, and one that counts what it gives.

use alloc::rc::Rc;
use core::cell::{Cell, RefCell};

use atoll_transport::{Lost, Received, SendError, Token, Transport};

use super::*;
use crate::model::ModelFs;
use crate::wire::header::OutHeader;
use crate::wire::session::{InitIn, InitOut};
use crate::{Inline, ServerOptions};

const CX: Context = Context { uid: 0, gid: 0, now: Timespec { sec: 0, nsec: 0 } };
const INIT: [u8; 4] = 26u32.to_ne_bytes();

/// Answers every request by the same body.
#[derive(Debug, Default)]
struct Liar {
    body: Vec<u8>,
}

impl Transport for Liar {
    fn send(&mut self, _: &[u8], _: &[u8], _: usize) -> core::result::Result<Token, SendError> {
        Err(SendError::Lost)
    }

    fn ready(&mut self, _: &Token) -> core::result::Result<bool, Lost> {
        Err(Lost)
    }

    fn wait(&mut self, _: &Token) -> core::result::Result<(), Lost> {
        Err(Lost)
    }

    fn receive(
        &mut self,
        _: Token,
        _: &mut [u8],
        _: &mut [u8],
    ) -> core::result::Result<Received, Lost> {
        Err(Lost)
    }

    fn call(
        &mut self,
        message: &[u8],
        _: &[u8],
        answer: &mut [u8],
        _: &mut [u8],
    ) -> core::result::Result<Received, SendError> {
        let mut body = self.body.clone();
        if message[4..8] == INIT {
            let InitIn { major, minor, flags, flags2, atoll, .. } =
                InitIn::new(0, Extensions::APPEND);
            let agreed = InitOut { major, minor, flags, flags2, atoll, ..InitOut::default() };
            body = stored(&agreed);
        }
        let unique = u64::from_ne_bytes(message[8..16].try_into().unwrap());
        let len = OutHeader::SIZE + body.len();
        OutHeader { len: len as u32, error: 0, unique }.store(answer);
        answer[OutHeader::SIZE..len].copy_from_slice(&body);
        Ok(Received { message: len, data: 0 })
    }
}

fn stored<T: Fixed>(value: &T) -> Vec<u8> {
    let mut bytes = alloc::vec![0; T::SIZE];
    value.store(&mut bytes);
    bytes
}

fn says(body: Vec<u8>) -> Client<Liar> {
    let mut client = Client::connect(Liar::default(), ClientOptions::default()).unwrap();
    client.transport().body = body;
    client
}

#[test]
fn no_data_is_written_where_no_file_has_any() {
    for (offset, outcome) in [
        (7, Ok(Written { len: 4, offset: 7 })),
        (FILE_SIZE_MAX - 4, Ok(Written { len: 4, offset: FILE_SIZE_MAX - 4 })),
        (FILE_SIZE_MAX - 3, Err(Errno::EIO)),
        (u64::MAX - 3, Err(Errno::EIO)),
        (u64::MAX, Err(Errno::EIO)),
    ] {
        let mut body = stored(&WriteOut { size: 4, padding: 0 });
        body.extend(stored(&offset));
        let mut client = says(body);
        assert_eq!(client.write(&CX, Ino(7), Handle(1), 7, b"text"), outcome);
        assert_eq!(client.append_to(&CX, Ino(7), Handle(1), b"text"), outcome);
    }
}

#[test]
fn no_file_is_longer_than_any() {
    for (size, blocks, is_one) in [
        (FILE_SIZE_MAX, FILE_SIZE_MAX / 512, true),
        (FILE_SIZE_MAX + 1, 0, false),
        (u64::MAX, 0, false),
        (0, FILE_SIZE_MAX / 512 + 1, false),
        (0, u64::MAX, false),
    ] {
        let mut said = AttrOut::default();
        (said.attr.mode, said.attr.size, said.attr.blocks) = (0o100_600, size, blocks);
        let attr = says(stored(&said)).getattr(&CX, Ino(7));
        let outcome = attr.map(|attr| (attr.size, attr.blocks));
        assert_eq!(outcome, if is_one { Ok((size, blocks)) } else { Err(Errno::EIO) });
    }
}

/// A program that goes from data to data comes to the end.
#[test]
fn data_lies_behind_where_it_is_looked_for() {
    for (found, outcome) in [
        (10, Ok(10)),
        (FILE_SIZE_MAX, Ok(FILE_SIZE_MAX)),
        (9, Err(Errno::EIO)),
        (0, Err(Errno::EIO)),
        (FILE_SIZE_MAX + 1, Err(Errno::EIO)),
    ] {
        for to in [SeekTo::Data, SeekTo::Hole] {
            let mut client = says(stored(&LseekOut { offset: found }));
            assert_eq!(client.seek(&CX, Ino(7), Handle(1), 10, to), outcome);
        }
    }
}

/// A server for kernels, which counts how often it gives an inode, and has calls fail.
#[derive(Default)]
struct Counts {
    fs: ModelFs,
    given: Rc<RefCell<BTreeMap<Ino, i64>>>,
    fails: Rc<Cell<Option<Errno>>>,
}

impl Counts {
    fn gives(&self, answer: Result<Attr>) -> Result<Attr> {
        if let Ok(attr) = &answer {
            *self.given.borrow_mut().entry(attr.ino).or_default() += 1;
        }
        answer
    }

    fn knows(&self, ino: Ino) {
        let given = self.given.borrow().get(&ino).copied();
        assert!(ino == Ino::ROOT || given > Some(0), "{ino} has been forgotten");
    }

    fn may(&self) -> Result<()> {
        self.fails.get().map_or(Ok(()), Err)
    }
}

macro_rules! plain {
    ($self:ident $verb:ident ($($arg:ident),*)) => { $self.fs.$verb($($arg),*) };
}

macro_rules! gives {
    ($self:ident $verb:ident ($($arg:ident),*)) => {{
        let answer = $self.fs.$verb($($arg),*);
        $self.gives(answer)
    }};
}

macro_rules! fails {
    ($self:ident $verb:ident ($($arg:ident),*)) => {{
        $self.may()?;
        $self.fs.$verb($($arg),*)
    }};
}

impl FileSystem for Counts {
    crate::verbs!(plain: readlink setattr tmpfile read write copy_file_range fallocate seek fsync
        release opendir readdir releasedir fsyncdir syncfs statfs setxattr getxattr listxattr
        removexattr);
    crate::verbs!(gives: mknod mkdir symlink link);
    crate::verbs!(fails: unlink rmdir rename open);

    fn lookup(&mut self, cx: &Context, parent: Ino, name: Name<'_>) -> Result<Attr> {
        assert!(!name.is_dot_or_dot_dot(), "no kernel asks for that");
        self.knows(parent);
        let answer = self.fs.lookup(cx, parent, name);
        self.gives(answer)
    }

    fn getattr(&mut self, cx: &Context, ino: Ino) -> Result<Attr> {
        self.may()?;
        self.knows(ino);
        self.fs.getattr(cx, ino)
    }

    fn forget(&mut self, ino: Ino, count: u64) {
        *self.given.borrow_mut().entry(ino).or_default() -= count as i64;
    }

    fn create(
        &mut self,
        cx: &Context,
        parent: Ino,
        name: Name<'_>,
        mode: u32,
        flags: OpenFlags,
    ) -> Result<(Attr, Handle)> {
        let (attr, handle) = self.fs.create(cx, parent, name, mode, flags)?;
        self.gives(Ok(attr)).map(|attr| (attr, handle))
    }
}

/// The server has given what the client's caller was given, and nothing else: also where a call
/// that is several requests fails in the middle.
#[test]
fn a_server_for_kernels_gives_what_the_caller_gets() {
    let server = Counts::default();
    let (given, fails) = (Rc::clone(&server.given), Rc::clone(&server.fails));
    let options = ServerOptions { extensions: Extensions::empty(), ..ServerOptions::default() };
    let wire = Inline::new(server, options, Timespec::default);
    let mut fs = Client::connect(wire, ClientOptions::default()).unwrap();
    let cx = Context { uid: 0, gid: 0, now: Timespec::default() };
    let name = |text: &'static str| Name::new(text.as_bytes()).unwrap();
    let mut caller = BTreeMap::new();
    let mut got = |ino: Ino| *caller.entry(ino).or_insert(0i64) += 1;
    got(fs.mkdir(&cx, Ino::ROOT, name("d"), 0o755).unwrap().ino);
    got(fs.symlink(&cx, Ino::ROOT, name("l"), b"d").unwrap().ino);
    let truncates = OpenFlags::WRITE | OpenFlags::TRUNC;
    let (attr, handle) = fs.create(&cx, Ino::ROOT, name("f"), 0o644, truncates).unwrap();
    got(attr.ino);
    fs.release(&cx, attr.ino, handle).unwrap();
    for round in 0..40 {
        let failed = if round % 2 == 0 { None } else { Some(Errno::EIO) };
        fails.set(failed);
        let mut create = |called| fs.create(&cx, Ino::ROOT, name(called), 0o644, truncates);
        assert_eq!(create("d"), Err(Errno::EISDIR));
        assert_eq!(create("l"), Err(Errno::ELOOP));
        match create("f") {
            Ok((attr, handle)) => {
                got(attr.ino);
                fs.release(&cx, attr.ino, handle).unwrap();
            }
            Err(error) => assert_eq!(Some(error), failed),
        }
        if failed.is_some() {
            assert_eq!(fs.unlink(&cx, Ino::ROOT, name("f")), Err(Errno::EIO));
            assert_eq!(fs.rmdir(&cx, Ino::ROOT, name("d")), Err(Errno::EIO));
            assert_eq!(fs.unlink(&cx, Ino::ROOT, name("none")), Err(Errno::ENOENT));
        }
        fs.forget(Ino::ROOT, 1);
    }
    for (ino, count) in caller {
        fs.forget(ino, count as u64);
    }
    fs.forget_now();
    given.borrow_mut().retain(|_, count| *count != 0);
    assert_eq!(*given.borrow(), BTreeMap::new());
}

/// A client of a server that is for kernels, and how often that has given what.
fn for_kernels() -> (impl FileSystem, Rc<RefCell<BTreeMap<Ino, i64>>>) {
    let server = Counts::default();
    let given = Rc::clone(&server.given);
    let options = ServerOptions { extensions: Extensions::empty(), ..ServerOptions::default() };
    let wire = Inline::new(server, options, Timespec::default);
    (Client::connect(wire, ClientOptions::default()).unwrap(), given)
}

/// What `..` is the client knows, as a kernel does: whatever is moved, and forgotten by its caller.
#[test]
fn a_server_for_kernels_is_not_asked_for_parents() {
    let (mut fs, given) = for_kernels();
    // Where things are, and what the caller has.
    let mut seed = 7u64;
    let mut below = |below: usize| {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        (seed >> 11) as usize % below
    };
    const NAMES: [&str; 4] = ["a", "b", "c", "d"];
    let cx = Context { uid: 0, gid: 0, now: Timespec::default() };
    let name = |text: &'static str| Name::new(text.as_bytes()).unwrap();
    let mut parents = BTreeMap::new();
    let mut caller = BTreeMap::<Ino, u64>::new();
    let (mut climbed, mut deepest) = (0, 0);
    for _ in 0..if cfg!(miri) { 300 } else { 20_000 } {
        let known: Vec<Ino> = caller.keys().copied().chain([Ino::ROOT]).collect();
        let (dir, to) = (known[below(known.len())], known[below(known.len())]);
        let (called, new) = (name(NAMES[below(4)]), name(NAMES[below(4)]));
        match below(8) {
            0 | 1 => {
                if let Ok(attr) = fs.mkdir(&cx, dir, called, 0o755) {
                    parents.insert(attr.ino, dir);
                    *caller.entry(attr.ino).or_default() += 1;
                }
            }
            2 => {
                if let Ok(attr) = fs.lookup(&cx, dir, called) {
                    *caller.entry(attr.ino).or_default() += 1;
                }
            }
            3 => {
                let flags = [RenameFlags::empty(), RenameFlags::EXCHANGE][below(2)];
                let mut find = |dir, called| {
                    let found = fs.lookup(&cx, dir, called).ok()?.ino;
                    fs.forget(found, 1);
                    Some(found)
                };
                let (one, other) = (find(dir, called), find(to, new));
                if fs.rename(&cx, dir, called, to, new, flags).is_ok() {
                    parents.extend(one.map(|ino| (ino, to)));
                    if flags.contains(RenameFlags::EXCHANGE) {
                        parents.extend(other.map(|ino| (ino, dir)));
                    }
                }
            }
            4 => {
                // Those that are not empty stay.
                let _ = fs.rmdir(&cx, dir, called);
            }
            5 => {
                if let Some(count) = caller.remove(&dir) {
                    fs.forget(dir, count);
                }
            }
            _ => {
                let mut at = dir;
                for depth in 1.. {
                    let found = match fs.lookup(&cx, at, name("..")) {
                        Ok(attr) => attr.ino,
                        // It was removed, and its parent too.
                        Err(error) => {
                            assert_eq!(error, Errno::ESTALE);
                            break;
                        }
                    };
                    assert_eq!(found, parents.get(&at).copied().unwrap_or(Ino::ROOT), "of {at}");
                    assert_eq!(fs.lookup(&cx, found, name(".")).unwrap().ino, found);
                    fs.forget(found, 2);
                    climbed += 1;
                    deepest = deepest.max(depth);
                    if found == Ino::ROOT {
                        break;
                    }
                    at = found;
                }
            }
        }
    }
    assert!(cfg!(miri) || climbed > 5000 && deepest > 5, "{climbed} {deepest}");
    for (ino, count) in caller {
        fs.forget(ino, count);
    }
    // Until they are told together.
    let left: i64 = given.borrow().values().filter(|count| **count > 0).count() as i64;
    assert!(left < FORGETS as i64, "{left}");
}

/// A server that puts directories below themselves, and one that gives what it likes.
#[test]
fn no_directory_is_below_itself() {
    let mut tree = Tree::default();
    tree.given(Ino::ROOT, Ino(2));
    tree.given(Ino(2), Ino(3));
    for (parent, ino) in [(3, 2), (2, 2), (3, 3), (9, 9), (9, 9)] {
        tree.given(Ino(parent), Ino(ino));
    }
    let parent = |tree: &Tree, ino| tree.parent(Ino(ino));
    assert_eq!([2, 3, 9].map(|ino| parent(&tree, ino)), [1, 2, 1].map(|ino| Some(Ino(ino))));
}
