//! A thousand connections of hostile users to a server that may have little memory.

use atoll_host::client::{Address, Connection, Ring};
use atoll_host::control::Mode;
use atoll_tests::fixtures;
use atoll_tests::served::{Served, as_stranger, ring};
use atoll_tests::subject::{RW, name};
use atoll_transport::channel::Config;
use atoll_vfs::{Context, FileSystem, Ino, OpenFlags, SetAttr, Timespec};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

const CX: Context = Context { uid: 0, gid: 0, now: Timespec { sec: 0, nsec: 0 } };
/// Memory of this process, in which the server runs and all its clients.
const MEMORY: u64 = 256 << 20;
/// The users, and the connections that each has: nearly all that there are.
const USERS: u32 = 17;
const CONNECTIONS: usize = 59;
/// The files that each of these has open.
const OPEN: usize = 20;

/// A client that works as any other.
fn works(ring: &mut Ring, named: &str) {
    let mut client = ring.client().expect("a lane");
    let (attr, handle) = client.create(&CX, Ino::ROOT, name(named), 0o600, RW).expect("a file");
    client.write(&CX, attr.ino, handle, 0, b"text").expect("a write");
    let mut text = [0; 4];
    assert_eq!(client.read(&CX, attr.ino, handle, 0, &mut text), Ok(4));
    assert_eq!(&text, b"text");
}

/// The limit makes any memory beyond it end this process. It has this one test.
#[test]
fn a_thousand_connections_are_held() {
    setrlimit(Resource::Data, Rlimit { current: Some(MEMORY), maximum: Some(MEMORY) }).unwrap();
    let files = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: files, maximum: files }).unwrap();
    let users = if nix::unistd::geteuid().is_root() { USERS } else { 1 };
    let served = Served::to_strangers(fixtures::open_to_all());
    let socket = served.socket();
    let mut inside = served.session();
    let (attr, handle) = inside.create(&CX, Ino::ROOT, name("f"), 0o644, RW).unwrap();
    let all = SetAttr { mode: Some(0o644), ..SetAttr::default() };
    inside.setattr(&CX, attr.ino, Some(handle), &all).unwrap();
    let mut victim = as_stranger(3001, || ring(&socket, 2));
    let connect = || {
        let place = Address { socket: socket.clone(), volume: String::new() };
        let config = Config { slots: 8, ..Config::default() };
        let connection = Connection::open(&place).expect("a server");
        let mut ring = connection.ring(Mode::Write, &config).expect("it is let in");
        let mut client = ring.client().expect("a lane");
        let ino = client.lookup(&CX, Ino::ROOT, name("f")).expect("a name").ino;
        for _ in 0..OPEN {
            client.open(&CX, ino, OpenFlags::READ).expect("an open file");
        }
        drop(client);
        ring
    };
    let many = || (0..CONNECTIONS).map(|_| connect()).collect::<Vec<_>>();
    let crowd: Vec<Ring> = (0..users).flat_map(|user| as_stranger(5000 + user, many)).collect();
    assert!(crowd.len() >= 1000 || users == 1);
    works(&mut victim, "in the crowd");
    as_stranger(3003, || works(&mut ring(&socket, 2), "a newcomer"));
}
