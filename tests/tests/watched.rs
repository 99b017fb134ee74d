//! Clients who have what they were handed watched so often that each call which wakes those who
//! watch takes long: whoever makes such a call pays for it, which is never a thread of the server
//! that others wait for.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use atoll_host::client::{Address, Connection, Ring};
use atoll_host::control::{self, Answer, Hello, Kind, Mode};
use atoll_tests::fixtures;
use atoll_tests::served::{Served, as_stranger, ring};
use atoll_transport::Memory;
use atoll_transport::channel::layout::header;
use atoll_vfs::{Context, FileSystem, Ino, Timespec};
use rustix::event::{PollFd, PollFlags, epoll, poll};
use rustix::fs::MemfdFlags;

const CX: Context = Context { uid: 0, gid: 0, now: Timespec { sec: 0, nsec: 0 } };
const HOSTILE: u32 = 3001;
const VICTIM: u32 = 3002;
/// Watches of one file, and of one epoll instance.
const WATCHES: usize = 50_000;
const OF_ONE: usize = 500;
const ROUNDS: usize = 40;
/// Milliseconds of the unit in which Linux says such times, on every machine.
const TICK: u64 = 10;
/// Longer than anything takes, on a machine that is busy.
const LONG: Duration = Duration::from_secs(60);

/// Has `file` watched, as long as this lives.
struct Watched {
    _epolls: Vec<OwnedFd>,
}

impl Watched {
    fn new(file: BorrowedFd<'_>) -> Watched {
        // A file is watched once by each number that it has. When they are closed it still is.
        let numbers: Vec<_> = (0..OF_ONE).map(|_| file.try_clone_to_owned().unwrap()).collect();
        let watch = || {
            let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
            for number in &numbers {
                let events = epoll::EventFlags::IN
                    | epoll::EventFlags::OUT
                    | epoll::EventFlags::RDHUP
                    | epoll::EventFlags::ET;
                epoll::add(&epoll, number, epoll::EventData::new_u64(0), events).unwrap();
            }
            epoll
        };
        Watched { _epolls: (0..WATCHES / OF_ONE).map(|_| watch()).collect() }
    }
}

/// The time that a thread has had, of this process: of one that is named, or the calling one.
fn time_of(name: Option<&str>) -> Duration {
    let folder = match name {
        None => "/proc/thread-self".into(),
        Some(name) => {
            let named = |folder: &std::path::PathBuf| {
                std::fs::read_to_string(folder.join("comm")).is_ok_and(|comm| comm.trim() == name)
            };
            let mut threads = std::fs::read_dir("/proc/self/task").unwrap();
            threads.find_map(|thread| Some(thread.unwrap().path()).filter(named)).unwrap()
        }
    };
    let stat = std::fs::read_to_string(folder.join("stat")).unwrap();
    let (_, fields) = stat.rsplit_once(')').unwrap();
    // proc_pid_stat(5): the fields 14 and 15, of which this begins with the third.
    let ticks =
        fields.split_whitespace().skip(11).take(2).map(|ticks| ticks.parse::<u64>().unwrap());
    Duration::from_millis(ticks.sum::<u64>() * TICK)
}

/// The time that the worker takes by what `hostile` does, and how much that takes itself.
fn compare(hostile: impl FnOnce()) -> (Duration, Duration) {
    let (before, own) = (time_of(Some("worker")), time_of(None));
    hostile();
    (time_of(Some("worker")) - before, time_of(None) - own)
}

fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !is_so() {
        assert!(begin.elapsed() < LONG, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn is_asleep(ring: &Ring) -> bool {
    ring.memory().load32(header::STATUS, Ordering::Relaxed) == header::ASLEEP
}

/// It has this one test: the worker is known by its name.
#[test]
fn what_is_watched_costs_who_has_it_watched() {
    let served = Served::to_strangers(fixtures::volume(16_384));
    let socket = served.socket();
    let (go, wait) = std::sync::mpsc::channel::<()>();
    let (did, done) = std::sync::mpsc::channel();
    let victim = std::thread::spawn({
        let socket = socket.clone();
        move || {
            as_stranger(VICTIM, move || {
                let mut ring = ring(&socket, 1);
                let mut client = ring.client().unwrap();
                for () in wait {
                    client.getattr(&CX, Ino::ROOT).unwrap();
                    did.send(()).unwrap();
                }
            });
        }
    });
    let call = move || {
        go.send(()).unwrap();
        done.recv_timeout(LONG).unwrap();
    };
    as_stranger(HOSTILE, move || {
        let ring = ring(&socket, 1);
        let [_, _, bell] = ring.descriptors();
        let watched = Watched::new(bell);
        // The worker sleeps, is woken, and sleeps again.
        let (theirs, own) = compare(|| {
            for _ in 0..ROUNDS {
                wait_until("the worker sleeps", || is_asleep(&ring));
                assert_eq!(rustix::io::write(bell, &1u64.to_ne_bytes()), Ok(8));
                call();
            }
            wait_until("the worker sleeps", || is_asleep(&ring));
        });
        assert!(theirs < own / 4, "bells: {theirs:?} of {own:?}");
        drop(watched);
        // Sessions that the worker refuses, by sockets that are watched.
        let walk = own / ROUNDS as u32;
        let place = Address { socket: socket.clone(), volume: String::new() };
        let (theirs, _) = compare(|| {
            for _ in 0..ROUNDS {
                let connection = Connection::open(&place).unwrap();
                let _watched = Watched::new(connection.as_fd());
                let (kind, mode, volume) = (Kind::Ring, Mode::Write, String::new());
                let hello = Hello { kind, mode, volume, single_owner: false, view: false };
                let unfit = rustix::fs::memfd_create("test", MemfdFlags::CLOEXEC).unwrap();
                control::send(&connection, &hello.encode(), &[unfit.as_fd()]).unwrap();
                let (answer, _) = control::receive(&connection).unwrap();
                assert!(matches!(Answer::decode(&answer).unwrap(), Answer::Refused(_)));
                let mut ended = [PollFd::new(&connection, PollFlags::RDHUP)];
                poll(&mut ended, Some(&LONG.try_into().unwrap())).unwrap();
                assert!(ended[0].revents().contains(PollFlags::RDHUP));
                call();
            }
        });
        let all = walk * ROUNDS as u32;
        assert!(theirs < all / 4, "sockets: {theirs:?} of {all:?}");
    });
    victim.join().unwrap();
    served.end().unwrap();
}
