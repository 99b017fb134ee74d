//! How long a removal holds others up, and what a crash between its steps leaves: a client removes,
//! or cuts, a file of many extents. The time that a step takes is that of the blocks it frees.

use atoll_block::FaultDevice;
use atoll_block::fault::Image;
use atoll_fs::{Fs, MountOptions};
use atoll_server::host::Host;
use atoll_server::route::router::serve_next;
use atoll_tests::rng::Rng;
use atoll_vfs::wire::Request;
use atoll_vfs::wire::attributes::{FATTR_SIZE, SetattrIn};
use atoll_vfs::{Context, FallocateMode, FileSystem, Ino, Name, OpenFlags, Timespec};

use crate::carrier::Letter;
use crate::codec::{Asker, Dialect};
use crate::ends::sound_after;
use crate::measure::emptied;
use crate::plant::Plant;
use crate::seat::{Role, Seat};
use crate::world::{CACHE_BYTES, Options, Outcome, Template, World};

const CX: Context = Context { uid: 0, gid: 0, now: Timespec { sec: 1, nsec: 0 } };
/// Extents of the file, of one block each, and the bytes from one to the next.
const EXTENTS: u64 = 600;
const STRIDE: u64 = 8192;
/// Blocks that one step may free: the extents of one transaction, and nodes of the tree.
const STEP: u64 = 128 + 16;

/// Removes the file, and judges the steps.
pub(crate) fn judge(template: &Template, rng: &mut Rng, plant: Option<Plant>) -> Outcome<()> {
    let Fragmented { ref image, file, free: before } = template.long;
    let options = Options { plant, ..Options::default() };
    let mut world = emptied(World::on(template, image, 1, options)?)?;
    world.sit_down(Role::Root)?;
    let full = free(&world)?;
    world.take_letters(None)?;
    let cuts = rng.chance(50);
    let request = match cuts {
        true => Request::Setattr(SetattrIn { valid: FATTR_SIZE, ..SetattrIn::default() }),
        false => Request::Unlink { name: name()? },
    };
    let asker = Asker { dialect: Dialect::Client, uid: 0, id: 1 };
    let parcel = asker.pack(if cuts { file } else { Ino::ROOT }, &request, 0);
    let Seat { line, router, place, .. } = &mut world.seats[0];
    line.push(parcel);
    serve_next(line, router, place).map_err(|ended| format!("{ended:?}"))?;
    // The crash comes before this step, if there are so many.
    let crash = rng.within(0..2 * EXTENTS / STEP);
    let (mut last, mut answered) = (full, false);
    for step in 0..2 * EXTENTS {
        let now = free(&world)?;
        if now - last > STEP {
            return Err(format!("others wait until {} blocks are freed at once", now - last));
        }
        last = now;
        answered |= world.outbox.take().iter().any(|letter| {
            matches!(letter, Letter::Answered { .. } | Letter::Released { outcome: Ok(()), .. })
        });
        if answered || step == crash {
            break;
        }
        let uptime = world.machine.uptime();
        let mut ready = world.jobs.iter_mut().filter(|job| job.is_ready(uptime));
        match ready.next() {
            Some(job) => drop(job.turn(uptime, false)),
            None => world.machine.pass(std::time::Duration::from_millis(1)),
        }
    }
    if answered && last + u64::from(cuts) < before {
        return Err(format!("{last} blocks are free after a removal, {before} were"));
    }
    sound_after(&world, rng.chance(50))
}

fn name() -> Outcome<Name<'static>> {
    Name::new(b"long").map_err(|error| error.to_string())
}

/// Blocks that are free.
fn free(world: &World) -> Outcome<u64> {
    let found = world.seats[0].place.with(|session| session.statfs(&CX));
    Ok(found.ok_or("no session")?.map_err(|error| error.to_string())?.blocks_free)
}

/// A volume with a file of many extents.
pub(crate) struct Fragmented {
    image: Image,
    file: Ino,
    /// Blocks that were free before it was made.
    free: u64,
}

impl Fragmented {
    /// The volume `image` with such a file. Made once for all schedules.
    ///
    /// # Errors
    /// The volume's.
    pub(crate) fn new(image: &Image) -> atoll_fs::Result<Fragmented> {
        let device = FaultDevice::from_image(image.clone());
        let options = MountOptions { cache_bytes: CACHE_BYTES, ..MountOptions::default() };
        let mut fs = Fs::mount(device, &options)?;
        let free = fs.statfs(&CX)?.blocks_free;
        let (attr, handle) =
            fs.create(&CX, Ino::ROOT, Name::new(b"long")?, 0o644, OpenFlags::WRITE)?;
        for at in 0..EXTENTS {
            fs.fallocate(&CX, attr.ino, handle, at * STRIDE, 4096, FallocateMode::empty())?;
        }
        fs.release(&CX, attr.ino, handle)?;
        let image = fs.unmount()?.process_crash();
        Ok(Fragmented { image, file: attr.ino, free })
    }
}
