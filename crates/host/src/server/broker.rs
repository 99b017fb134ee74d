//! The broker: a process that receives what strangers hand over, in place of the server.
//!
//! A descriptor that comes with a message is open once it has been received, and close(2) of it may
//! block for as long as somebody likes: of a file on a FUSE mount of the client's, which is asked
//! to flush it, or of a socket that lingers. So may the last close(2) of a client's socket in whose
//! queue there are such descriptors, received by nobody. These are safe: to accept a client, to
//! read its credentials, to poll its socket, to close one of several descriptors of it; and the end
//! of a process, for all but what it has received. To write to its socket and to shut it down never
//! block, but take as long as the client likes, who may have it watched a million times.
//!
//! So the server does nothing else, and the rest is done by processes that nobody waits for:
//!
//! ```text
//! server ---- line ---- broker        accepts clients and lets them wait (porch)
//!    \                    |  \
//!     `---- cradle        |   greeters    one for each message: receives it, looks at what came
//!           keeps a       |               with it, hands what is good to the server, and ends
//!           broker there  reapers         have the last descriptors of clients that are gone or
//!                                         were not let in, and tell these so
//! ```
//!
//! A greeter that hangs counts against its user, who has a few at a time: others are received as
//! before. None of these processes has a volume, a lock or a client's memory; they are confined
//! (`filter`), and end with the server. A broker that ends is replaced by its cradle: sessions
//! notice nothing, since the server has their sockets; clients that waited have to connect again.
#![allow(unsafe_code)]

mod filter;
mod greeter;

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use rustix::process::{Pid, PidfdFlags, WaitOptions, getpid, pidfd_open, waitpid};

use atoll_server::rights::accounts::Charge;

use self::greeter::Child;
use super::control;
use super::line::{self, Head, Kind, Line, Mail};
use super::peer;
use super::porch::{Bounds, Caller, Places, Porch, Standing, Turned};
use super::rules::Rules;
use crate::process;

/// The most greeters at a time.
const GREETERS: Bounds = [(16, 16), (4, 64), (4, 16)];
/// The most reapers of one user at a time, and how many sockets make a second one begin.
const REAPERS: usize = 4;
const GRAVES: usize = 64;
/// So many sockets of one user wait for no reaper that hangs: one more begins.
const GRAVES_MAX: usize = 1024;
/// How often refusals of one user are told to the server, and of how many users.
const NOTES: Duration = Duration::from_secs(1);
const NOTED: usize = 16;
/// How long a process that could not be made is not tried again.
const RETRY: Duration = Duration::from_millis(100);

/// Starts a broker for a server that serves `volumes` by the doors that have `rules`, each by its
/// place in them. It ends when what is returned is dropped, or this process ends, or this thread.
///
/// # Errors
/// When this process has more than one thread, or the system has no descriptors or processes left.
pub fn start(rules: Vec<Rules>, volumes: Vec<String>) -> io::Result<Line> {
    let (ours, theirs) = control::pair()?;
    let server = getpid();
    let cradle = process::fork(move || match keep(&theirs, server, &rules, &volumes) {
        Ok(()) => 0,
        Err(error) => {
            eprintln!("atoll: error: the broker cannot be kept: {error}");
            1
        }
    })?;
    Line::new(ours, pidfd_open(cradle, PidfdFlags::empty())?)
}

/// The cradle: keeps a broker at `line` until that has nothing to do any more.
fn keep(line: &OwnedFd, server: Pid, rules: &[Rules], volumes: &[String]) -> io::Result<()> {
    match process::die_with(server) {
        // A server that could not start has ended already.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        ready => ready?,
    }
    process::close_others(&[line.as_fd(), rustix::stdio::stderr()]);
    // Signals of a terminal and of a service manager are for the server, whose end is theirs.
    block_signals()?;
    filter::confine()?;
    let cradle = getpid();
    for life in 0.. {
        let serve = || match serve(line, cradle, rules, volumes, life) {
            Ok(()) => 0,
            Err(_) => 1,
        };
        // SAFETY: this process has one thread, and starts none.
        if let Ok(broker) = unsafe { process::split(serve) }
            && let Ok(Some((_, status))) =
                rustix::io::retry_on_intr(|| waitpid(Some(broker), WaitOptions::empty()))
            && status.exit_status() == Some(0)
        {
            break;
        }
        std::thread::sleep(RETRY);
    }
    Ok(())
}

