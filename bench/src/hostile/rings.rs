//! Attacks of strangers through rings, and with bare connections.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use atoll_host::client::{Address, ConnectError, ConnectOptions, Connection, Ring, Wait};
use atoll_host::control;
use atoll_host::server::rules::Mode;
use atoll_host::shm::SharedMemory;
use atoll_transport::channel::{Config, Lane};
use atoll_vfs::client::Client;
use atoll_vfs::{
    Context, Errno, FallocateMode, FileAt, FileSystem, Ino, Name, OpenFlags, RenameFlags, SetAttr,
    Timespec,
};
use rustix::event::epoll;
use rustix::fs::FallocateFlags;
use rustix::process::{Gid, Uid};

use super::attacks::Scene;
use crate::record::Broken;

/// A way of one thread to the server.
pub type Way = Client<Lane<SharedMemory, Wait>>;

/// The caller, whom the server knows better.
pub const CX: Context = Context { uid: 0, gid: 0, now: Timespec { sec: 0, nsec: 0 } };

/// The file of 64 MiB that all may read.
pub const BIG: &str = "big";
/// The bytes of it.
const BIG_BYTES: u64 = 64 << 20;
/// The directory with many names.
pub const MANY: &str = "many";

/// A name of one component.
pub fn name(text: &str) -> Result<Name<'_>, Broken> {
    Name::new(text.as_bytes()).map_err(|errno| Broken(format!("{text}: {errno:?}")))
}

/// A stranger's call that should have done something.
pub fn failed(errno: Errno) -> Broken {
    Broken(format!("a stranger's call failed: {errno:?}"))
}

/// Makes the calling thread, and all that it starts, the user `uid` with `groups` and no rights.
pub fn become_member(uid: u32, groups: &[Gid]) -> Result<(), Broken> {
    let (user, group) = (Uid::from_raw(uid), Gid::from_raw(uid));
    let become_it = || {
        rustix::thread::set_thread_groups(groups)?;
        rustix::thread::set_thread_res_gid(group, group, group)?;
        rustix::thread::set_thread_res_uid(user, user, user)
    };
    become_it().map_err(|errno| Broken(format!("cannot become user {uid}: {errno}")))
}

/// As [`become_member`], of its own group alone.
pub fn become_user(uid: u32) -> Result<(), Broken> {
    become_member(uid, &[])
}

/// Connects to the only volume behind `socket`.
pub fn open(socket: &Path) -> Result<Connection, String> {
    let place = Address { socket: socket.to_owned(), volume: String::new() };
    let timeout = Duration::from_secs(60);
    let options = ConnectOptions { timeout, view: false, ..ConnectOptions::default() };
    Connection::open_with(&place, options).map_err(|error| error.to_string())
}

/// Begins a session through a ring; why not, in words.
pub fn connect(socket: &Path, config: &Config) -> Result<Ring, String> {
    let why = |error: ConnectError| error.to_string();
    open(socket)?.ring(Mode::Write, config).map_err(why)
}

/// Makes the files that strangers find, as the superuser: all may make files in the root.
pub fn furnish(socket: &Path) -> Result<(), Broken> {
    let mut ring = connect(socket, &Config::default()).map_err(Broken)?;
    let mut client = ring.client().ok_or_else(|| Broken("no lane".into()))?;
    let mode = SetAttr { mode: Some(0o1777), ..SetAttr::default() };
    client.setattr(&CX, Ino::ROOT, None, &mode).map_err(failed)?;
    let flags = OpenFlags::READ | OpenFlags::WRITE;
    let (big, handle) = client.create(&CX, Ino::ROOT, name(BIG)?, 0o666, flags).map_err(failed)?;
    let data = vec![b'b'; 1 << 20];
    for at in (0..BIG_BYTES).step_by(data.len()) {
        client.write(&CX, big.ino, handle, at, &data).map_err(failed)?;
    }
    let many = client.mkdir(&CX, Ino::ROOT, name(MANY)?, 0o755).map_err(failed)?;
    for number in 0..2000 {
        let entry = format!("an entry with a name that takes some room {number}");
        client.mknod(&CX, many.ino, name(&entry)?, 0o100_644, 0).map_err(failed)?;
    }
    client.disconnect();
    Ok(())
}

