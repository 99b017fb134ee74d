//! What hostile clients cost others, in what a machine cannot hurry: simulated time, and calls' work.
//!
//! These are findings, not failures: the server bounds some of them only by its limits.

use std::sync::Arc;
use std::time::{Duration, Instant};

use atoll_server::host::Host;
use atoll_server::{LockKind, LockOwner, LockRange, LockRequest};
use atoll_vfs::{Context, FileSystem, Ino, Name, OpenFlags, Timespec};

use crate::schedule::Event;
use crate::seat::Role;
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
    world.look_into_outbox();
    Ok(world)
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
        late.session.getattr(&CX, Ino::ROOT).map_err(|error| error.to_string())?;
        let began = world.machine.uptime();
        let root = &mut world.seats[0].session;
        let name = Name::new(b"s").map_err(|error| error.to_string())?;
        let dir = root.lookup(&CX, Ino::ROOT, name).map_err(|error| error.to_string())?.ino;
        let _ = root.take_needs();
        let set = atoll_vfs::SetAttr { mode: Some(0o777), ..Default::default() };
        root.setattr(&CX, dir, None, &set).map_err(|error| error.to_string())?;
        let ticket = root.take_needs();
        let done = Arc::new(std::sync::atomic::AtomicBool::new(false));
        let is_done = Arc::clone(&done);
        let then = move || is_done.store(true, std::sync::atomic::Ordering::Relaxed);
        match ticket {
            Some(ticket) => world.gate().after(ticket, then),
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
    let session = &mut world.seats[0].session;
    let name = Name::new(b"z").map_err(|error| error.to_string())?;
    let made = session.create(&CX, Ino::ROOT, name, 0o600, RW);
    let (attr, handle) = made.map_err(|error| error.to_string())?;
    let before = world.disk.device().events();
    let written = session.write(&CX, attr.ino, handle, 0, &vec![1; len]);
    let written = written.map_err(|error| error.to_string())?;
    Ok((world.disk.device().events() - before, written.len))
}

/// How long taking and letting go of one lock takes when the client holds `count` others of the file.
fn many_locks(template: &Template, count: u64) -> Outcome<Duration> {
    let mut world = empty(template)?;
    world.sit_down(Role::User)?;
    let session = &mut world.seats[0].session;
    let name = Name::new(b"z").map_err(|error| error.to_string())?;
    let made = session.create(&CX, Ino::ROOT, name, 0o600, RW);
    let (attr, handle) = made.map_err(|error| error.to_string())?;
    let mut set = |at: u64, kind| {
        let range = LockRange { start: 2 * at, end: 2 * at };
        let request = LockRequest { owner: LockOwner::Process(1), range, kind, pid: 1 };
        session.setlk(attr.ino, handle, &request).map_err(|error| error.to_string())
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
