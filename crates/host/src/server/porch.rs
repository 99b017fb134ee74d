//! Clients that have connected and have not yet said what they want.
//!
//! The superuser and the server's own user, the users for whom there is a rule, and all others have
//! places apart, so that nobody takes those of a class above his own. Within a class a user has his
//! share, and of a class that is full the user who waits with the most connections loses the
//! oldest of them to a user who has fewer: to be silent keeps nobody out.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use atoll_server::Credentials;
use atoll_server::rights::accounts::{Accounts, Charge, Exhausted, Resource, Shares};
use rustix::io::Errno;
use rustix::net::SocketFlags;

use super::control::{self, Answer};
use super::peer;
use super::porter::hang_up;
use super::rules::Rules;

/// How long a client may take to say what it wants.
const GREETING: Duration = Duration::from_secs(10);
/// The most clients that are accepted before the others are looked at again.
const ACCEPT_BATCH: usize = 64;
/// How long nobody is accepted when the system had no descriptor for one.
const REST: Duration = Duration::from_millis(200);

/// A user's standing with the rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Standing {
    /// The superuser, or the server's own user.
    Trusted,
    /// A rule lets the user use a volume.
    Ruled,
    /// No rule does.
    Stranger,
}

/// The standing of `peer` with `rules`, where there are these volumes.
pub(super) fn standing<'a>(
    rules: &Rules,
    mut volumes: impl Iterator<Item = &'a str>,
    peer: &Credentials,
) -> Standing {
    let peer = &rules.identify(peer.clone());
    match volumes.any(|name| rules.grant(peer, name).is_some()) {
        false => Standing::Stranger,
        true if rules.is_trusted(peer) => Standing::Trusted,
        true => Standing::Ruled,
    }
}

/// Bounds for each standing: of one user, and of all.
pub(super) type Bounds = [(u64, u64); 3];

/// The most clients that wait.
const WAITING: Bounds = [(128, 128), (64, 512), (16, 32)];

/// Something of which the users of each standing have their own share.
pub(super) struct Places {
    accounts: [Accounts; 3],
    bounds: Bounds,
}

impl Places {
    pub(super) fn new(bounds: Bounds) -> Places {
        let shares = |connections| Shares { connections, ..Shares::UNLIMITED };
        Places { accounts: bounds.map(|(_, all)| Accounts::new(shares(all))), bounds }
    }

    /// A place, until what is returned is dropped.
    pub(super) fn take(&self, standing: Standing, uid: u32) -> Result<Charge, Exhausted> {
        let at = standing as usize;
        let most = Shares { connections: self.bounds[at].0, ..Shares::UNLIMITED };
        self.accounts[at].open(uid, most).charge(Resource::Connections, 1)
    }
}

/// A client that waits.
pub(super) struct Caller {
    pub id: u64,
    /// The door by which it has come.
    pub door: usize,
    pub socket: OwnedFd,
    pub uid: u32,
    pub pid: u32,
    pub standing: Standing,
    /// It has said something that cannot be received yet.
    pub stalled: bool,
    until: Instant,
    _place: Charge,
}

/// A client that was not let in, with the reason, which it has not been told.
pub(super) struct Turned {
    pub socket: OwnedFd,
    pub uid: u32,
    pub pid: u32,
    pub standing: Standing,
    pub why: String,
}

/// Where clients wait.
pub(super) struct Porch {
    rules: Vec<Rules>,
    volumes: Vec<String>,
    places: Places,
    pub callers: Vec<Caller>,
    rests: Option<Instant>,
    next: u64,
}

impl Porch {
    /// `rules` are those of each door, `volumes` the names that they are about; the first client
    /// has the number `first`.
    pub(super) fn new(rules: Vec<Rules>, volumes: Vec<String>, first: u64) -> Porch {
        let (places, callers) = (Places::new(WAITING), Vec::new());
        Porch { rules, volumes, places, callers, rests: None, next: first }
    }

