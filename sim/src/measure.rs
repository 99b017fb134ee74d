//! What hostile clients cost others, in what a machine cannot hurry: simulated time, and calls' work.
//!
//! These are findings, not failures: the server bounds some of them only by its limits.

use std::sync::Arc;
use std::time::{Duration, Instant};

use atoll_fs::Fs;
use atoll_server::Session;
use atoll_server::host::Host;
use atoll_server::leases::gate::Gate;
use atoll_server::{LockKind, LockOwner, LockRange, LockRequest};
use atoll_vfs::{Context, FileSystem, Ino, Name, OpenFlags, Timespec};

use crate::disk::Disk;
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
/// What goes wrong on the way.
pub fn all(template: &Template) -> Outcome<Vec<Finding>> {
    let mut findings = Vec::new();
    for mounts in [1, 2, 4, 8] {
        let waited = late_mounts(template, mounts)?;
        let what = format!("{mounts} in a row: one change each waits {waited:.1?} in all");
        findings.push(("mounts that never let go", what));
    }
    for bytes in [1 << 20, 2 << 20] {
        let (events, stored) = long_write(template, bytes)?;
        let what = format!("{stored} bytes in {events} stores of the device under one lock");
        findings.push(("one long write", what));
    }
    for count in [500, 1000, 2000, 4000] {
        let each = many_locks(template, count)?;
        findings.push(("one lock more beside many", format!("{count} held: {each:.1?}")));
    }
    Ok(findings)
}

/// A world with nobody in it.
fn empty(template: &Template) -> Outcome<World> {
    let mut world = World::new(template, 1, Options::default())?;
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

/// How long a client waits that changes a file once after each of `mounts` has cached it, one after the other,
/// none of which ever takes a notice.
fn late_mounts(template: &Template, mounts: u32) -> Outcome<Duration> {
    let mut world = empty(template)?;
    let mut waited = Duration::ZERO;
    world.sit_down(Role::Root)?;
    for _ in 0..mounts {
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
        let done = Arc::new(std::sync::atomic::AtomicBool::new(false));
        let is_done = Arc::clone(&done);
        let then = move || is_done.store(true, std::sync::atomic::Ordering::Relaxed);
        match ticket {
            Some(ticket) => gate(&world)?.after(ticket, then),
            None => then(),
        }
        for _ in 0..10_000 {
            if done.load(std::sync::atomic::Ordering::Relaxed) {
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

/// How long taking and letting go of one lock takes when the client holds `count` others of the file.
fn many_locks(template: &Template, count: u64) -> Outcome<Duration> {
    let mut world = empty(template)?;
    world.sit_down(Role::User)?;
    let seat = &world.seats[0];
    let (attr, handle) =
        ask(seat, |session| session.create(&CX, Ino::ROOT, Name::new(b"z")?, 0o600, RW))?;
    let set = |at: u64, kind| {
        let range = LockRange { start: 2 * at, end: 2 * at };
        let request = LockRequest { owner: LockOwner::Process(1), range, kind, pid: 1 };
        ask(seat, |session| session.setlk(attr.ino, handle, &request))
    };
    for at in 0..count {
        set(at, Some(LockKind::Exclusive))?;
    }
    let (began, times) = (Instant::now(), 20);
    for _ in 0..times {
        set(count, Some(LockKind::Exclusive))?;
        set(count, None)?;
    }
    Ok(began.elapsed() / (2 * times))
}
