//! How much of the server one user may use, over all of its connections to all volumes, and all
//! users together.
//!
//! [`Limits`](crate::rights::limits::Limits) bound one session; a user who opens a thousand of them
//! is bound here. Each use is a [`Charge`], which gives back when it is dropped, so that no way out
//! of a session forgets one. Tables that grow with what a client asks for take theirs as `Room`,
//! some places at a time.
//!
//! All users together have a bound too, which some could use up. So that others still get in, each
//! user has a little of what sessions need assured, beyond that bound.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::rights::rates::{Meter, Meters, Rates};

/// A thing that users have a share of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resource {
    /// Connections to the server's sockets.
    Connections,
    /// Bytes of the server's own memory, and of memory that is charged to it.
    Memory,
    /// Open files and directories.
    OpenFiles,
}

/// How many resources there are.
const RESOURCES: usize = 3;

impl Resource {
    fn index(self) -> usize {
        self as usize
    }
}

impl Resource {
    /// The part that a user has in any case, within its own share: a client with a lane, a few
    /// files and a few hundred inodes needs no more.
    fn assured(self) -> u64 {
        match self {
            Resource::Connections => 0,
            Resource::Memory => 96 << 10,
            Resource::OpenFiles => 64,
        }
    }
}

impl fmt::Display for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Resource::Connections => "connections",
            Resource::Memory => "bytes of memory",
            Resource::OpenFiles => "open files",
        })
    }
}

/// The most of each resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shares {
    /// Connections.
    pub connections: u64,
    /// Bytes of memory.
    pub memory: u64,
    /// Open files.
    pub open_files: u64,
}

impl Shares {
    /// No bound.
    pub const UNLIMITED: Shares =
        Shares { connections: u64::MAX, memory: u64::MAX, open_files: u64::MAX };

    fn of(&self, resource: Resource) -> u64 {
        match resource {
            Resource::Connections => self.connections,
            Resource::Memory => self.memory,
            Resource::OpenFiles => self.open_files,
        }
    }
}

/// A resource that is used up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exhausted {
    /// The resource.
    pub resource: Resource,
    /// The most of it.
    pub most: u64,
    /// All users together have it, not this one.
    pub by_all: bool,
}

impl fmt::Display for Exhausted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Exhausted { resource, most, by_all } = self;
        match by_all {
            true => {
                write!(f, "all users together have the most of the server's {resource}, {most}")
            }
            false => write!(f, "the user has the most that it may have, {most} {resource}"),
        }
    }
}

/// A user's use of each resource, or that of all users.
#[derive(Debug, Default)]
struct Taken([AtomicU64; RESOURCES]);

impl Taken {
    fn take(&self, resource: Resource, amount: u64, most: u64) -> bool {
        let place = &self.0[resource.index()];
        let add = |taken: u64| taken.checked_add(amount).filter(|&sum| sum <= most);
        place.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add).is_ok()
    }

    fn add(&self, resource: Resource, amount: u64) {
        self.0[resource.index()].fetch_add(amount, Ordering::Relaxed);
    }

    fn give_back(&self, resource: Resource, amount: u64) {
        self.0[resource.index()].fetch_sub(amount, Ordering::Relaxed);
    }

    fn get(&self, resource: Resource) -> u64 {
        self.0[resource.index()].load(Ordering::Relaxed)
    }
}

/// One user's use of the server.
#[derive(Debug)]
pub struct Account {
    uid: u32,
    most: Shares,
    taken: Taken,
    all: Arc<Total>,
}

#[derive(Debug)]
struct Total {
    most: Shares,
    taken: Taken,
    /// A user in debt finds it in the next account too.
    meters: Meters,
}

impl Account {
    /// The user.
    pub fn uid(&self) -> u32 {
        self.uid
    }

    /// How much of `resource` the user has.
    pub fn has(&self, resource: Resource) -> u64 {
        self.taken.get(resource)
    }

