//! `atoll serve` and clients who hand over descriptors that block whoever closes them, and the end
//! of the processes that take these.
#![allow(missing_docs)]

mod common;

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use atoll_host::client::{Address, Connection};
use atoll_host::control::{self, Answer, Hello, Mode};
use atoll_transport::channel::Config;
use atoll_transport::channel::layout::header;
use common::{TempDir, as_user, atoll, children, folder, fsck, need, ok, volume, wait_until};
use nix::sys::signal::{Signal, kill};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, setsockopt, socket};
use nix::unistd::Pid;

/// The socket, for the process that is hostile.
const SOCKET: &str = "ATOLL_HOSTILE";
/// The same, for the process that receives no answer.
const DEAF: &str = "ATOLL_DEAF";
/// How many it hands over: more than the greeters that one user may have.
const MESSAGES: usize = 9;
const GREETERS: usize = 4;

struct Served {
    child: Child,
    dir: TempDir,
}

impl Served {
    fn start(arguments: &[&str]) -> Served {
        let dir = folder();
        std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o777)).unwrap();
        volume(dir.path(), "a.vol", "32M");
        Served::again(dir, arguments)
    }

    fn again(dir: TempDir, arguments: &[&str]) -> Served {
        let notify = UnixDatagram::bind(dir.path().join("notify")).unwrap();
        notify.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let child = atoll()
            .current_dir(dir.path())
            .args(["serve", "--socket", "s", "a.vol"])
            .args(arguments)
            .env("NOTIFY_SOCKET", dir.path().join("notify"))
            .stdin(Stdio::null())
            .stderr(File::create(dir.path().join("log")).unwrap())
            .spawn()
            .unwrap();
        let served = Served { child, dir };
        let mut said = [0; 256];
        let length =
            notify.recv(&mut said).unwrap_or_else(|error| panic!("{error}: {}", served.log()));
        assert!(said[..length].starts_with(b"READY=1\n"));
        std::fs::remove_file(served.dir.path().join("notify")).unwrap();
        served
    }

    fn path(&self) -> &Path {
        self.dir.path()
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.path().join("log")).unwrap()
    }

    fn run(&self, script: &str) -> Command {
        let mut command = atoll();
        command.current_dir(self.path()).args(["run", "-v", "s:/vol", "--", "sh", "-ec", script]);
        command
    }

    /// The cradle and the broker.
    fn helpers(&self) -> Option<[i32; 2]> {
        let cradle = *children(self.child.id(), "atoll").first()?;
        let broker = *children(cradle.unsigned_abs(), "atoll").first()?;
        Some([cradle, broker])
    }

    fn place(&self) -> Address {
        Address { socket: self.path().join("s"), volume: String::new() }
    }

    fn stop(mut self) -> TempDir {
        kill(Pid::from_raw(self.child.id() as i32), Signal::SIGTERM).unwrap();
        let status = self.child.wait().unwrap();
        assert!(status.success(), "{status}: {}", self.log());
        fsck(&self.path().join("a.vol"));
        std::mem::replace(&mut self.dir, folder())
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn dial(path: &Path) -> OwnedFd {
    let flags = SockFlag::SOCK_CLOEXEC;
    let fd = socket(AddressFamily::Unix, SockType::SeqPacket, flags, None).unwrap();
    connect(fd.as_raw_fd(), &UnixAddr::new(path).unwrap()).unwrap();
    fd
}

/// A socket whose last close(2) waits for a minute, and the other end, which reads nothing.
fn lingering() -> (OwnedFd, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (other, _) = listener.accept().unwrap();
    one.set_nonblocking(true).unwrap();
    while (&one).write(&[0; 1 << 16]).is_ok() {}
    one.set_nonblocking(false).unwrap();
    let linger = libc::linger { l_onoff: 1, l_linger: 60 };
    setsockopt(&one, nix::sys::socket::sockopt::Linger, &linger).unwrap();
    (one.into(), other)
}

/// Closes this process's descriptor, which may take a minute, and waits until it has none: a child
/// that is made before would have it too, and close it when it executes its program.
fn let_go(socket: OwnedFd) {
    let shown = format!("/proc/self/fd/{}", socket.as_raw_fd());
    let before = std::fs::read_link(&shown).unwrap();
    std::thread::spawn(move || drop(socket));
    wait_until("the descriptor is closed", || {
        std::fs::read_link(&shown).map_or(true, |now| now != before)
    });
}

/// One test at a time makes children and descriptors that others must not have.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether the server has hung up.
fn ended(socket: BorrowedFd<'_>) -> bool {
    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
    let mut watched = [PollFd::new(socket, PollFlags::empty())];
    poll(&mut watched, PollTimeout::ZERO).unwrap() == 1
}

#[test]
fn sockets_that_linger() {
    let _alone = alone();
    let served = Served::start(&[]);
    ok(&mut served.run("echo here > /vol/f"));
    let mut unread = Vec::new();
    // Received by a greeter; left in the queue of one who is refused; and of one who goes first.
    let (mut clients, mut gone) = (Vec::new(), Vec::new());
    for packets in [1, 3] {
        let client = dial(&served.path().join("s"));
        for _ in 0..packets {
            let (socket, other) = lingering();
            unread.push(other);
            // The first may have been refused already.
            let _ = control::send(&client, b"junk", &[socket.as_fd()]);
            // The last descriptor may be this one after all.
            let_go(socket);
        }
        let copy = client.try_clone().unwrap();
        clients.push(client);
        gone.push(copy);
    }
    drop(gone);
    for client in &clients {
        wait_until("the junk is refused", || ended(client.as_fd()));
    }
    // In a session too. Another one goes on.
    let session = || {
        let connection = Connection::open(&served.place()).unwrap();
        connection.ring(Mode::Write, &Config::default()).unwrap()
    };
    let (broken, whole) = (session(), session());
    let (socket, other) = lingering();
    unread.push(other);
    control::send(broken.descriptors()[0], b"junk", &[socket.as_fd()]).unwrap();
    let_go(socket);
    wait_until("its session ends", || !broken.is_alive());
    // Within the minute for which they linger.
    let begun = Instant::now();
    assert_eq!(ok(&mut served.run("cat /vol/f")), "here\n");
    assert!(whole.is_alive());
    served.stop();
    assert!(begun.elapsed() < Duration::from_secs(50), "something waited");
    drop(unread);
}

/// A file on a FUSE file system of this process that is not flushed until it ends.
mod unflushed {
    use super::*;

    fn answer(device: &File, unique: u64, error: i32, body: &[u8]) {
        let mut out = (16 + body.len() as u32).to_le_bytes().to_vec();
        out.extend_from_slice(&(-error).to_le_bytes());
        out.extend_from_slice(&unique.to_le_bytes());
        out.extend_from_slice(body);
        let _ = { device }.write(&out);
    }

    /// A structure with these numbers of 4 bytes at their places.
    fn fields(length: usize, fields: &[(usize, u32)]) -> Vec<u8> {
        let mut out = vec![0; length];
        for &(at, value) in fields {
            out[at..at + 4].copy_from_slice(&value.to_le_bytes());
        }
        out
    }

    /// Those who wait until the file is flushed; `None` when they have been answered.
    type Flushes = Mutex<Option<Vec<u64>>>;

    fn serve(device: &File, flushes: &Flushes) {
        let mut request = vec![0; 1 << 17];
        while { device }.read(&mut request).is_ok() {
            let u32_at = |at: usize| u32::from_le_bytes(*request[at..].first_chunk().unwrap());
            let unique = u64::from_le_bytes(*request[8..].first_chunk().unwrap());
            let (file, folder) = (0o100_666, 0o040_755);
            let attributes = |at: usize, inode: u32| {
                let mode = if inode == 1 { folder } else { file };
                [(at, inode), (at + 60, mode), (at + 64, 1)]
            };
            match u32_at(4) {
                26 => answer(device, unique, 0, &fields(64, &[(0, 7), (4, 31), (20, 4096)])),
                3 => {
                    let valid = [(0, 3600)];
                    let all = [&valid[..], &attributes(16, u32_at(16))].concat();
                    answer(device, unique, 0, &fields(104, &all));
                }
                1 => {
                    let valid = [(0, 2), (16, 3600), (24, 3600)];
                    let all = [&valid[..], &attributes(40, 2)].concat();
                    answer(device, unique, 0, &fields(128, &all));
                }
                14 => answer(device, unique, 0, &fields(16, &[(0, 7)])),
                // FLUSH.
                25 => match &mut *flushes.lock().unwrap() {
                    None => answer(device, unique, 0, &[]),
                    Some(waiting) => {
                        waiting.push(unique);
                        println!("flush");
                    }
                },
                2 | 42 => {}
                _ => answer(device, unique, 38, &[]),
            }
        }
    }

    /// Hands the file over, again and again, until standard input ends.
    pub fn hand_over(socket: &Path) {
        let device = File::options().read(true).write(true).open("/dev/fuse").unwrap();
        let options = format!("fd={},rootmode=40000,user_id=0,group_id=0", device.as_raw_fd());
        let flags = nix::mount::MsFlags::MS_NOSUID | nix::mount::MsFlags::MS_NODEV;
        nix::mount::mount(Some("hostile"), "/mnt", Some("fuse"), flags, Some(&*options)).unwrap();
        let flushes = Mutex::new(Some(Vec::new()));
        std::thread::scope(|scope| {
            scope.spawn(|| serve(&device, &flushes));
            let file = File::options().read(true).write(true).open("/mnt/x").unwrap();
            let send = |_| {
                let client = dial(socket);
                control::send(&client, b"junk", &[file.as_fd()]).unwrap();
                client
            };
            let clients: Vec<OwnedFd> = (0..MESSAGES).map(send).collect();
            println!("sent");
            let _ = std::io::stdin().read(&mut [0; 1]);
            // Else this process could not end itself, which has the file open too.
            for unique in flushes.lock().unwrap().take().unwrap() {
                answer(&device, unique, 0, &[]);
            }
            drop((clients, file));
            std::process::exit(0);
        });
    }
}

/// Not a test, but the hostile process of one.
#[test]
fn hostile() {
    if let Some(socket) = std::env::var_os(SOCKET) {
        unflushed::hand_over(&PathBuf::from(socket));
    }
}

/// The hostile process, of a user for whom there is no rule, once it has sent all and as many
/// greeters hang as may.
fn hostile_at(served: &Served) -> Child {
    let program = served.path().join("hostile");
    std::fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    let script = "exec unshare --user --map-root-user --mount \
                  ./hostile --exact hostile --nocapture --test-threads=1";
    let mut command = as_user(served.path(), "666", script);
    command.env(SOCKET, served.path().join("s"));
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let (mut flushed, mut sent) = (0, false);
    while flushed < GREETERS || !sent {
        let line = lines.next().expect("the hostile process ended").unwrap();
        // The harness says the name of the test on the same line.
        flushed += usize::from(line.ends_with("flush"));
        sent |= line.ends_with("sent");
    }
    std::thread::spawn(move || lines.for_each(drop));
    child
}

#[test]
fn files_that_are_never_flushed() {
    let _alone = alone();
    if !nix::unistd::geteuid().is_root() {
        // Only the superuser can be several users.
        return;
    }
    let served = Served::start(&["--allow", "uid:1=rw"]);
    ok(&mut served.run("echo here > /vol/f"));
    let whole = Connection::open(&served.place()).unwrap();
    let whole = whole.ring(Mode::Write, &Config::default()).unwrap();
    let mut hostile = hostile_at(&served);
    // Others are let in, as often as they like.
    for _ in 0..2 * GREETERS {
        assert_eq!(ok(&mut served.run("cat /vol/f")), "here\n");
    }
    assert!(whole.is_alive());
    let [_, broker] = served.helpers().unwrap();
    // Greeters of others, who are let in, end by themselves.
    let hang = || children(broker.unsigned_abs(), "atoll").len() == GREETERS;
    wait_until("as many hang as may of one user", hang);
    // A greeter that hangs keeps neither the server from ending, nor the next from its volume and
    // socket.
    let dir = served.stop();
    let served = Served::again(dir, &["--allow", "uid:1=rw"]);
    assert_eq!(ok(&mut served.run("cat /vol/f")), "here\n");
    assert!(hostile.try_wait().unwrap().is_none());
    drop(hostile.stdin.take());
    hostile.wait().unwrap();
    served.stop();
}

#[test]
fn a_broker_that_ends_is_replaced() {
    let _alone = alone();
    let mut served = Served::start(&[]);
    ok(&mut served.run("echo here > /vol/f"));
    let session = Connection::open(&served.place()).unwrap();
    let session = session.ring(Mode::Write, &Config::default()).unwrap();
    let [cradle, broker] = served.helpers().unwrap();
    kill(Pid::from_raw(broker), Signal::SIGKILL).unwrap();
    wait_until("there is another", || {
        served.helpers().is_some_and(|[same, other]| same == cradle && other != broker)
    });
    assert_eq!(ok(&mut served.run("cat /vol/f")), "here\n");
    assert!(session.is_alive());
    // It receives in sessions that are older than itself.
    control::send(session.descriptors()[0], b"junk", &[]).unwrap();
    wait_until("the session ends", || !session.is_alive());
    wait_until("it is logged", || served.log().contains("another has begun"));
    // Without anybody to replace it the server ends, which a service manager notices, and so do
    // its processes.
    let [cradle, broker] = served.helpers().unwrap();
    kill(Pid::from_raw(cradle), Signal::SIGKILL).unwrap();
    assert!(!served.child.wait().unwrap().success());
    assert!(served.log().contains("keeps the broker has ended"), "{}", served.log());
    wait_until("the broker has ended", || !Path::new(&format!("/proc/{broker}")).exists());
    let dir = std::mem::replace(&mut served.dir, folder());
    let served = Served::again(dir, &[]);
    assert_eq!(ok(&mut served.run("cat /vol/f")), "here\n");
    // They end with a server that is killed, too.
    let helpers = served.helpers().unwrap();
    drop(served);
    let gone = |pid: &i32| !Path::new(&format!("/proc/{pid}")).exists();
    wait_until("all have ended", || helpers.iter().all(gone));
}

/// How many descriptors a process has open.
fn descriptors(pid: i32) -> usize {
    std::fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, Iterator::count)
}