    /// The standing of `peer` with the rules of `door`.
    pub(super) fn standing(&self, door: usize, peer: &Credentials) -> Standing {
        let names = self.volumes.iter().map(String::as_str);
        self.rules.get(door).map_or(Standing::Stranger, |rules| standing(rules, names, peer))
    }

    /// Whether anybody is accepted at `now`: accept(2) would fail, and poll(2) would report the
    /// client again at once.
    pub(super) fn accepts(&mut self, now: Instant) -> bool {
        self.rests = self.rests.filter(|&until| until > now);
        self.rests.is_none()
    }

    /// When something is to be done though nobody says anything.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.callers.iter().map(|caller| caller.until).chain(self.rests).min()
    }

    /// Lets in the clients that stand at `listener`, and returns those that have no place.
    pub(super) fn accept(&mut self, listener: &OwnedFd, door: usize, now: Instant) -> Vec<Turned> {
        let mut turned = Vec::new();
        for _ in 0..ACCEPT_BATCH {
            let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
            let socket = match rustix::net::accept_with(listener, flags) {
                Ok(socket) => socket,
                Err(Errno::AGAIN) => break,
                // It has gone again.
                Err(Errno::CONNABORTED | Errno::INTR) => continue,
                Err(_) => {
                    self.rests = Some(now + REST);
                    break;
                }
            };
            match peer::credentials(&socket) {
                Ok(peer) => turned.extend(self.admit(socket, &peer, door, now)),
                Err(error) => turned.push(Turned {
                    socket,
                    uid: u32::MAX,
                    pid: 0,
                    standing: Standing::Stranger,
                    why: format!("the kernel does not say who a client is: {error}"),
                }),
            }
        }
        turned
    }

    /// Gives `socket` a place. Returns the client that has to go for it.
    fn admit(
        &mut self,
        socket: OwnedFd,
        peer: &Credentials,
        door: usize,
        now: Instant,
    ) -> Option<Turned> {
        let (uid, pid, standing) = (peer.uid, peer.pid, self.standing(door, peer));
        let mut gone = None;
        let mut place = self.places.take(standing, uid);
        if let Err(Exhausted { by_all: true, .. }) = place
            && let Some(at) = self.most_patient(standing, uid)
        {
            gone = Some(self.turn_away(at, "too many clients: others wait for a place"));
            place = self.places.take(standing, uid);
        }
        match place {
            Ok(place) => {
                let (id, until) = (self.next, now + GREETING);
                self.next += 1;
                let stalled = false;
                self.callers.push(Caller {
                    id,
                    door,
                    socket,
                    uid,
                    pid,
                    standing,
                    stalled,
                    until,
                    _place: place,
                });
                gone
            }
            Err(why) => {
                let why = format!("too many clients: {why}");
                Some(Turned { socket, uid, pid, standing, why })
            }
        }
    }

    /// The oldest client of the user who has the most of that standing, if that is more by two
    /// than `uid` has.
    fn most_patient(&self, standing: Standing, uid: u32) -> Option<usize> {
        let alike = || self.callers.iter().enumerate().filter(|(_, c)| c.standing == standing);
        let of = |uid: u32| alike().filter(|(_, caller)| caller.uid == uid).count();
        // The first of a user has connected first.
        let (most, at) = alike().map(|(at, c)| (of(c.uid), usize::MAX - at)).max()?;
        (most > of(uid) + 1).then_some(usize::MAX - at)
    }

    /// Lets a client go, for a reason.
    pub(super) fn turn_away(&mut self, at: usize, why: &str) -> Turned {
        let Caller { socket, uid, pid, standing, .. } = self.callers.remove(at);
        Turned { socket, uid, pid, standing, why: why.to_owned() }
    }

    /// Those that have waited too long.
    pub(super) fn overdue(&mut self, now: Instant) -> Vec<Caller> {
        self.callers.extract_if(.., |caller| caller.until <= now).collect()
    }
}

impl Turned {
    /// Tells it, as [`tell`] does.
    pub(super) fn tell(self) {
        tell(&self.socket, Some(self.why));
    }
}

