//! A server that may have little memory, and clients that ask for the most of everything.

use std::path::Path;
use std::time::{Duration, Instant};

use atoll_host::client::{Address, ConnectError, Connection, Ring};
use atoll_host::control::Mode;
use atoll_tests::fixtures;
use atoll_tests::served::{Served, as_stranger, ring};
use atoll_tests::subject::{RW, name};
use atoll_transport::channel::Config;
use atoll_vfs::{Context, Errno, FileSystem, Ino, OpenFlags, Timespec};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

const CX: Context = Context { uid: 0, gid: 0, now: Timespec { sec: 0, nsec: 0 } };
/// Memory of this process, in which the server runs and all its clients.
const MEMORY: u64 = 256 << 20;
/// Hostile users, and the connections of each: a thousand, nearly all that a server has.
const USERS: u32 = 18;
const CONNECTIONS: usize = 56;
/// The opens of a hostile client, unless it is refused: of all together far more than fits.
const OPENS: usize = 20_000;

/// One that opens files until it may not, and keeps the connection, if it got one; how many it has
/// opened.
fn greedy(socket: &Path) -> (Option<Ring>, usize) {
    let place = Address { socket: socket.to_owned(), volume: String::new() };
    let config = Config { lanes: 2, ..Config::default() };
    let ring = match Connection::open(&place).expect("a server").ring(Mode::Write, &config) {
        Ok(ring) => Some(ring),
        Err(ConnectError::Refused(_, why)) => {
            // Refused ones count for a moment.
            assert!(why.contains("memory") || why.contains("too many clients"), "{why}");
            None
        }
        Err(error) => panic!("{error}"),
    };
    let Some(mut ring) = ring else { return (None, 0) };
    let Some(mut client) = ring.client() else { return (None, 0) };
    let ino = client.lookup(&CX, Ino::ROOT, name("f")).expect("a name").ino;
    let refused = (0..OPENS).find_map(|opened| {
        let error = client.open(&CX, ino, OpenFlags::READ).err()?;
        assert_eq!(error, Errno::ENFILE);
        Some(opened)
    });
    (Some(ring), refused.unwrap_or(OPENS))
}

/// A client that works as any other.
fn works(ring: &mut Ring, named: &str) {
    let mut client = ring.client().expect("a lane");
    let (attr, handle) = client.create(&CX, Ino::ROOT, name(named), 0o600, RW).expect("a file");
    client.write(&CX, attr.ino, handle, 0, b"text").expect("a write");
    let mut text = [0; 4];
    assert_eq!(client.read(&CX, attr.ino, handle, 0, &mut text), Ok(4));
    assert_eq!(&text, b"text");
    let directory = client.opendir(&CX, Ino::ROOT).expect("a directory");
    let mut names = 0;
    let mut count = |_: &atoll_vfs::DirEntry<'_>| {
        names += 1;
        true
    };
    client.readdir(&CX, Ino::ROOT, directory, 0, &mut count).expect("a listing");
    assert!(names >= 4);
}

/// The limit makes any memory beyond it end this process. It has this one test.
#[test]
fn the_greedy_get_their_share_and_others_theirs() {
    setrlimit(Resource::Data, Rlimit { current: Some(MEMORY), maximum: Some(MEMORY) }).unwrap();
    let files = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: files, maximum: files }).unwrap();
    let users = if nix::unistd::geteuid().is_root() { USERS } else { 1 };
    let served = Served::to_strangers(fixtures::volume(16_384));
    let socket = served.socket();
    let mut inside = served.session();
    let mode = 0o1777;
    let all = atoll_vfs::SetAttr { mode: Some(mode), ..atoll_vfs::SetAttr::default() };
    inside.setattr(&CX, Ino::ROOT, None, &all).unwrap();
    let (attr, handle) = inside.create(&CX, Ino::ROOT, name("f"), 0o644, RW).unwrap();
    inside.release(&CX, attr.ino, handle).unwrap();
    let connect = |uid| as_stranger(uid, || ring(&socket, 2));
    let mut victim = connect(3001);
    works(&mut victim, "before");
    let mut greedies = Vec::new();
    let mut opened = Vec::new();
    for user in 0..users {
        let of_user = as_stranger(4000 + user, || {
            (0..CONNECTIONS).map(|_| greedy(&socket)).collect::<Vec<_>>()
        });
        opened.push(of_user.iter().map(|(_, opened)| opened).sum::<usize>());
        greedies.extend(of_user.into_iter().map(|(ring, _)| ring));
    }
    let sum: usize = opened.iter().sum();
    assert!(sum > 50_000 && sum < 1 << 20, "{opened:?}");
    assert!(opened.iter().all(|&opened| (64..sum).contains(&opened) || users == 1), "{opened:?}");
    works(&mut victim, "among");
    let mut late = connect(3002);
    works(&mut late, "late");
    // All is given back.
    drop(greedies);
    let again = as_stranger(4000 + users, || {
        // Their sessions end in a thread of their own.
        let begin = Instant::now();
        while begin.elapsed() < Duration::from_secs(60) {
            let (_ring, opened) = greedy(&socket);
            if opened == OPENS {
                return true;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        false
    });
    assert!(again, "what the greedy had is still taken");
}
