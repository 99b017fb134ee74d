//! The bounds of a user: what all connections of one have together is not more than the share of
//! one, what all ask for in a second is not more than its rate, and their locks have a bound.

use std::time::Duration;

use atoll_server::host::Host;
use atoll_server::rights::accounts::{Accounts, Resource, Shares};
use atoll_server::rights::rates::{Rates, Work};
use atoll_server::{LockKind, LockOwner, LockRange, LockRequest};
use atoll_tests::rng::Rng;
use atoll_vfs::{Context, Errno, FileSystem, Ino, Name, OpenFlags, Timespec};

use crate::measure::empty;
use crate::plant::Plant;
use crate::seat::Role;
use crate::world::{Outcome, Template};

const CX: Context = Context { uid: 1000, gid: 1000, now: Timespec { sec: 1, nsec: 0 } };
/// Files that the user may have open: more than anybody may in any case.
const FILES: u64 = 70;
/// Requests that it may make in a second.
const RATE: u64 = 20;

/// Locks that one connection of a user may have, and all of them together: four times as many.
const LOCKS: usize = 3;
const LOCKS_OF_USER: usize = 4 * LOCKS;

/// Lets a user come by several connections, and judges what it gets.
pub(crate) fn judge(template: &Template, rng: &mut Rng, plant: Option<Plant>) -> Outcome<()> {
    let world = empty(template)?;
    let volume = world.volume.as_ref().ok_or("there is no volume")?;
    let shares = Shares { open_files: FILES, ..Shares::UNLIMITED };
    let rates = Rates { operations: Some(RATE), bytes: None };
    let connections = rng.within(2..5);
    let is_apart = plant == Some(Plant::ConnectionsAsAccounts);
    let mut all = Vec::new();
    let mut sessions = Vec::new();
    for _ in 0..connections {
        // Planted: the server keeps an account for each connection.
        if is_apart || all.is_empty() {
            all.push(Accounts::new(Shares::UNLIMITED));
        }
        let account = all[all.len() - 1].open(Role::User.uid(), shares);
        let mut access = Role::User.access();
        access.limits.rates = rates;
        access.account = Some(account);
        let session = volume.session(Role::User.peer(), access);
        sessions.push(session.map_err(|error| format!("a session: {error}"))?);
    }
    let words = |error: Errno| error.to_string();
    let mut inos = Vec::new();
    for session in &mut sessions {
        let name = Name::new(b"a").map_err(words)?;
        inos.push(session.lookup(&CX, Ino::ROOT, name).map_err(words)?.ino);
    }
    let mut has = 0;
    for at in 0..FILES + connections {
        let of = (at % connections) as usize;
        match sessions[of].open(&CX, inos[of], OpenFlags::READ) {
            Ok(_) => has += 1,
            Err(Errno::ENFILE) => {}
            Err(error) => return Err(format!("an open file is refused: {error}")),
        }
    }
    // A connection takes places of its user's share by the piece, and may have some that it does
    // not use.
    if !(FILES / 2..=FILES).contains(&has) {
        return Err(format!("a user has {has} open files, and its share are {FILES}"));
    }
    // A second's worth at once, and then as much as comes in; each connection is late by one.
    let (mut now, mut made) = (world.machine.uptime(), 0);
    let end = now + Duration::from_secs(1);
    while now < end {
        for (session, ino) in sessions.iter_mut().zip(&inos) {
            let meter = session.meter().cloned().ok_or("a user's rate is not measured")?;
            if meter.wait(now).is_zero() {
                session.getattr(&CX, *ino).map_err(words)?;
                meter.note(Work { operations: 1, bytes: 0 });
                made += 1;
            }
        }
        now += Duration::from_millis(10);
    }
    if made > 2 * RATE + connections {
        return Err(format!("a user makes {made} requests in a second, and its rate is {RATE}"));
    }
    drop(sessions);
    let account = all[0].open(Role::User.uid(), shares);
    match account.has(Resource::OpenFiles) {
        0 => Ok(()),
        rest => Err(format!("a user has left, with {rest} open files")),
    }
}

/// Lets a user take locks by several connections, and judges how many it gets, and what is left of
/// them.
pub(crate) fn judge_locks(template: &Template, rng: &mut Rng, plant: Option<Plant>) -> Outcome<()> {
    let world = empty(template)?;
    let volume = world.volume.as_ref().ok_or("there is no volume")?;
    let words = |error: Errno| error.to_string();
    let name = Name::new(b"a").map_err(words)?;
    let begin = |uid: u32| {
        let mut access = Role::User.access();
        access.limits.locks = LOCKS;
        let mut peer = Role::User.peer();
        peer.uid = uid;
        let mut session = volume.session(peer, access).map_err(words)?;
        let ino = session.lookup(&CX, Ino::ROOT, name).map_err(words)?.ino;
        let handle = session.open(&CX, ino, OpenFlags::WRITE).map_err(words)?;
        Ok::<_, String>((session, ino, handle))
    };
    let connections = rng.within(5..8) as u32;
    let mut sessions = Vec::new();
    for at in 0..connections {
        // Planted: the server counts each connection's locks as another user's.
        let of = if plant == Some(Plant::ConnectionsAsHolders) { at } else { 0 };
        sessions.push(begin(Role::User.uid() + of)?);
    }
    let request = |range, kind| LockRequest { owner: LockOwner::Process(1), range, kind, pid: 1 };
    let mut has = Vec::new();
    for at in 0..u64::from(connections) * (LOCKS as u64 + 1) {
        let of = (at % u64::from(connections)) as usize;
        // Bytes apart, so that each lock is a piece of its own.
        let range = LockRange { start: 2 * at, end: 2 * at };
        let (session, ino, handle) = &mut sessions[of];
        match session.setlk(*ino, *handle, &request(range, Some(LockKind::Exclusive))) {
            Ok(()) => has.push((of, range)),
            Err(Errno::ENOLCK) => {}
            Err(error) => return Err(format!("a lock is refused: {error}")),
        }
    }
    if has.len() != LOCKS_OF_USER {
        let has = has.len();
        return Err(format!("a user holds {has} locks, and may hold {LOCKS_OF_USER}"));
    }
    // One lets go of a lock, and another may have one more.
    let (of, range) = rng.pick(&has);
    let (session, ino, handle) = &mut sessions[of];
    session.setlk(*ino, *handle, &request(range, None)).map_err(words)?;
    let (session, ino, handle) = &mut sessions[of];
    let again = session.setlk(*ino, *handle, &request(range, Some(LockKind::Exclusive)));
    again.map_err(|error| format!("a lock that was let go of is lost to its user: {error}"))?;
    drop(sessions);
    let (mut session, ino, handle) = begin(Role::User.uid())?;
    let all = session.setlk(ino, handle, &request(LockRange::ALL, Some(LockKind::Exclusive)));
    all.map_err(|error| format!("a user has left, and its locks have not: {error}"))
}