/// Holes in the ring's memory, again and again, while the server copies answers there.
pub fn holes(scene: &Scene) -> Result<(), Broken> {
    let config = Config { lanes: 1, slots: 4, window: 16 << 20, ..Config::default() };
    let mut ring = connect(&scene.socket, &config).map_err(Broken)?;
    let mut client = ring.client().ok_or_else(|| Broken("no lane".into()))?;
    let found = client.lookup(&CX, Ino::ROOT, name(BIG)?).map_err(failed)?;
    let handle = client.open(&CX, found.ino, OpenFlags::READ).map_err(failed)?;
    let memory = ring.memory().clone();
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    let length = Config::default().window;
    scene.ready();
    if let Err(errno) = rustix::fs::fallocate(&memory, flags, 64 << 10, length) {
        scene.note(&format!("punching is refused: {errno}"));
    }
    for _ in 0..2 {
        let memory = memory.clone();
        std::thread::spawn(move || {
            loop {
                if rustix::fs::fallocate(&memory, flags, 64 << 10, 15 << 20).is_err() {
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
        });
    }
    let mut buffer = vec![0; 15 << 20];
    while client.read(&CX, found.ino, handle, 0, &mut buffer).is_ok() {}
    Err(Broken("the session was ended".into()))
}

/// Files of a gigabyte made, cut and removed.
pub fn huge(scene: &Scene) -> Result<(), Broken> {
    let config = Config { lanes: 2, ..Config::default() };
    let mut ring = connect(&scene.socket, &config).map_err(Broken)?;
    let mut client = ring.client().ok_or_else(|| Broken("no lane".into()))?;
    scene.ready();
    for round in 0u64.. {
        let own = format!("huge{}", round % 4);
        let flags = OpenFlags::READ | OpenFlags::WRITE;
        let made = client.create(&CX, Ino::ROOT, name(&own)?, 0o600, flags);
        let (attr, handle) = made.map_err(failed)?;
        // Every other block, so that there is as much to remember of it as there can be.
        for at in 0..2000 {
            client.write(&CX, attr.ino, handle, at << 13, &[1; 4096]).map_err(failed)?;
        }
        let (zeros, end) = (FallocateMode::KEEP_SIZE, 1 << 30);
        client.fallocate(&CX, attr.ino, handle, 16 << 20, end, zeros).map_err(failed)?;
        let cut = SetAttr { size: Some(round % 2 * 4096), ..SetAttr::default() };
        client.setattr(&CX, attr.ino, None, &cut).map_err(failed)?;
        client.unlink(&CX, Ino::ROOT, name(&own)?).map_err(failed)?;
        client.release(&CX, attr.ino, handle).map_err(failed)?;
    }
    Ok(())
}

/// Large writes, storage set aside, zeros, holes, copies, cuts and syncs of a file, in any order.
pub fn mixed(scene: &Scene) -> Result<(), Broken> {
    let mut ring = connect(&scene.socket, &Config::default()).map_err(Broken)?;
    let mut client = ring.client().ok_or_else(|| Broken("no lane".into()))?;
    let own = format!("mixed{}", std::process::id());
    let flags = OpenFlags::READ | OpenFlags::WRITE;
    let made = client.create(&CX, Ino::ROOT, name(&own)?, 0o600, flags);
    let (attr, handle) = made.map_err(failed)?;
    let data = vec![1; 1 << 20];
    let mut random = u64::from(std::process::id());
    scene.ready();
    loop {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let (ino, at) = (attr.ino, random >> 24 & 0x1fff_f000);
        let mut allocate = |mode| client.fallocate(&CX, ino, handle, at, 1 << 29, mode);
        let keep = FallocateMode::KEEP_SIZE;
        let called = match random >> 60 {
            0..6 => client.write(&CX, ino, handle, at, &data).map(drop),
            6 | 7 => allocate(keep),
            8 | 9 => allocate(FallocateMode::ZERO_RANGE | keep),
            10 | 11 => allocate(FallocateMode::PUNCH_HOLE | keep),
            12 | 13 => {
                let set = SetAttr { size: Some(at), ..SetAttr::default() };
                client.setattr(&CX, ino, Some(handle), &set).map(drop)
            }
            14 => client.fsync(&CX, ino, handle, false),
            _ => {
                let place = |offset| FileAt { ino, handle, offset };
                client.copy_file_range(&CX, place(at), place(1 << 30), 1 << 28).map(drop)
            }
        };
        match called {
            Ok(()) | Err(Errno::ENOSPC | Errno::EINVAL) => {}
            Err(error) => return Err(failed(error)),
        }
    }
}

/// Files of many extents, made before: one is cut and made longer, one punched, one removed.
pub fn scattered(scene: &Scene) -> Result<(), Broken> {
    let mut ring = connect(&scene.socket, &Config::default()).map_err(Broken)?;
    let mut client = ring.client().ok_or_else(|| Broken("no lane".into()))?;
    let extents: u64 = if scene.smoke { 1000 } else { 100_000 };
    let make = |client: &mut Way, own: &str| {
        let flags = OpenFlags::READ | OpenFlags::WRITE;
        let made = client.create(&CX, Ino::ROOT, name(own)?, 0o600, flags);
        let (attr, handle) = made.map_err(failed)?;
        // So far apart that nothing between them is filled.
        for at in 0..extents {
            client.write(&CX, attr.ino, handle, at * 40_960, &[1; 4096]).map_err(failed)?;
        }
        Ok::<_, Broken>((attr.ino, handle))
    };
    let files = ["cut", "punched", "removed"];
    let mut made = Vec::new();
    for own in files {
        made.push(make(&mut client, own)?);
    }
    scene.ready();
    loop {
        let (ino, handle) = made[0];
        let size = |size| SetAttr { size: Some(size), ..SetAttr::default() };
        client.setattr(&CX, ino, Some(handle), &size(1)).map_err(failed)?;
        client.setattr(&CX, ino, Some(handle), &size(1 << 40)).map_err(failed)?;
        let (ino, handle) = made[1];
        let punches = FallocateMode::PUNCH_HOLE | FallocateMode::KEEP_SIZE;
        client.fallocate(&CX, ino, handle, 0, 1 << 40, punches).map_err(failed)?;
        for (own, (ino, handle)) in files.into_iter().zip(made.drain(..)) {
            client.unlink(&CX, Ino::ROOT, name(own)?).map_err(failed)?;
            client.release(&CX, ino, handle).map_err(failed)?;
        }
        for own in files {
            made.push(make(&mut client, own)?);
        }
    }
}

/// Directories renamed at the bottom of a deep tree, for which all above are looked at.
pub fn deep(scene: &Scene) -> Result<(), Broken> {
    let mut ring = connect(&scene.socket, &Config::default()).map_err(Broken)?;
    let mut client = ring.client().ok_or_else(|| Broken("no lane".into()))?;
    let mut bottom = Ino::ROOT;
    for _ in 0..if scene.smoke { 100 } else { 5000 } {
        bottom = client.mkdir(&CX, bottom, name("d")?, 0o700).map_err(failed)?.ino;
    }
    let there = client.mkdir(&CX, bottom, name("there")?, 0o700).map_err(failed)?.ino;
    let here = client.mkdir(&CX, bottom, name("here")?, 0o700).map_err(failed)?.ino;
    client.mkdir(&CX, here, name("x")?, 0o700).map_err(failed)?;
    scene.ready();
    let none = RenameFlags::empty();
    loop {
        client.rename(&CX, here, name("x")?, there, name("x")?, none).map_err(failed)?;
        client.rename(&CX, there, name("x")?, here, name("x")?, none).map_err(failed)?;
    }
}

/// A user of 65,536 groups who connects again and again, and looks for names.
pub fn groups(scene: &Scene) -> Result<(), Broken> {
    scene.ready();
    loop {
        match connect(&scene.socket, &Config::default()) {
            Ok(mut ring) => {
                if let Some(mut client) = ring.client() {
                    for _ in 0..200 {
                        let _ = client.lookup(&CX, Ino::ROOT, name("x")?);
                    }
                }
            }
            Err(why) => {
                scene.note(&why);
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }
}

/// Sessions of a user who may have some: as many as there can be, and one more again and again.
pub fn sessions(scene: &Scene) -> Result<(), Broken> {
    let mut kept = Vec::new();
    let config = Config { window: 4096, ..Config::default() };
    scene.ready();
    loop {
        match connect(&scene.socket, &config) {
            Ok(ring) => kept.push(ring),
            Err(why) => {
                scene.note(&format!("{} sessions: {why}", kept.len()));
                let half = kept.len() / 2;
                kept.truncate(half);
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        if kept.len() >= 256 {
            kept.truncate(128);
        }
    }
}

/// Connections of a user for whom there is no rule, who says nothing.
pub fn silence(scene: &Scene) -> Result<(), Broken> {
    let mut silent: Vec<(Instant, Connection)> = Vec::new();
    scene.ready();
    loop {
        if silent.len() < 64
            && let Ok(connection) = open(&scene.socket)
        {
            silent.push((Instant::now(), connection));
        } else {
            std::thread::sleep(Duration::from_millis(2));
        }
        // A server drops those that say nothing for ten seconds.
        silent.retain(|(since, _)| since.elapsed() < Duration::from_secs(9));
    }
}

/// Refused greetings, each of which might be a line of the log.
pub fn greetings(scene: &Scene) -> Result<(), Broken> {
    scene.ready();
    loop {
        send(&scene.socket, b"atol\x01\0\x02\0\0\0\0\0no such volume", &[])?;
    }
}

/// Sends `message` with `descriptors`, and waits for what is said of it, for a second.
fn send(socket: &Path, message: &[u8], descriptors: &[BorrowedFd<'_>]) -> Result<(), Broken> {
    let Ok(connection) = open(socket) else {
        std::thread::sleep(Duration::from_millis(1));
        return Ok(());
    };
    let _ = control::send(&connection, message, descriptors);
    let _ = rustix::net::sockopt::set_socket_timeout(
        &connection,
        rustix::net::sockopt::Timeout::Recv,
        Some(Duration::from_secs(1)),
    );
    let _ = control::receive(&connection);
    Ok(())
}

/// Has `file` watched so many times. When the numbers that it has for that are closed it still is.
fn watch(file: BorrowedFd<'_>, times: usize) -> Result<Vec<OwnedFd>, Broken> {
    let of_one = times.min(500);
    let broken = |errno: rustix::io::Errno| Broken(format!("a watch: {errno}"));
    let numbers = (0..of_one).map(|_| file.try_clone_to_owned()).collect::<Result<Vec<_>, _>>()?;
    let watch = || {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        for number in &numbers {
            let (read, write) = (epoll::EventFlags::IN, epoll::EventFlags::OUT);
            let events = read | write | epoll::EventFlags::ET;
            epoll::add(&epoll, number, epoll::EventData::new_u64(0), events)?;
        }
        Ok(epoll)
    };
    (0..times / of_one).map(|_| watch().map_err(broken)).collect()
}

/// All that it is handed is watched by a multitude: a doorbell that rings a thousand times a
/// second, and sockets of sessions that are refused, or that begin and break the protocol.
pub fn watched(scene: &Scene) -> Result<(), Broken> {
    let times = if scene.smoke { 500 } else { 20_000 };
    let ring = connect(&scene.socket, &Config::default()).map_err(Broken)?;
    let mut watches = Vec::new();
    for file in [ring.descriptors()[0], ring.descriptors()[2]] {
        watches.extend(watch(file, times)?);
    }
    scene.ready();
    std::thread::spawn(move || {
        let _watches = watches;
        loop {
            let _ = rustix::io::write(ring.descriptors()[2], &1u64.to_ne_bytes());
            std::thread::sleep(Duration::from_millis(1));
        }
    });
    loop {
        let Ok(ring) = connect(&scene.socket, &Config::default()) else {
            std::thread::sleep(Duration::from_millis(1));
            continue;
        };
        let _watches = watch(ring.descriptors()[0], times)?;
        let _ = control::send(ring.descriptors()[0], b"junk", &[]);
        let Ok(connection) = open(&scene.socket) else { continue };
        let _watches = watch(connection.as_fd(), times)?;
        let _ = control::send(&connection, b"atol\x01\0\x02\0\0\0\0\0no such volume", &[]);
        let wait = Some(Duration::from_secs(1));
        let receive = rustix::net::sockopt::Timeout::Recv;
        let _ = rustix::net::sockopt::set_socket_timeout(&connection, receive, wait);
        let _ = control::receive(&connection);
    }
}

/// Sockets whose last close(2) waits for data that nobody reads.
pub fn lingering(scene: &Scene) -> Result<(), Broken> {
    use std::io::Write;
    let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
    let mut never_read = Vec::new();
    scene.ready();
    loop {
        let mut socket = std::net::TcpStream::connect(listener.local_addr()?)?;
        never_read.push(listener.accept()?.0);
        let wait = Some(Duration::from_secs(20));
        rustix::net::sockopt::set_socket_linger(&socket, wait).map_err(std::io::Error::from)?;
        socket.set_nonblocking(true)?;
        while socket.write(&[0; 1 << 16]).is_ok() {}
        socket.set_nonblocking(false)?;
        // The server's copy is the last: this one goes before it answers.
        let connection = open(&scene.socket).map_err(Broken)?;
        let _ = control::send(&connection, b"junk", &[socket.as_fd()]);
        std::thread::spawn(move || drop(socket));
        std::thread::sleep(Duration::from_millis(20));
        if never_read.len() > 64 {
            never_read.clear();
        }
    }
}