pub(crate) fn block_signals() -> io::Result<()> {
    let mut all = std::mem::MaybeUninit::uninit();
    // SAFETY: it makes all of the set, which is then only read.
    let errno = unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_BLOCK, all.as_ptr(), std::ptr::null_mut())
    };
    if errno == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(errno)) }
}

/// A broker's life.
fn serve(
    line: &OwnedFd,
    cradle: Pid,
    rules: &[Rules],
    volumes: &[String],
    life: u64,
) -> io::Result<()> {
    process::die_with(cradle)?;
    control::send(line, &Head { kind: Kind::Began, door: 0, id: life }.encode(&[]), &[])?;
    // Its end closes what it has received, and may not be made to wait by closing it before.
    let mut broker = ManuallyDrop::new(Broker {
        line,
        doors: BTreeMap::new(),
        // Numbers of clients are never used twice, whichever broker gave them.
        porch: Porch::new(rules.to_vec(), volumes.to_vec(), life << 40),
        held: HashMap::new(),
        asked: Vec::new(),
        greeters: Places::new(GREETERS),
        receptions: Vec::new(),
        graves: BTreeMap::new(),
        reapers: Vec::new(),
        notes: Notes::default(),
        retry: None,
    });
    while broker.turn()? {}
    Ok(())
}

/// The socket of a client that the server has, with all that is to be known when it goes.
struct Held {
    socket: OwnedFd,
    user: User,
}

/// Those who share a bound: a user, or the strangers all together.
type User = (Standing, u32);

fn user(standing: Standing, uid: u32) -> User {
    (standing, if standing == Standing::Stranger { u32::MAX } else { uid })
}

/// The socket of a client that is to be hung up and closed.
struct Grave {
    socket: OwnedFd,
    /// The reason that it is told before.
    why: Option<String>,
}

/// A message that a greeter is receiving.
struct Reception {
    id: u64,
    /// The newcomer; `None` where the client has a session.
    caller: Option<Caller>,
    /// By which the greeter says how it went, until it has.
    sync: Option<OwnedFd>,
    child: Child,
    _place: Charge,
}

struct Broker<'a> {
    line: &'a OwnedFd,
    doors: BTreeMap<u32, OwnedFd>,
    porch: Porch,
    /// Clients that the server has, by their number.
    held: HashMap<u64, Held>,
    /// Sessions in which something was said.
    asked: Vec<(u64, u32, Standing)>,
    greeters: Places,
    receptions: Vec<Reception>,
    /// Sockets to be closed, each with what is to be said before.
    graves: BTreeMap<User, Vec<Grave>>,
    reapers: Vec<(User, Child)>,
    notes: Notes,
    retry: Option<Instant>,
}

