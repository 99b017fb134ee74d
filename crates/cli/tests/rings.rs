//! Programs that ask `atoll serve` through rings, beside others that have it mounted.
#![allow(missing_docs)]

mod common;

use std::os::fd::AsFd;
use std::sync::atomic::Ordering;

use atoll_host::client::{Address, ConnectError, ConnectOptions, Connection};
use atoll_host::control::{self, Answer, Hello, Kind};
use atoll_host::server::rules::Mode;
use atoll_host::shm::SharedMemory;
use atoll_transport::Memory;
use atoll_transport::channel::layout::header;
use atoll_transport::channel::{ClientChannel, Config, Layout};
use atoll_vfs::{Context, Errno, FileSystem, Ino, LiveView, Name, OpenFlags, Timespec};
use common::served::Served;
use common::{atoll, ok, wait_until};

const CX: Context = Context { uid: 0, gid: 0, now: Timespec { sec: 1, nsec: 0 } };

fn name(text: &str) -> Name<'_> {
    Name::new(text.as_bytes()).unwrap()
}

#[test]
fn rings_and_mounts_see_the_same_files() {
    let served = Served::new();
    let place = Address::find(&served.socket()).unwrap();
    let config = Config { lanes: 4, ..Config::default() };
    let mut ring = Connection::open(&place).unwrap().ring(Mode::Write, &config).unwrap();
    let flags = OpenFlags::READ | OpenFlags::WRITE;
    // A thread for each lane, all at once.
    let threads: Vec<_> = (0..4u8)
        .map(|thread| {
            let mut client = ring.cached().unwrap();
            std::thread::spawn(move || {
                let own = format!("f{thread}");
                let (attr, handle) =
                    client.create(&CX, Ino::ROOT, name(&own), 0o644, flags).unwrap();
                for round in 0..50u64 {
                    let data = vec![thread; 5000];
                    client.write(&CX, attr.ino, handle, round * 5000, &data).unwrap();
                    let mut back = vec![0; 5000];
                    let got = client.read(&CX, attr.ino, handle, round * 5000, &mut back).unwrap();
                    assert!(got == 5000 && back == data);
                }
                client
            })
        })
        .collect();
    let mut clients: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
    assert!(ring.cached().is_none());
    // A program that has it mounted sees that, and the ring what it does.
    let run = |script: &str| {
        ok(atoll()
            .current_dir(served.path())
            .args(["run", "-v", "s:/vol", "--", "sh", "-ec", script]))
    };
    assert_eq!(
        run("stat -c %s /vol/f3; tail -c 1 /vol/f3 | od -An -tu1; mv /vol/f0 /vol/g"),
        "250000\n   3\n"
    );
    let client = &mut clients[0];
    assert_eq!(client.lookup(&CX, Ino::ROOT, name("f0")), Err(Errno::ENOENT));
    assert_eq!(client.lookup(&CX, Ino::ROOT, name("g")).unwrap().size, 250_000);
    // Its unlinked files are gone when it is.
    let free = || run("stat -f -c %f /vol").trim().parse::<u64>().unwrap();
    let (attr, handle) = client.create(&CX, Ino::ROOT, name("big"), 0o644, flags).unwrap();
    let before = free();
    client.write(&CX, attr.ino, handle, 0, &vec![1; 1 << 20]).unwrap();
    client.unlink(&CX, Ino::ROOT, name("big")).unwrap();
    assert!(free() < before);
    drop(clients);
    drop(ring);
    // The file has 256 blocks. The tree may have another number of its own than before: how many
    // pieces the threads' files have goes by chance, and so does which node had room.
    wait_until("the session has ended", || free() + 8 >= before);
    // A server that ends is noticed, not waited for.
    let mut ring = Connection::open(&place).unwrap().ring(Mode::Read, &config).unwrap();
    let mut client = ring.cached().unwrap();
    assert_eq!(client.unlink(&CX, Ino::ROOT, name("g")), Err(Errno::EROFS));
    served.end();
    assert_eq!(client.getattr(&CX, Ino::ROOT), Err(Errno::EIO));
}

