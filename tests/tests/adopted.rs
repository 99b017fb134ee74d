//! Open files that one session lends to others: what the others may do with them, and what they
//! read of them in the View.

use std::sync::Arc;

use atoll_host::shm::MappedView;
use atoll_server::{Access, Credentials, Limits, Session, Token, Volume};
use atoll_tests::adopting::Adopting;
use atoll_tests::fixtures::{cx, root, user, volume};
use atoll_tests::linear::clients::Dawdling;
use atoll_tests::linear::history::Mix;
use atoll_tests::linear::run::{self, linearizable};
use atoll_tests::subject::{RW, name};
use atoll_tests::{Quirks, filesystem_conformance};
use atoll_vfs::model::ModelFs;
use atoll_vfs::*;

const ROOT: Ino = Ino::ROOT;
const PAGE: usize = 4096;
/// A View in which little has room for long.
const TIGHT: usize = 100 << 10;
const WIDE: usize = 4 << 20;
const READ: OpenFlags = OpenFlags::READ;

fn attested() -> Quirks {
    Quirks { ownership: false, ..Quirks::default() }
}

filesystem_conformance!(
    of_the_model,
    || Adopting::new(&atoll_host::server::volume(ModelFs::default(), "v"), &root(), WIDE),
    attested()
);

filesystem_conformance!(
    of_a_volume,
    || Adopting::new(&atoll_host::server::volume(volume(16 << 10), "v"), &root(), TIGHT),
    attested()
);

#[test]
fn linearizable_by_what_was_adopted() {
    let test = "--test adopted linearizable_by_what_was_adopted";
    for (bytes, count) in [(WIDE, 100), (TIGHT, 100)] {
        linearizable(test, count, &Mix::ALL, |_, n| {
            let volume = atoll_host::server::volume(Dawdling::new(volume(2048)), "v");
            let client = |_| Adopting::new(&volume, &root(), bytes);
            run::World::new((0..n).map(client).collect())
        });
    }
}

// ---- What the View has, and what it must have dropped ----

type Model = Session<ModelFs>;

/// A session that may have a View.
struct Adopter {
    session: Model,
    view: Option<Arc<MappedView>>,
}

impl Adopter {
    fn new(volume: &Arc<Volume<ModelFs>>, peer: Credentials) -> Adopter {
        Adopter { session: volume.session(peer, Access::default()).unwrap(), view: None }
    }

    fn with_view(mut self) -> Adopter {
        let memory = atoll_host::server::open_view(&mut self.session, WIDE).unwrap().unwrap();
        self.view = Some(MappedView::attach(memory, || true).unwrap());
        self
    }

    fn adopt(&mut self, token: Token) -> Handle {
        self.session.adopt(token).unwrap().1
    }

    fn reader(&self) -> &view::ViewReader<'_> {
        self.view.as_ref().unwrap().reader().unwrap()
    }

    /// Whether the View has the first page of `ino`.
    fn shows(&self, ino: Ino) -> bool {
        self.reader().read(ino.0, 0, &mut [0; PAGE]).is_some()
    }

    /// Reads it through `handle`, after which the View has it.
    fn fill(&mut self, ino: Ino, handle: Handle) {
        self.session.read(&cx(), ino, handle, 0, &mut [0; PAGE]).unwrap();
        assert!(self.shows(ino));
    }

    /// Whether the server refuses `handle`, and nothing that it is asked brings the page back.
    fn refused(&mut self, ino: Ino, handle: Handle) -> bool {
        let read = self.session.read(&cx(), ino, handle, 0, &mut [0; PAGE]);
        let _ = self.session.getattr(&cx(), ino);
        read == Err(Errno::EBADF) && !self.shows(ino)
    }
}