impl Broker<'_> {
    /// Waits for something to happen, and deals with it. Returns whether there is a server.
    fn turn(&mut self) -> io::Result<bool> {
        let now = Instant::now();
        if self.retry.is_some_and(|at| at <= now) {
            self.retry = None;
            self.unstall();
        }
        let accepts = self.porch.accepts(now);
        let mut watched = vec![PollFd::new(self.line, PollFlags::IN)];
        for reception in &self.receptions {
            watched.push(PollFd::new(&reception.child.pidfd, PollFlags::IN));
            watched.extend(reception.sync.as_ref().map(|fd| PollFd::new(fd, PollFlags::IN)));
        }
        watched.extend(self.reapers.iter().map(|(_, c)| PollFd::new(&c.pidfd, PollFlags::IN)));
        let children = watched.len();
        let waiting: Vec<usize> =
            (0..self.porch.callers.len()).filter(|&at| !self.porch.callers[at].stalled).collect();
        let callers = waiting.iter().map(|&at| &self.porch.callers[at].socket);
        watched.extend(callers.map(|socket| PollFd::new(socket, PollFlags::IN)));
        let doors = watched.len();
        if accepts {
            watched.extend(self.doors.values().map(|door| PollFd::new(door, PollFlags::IN)));
        }
        let next =
            [self.porch.deadline(), self.notes.due(), self.retry].into_iter().flatten().min();
        let wait = next.and_then(|at| Timespec::try_from(at.saturating_duration_since(now)).ok());
        match poll(&mut watched, wait.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
        let ready: Vec<bool> = watched.iter().map(|fd| !fd.revents().is_empty()).collect();
        drop(watched);
        if ready[0] && !self.hear_server()? {
            return Ok(false);
        }
        if ready[1..children].contains(&true) {
            self.look_after_children();
        }
        let spoke = waiting.iter().zip(&ready[children..doors]).filter(|(_, ready)| **ready);
        let spoke: Vec<u64> = spoke.map(|(&at, _)| self.porch.callers[at].id).collect();
        let now = Instant::now();
        let knocked = self.doors.keys().zip(&ready[doors..]).filter(|(_, ready)| **ready);
        for door in knocked.map(|(&door, _)| door).collect::<Vec<_>>() {
            for turned in self.porch.accept(&self.doors[&door], door as usize, now) {
                self.turned(turned);
            }
        }
        self.receive(&spoke);
        for late in self.porch.overdue(now) {
            self.bury(user(late.standing, late.uid), late.socket);
        }
        self.reap();
        for text in self.notes.take(now) {
            let note = Head { kind: Kind::Note, door: 0, id: 0 }.encode(text.as_bytes());
            // It is for the log only.
            let _ = rustix::net::send(self.line, &note, SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
        }
        Ok(true)
    }

    fn turned(&mut self, turned: Turned) {
        self.notes.add(turned.uid, turned.pid, &turned.why);
        let Turned { socket, uid, standing, why, .. } = turned;
        let grave = Grave { socket, why: Some(why) };
        self.graves.entry(user(standing, uid)).or_default().push(grave);
    }

    fn bury(&mut self, user: User, socket: OwnedFd) {
        self.graves.entry(user).or_default().push(Grave { socket, why: None });
    }

    /// There is room for greeters again.
    fn unstall(&mut self) {
        self.porch.callers.iter_mut().for_each(|caller| caller.stalled = false);
    }

    /// Does what the server says. Returns whether there is one.
    fn hear_server(&mut self) -> io::Result<bool> {
        for _ in 0..line::BATCH {
            let mut more = [PollFd::new(self.line, PollFlags::IN)];
            if poll(&mut more, Some(&Timespec::default())) != Ok(1) {
                break;
            }
            match line::receive(self.line) {
                Ok(Some(mail)) => self.obey(mail),
                Ok(None) => {}
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(false),
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    fn obey(&mut self, Mail { head, descriptors, .. }: Mail) {
        let descriptor = descriptors.into_iter().next();
        match (head.kind, descriptor) {
            (Kind::Door, Some(listener)) => {
                self.doors.insert(head.door, listener);
            }
            (Kind::Receive, Some(socket)) => {
                let Ok(peer) = peer::credentials(&socket) else { return };
                let standing = self.porch.standing(head.door as usize, &peer);
                // One that is held already is closed here, as one of two.
                let user = user(standing, peer.uid);
                self.held.entry(head.id).or_insert(Held { socket, user });
                self.asked.push((head.id, peer.uid, standing));
            }
            // It had no descriptor left for the socket, which may be here all the same.
            (Kind::Receive, None) => match self.held.get(&head.id) {
                Some(held) => self.asked.push((head.id, held.user.1, held.user.0)),
                None => self.say(Kind::Silence, head.id),
            },
            (Kind::Bury, descriptor) => {
                let held = self.held.remove(&head.id).or_else(|| self.received_by_server(head.id));
                let user = match (&held, &descriptor) {
                    (Some(held), _) => held.user,
                    (None, Some(socket)) => match peer::credentials(socket) {
                        Ok(peer) => user(self.porch.standing(head.door as usize, &peer), peer.uid),
                        Err(_) => user(Standing::Stranger, 0),
                    },
                    (None, None) => return,
                };
                for socket in held.map(|held| held.socket).into_iter().chain(descriptor) {
                    self.bury(user, socket);
                }
            }
            _ => {}
        }
    }

    /// The client of that number, if its greeter has handed it on and has not said so yet: the
    /// server was faster.
    fn received_by_server(&mut self, id: u64) -> Option<Held> {
        let reception = self.receptions.iter_mut().find(|reception| reception.id == id)?;
        let Caller { socket, standing, uid, .. } = reception.caller.take()?;
        Some(Held { socket, user: user(standing, uid) })
    }

    fn say(&self, kind: Kind, id: u64) {
        let said = Head { kind, door: 0, id }.encode(&[]);
        // A server that listens to none of so many does not miss one.
        let _ = rustix::net::send(self.line, &said, SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
    }

    /// Has greeters receive what was said by those of `spoke`, and in sessions.
    fn receive(&mut self, spoke: &[u64]) {
        for (id, uid, standing) in std::mem::take(&mut self.asked) {
            // The server has buried it meanwhile.
            let Some(held) = self.held.get(&id) else { continue };
            let Ok(place) = self.greeters.take(standing, uid) else {
                self.asked.push((id, uid, standing));
                continue;
            };
            match greeter::start(&held.socket, self.line, None, id) {
                Ok((child, sync)) => self.receptions.push(Reception {
                    id,
                    caller: None,
                    sync: Some(sync),
                    child,
                    _place: place,
                }),
                Err(_) => {
                    self.asked.push((id, uid, standing));
                    self.retry = Some(Instant::now() + RETRY);
                }
            }
        }
        let mut order: Vec<(Standing, u64)> = Vec::new();
        order.extend(self.porch.callers.iter().filter_map(|caller| {
            spoke.contains(&caller.id).then_some((caller.standing, caller.id))
        }));
        order.sort_unstable();
        for (_, id) in order {
            let Some(at) = self.porch.callers.iter().position(|c| c.id == id) else { continue };
            let caller = &mut self.porch.callers[at];
            if has_gone(&caller.socket) {
                let caller = self.porch.callers.remove(at);
                self.bury(user(caller.standing, caller.uid), caller.socket);
                continue;
            }
            let Ok(place) = self.greeters.take(caller.standing, caller.uid) else {
                caller.stalled = true;
                continue;
            };
            match greeter::start(&caller.socket, self.line, Some(caller.door as u32), id) {
                Ok((child, sync)) => {
                    let caller = Some(self.porch.callers.remove(at));
                    self.receptions.push(Reception {
                        id,
                        caller,
                        sync: Some(sync),
                        child,
                        _place: place,
                    });
                }
                Err(_) => {
                    caller.stalled = true;
                    self.retry = Some(Instant::now() + RETRY);
                }
            }
        }
    }

    /// Hears how greeters did, and lets go of those and of reapers that have ended.
    fn look_after_children(&mut self) {
        self.reapers.retain(|(_, child)| !child.is_over());
        for mut reception in std::mem::take(&mut self.receptions) {
            let over = reception.child.is_over();
            if let Some(sync) = &reception.sync {
                match greeter::outcome(sync) {
                    Some(outcome) => {
                        reception.sync = None;
                        self.received(reception.id, reception.caller.take(), outcome);
                    }
                    None if over => {
                        let caller = reception.caller.take();
                        self.received(reception.id, caller, greeter::Outcome::Broken);
                    }
                    None => {}
                }
            }
            if over {
                self.unstall();
            } else {
                self.receptions.push(reception);
            }
        }
    }

    fn received(&mut self, id: u64, caller: Option<Caller>, outcome: greeter::Outcome) {
        use greeter::Outcome;
        match (caller, outcome) {
            // The server knows.
            (None, Outcome::Handed) => {}
            (None, outcome) => {
                let kind = if outcome == Outcome::Silence { Kind::Silence } else { Kind::Broken };
                self.say(kind, id);
            }
            (Some(Caller { socket, standing, uid, .. }), Outcome::Handed) => {
                self.held.insert(id, Held { socket, user: user(standing, uid) });
            }
            (Some(caller), Outcome::Silence) => self.porch.callers.push(caller),
            (Some(caller), outcome) => {
                let why = match outcome {
                    Outcome::Unheard => "the server could not be handed what was sent",
                    _ => "what was sent is too much, or has too many descriptors",
                };
                self.notes.add(caller.uid, caller.pid, why);
                self.bury(user(caller.standing, caller.uid), caller.socket);
            }
        }
    }

    /// Has reapers hang up and close what is to be closed.
    fn reap(&mut self) {
        for (user, graves) in std::mem::take(&mut self.graves) {
            let busy = self.reapers.iter().filter(|(whose, _)| *whose == user).count();
            // Clients that are still to be told wait for no reaper that hangs, while few do.
            let waited_for = graves.iter().any(|grave| grave.why.is_some());
            let few = match busy < REAPERS {
                true => graves.len() < GRAVES && !waited_for,
                false => graves.len() < GRAVES_MAX,
            };
            let wait = busy > 0 && few;
            if wait {
                self.graves.insert(user, graves);
                continue;
            }
            match greeter::close_last(graves) {
                Ok(child) => self.reapers.push((user, child)),
                Err(graves) => {
                    self.graves.insert(user, graves);
                    self.retry = Some(Instant::now() + RETRY);
                }
            }
        }
    }
}

/// Whether the client of `socket` has gone and left nothing to be received. Nothing is received by
/// the look.
fn has_gone(socket: &OwnedFd) -> bool {
    let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT | RecvFlags::TRUNC;
    rustix::net::recv(socket, &mut [0; 1], flags).is_ok_and(|(_, length)| length == 0)
}

/// Clients that were not let in, for the server's log: a line for each user at a time.
#[derive(Default)]
struct Notes {
    users: BTreeMap<u32, (u64, u32, String)>,
    /// Those of users of whom there is no line.
    others: u64,
    last: Option<Instant>,
}

impl Notes {
    fn add(&mut self, uid: u32, pid: u32, why: &str) {
        if let Some((count, ..)) = self.users.get_mut(&uid) {
            *count += 1;
        } else if self.users.len() < NOTED {
            self.users.insert(uid, (1, pid, why.to_owned()));
        } else {
            self.others += 1;
        }
    }

    fn due(&self) -> Option<Instant> {
        let last = self.last.filter(|_| !self.users.is_empty())?;
        Some(last + NOTES)
    }

    fn take(&mut self, now: Instant) -> Vec<String> {
        if self.users.is_empty() || self.due().is_some_and(|due| due > now) {
            return Vec::new();
        }
        self.last = Some(now);
        let users = std::mem::take(&mut self.users).into_iter();
        let line = |(uid, (count, pid, why)): (u32, (u64, u32, String))| match count {
            1 => format!("process {pid} of user {uid} is refused: {why}"),
            _ => format!(
                "process {pid} of user {uid} is refused: {why} (and {} more times)",
                count - 1
            ),
        };
        let mut lines: Vec<String> = users.map(line).collect();
        match std::mem::take(&mut self.others) {
            0 => {}
            others => lines.push(format!("other users were refused {others} times")),
        }
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_are_told_once_a_second() {
        let (mut notes, now) = (Notes::default(), Instant::now());
        assert!(notes.take(now).is_empty());
        notes.add(7, 100, "why");
        assert_eq!(notes.take(now), ["process 100 of user 7 is refused: why"]);
        for uid in 0..2 * NOTED as u32 {
            notes.add(uid, uid, "no");
            notes.add(uid, uid, "no");
        }
        assert!(notes.take(now + NOTES / 2).is_empty());
        assert_eq!(notes.due(), Some(now + NOTES));
        let lines = notes.take(now + NOTES);
        assert_eq!(lines.len(), NOTED + 1);
        assert_eq!(lines[0], "process 0 of user 0 is refused: no (and 1 more times)");
        assert_eq!(lines[NOTED], format!("other users were refused {} times", 2 * NOTED));
        assert!(notes.take(now + 3 * NOTES).is_empty() && notes.due().is_none());
    }
}