    /// Takes `amount` of `resource`, until what is returned is dropped.
    ///
    /// # Errors
    /// [`Exhausted`]; nothing is taken then.
    pub fn charge(self: &Arc<Self>, resource: Resource, amount: u64) -> Result<Charge, Exhausted> {
        Charge::new(self, resource, false).of(amount)
    }

    /// As [`charge`](Self::charge), for what clients can do without: nothing of what the user is
    /// assured of.
    ///
    /// # Errors
    /// As there.
    pub(crate) fn charge_spare(
        self: &Arc<Self>,
        resource: Resource,
        amount: u64,
    ) -> Result<Charge, Exhausted> {
        Charge::new(self, resource, true).of(amount)
    }

    /// Measures what the user asks for at `now`, an uptime, to which `rates` apply; `None` for one
    /// who may do as much as there is.
    pub(crate) fn meter(&self, rates: Rates, now: Duration) -> Option<Arc<Meter>> {
        self.all.meters.open(self.uid, rates, now)
    }
}

/// A part of a resource that a user has until this is dropped.
#[derive(Debug)]
#[must_use]
pub struct Charge {
    account: Arc<Account>,
    resource: Resource,
    amount: u64,
    /// Only of what all users have together.
    spare: bool,
}

impl Charge {
    fn new(account: &Arc<Account>, resource: Resource, spare: bool) -> Charge {
        Charge { account: Arc::clone(account), resource, amount: 0, spare }
    }

    fn of(mut self, amount: u64) -> Result<Charge, Exhausted> {
        self.grow(amount).map(|()| self)
    }

    /// How much.
    pub fn amount(&self) -> u64 {
        self.amount
    }

    /// The user's account.
    pub fn account(&self) -> &Arc<Account> {
        &self.account
    }

    /// Takes so much more.
    ///
    /// # Errors
    /// [`Exhausted`]; the charge is then what it was.
    pub fn grow(&mut self, amount: u64) -> Result<(), Exhausted> {
        let (account, resource) = (&*self.account, self.resource);
        let most = self.part(account.most.of(resource));
        if !account.taken.take(resource, amount, most) {
            return Err(Exhausted { resource, most, by_all: false });
        }
        let most = self.part(account.all.most.of(resource));
        if account.taken.get(resource) <= resource.assured() && !self.spare {
            account.all.taken.add(resource, amount);
        } else if !account.all.taken.take(resource, amount, most) {
            account.taken.give_back(resource, amount);
            return Err(Exhausted { resource, most, by_all: true });
        }
        self.amount += amount;
        Ok(())
    }

    /// The part of a share that may be taken when this is: of what can be done without there is
    /// none once half of it has gone.
    fn part(&self, most: u64) -> u64 {
        if self.spare { most / 2 } else { most }
    }

    /// Gives so much back, or all that there is.
    pub fn shrink(&mut self, amount: u64) {
        let amount = amount.min(self.amount);
        self.amount -= amount;
        self.account.taken.give_back(self.resource, amount);
        self.account.all.taken.give_back(self.resource, amount);
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.shrink(self.amount);
    }
}

/// Places of a [`Room`] that are taken at a time, so that few calls go to the account.
const PIECE: u64 = 16;

/// Room in a table that grows with what a client asks for. Without an account there is no bound.
#[derive(Debug, Default)]
pub(crate) struct Room {
    charge: Option<Charge>,
    /// The amount that a place takes.
    each: u64,
}

impl Room {
    /// For a table whose places take `each` of `resource`.
    pub fn new(account: Option<&Arc<Account>>, resource: Resource, each: u64) -> Room {
        let charge = |account| Charge::new(account, resource, false);
        Room { charge: account.map(charge), each }
    }

    /// Has room for `places` in all.
    ///
    /// # Errors
    /// [`Exhausted`]; what there was stays.
    #[inline]
    pub fn have(&mut self, places: usize) -> Result<(), Exhausted> {
        match &mut self.charge {
            Some(charge) if places as u64 * self.each > charge.amount => {
                let places = places as u64;
                let wanted = places.next_multiple_of(PIECE) * self.each;
                // Of a share that has no whole piece left, what there is.
                charge
                    .grow(wanted - charge.amount)
                    .or_else(|_| charge.grow(places * self.each - charge.amount))
            }
            _ => Ok(()),
        }
    }