/// The server is sometimes faster to send a client away than the greeter to say that it has handed
/// it on.
#[test]
fn those_who_are_sent_away_leave_nothing() {
    let _alone = alone();
    let served = Served::start(&[]);
    let processes = || {
        let [cradle, broker] = served.helpers().unwrap();
        [served.child.id() as i32, cradle, broker]
    };
    ok(&mut served.run("echo here > /vol/f"));
    let socket = served.path().join("s");
    let before = processes().map(descriptors);
    for _ in 0..1000 {
        // It is not what a client begins with.
        control::send(dial(&socket), b"junk", &[]).unwrap();
    }
    let left = || processes().map(descriptors).iter().zip(before).all(|(&now, then)| now <= then);
    wait_until("nothing is left of them", left);
    served.stop();
}

/// The time that a thread has had, by its folder in /proc.
fn time_of(task: &str) -> Duration {
    // The first field is in nanoseconds. Not all kernels have it.
    if let Ok(stat) = std::fs::read_to_string(format!("{task}/schedstat")) {
        return Duration::from_nanos(stat.split_whitespace().next().unwrap().parse().unwrap());
    }
    let stat = std::fs::read_to_string(format!("{task}/stat")).unwrap();
    let (_, fields) = stat.rsplit_once(')').unwrap();
    // proc_pid_stat(5): the fields 14 and 15, of which this begins with the third, in hundredths
    // of a second.
    let ticks: u64 =
        fields.split_whitespace().skip(11).take(2).map(|n| n.parse::<u64>().unwrap()).sum();
    Duration::from_millis(10 * ticks)
}