#[test]
fn a_view_may_be_asked_for_later() {
    let served = Served::new();
    let place = Address::find(&served.socket()).unwrap();
    let options = ConnectOptions { view: false, ..ConnectOptions::default() };
    let config = Config { lanes: 3, ..Config::default() };
    let connect = || Connection::open_with(&place, options).unwrap().ring(Mode::Write, &config);
    let mut ring = connect().unwrap();
    let mut before = ring.cached().unwrap();
    let flags = OpenFlags::READ | OpenFlags::WRITE;
    let (attr, handle) = before.create(&CX, Ino::ROOT, name("f"), 0o644, flags).unwrap();
    before.write(&CX, attr.ino, handle, 0, &[7; 5000]).unwrap();
    assert!(before.view().is_none());
    let view = ring.begin_view(1 << 20).unwrap();
    view.keep_from_children().unwrap();
    assert!(ring.is_alive());
    // A file that was open already is in the View like the rest.
    let mut page = [0; 4096];
    let shown = |at, page: &mut [u8]| view.reader().unwrap().read(attr.ino.0, at, page);
    assert_eq!(shown(4096, &mut page), None);
    assert_eq!(before.read(&CX, attr.ino, handle, 4096, &mut page), Ok(904));
    assert_eq!(shown(4096, &mut page), Some(904));
    assert!(page[..904] == [7; 904]);
    let mut after = ring.cached().unwrap();
    assert_eq!(after.getattr(&CX, attr.ino).map(|attr| attr.size), Ok(5000));
    before.write(&CX, attr.ino, handle, 4999, &[8; 2]).unwrap();
    assert_eq!(after.getattr(&CX, attr.ino).map(|attr| attr.size), Ok(5001));
    after.release(&CX, attr.ino, handle).unwrap();
    assert_eq!(shown(4096, &mut page), None);
    assert!(view.reader().unwrap().is_open());
    // Once, and not of no size: who goes on asking has no session.
    assert!(matches!(ring.begin_view(1 << 20), Err(ConnectError::Lost(..))));
    wait_until("the session has ended", || !ring.is_alive());
    wait_until("its View too", || !view.reader().is_some_and(|view| view.is_open()));
    assert_eq!(after.getattr(&CX, Ino::ROOT).err(), Some(Errno::EIO));
    let mut ring = connect().unwrap();
    assert!(matches!(ring.begin_view(100), Err(ConnectError::Lost(..))));
    wait_until("the session has ended", || !ring.is_alive());
    assert!(connect().unwrap().cached().unwrap().getattr(&CX, Ino::ROOT).is_ok());
    served.end();
}

/// A program that was built with another version of the rings is told so, and which both are.
#[test]
fn a_memory_of_another_version_is_refused() {
    let served = Served::new();
    let place = Address::find(&served.socket()).unwrap();
    let config = Config::default();
    let memory = SharedMemory::create("test", Layout::new(&config).unwrap().total()).unwrap();
    ClientChannel::create(memory.clone(), &config).unwrap();
    let ask = || {
        let connection = Connection::open(&place).unwrap();
        let (kind, mode, volume) = (Kind::Ring, Mode::Read, String::new());
        let hello = Hello { kind, mode, volume, single_owner: false, view: false };
        control::send(&connection, &hello.encode(), &[memory.as_fd()]).unwrap();
        Answer::decode(&control::receive(&connection).unwrap().0).unwrap()
    };
    assert_eq!(ask(), Answer::Granted(Mode::Read));
    memory.store32(header::VERSION, 1, Ordering::Relaxed);
    let Answer::Refused(why) = ask() else { panic!("it was not refused") };
    assert!(why.contains("version 1 ") && why.ends_with("version 2"), "{why}");
    served.end();
}