/// A volume, a session that has opened the file `f` of one page there, and the file.
fn lender() -> (Arc<Volume<ModelFs>>, Model, Ino, Handle) {
    let volume = atoll_host::server::volume(ModelFs::default(), "v");
    let mut lender = volume.session(root(), Access::default()).unwrap();
    let (attr, handle) = lender.create(&cx(), ROOT, name("f"), 0o600, RW).unwrap();
    lender.write(&cx(), attr.ino, handle, 0, &[1; PAGE]).unwrap();
    (volume, lender, attr.ino, handle)
}

#[test]
fn pages_go_with_the_original() {
    let (volume, mut lender, file, original) = lender();
    let token = lender.token(file, original).unwrap();
    // One had its View before, one begins it after it has adopted, and one is root.
    let mut before = Adopter::new(&volume, user()).with_view();
    let mut after = Adopter::new(&volume, user());
    let mut third = Adopter::new(&volume, root()).with_view();
    let handles = [&mut before, &mut after, &mut third].map(|adopter| adopter.adopt(token));
    let mut after = after.with_view();
    for (adopter, handle) in [&mut before, &mut after, &mut third].into_iter().zip(handles) {
        adopter.fill(file, handle);
        // It follows what others write.
        lender.write(&cx(), file, original, 0, &[2]).unwrap();
        assert!(!adopter.shows(file));
        adopter.fill(file, handle);
    }
    // A second handle of the original's session changes nothing.
    let other = lender.open(&cx(), file, READ).unwrap();
    for adopter in [&mut before, &mut after, &mut third] {
        adopter.session.getattr(&cx(), file).unwrap();
        adopter.fill(file, handles[0]);
    }
    lender.release(&cx(), file, original).unwrap();
    for (adopter, handle) in [&mut before, &mut after, &mut third].into_iter().zip(handles) {
        assert!(adopter.refused(file, handle));
        // Closing the adopted handle succeeds once, and then is an error.
        adopter.session.release(&cx(), file, handle).unwrap();
        assert_eq!(adopter.session.release(&cx(), file, handle), Err(Errno::EBADF));
    }
    // A session that may name only inodes given to it cannot name this one.
    assert_eq!(before.session.getattr(&cx(), file), Err(Errno::ESTALE));
    assert!(before.reader().attr(file.0).is_none());
    lender.release(&cx(), file, other).unwrap();
}

#[test]
fn the_last_handle_that_may_read_counts() {
    let (volume, mut lender, file, original) = lender();
    let token = lender.token(file, original).unwrap();
    let mut adopter = Adopter::new(&volume, root()).with_view();
    // Adopted twice: both go with the original.
    let (first, second) = (adopter.adopt(token), adopter.adopt(token));
    adopter.fill(file, first);
    adopter.session.release(&cx(), file, first).unwrap();
    assert!(adopter.shows(file));
    adopter.session.release(&cx(), file, second).unwrap();
    assert!(!adopter.shows(file));
    let (first, second) = (adopter.adopt(token), adopter.adopt(token));
    adopter.fill(file, second);
    // Beside one of its own, which stays.
    let own = adopter.session.open(&cx(), file, READ).unwrap();
    lender.release(&cx(), file, original).unwrap();
    assert!(adopter.shows(file));
    adopter.fill(file, own);
    adopter.session.release(&cx(), file, first).unwrap();
    assert!(adopter.shows(file));
    adopter.session.release(&cx(), file, own).unwrap();
    assert!(adopter.refused(file, second));

    // A file open for writing alone has no pages in the View, whoever else has it open.
    let original = lender.open(&cx(), file, OpenFlags::WRITE).unwrap();
    let token = lender.token(file, original).unwrap();
    let writing = adopter.adopt(token);
    assert_eq!(adopter.session.write(&cx(), file, writing, 0, &[5]).map(|w| w.len), Ok(1));
    assert!(adopter.refused(file, writing));
    // One's own file, lent to oneself.
    let own = adopter.session.open(&cx(), file, READ).unwrap();
    let token = adopter.session.token(file, own).unwrap();
    let again = adopter.adopt(token);
    adopter.fill(file, again);
    adopter.session.release(&cx(), file, own).unwrap();
    assert!(adopter.refused(file, again));
}