/// Watches of one socket, so many that each call that wakes those who watch it takes milliseconds.
fn watch(socket: BorrowedFd<'_>) -> Vec<OwnedFd> {
    use rustix::event::epoll;
    // It is watched once by each number that it has. When they are closed it still is.
    let numbers: Vec<_> = (0..500).map(|_| socket.try_clone_to_owned().unwrap()).collect();
    let watch = || {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
        for number in &numbers {
            let (read, write) = (epoll::EventFlags::IN, epoll::EventFlags::OUT);
            let events = read | write | epoll::EventFlags::RDHUP | epoll::EventFlags::ET;
            epoll::add(&epoll, number, epoll::EventData::new_u64(0), events).unwrap();
        }
        epoll
    };
    (0..100).map(|_| watch()).collect()
}

/// Calls `act` as the user `uid`.
fn by<T: Send>(uid: u32, act: impl FnOnce() -> T + Send) -> T {
    let act = || {
        let uid = rustix::process::Uid::from_raw(uid);
        rustix::thread::set_thread_res_uid(uid, uid, uid).unwrap();
        act()
    };
    std::thread::scope(|scope| scope.spawn(act).join().unwrap())
}

/// A client that has its socket watched by a multitude pays for that: neither the thread that
/// begins and ends sessions does, nor the broker.
#[test]
fn sockets_that_are_watched() {
    const ROUNDS: u32 = 20;
    let _alone = alone();
    if !nix::unistd::geteuid().is_root() {
        // The server's own user is trusted.
        return;
    }
    let served = Served::start(&["--allow", "uid:1000=rw"]);
    let [_, broker] = served.helpers().unwrap();
    let server = served.child.id() as i32;
    let all = || [server, broker].map(descriptors);
    // One that was let in and has gone: by then both have all that they keep.
    let first = Connection::open(&served.place()).unwrap();
    let first = first.ring(Mode::Write, &Config::default()).unwrap();
    let with_one = all();
    drop(first);
    wait_until("the first has gone", || all().iter().zip(with_one).all(|(&now, then)| now < then));
    let idle = all();
    let is_over = || all().iter().zip(idle).all(|(&now, then)| now <= then);
    // Of the server the thread that is as old as the process.
    let tasks = [server, broker].map(|id| format!("/proc/{id}/task/{id}"));
    let times = || [0, 1].map(|at| time_of(&tasks[at]));
    // How long one call takes.
    let walk = {
        let bell = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap();
        let _watched = watch(bell.as_fd());
        let begin = time_of("/proc/thread-self");
        for _ in 0..ROUNDS {
            rustix::io::write(&bell, &1u64.to_ne_bytes()).unwrap();
        }
        (time_of("/proc/thread-self") - begin) / ROUNDS
    };
    // What it takes beyond what the same takes by a socket that nobody watches.
    let compare = |what: &str, hostile: &dyn Fn(fn(BorrowedFd<'_>) -> Vec<OwnedFd>)| {
        let took = |watch| {
            let before = times();
            (0..ROUNDS).for_each(|_| hostile(watch));
            let after = times();
            [0, 1].map(|at| after[at] - before[at])
        };
        let (without, with) = (took(|_| Vec::new()), took(watch));
        let most = walk * ROUNDS / 2;
        for (with, without) in with.into_iter().zip(without) {
            assert!(with < without + most, "{what}: {with:?}, else {without:?} and {most:?} more");
        }
    };
    let path = served.path().join("s");
    compare("sessions", &|watch| {
        let (session, _watched) = by(1000, || {
            let session = Connection::open(&served.place()).unwrap();
            let session = session.ring(Mode::Write, &Config::default()).unwrap();
            let watched = watch(session.descriptors()[0]);
            control::send(session.descriptors()[0], b"junk", &[]).unwrap();
            (session, watched)
        });
        wait_until("the session ends", || !session.is_alive() && is_over());
    });
    // The first is refused by the server, the others by the broker.
    let hello = |volume: &str| Hello {
        kind: control::Kind::Ring,
        mode: Mode::Write,
        volume: volume.to_owned(),
        single_owner: false,
        view: false,
    };
    compare("no such volume", &|watch| {
        let (client, _watched) = by(1000, || {
            let client = dial(&path);
            let watched = watch(client.as_fd());
            control::send(&client, &hello("none").encode(), &[]).unwrap();
            (client, watched)
        });
        wait_until("it is refused", || ended(client.as_fd()) && is_over());
        let (said, _) = control::receive(&client).unwrap();
        assert!(matches!(Answer::decode(&said), Ok(Answer::Refused(_))));
    });
    let places: Vec<_> = (0..16).map(|_| by(1001, || dial(&path))).collect();
    compare("too many clients", &|watch| {
        let flags = SockFlag::SOCK_CLOEXEC;
        let client = socket(AddressFamily::Unix, SockType::SeqPacket, flags, None).unwrap();
        let _watched = by(1001, || {
            let watched = watch(client.as_fd());
            connect(client.as_raw_fd(), &UnixAddr::new(&path).unwrap()).unwrap();
            watched
        });
        wait_until("it is refused", || ended(client.as_fd()));
        let (said, _) = control::receive(&client).unwrap();
        assert!(matches!(Answer::decode(&said), Ok(Answer::Refused(_))));
    });
    drop(places);
    served.stop();
}

/// The process of a user of its own that receives no answer.
fn deaf_at(served: &Served) -> Command {
    need("setpriv", "util-linux");
    let mut command = Command::new("setpriv");
    command
        .current_dir(served.path())
        .args(["--reuid=1000", "--regid=1000", "--clear-groups", "./hostile"])
        .args(["--exact", "deaf", "--nocapture", "--test-threads=1"])
        .env(DEAF, served.path().join("s"));
    command
}

/// An answer that has not been received has descriptors of the server's on their way, and a user
/// may have a number of these.
#[test]
fn answers_that_nobody_receives_count() {
    let _alone = alone();
    if !nix::unistd::geteuid().is_root() {
        // The server's own user may have any number.
        return;
    }
    let rules = ["--allow", "uid:1000=rw", "--limit", "uid:1000,connections=4"];
    let served = Served::start(&rules);
    std::fs::copy(std::env::current_exe().unwrap(), served.path().join("hostile")).unwrap();
    let granted = |said: &str| {
        let (_, count) = said.split_once("granted ")?;
        count.trim().parse::<usize>().ok()
    };
    let mut deaf = deaf_at(&served);
    let mut deaf = deaf.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(deaf.stdout.take().unwrap()).lines();
    let said = lines.find_map(|line| granted(&line.unwrap()));
    assert_eq!(said, Some(4), "{}", served.log());
    let more = || {
        let output = deaf_at(&served).stdin(Stdio::null()).output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        said.lines().find_map(granted).unwrap_or_else(|| panic!("{said}"))
    };
    assert_eq!(more(), 0);
    assert_eq!(ok(&mut served.run("echo here")), "here\n");
    drop(deaf.stdin.take());
    deaf.wait().unwrap();
    wait_until("its places are free again", || more() == 4);
    served.stop();
}

/// Not a test, but the process of one that receives no answer.
#[test]
fn deaf() {
    let Some(socket) = std::env::var_os(DEAF) else { return };
    let granted: Vec<OwnedFd> =
        (0..8).filter_map(|_| session_unheard(Path::new(&socket))).collect();
    println!("granted {}", granted.len());
    let _ = std::io::stdin().read(&mut [0; 1]);
}

/// The socket of a session whose answer has been looked at, but not received.
fn session_unheard(path: &Path) -> Option<OwnedFd> {
    use nix::fcntl::{FallocateFlags, FcntlArg, SealFlag, fallocate, fcntl};
    use nix::sys::memfd::{MFdFlags, memfd_create};
    use nix::sys::socket::{MsgFlags, Shutdown, recv, shutdown};
    let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
    let memory = memfd_create("test", flags).unwrap();
    fallocate(&memory, FallocateFlags::empty(), 0, 1 << 20).unwrap();
    let file = File::from(memory);
    file.write_all_at(&header::MAGIC_VALUE.to_ne_bytes(), 0).unwrap();
    file.write_all_at(&header::VERSION_VALUE.to_ne_bytes(), header::VERSION as u64).unwrap();
    let fixed = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW;
    fcntl(&file, FcntlArg::F_ADD_SEALS(fixed)).unwrap();
    let client = dial(path);
    let hello = Hello {
        kind: control::Kind::Ring,
        mode: Mode::Write,
        volume: String::new(),
        single_owner: false,
        view: false,
    };
    control::send(&client, &hello.encode(), &[file.as_fd()]).unwrap();
    let mut said = [0; 256];
    let length = recv(client.as_raw_fd(), &mut said, MsgFlags::MSG_PEEK).unwrap();
    let answer = Answer::decode(&said[..length]);
    // The session ends, and nothing of the answer goes by it.
    shutdown(client.as_raw_fd(), Shutdown::Both).unwrap();
    matches!(answer, Ok(Answer::Granted(_))).then_some(client)
}