    /// Gives back what `places` do not need, if that is much.
    #[inline]
    pub fn keep(&mut self, places: usize) {
        if let Some(charge) = &mut self.charge {
            let needed = (places as u64).next_multiple_of(PIECE) * self.each;
            if charge.amount > needed + PIECE * self.each {
                charge.shrink(charge.amount - needed);
            }
        }
    }
}

/// The accounts of a server's users.
#[derive(Debug)]
pub struct Accounts {
    all: Arc<Total>,
    users: Mutex<HashMap<u32, Arc<Account>>>,
}

impl Accounts {
    /// All users together have at most `most`.
    pub fn new(most: Shares) -> Accounts {
        let all = Arc::new(Total { most, taken: Taken::default(), meters: Meters::default() });
        Accounts { all, users: Mutex::default() }
    }

    /// The most of `resource` that all users together have.
    pub fn most(&self, resource: Resource) -> u64 {
        self.all.most.of(resource)
    }

    /// The account of `uid`, which may have at most `most`; one that is open keeps its bounds.
    /// Accounts that nobody uses any more are forgotten.
    pub fn open(&self, uid: u32, most: Shares) -> Arc<Account> {
        let mut users = self.users.lock().unwrap_or_else(PoisonError::into_inner);
        users.retain(|_, account| Arc::strong_count(account) > 1);
        let open = || {
            let (taken, all) = (Taken::default(), Arc::clone(&self.all));
            Arc::new(Account { uid, most, taken, all })
        };
        Arc::clone(users.entry(uid).or_insert_with(open))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rights::rates::Work;
    use crate::{Access, Credentials, Limits};

    const MOST: Shares = Shares { connections: 3, memory: 100, open_files: 7 };

    #[test]
    fn a_user_has_its_share_and_no_more() {
        let accounts = Accounts::new(Shares::UNLIMITED);
        let account = accounts.open(7, MOST);
        let mut first = account.charge(Resource::Memory, 60).unwrap();
        let none = Exhausted { resource: Resource::Memory, most: 100, by_all: false };
        assert_eq!(account.charge(Resource::Memory, 41).unwrap_err(), none);
        assert_eq!(first.grow(41), Err(none));
        assert_eq!(first.grow(u64::MAX), Err(none));
        first.grow(40).unwrap();
        assert_eq!((first.amount(), account.has(Resource::Memory)), (100, 100));
        first.shrink(50);
        // By whichever connection: it is one account.
        let again = accounts.open(7, Shares::UNLIMITED);
        let second = again.charge(Resource::Memory, 50).unwrap();
        assert!(again.charge(Resource::Memory, 1).is_err());
        assert!(again.charge(Resource::OpenFiles, 7).is_ok());
        drop(first);
        assert_eq!(account.has(Resource::Memory), 50);
        drop(second);
        assert_eq!(account.has(Resource::Memory), 0);
    }

    #[test]
    fn all_users_together_have_a_bound() {
        let accounts = Accounts::new(Shares { connections: 4, ..Shares::UNLIMITED });
        let (a, b) = (accounts.open(1, MOST), accounts.open(2, MOST));
        let _three = a.charge(Resource::Connections, 3).unwrap();
        let one = b.charge(Resource::Connections, 1).unwrap();
        let refused = b.charge(Resource::Connections, 1).unwrap_err();
        assert_eq!(refused, Exhausted { resource: Resource::Connections, most: 4, by_all: true });
        assert_eq!(b.has(Resource::Connections), 1, "a refusal takes nothing");
        drop(one);
        assert!(b.charge(Resource::Connections, 1).is_ok());
    }

    #[test]
    fn a_user_has_a_little_in_any_case() {
        let little = Resource::Memory.assured();
        let accounts = Accounts::new(Shares { memory: 10 * little, ..Shares::UNLIMITED });
        let all = accounts.open(1, Shares::UNLIMITED);
        let _taken = all.charge(Resource::Memory, 10 * little).unwrap();
        assert!(all.charge(Resource::Memory, 1).is_err_and(|why| why.by_all));
        let (late, bounded) = (accounts.open(2, Shares::UNLIMITED), accounts.open(3, MOST));
        let charge = late.charge(Resource::Memory, little).unwrap();
        assert!(late.charge(Resource::Memory, 1).is_err_and(|why| why.by_all));
        drop(charge);
        assert!(late.charge_spare(Resource::Memory, 1).is_err_and(|why| why.by_all));
        assert!(late.charge(Resource::Memory, little).is_ok());
        assert!(bounded.charge(Resource::Memory, 101).is_err_and(|why| !why.by_all));
        drop(_taken);
        assert!(all.charge(Resource::Memory, 10 * little).is_ok());
    }

    #[test]
    fn room_is_taken_in_pieces_and_given_back() {
        let accounts = Accounts::new(Shares::UNLIMITED);
        let account = accounts.open(1, Shares { memory: 1000, ..MOST });
        let mut room = Room::new(Some(&account), Resource::Memory, 10);
        room.have(1).unwrap();
        assert_eq!(account.has(Resource::Memory), 160);
        room.have(16).unwrap();
        assert_eq!(account.has(Resource::Memory), 160);
        room.have(81).unwrap();
        room.have(96).unwrap();
        assert_eq!(account.has(Resource::Memory), 960);
        // The last places are fewer than a piece.
        room.have(97).unwrap();
        assert_eq!(account.has(Resource::Memory), 970);
        assert!(room.have(101).is_err());
        room.have(100).unwrap();
        assert_eq!(account.has(Resource::Memory), 1000);
        let mut few = Room::new(Some(&account), Resource::OpenFiles, 1);
        (1..=7).for_each(|places| few.have(places).unwrap());
        assert!(few.have(8).is_err());
        room.keep(85);
        room.keep(81);
        assert_eq!(account.has(Resource::Memory), 1000);
        room.keep(64);
        assert_eq!(account.has(Resource::Memory), 640);
        drop(room);
        assert_eq!(account.has(Resource::Memory), 0);
        Room::new(None, Resource::Memory, 10).have(usize::MAX / 10).unwrap();
    }

    /// A user does not get more by a second volume, nor by coming again.
    #[test]
    fn a_rate_is_of_a_user_and_not_of_a_volume() {
        let accounts = Accounts::new(Shares::UNLIMITED);
        let rates = Rates { operations: Some(10), bytes: None };
        let volumes = [crate::testing::volume(), crate::testing::volume()];
        let begin = |volume: usize, uid| {
            let account = Some(accounts.open(uid, MOST));
            let limits = Limits { rates, ..Limits::default() };
            let access = Access { account, limits, ..Access::default() };
            volumes[volume].session(Credentials { uid, ..Credentials::default() }, access).unwrap()
        };
        let wait = |volume, uid| begin(volume, uid).meter().unwrap().wait(Duration::ZERO);
        let first = begin(0, 7);
        first.meter().unwrap().note(Work { operations: 20, bytes: 0 });
        let owed = Duration::from_secs(1);
        assert_eq!((wait(0, 7), wait(1, 7), wait(1, 8)), (owed, owed, Duration::ZERO));
        drop(first);
        assert_eq!(wait(1, 7), owed);
    }

    #[test]
    fn an_account_lives_as_long_as_it_is_used() {
        let accounts = Accounts::new(Shares::UNLIMITED);
        let charge = accounts.open(1, MOST).charge(Resource::OpenFiles, 7).unwrap();
        assert!(accounts.open(1, MOST).charge(Resource::OpenFiles, 1).is_err());
        drop(charge);
        // The share that was said last bounds it now.
        let wider = Shares { open_files: 8, ..MOST };
        assert!(accounts.open(1, wider).charge(Resource::OpenFiles, 8).is_ok());
        assert_eq!(accounts.users.lock().unwrap().len(), 1);
    }
}