/// Tells a client why it is not let in, and hangs up. One that does not listen is not waited for;
/// but it sets how long this takes.
pub(super) fn tell(socket: &OwnedFd, why: Option<String>) {
    if let Some(why) = why {
        let _ = control::send(socket, &Answer::Refused(why).encode(), &[]);
    }
    hang_up(socket);
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: u32 = 500;

    fn porch() -> Porch {
        let rules = vec!["uid:7=rw".parse().unwrap(), "gid:8=ro,volume=v".parse().unwrap()];
        let closed = vec!["all=deny".parse().unwrap()];
        let rules = vec![Rules::new(rules, OWN), Rules::new(closed, OWN)];
        Porch::new(rules, vec!["v".to_owned()], 1)
    }

    fn peer(uid: u32) -> Credentials {
        Credentials { pid: 1, uid, gid: uid, groups: [].into() }
    }

    /// Whether one more client of `uid` is let in, and the user who had to go.
    fn comes(porch: &mut Porch, uid: u32, now: Instant) -> (bool, Option<u32>) {
        let before = porch.next;
        let (ours, _) = control::pair().unwrap();
        let gone = porch.admit(ours, &peer(uid), 0, now).map(|turned| turned.uid);
        (porch.next > before, gone)
    }

    #[test]
    fn a_standing_is_of_a_door() {
        let porch = porch();
        let all = |door| [0, OWN, 7, 8, 9].map(|uid| porch.standing(door, &peer(uid)));
        use Standing::{Ruled, Stranger, Trusted};
        assert_eq!(all(0), [Trusted, Trusted, Ruled, Ruled, Stranger]);
        assert_eq!(all(1), [Stranger; 5]);
        assert_eq!(all(2), [Stranger; 5]);
    }

    #[test]
    fn strangers_take_no_place_of_others() {
        let (mut porch, now) = (porch(), Instant::now());
        for uid in 1000..2000 {
            comes(&mut porch, uid, now);
        }
        let strangers = porch.callers.len() as u64;
        assert_eq!(strangers, WAITING[Standing::Stranger as usize].1);
        for uid in [7, 8, 0, OWN] {
            assert_eq!(comes(&mut porch, uid, now), (true, None), "{uid}");
        }
    }

    #[test]
    fn who_has_the_most_makes_room() {
        let (mut porch, now) = (porch(), Instant::now());
        let (own, all) = WAITING[Standing::Stranger as usize];
        for _ in 0..own {
            assert_eq!(comes(&mut porch, 1000, now), (true, None));
        }
        assert_eq!(comes(&mut porch, 1000, now), (false, Some(1000)), "it has its share");
        for uid in 0..all - own {
            assert_eq!(comes(&mut porch, 2000 + uid as u32, now), (true, None));
        }
        let oldest = porch.callers[0].id;
        assert_eq!(comes(&mut porch, 3000, now), (true, Some(1000)));
        assert!(porch.callers.iter().all(|caller| caller.id != oldest));
        // Until nobody has two more than the newcomer.
        let room = (own - 2) as u32;
        for uid in 3001..3000 + room {
            assert_eq!(comes(&mut porch, uid, now), (true, Some(1000)));
        }
        assert_eq!(comes(&mut porch, 3000, now), (false, Some(3000)));
        assert_eq!(porch.callers.len() as u64, all);
    }

    #[test]
    fn the_silent_go_after_a_time() {
        let (mut porch, now) = (porch(), Instant::now());
        assert_eq!(porch.deadline(), None);
        comes(&mut porch, 7, now);
        comes(&mut porch, 9, now + GREETING / 2);
        assert_eq!(porch.deadline(), Some(now + GREETING));
        assert!(porch.overdue(now + GREETING / 2).is_empty());
        let gone = porch.overdue(now + GREETING);
        assert_eq!(gone.iter().map(|caller| caller.uid).collect::<Vec<_>>(), [7]);
        assert_eq!(porch.deadline(), Some(now + GREETING / 2 + GREETING));
    }
}