#[test]
fn sessions_that_end_take_their_part() {
    let (volume, mut lender, file, original) = lender();
    let token = lender.token(file, original).unwrap();
    let mut kept = Adopter::new(&volume, user()).with_view();
    let handle = kept.adopt(token);
    for _ in 0..3 {
        let mut short = Adopter::new(&volume, user()).with_view();
        let (a, b) = (lender.open(&cx(), file, READ).unwrap(), short.adopt(token));
        let lent = lender.token(file, a).unwrap();
        short.adopt(lent);
        short.fill(file, b);
        drop(short.session);
        // The next has the place of its View, and has adopted nothing.
        let mut next = Adopter::new(&volume, root()).with_view();
        let own = next.session.open(&cx(), file, READ).unwrap();
        next.fill(file, own);
        kept.fill(file, handle);
        lender.release(&cx(), file, a).unwrap();
        assert!(next.shows(file), "by its own handle");
        next.session.write(&cx(), file, own, 0, b"x").unwrap_err();
        next.fill(file, own);
        next.session.release(&cx(), file, own).unwrap();
        assert!(next.refused(file, own));
    }
    kept.fill(file, handle);
    drop(lender);
    assert!(kept.refused(file, handle));
}

// ---- Rights ----

#[test]
fn rights_are_the_originals() {
    let (volume, mut lender, file, both) = lender();
    let reading = lender.open(&cx(), file, READ).unwrap();
    let mut s = volume.session(user(), Access::default()).unwrap();
    // The inode is unknown before, and a false token is refused.
    assert_eq!(s.getattr(&cx(), file), Err(Errno::ESTALE));
    let token = lender.token(file, reading).unwrap();
    assert_eq!(s.adopt(Token([token.0[1], token.0[0]])), Err(Errno::EBADF));
    let (named, handle) = s.adopt(token).unwrap();
    assert_eq!(named, file);
    // Only root may open the file, but the descriptor counts, as after any open(2).
    assert_eq!(s.read(&cx(), file, handle, 0, &mut [0; 10]), Ok(10));
    assert_eq!(s.open(&cx(), file, READ), Err(Errno::EACCES));
    let refused = |error| error == Errno::EBADF || error == Errno::EACCES || error == Errno::EINVAL;
    let size = SetAttr { size: Some(0), ..SetAttr::default() };
    let none = FallocateMode::empty();
    assert!(s.write(&cx(), file, handle, 0, b"x").is_err_and(refused));
    assert!(s.append(&cx(), file, handle, b"x".into()).is_err_and(refused));
    assert!(s.write_back(&cx(), file, handle, 0, b"x".into()).is_err_and(refused));
    assert!(s.fallocate(&cx(), file, handle, 0, 1, none).is_err_and(refused));
    assert!(s.setattr(&cx(), file, Some(handle), &size).is_err_and(refused));
    assert!(s.setattr(&cx(), file, None, &size).is_err_and(refused));
    assert_eq!(lender.getattr(&cx(), file).unwrap().size, PAGE as u64);
    // An adopted file cannot be lent on.
    assert_eq!(s.token(file, handle), Err(Errno::EBADF));
    // Nor is it a handle of any other inode.
    assert_eq!(s.read(&cx(), ROOT, handle, 0, &mut [0]).err(), Some(Errno::EBADF));

    // With the original goes everything.
    lender.release(&cx(), file, reading).unwrap();
    assert_eq!(s.adopt(token), Err(Errno::EBADF));
    assert_eq!(s.read(&cx(), file, handle, 0, &mut [0]), Err(Errno::EBADF));
    assert_eq!(s.fsync(&cx(), file, handle, true), Err(Errno::EBADF));
    assert_eq!(s.seek(&cx(), file, handle, 0, SeekTo::Data), Err(Errno::EBADF));
    s.release(&cx(), file, handle).unwrap();
    assert_eq!(s.getattr(&cx(), file), Err(Errno::ESTALE));

    // A handle that may write, which does not keep the file alive.
    let (_, handle) = s.adopt(lender.token(file, both).unwrap()).unwrap();
    assert_eq!(s.write(&cx(), file, handle, 0, b"x").map(|w| w.len), Ok(1));
    assert_eq!(s.setattr(&cx(), file, Some(handle), &size).map(|attr| attr.size), Ok(0));
    lender.unlink(&cx(), ROOT, name("f")).unwrap();
    assert_eq!(s.getattr(&cx(), file).map(|attr| attr.nlink), Ok(0));
    lender.release(&cx(), file, both).unwrap();
    assert_eq!(s.getattr(&cx(), file), Err(Errno::ESTALE));
    assert_eq!(s.write(&cx(), file, handle, 0, b"x"), Err(Errno::EBADF));
}

