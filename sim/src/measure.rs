//! The cost of hostile clients to others, in what a machine cannot hurry: simulated time, and
//! calls' work.
//!
//! These costs are known, and no failures: the server bounds some of them only by its limits.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use atoll_fs::Fs;
use atoll_server::Session;
use atoll_server::host::Host;
use atoll_server::leases::gate::Gate;
use atoll_server::rights::identity::Access;
use atoll_server::route::router::serve_next;
use atoll_server::{Credentials, LockKind, LockOwner, LockRange, LockRequest};
use atoll_vfs::wire::Request;
use atoll_vfs::wire::files::ReadIn;
use atoll_vfs::{Context, Errno, FileSystem, Ino, Name, OpenFlags, RenameFlags, Timespec};

use crate::codec::{Asker, Dialect};
use crate::disk::Disk;
use crate::plant::Plant;
use crate::schedule::Event;
use crate::seat::{Role, Seat};
use crate::world::{Options, Outcome, Template, World};

const CX: Context = Context { uid: 0, gid: 0, now: Timespec { sec: 1, nsec: 0 } };
const RW: OpenFlags = OpenFlags::READ.union(OpenFlags::WRITE);

/// A measurement, in words.
pub type Finding = (&'static str, String);

/// All of them.
///
/// # Errors
/// The first thing that goes wrong on the way.
pub fn all(template: &Template) -> Outcome<Vec<Finding>> {
    let mut findings = Vec::new();
    for mounts in [1, 2, 4, 8] {
        let waited = late_mounts(template, mounts, None)?;
        let what = format!("{mounts} in a row: one change each waits {waited:.1?} in all");
        findings.push(("mounts that never let go", what));
    }
    for bytes in [1 << 20, 2 << 20] {
        let (events, stored) = long_write(template, bytes)?;
        let what = format!("{stored} bytes in {events} stores of the device under one lock");
        findings.push(("one long write", what));
    }
    for (count, waiters) in [(500, 0), (4000, 0), (2000, 200), (2000, 2000)] {
        let each = many_locks(template, count, waiters)?;
        let what = format!("{count} held, {waiters} wait: {each:.1?}");
        findings.push(("one lock more beside many", what));
    }
    for room in [1 << 20, 64 << 20] {
        let what = match large_room(template, room)? {
            Some(kept) => format!("{} MiB kept after a room of {} MiB", kept >> 20, room >> 20),
            None => "this machine does not say how much memory is used".to_owned(),
        };
        findings.push(("a listing with attributes into a large room", what));
    }
    for groups in [0, 65_536] {
        let each = many_groups(template, groups)?;
        findings.push(("a lookup by who is in many groups", format!("{groups}: {each:.1?}")));
    }
    for depth in [1, 100] {
        let each = deep_subtree(template, depth)?;
        let what = format!("{depth} deep: {each:.1?}");
        findings.push(("a lookup in a subtree after a directory was moved", what));
    }
    let (charged, paged) = mapped_growth(template, 1 << 20)?;
    let what = format!("{} KiB are in memory, {} KiB counted", paged >> 10, charged >> 10);
    findings.push(("a file that was mapped empty is written", what));
    let what = match mapped_by_reader(template)? {
        None => "its owner writes beyond 4 GiB as before".to_owned(),
        Some(error) => format!("its owner's writes beyond 4 GiB come to \"{error}\""),
    };
    findings.push(("who may only look maps 64 GiB of a file", what));
    Ok(findings)
}

/// A world with nobody in it.
pub(crate) fn empty(template: &Template) -> Outcome<World> {
    empty_with(template, None)
}

pub(crate) fn empty_with(template: &Template, plant: Option<Plant>) -> Outcome<World> {
    emptied(World::new(template, 1, Options { plant, ..Options::default() })?)
}

/// `world` when all have left.
pub(crate) fn emptied(mut world: World) -> Outcome<World> {
    while !world.seats.is_empty() {
        world.stand_up(0, true);
    }
    world.take_letters(None)?;
    Ok(world)
}

fn gate(world: &World) -> Outcome<Arc<Gate>> {
    let volume = world.volume.as_ref().ok_or("there is no volume")?;
    Ok(Arc::clone(volume.gate()))
}

/// Asks the session of `seat`.
fn ask<T>(
    seat: &Seat,
    asked: impl FnOnce(&mut Session<Fs<Disk>>) -> atoll_vfs::Result<T>,
) -> Outcome<T> {
    let answer = seat.place.with(asked).ok_or("the session has ended")?;
    answer.map_err(|error| error.to_string())
}

/// How long a client waits that changes a file once after each of so many `mounts`, one after the
/// other, has cached it; none of them ever takes a notice.
pub(crate) fn late_mounts(
    template: &Template,
    mounts: u32,
    plant: Option<Plant>,
) -> Outcome<Duration> {
    let mut world = empty_with(template, plant)?;
    let mut waited = Duration::ZERO;
    world.sit_down(Role::Root)?;
    for _ in 0..mounts {
        world.incognito += u32::from(plant == Some(Plant::ForgivenLies));
        world.sit_down(Role::SubtreeMount)?;
        let late = world.seats.last_mut().ok_or("nobody sat down")?;
        late.kernel.iter_mut().for_each(|kernel| kernel.stubborn = true);
        ask(late, |session| session.getattr(&CX, Ino::ROOT))?;
        let began = world.machine.uptime();
        let ticket = ask(&world.seats[0], |root| {
            let dir = root.lookup(&CX, Ino::ROOT, Name::new(b"s")?)?.ino;
            let _ = root.take_needs();
            let set = atoll_vfs::SetAttr { mode: Some(0o777), ..Default::default() };
            root.setattr(&CX, dir, None, &set)?;
            Ok(root.take_needs())
        })?;
        let done = Arc::new(AtomicBool::new(false));
        let is_done = Arc::clone(&done);
        let then = move || is_done.store(true, Ordering::Relaxed);
        match ticket {
            Some(ticket) => gate(&world)?.after(ticket, then),
            None => then(),
        }
        for _ in 0..10_000 {
            if done.load(Ordering::Relaxed) {
                break;
            }
            if let Some(at) = world
                .seats
                .iter()
                .position(|seat| seat.kernel.as_ref().is_some_and(|kernel| kernel.bell.is_fenced()))
            {
                world.happen(Event::Fence(at))?;
            } else {
                world.turn(false)?;
            }
        }
        waited += world.machine.uptime() - began;
    }
    Ok(waited)
}

/// How many stores, and bytes, one write of `len` bytes makes while others wait for the lock.
fn long_write(template: &Template, len: usize) -> Outcome<(u64, usize)> {
    let mut world = empty(template)?;
    world.sit_down(Role::User)?;
    let seat = &world.seats[0];
    let (attr, handle) =
        ask(seat, |session| session.create(&CX, Ino::ROOT, Name::new(b"z")?, 0o600, RW))?;
    let before = world.disk.device().events();
    let bytes = vec![1; len];
    let written = ask(seat, |session| session.write(&CX, attr.ino, handle, 0, &bytes))?;
    Ok((world.disk.device().events() - before, written.len))
}

/// How long taking and letting go of one lock takes when the client holds `count` others of the
/// file, and `waiters` requests wait for one more.
fn many_locks(template: &Template, count: u64, waiters: u64) -> Outcome<Duration> {
    let mut world = empty(template)?;
    for _ in 0..2 {
        world.sit_down(Role::Root)?;
    }
    let open = |at: usize| {
        let seat: &Seat = &world.seats[at];
        ask(seat, |session| session.create(&CX, Ino::ROOT, Name::new(b"z")?, 0o600, RW))
    };
    let files = [open(0)?, open(1)?];
    let request = |at: u64, kind| {
        let range = LockRange { start: 2 * at, end: 2 * at };
        LockRequest { owner: LockOwner::Process(at), range, kind, pid: 1 }
    };
    let set = |at: u64, kind| {
        let (attr, handle) = files[0];
        ask(&world.seats[0], |session| session.setlk(attr.ino, handle, &request(at, kind)))
    };
    for at in 0..count {
        set(at, Some(LockKind::Exclusive))?;
    }
    let (attr, handle) = files[1];
    for at in 0..waiters {
        ask(&world.seats[1], |session| {
            let range = LockRange { start: 0, end: 0 };
            let request = LockRequest { range, ..request(at, Some(LockKind::Exclusive)) };
            session.setlkw(attr.ino, handle, &request, Box::new(drop))
        })?;
    }
    let (began, times) = (Instant::now(), 20);
    for _ in 0..times {
        set(count, Some(LockKind::Exclusive))?;
        set(count, None)?;
    }
    Ok(began.elapsed() / (2 * times))
}

/// Bytes of this process's memory that belong to no file.
fn memory() -> Option<usize> {
    let words = std::fs::read_to_string("/proc/self/statm").ok()?;
    let mut words = words.split(' ').skip(1).map(str::parse::<usize>);
    let (resident, shared) = (words.next()?.ok()?, words.next()?.ok()?);
    Some(resident.saturating_sub(shared) * 4096)
}

/// How much memory the server keeps for a client that has listed a directory into a room of `room`
/// bytes.
fn large_room(template: &Template, room: usize) -> Outcome<Option<usize>> {
    let mut world = empty(template)?;
    world.sit_down(Role::ReadOnly)?;
    let Seat { line, router, place, .. } = &mut world.seats[0];
    let handle = place.with(|session| session.opendir(&CX, Ino::ROOT));
    let handle = handle.ok_or("no session")?.map_err(|error| error.to_string())?;
    let args = ReadIn { fh: handle.0, size: room as u32, ..ReadIn::default() };
    let asker = Asker { dialect: Dialect::Client, uid: 0, id: 1 };
    line.push(asker.pack(Ino::ROOT, &Request::Readdirplus(args), room));
    let before = memory();
    serve_next(line, router, place).map_err(|ended| format!("{ended:?}"))?;
    line.empty_room();
    Ok(memory().zip(before).map(|(after, before)| after.saturating_sub(before)))
}

/// How long a lookup by a client in `groups` groups takes.
fn many_groups(template: &Template, groups: u32) -> Outcome<Duration> {
    let world = empty(template)?;
    let volume = world.volume.as_ref().ok_or("there is no volume")?;
    let peer = Credentials {
        uid: 3000,
        gid: 3000,
        groups: (1 << 20..).take(groups as usize).collect(),
        pid: 1,
    };
    let mut session = volume.session(peer, Access::default()).map_err(|error| error.to_string())?;
    let name = Name::new(b"a").map_err(|error| error.to_string())?;
    let (began, times) = (Instant::now(), 50);
    for _ in 0..times {
        session.lookup(&CX, Ino::ROOT, name).map_err(|error| error.to_string())?;
    }
    Ok(began.elapsed() / times)
}

/// How long a lookup in a directory `depth` deep takes when somebody has moved a directory.
fn deep_subtree(template: &Template, depth: u32) -> Outcome<Duration> {
    let mut world = empty(template)?;
    world.sit_down(Role::Root)?;
    world.sit_down(Role::Subtree)?;
    let (root, user) = (&world.seats[0], &world.seats[1]);
    let d = Name::new(b"d").map_err(|error| error.to_string())?;
    let mut at = Ino::ROOT;
    for _ in 0..depth {
        at = ask(user, |session| session.mkdir(&CX, at, d, 0o777))?.ino;
    }
    let [x, y] = ask(root, |session| {
        let x = session.mkdir(&CX, Ino::ROOT, Name::new(b"x")?, 0o777)?;
        let y = session.mkdir(&CX, Ino::ROOT, Name::new(b"y")?, 0o777)?;
        session.mkdir(&CX, x.ino, d, 0o777)?;
        Ok([x.ino, y.ino])
    })?;
    let (mut took, times) = (Duration::ZERO, 10);
    for turn in 0..times {
        let (from, to) = if turn % 2 == 0 { (x, y) } else { (y, x) };
        ask(root, |session| session.rename(&CX, from, d, to, d, RenameFlags::empty()))?;
        let began = Instant::now();
        let found = ask(user, |session| session.lookup(&CX, at, d).map(drop).or(Ok(())));
        took += began.elapsed();
        found?;
    }
    Ok(took / times)
}

/// How many bytes were counted when an empty file was mapped, and how many are in memory when `len`
/// bytes are written to it then.
fn mapped_growth(template: &Template, len: usize) -> Outcome<(u64, u64)> {
    let mut world = empty(template)?;
    world.sit_down(Role::User)?;
    let seat = &world.seats[0];
    let (attr, handle) =
        ask(seat, |session| session.create(&CX, Ino::ROOT, Name::new(b"z")?, 0o600, RW))?;
    ask(seat, |session| session.map(&CX, attr.ino, handle, 0, 64 << 30))?;
    let counted = world.machine.paged();
    let bytes = vec![1; len];
    ask(seat, |session| session.write(&CX, attr.ino, handle, 0, &bytes))?;
    Ok((counted, world.machine.paged()))
}

/// The error, if any, of a write beyond 4 GiB when another client, which may only read the file,
/// has mapped much of it.
fn mapped_by_reader(template: &Template) -> Outcome<Option<Errno>> {
    let mut world = empty(template)?;
    world.sit_down(Role::Root)?;
    world.sit_down(Role::ReadOnly)?;
    let (owner, reader) = (&world.seats[0], &world.seats[1]);
    let (attr, handle) =
        ask(owner, |session| session.create(&CX, Ino::ROOT, Name::new(b"z")?, 0o644, RW))?;
    let write = |at: u64| ask(owner, |session| Ok(session.write(&CX, attr.ino, handle, at, b"x")));
    write(5 << 30)?.map_err(|error| error.to_string())?;
    ask(reader, |session| {
        let handle = session.open(&CX, attr.ino, OpenFlags::READ)?;
        session.map(&CX, attr.ino, handle, 0, 1 << 20)?;
        session.map(&CX, attr.ino, handle, 8 << 30, 64 << 30)
    })?;
    Ok(write(40 << 30)?.err())
}
