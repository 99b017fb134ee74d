//! The file seam cut in two: client, messages, server, and behind it the model or the on-disk file
//! system. Then either side with a peer that knows plain FUSE only.

use std::cell::Cell;
use std::rc::Rc;

use atoll_tests::differential::{differential_proptest, differential_seeds};
use atoll_tests::fixtures::volume;
use atoll_tests::ops::Profile;
use atoll_tests::{Quirks, Subject, filesystem_conformance};
use atoll_vfs::model::ModelFs;
use atoll_vfs::wire::Extensions;
use atoll_vfs::{
    Client, ClientOptions, DirEntry, FileSystem, Inline, Ino, OpenFlags, ServerOptions, SetAttr,
    Timespec,
};

/// A server that trusts its clients, which say what time it is.
const TRUSTING: ServerOptions =
    ServerOptions { max_data: 1 << 20, extensions: Extensions::all(), valid: 0 };

fn cut(fs: impl FileSystem + 'static) -> impl FileSystem {
    let wire = Inline::new(fs, TRUSTING, Timespec::default);
    let client = Client::connect(wire, ClientOptions::default()).expect("connect");
    assert_eq!(client.agreed(), Extensions::all());
    client
}

/// A client or a server without Atoll's extensions: the server's clock counts.
fn plain(
    fs: impl FileSystem + 'static,
    server: Extensions,
    client: Extensions,
    max_data: usize,
) -> impl FileSystem {
    let seconds = Rc::new(Cell::new(0));
    let clock = move || {
        seconds.set(seconds.get() + 1);
        Timespec { sec: seconds.get(), nsec: 5 }
    };
    let options = ServerOptions { extensions: server, ..ServerOptions::default() };
    let wire = Inline::new(fs, options, clock).narrow(max_data);
    let options = ClientOptions { extensions: client, ..ClientOptions::default() };
    let client = Client::connect(wire, options).expect("connect");
    assert_eq!(client.agreed(), Extensions::empty());
    client
}

fn server_time() -> Quirks {
    Quirks { caller_time: false, ..Quirks::default() }
}

filesystem_conformance!(model_behind_the_wire, || cut(ModelFs::default()));
filesystem_conformance!(volume_behind_the_wire, || cut(volume(16 << 10)));
filesystem_conformance!(
    plain_server,
    || plain(volume(16 << 10), Extensions::empty(), Extensions::all(), 1 << 20),
    server_time()
);
// A transport that carries no more than the largest extended attribute: larger reads and writes are
// cut.
filesystem_conformance!(
    plain_client,
    || plain(ModelFs::default(), Extensions::all(), Extensions::empty(), 64 << 10),
    server_time()
);

#[test]
fn differential() {
    let test = "--test wire differential";
    let make = || (cut(volume(16 << 10)), Quirks::default());
    differential_seeds(test, 10, 2000, &Profile::DIFFERENTIAL, make);
    differential_proptest(test, 25, 200, Profile::DIFFERENTIAL, make);
}

#[test]
fn differential_with_a_plain_server() {
    let test = "--test wire differential_with_a_plain_server";
    let make = || {
        let fs = plain(ModelFs::default(), Extensions::empty(), Extensions::all(), 64 << 10);
        (fs, server_time())
    };
    differential_seeds(test, 10, 2000, &Profile::DIFFERENTIAL, make);
}

/// Reads and writes larger than the transport carries arrive whole, appended ones too.
#[test]
fn large_reads_and_writes_are_cut() {
    for extensions in [Extensions::all(), Extensions::empty()] {
        let options = ServerOptions { extensions, ..TRUSTING };
        let wire = Inline::new(ModelFs::default(), options, Timespec::default).narrow(10_000);
        let fs = Client::connect(wire, ClientOptions::default()).expect("connect");
        let mut s = Subject::new(fs, server_time());
        let file = s.create(Ino::ROOT, "f");
        let data = atoll_tests::subject::pattern(3, 100_001);
        s.write(file, 7, &data);
        let appender = s.open(file.ino, OpenFlags::WRITE | OpenFlags::APPEND);
        let cx = s.cx();
        let written = s.fs.write(&cx, file.ino, appender.handle, 0, &data).expect("append");
        assert_eq!((written.len, written.offset), (data.len(), 7 + data.len() as u64));
        assert_eq!(s.read(file, 7, data.len()), data);
        let whole = s.content(file.ino);
        assert_eq!(whole.len(), 7 + 2 * data.len());
        assert_eq!(whole[7 + data.len()..], data[..]);
        // The end of the file, on both sides of where requests are cut.
        s.truncate(file.ino, 10_000);
        assert_eq!(s.read(file, 0, 20_000).len(), 10_000);
        s.fs.setattr(&cx, file.ino, None, &SetAttr::default()).expect("setattr of nothing");
    }
}

/// A listing that fits into one answer is one request, and so of one moment; with a server that
/// knows plain FUSE only, the client learns only from an empty answer that the listing has ended.
#[test]
fn short_listings_are_one_request() {
    for (extensions, requests) in [(Extensions::all(), 1), (Extensions::empty(), 2)] {
        let count = Rc::new(Cell::new(0));
        let counted = Rc::clone(&count);
        let clock = move || {
            counted.set(counted.get() + 1);
            Timespec::default()
        };
        let wire = Inline::new(volume(16 << 10), ServerOptions { extensions, ..TRUSTING }, clock);
        let fs = Client::connect(wire, ClientOptions::default()).expect("connect");
        let mut s = Subject::new(fs, server_time());
        let list = |s: &mut Subject| {
            let cx = s.cx();
            let dir = s.fs.opendir(&cx, Ino::ROOT).expect("opendir");
            let before = count.get();
            let mut names = 0;
            let mut emit = |_: &DirEntry<'_>| {
                names += 1;
                true
            };
            s.fs.readdir(&cx, Ino::ROOT, dir, 0, &mut emit).expect("readdir");
            let asked = count.get() - before;
            s.fs.releasedir(&cx, Ino::ROOT, dir).expect("releasedir");
            (names, asked)
        };
        for i in 0..20 {
            s.create(Ino::ROOT, &format!("f{i}"));
        }
        assert_eq!(list(&mut s), (22, requests));
        // More than one answer holds.
        for i in 0..1500 {
            s.create(Ino::ROOT, &format!("longer name {i:20}"));
        }
        let (names, asked) = list(&mut s);
        assert!(names == 1522 && asked > 2, "{names} names by {asked} requests");
    }
}