#[test]
fn nothing_beyond_the_adopters_grant() {
    let (volume, mut lender, file, original) = lender();
    let token = lender.token(file, original).unwrap();
    // A session that may only read.
    let mut s = volume.session(user(), Access { read_only: true, ..Access::default() }).unwrap();
    let (_, handle) = s.adopt(token).unwrap();
    let size = SetAttr { size: Some(0), ..SetAttr::default() };
    assert_eq!(s.read(&cx(), file, handle, 0, &mut [0; 10]), Ok(10));
    assert_eq!(s.write(&cx(), file, handle, 0, b"x").err(), Some(Errno::EROFS));
    assert_eq!(s.append(&cx(), file, handle, b"x".into()).err(), Some(Errno::EROFS));
    assert_eq!(s.setattr(&cx(), file, Some(handle), &size).err(), Some(Errno::EROFS));
    let punch = FallocateMode::PUNCH_HOLE | FallocateMode::KEEP_SIZE;
    assert_eq!(s.fallocate(&cx(), file, handle, 0, 1, punch).err(), Some(Errno::EROFS));

    // A session that may have one file open.
    let limits = Limits { open_files: 1, ..Limits::default() };
    let mut s = volume.session(user(), Access { limits, ..Access::default() }).unwrap();
    let (_, handle) = s.adopt(token).unwrap();
    assert_eq!(s.adopt(token), Err(Errno::EMFILE));
    s.release(&cx(), file, handle).unwrap();
    assert!(s.adopt(token).is_ok());

    // A session with a directory as its root adopts from one with the same root, and from no other.
    for dir in ["in", "out"] {
        let dir = lender.mkdir(&cx(), ROOT, name(dir), 0o755).unwrap().ino;
        lender.mknod(&cx(), dir, name("g"), 0o100666, 0).unwrap();
    }
    let below = |path: &str, peer| {
        let access = Access { subtree: Some(path.into()), ..Access::default() };
        volume.session(peer, access).unwrap()
    };
    let lend = |s: &mut Model| {
        let g = s.lookup(&cx(), ROOT, name("g")).unwrap().ino;
        let handle = s.open(&cx(), g, RW).unwrap();
        s.token(g, handle).map(|token| (g, token)).unwrap()
    };
    let mut inside = below("/in", user());
    let mut outside = below("/out", root());
    let (g, own) = lend(&mut inside);
    let (elsewhere, other) = lend(&mut outside);
    let mut s = below("/in", user());
    for token in [token, other] {
        assert_eq!(s.adopt(token), Err(Errno::EBADF));
    }
    assert_eq!(s.getattr(&cx(), file), Err(Errno::ESTALE));
    assert_eq!(s.getattr(&cx(), elsewhere), Err(Errno::ESTALE));
    let (named, handle) = s.adopt(own).unwrap();
    assert_eq!((named, s.getattr(&cx(), g).map(|attr| attr.ino)), (g, Ok(g)));
    assert_eq!(s.write(&cx(), g, handle, 0, b"x").map(|w| w.len), Ok(1));
    // A session of the whole volume has the directories too.
    for token in [own, other] {
        assert!(lender.adopt(token).is_ok());
    }
}
