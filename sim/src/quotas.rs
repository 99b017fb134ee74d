//! The quota of a directory: two clients fill and empty it, the server's process ends or the power
//! goes, and another server goes on. Files below never take more than the quota, are refused only
//! where there is no room, and are counted as a walk counts them.

use std::sync::Arc;

use atoll_block::FaultDevice;
use atoll_block::fault::Survival;
use atoll_fs::{Fs, Quota};
use atoll_server::host::Host;
use atoll_server::{Session, Volume};
use atoll_tests::rng::Rng;
use atoll_vfs::{Context, Errno, FileSystem, Ino, Name, OpenFlags, SetAttr, Timespec};

use crate::disk::Disk;
use crate::ends::{mount, sound};
use crate::machine::Machine;
use crate::plant::Plant;
use crate::seat::Role;
use crate::world::{LIFE, NEXT_LIFE, Outcome, Template};

const CX: Context = Context { uid: 1000, gid: 1000, now: Timespec { sec: 1, nsec: 0 } };
/// The life of the memory after a second loss.
const LAST_LIFE: [u8; 16] = *b"after two losses";
/// Inodes that the directory may hold, its own among them, and bytes that they may take.
const INODES: u64 = 6;
const BYTES: u64 = 24 * BLOCK;
const BLOCK: u64 = 4096;
/// What names and records of so few files take at most.
const RECORDS: u64 = 2 * BLOCK;
/// The names that are used.
const NAMES: u64 = 9;
/// Calls in each life of the server.
const CALLS: u64 = 60;

/// Lets clients fill the directory `s` through the lives of two servers.
pub(crate) fn judge(template: &Template, rng: &mut Rng, plant: Option<Plant>) -> Outcome<()> {
    let mut device = FaultDevice::from_image(template.image.clone());
    let power = rng.chance(50);
    // The memory's, of each server, and of the last check.
    let lives = if power { [LIFE, NEXT_LIFE, LAST_LIFE] } else { [LIFE; 3] };
    for (at, life) in lives.into_iter().take(2).enumerate() {
        let disk = Disk::new(device, false);
        let mut fs = mount(disk.clone(), life)?;
        let root = fs.lookup(&CX, Ino::ROOT, name(b"s")?).map_err(words)?.ino;
        // Planted: nobody says again what the quotas are.
        if at == 0 || plant != Some(Plant::ForgottenQuotas) {
            let quota = Quota { bytes: Some(BYTES), inodes: Some(INODES) };
            fs.set_quotas(&[(root, quota)]).map_err(failed)?;
        }
        let machine: Arc<dyn Host> = Arc::new(Machine::new(rng.number()));
        let volume = Volume::new(fs, "v", machine);
        let begin = |role: Role| volume.session(role.peer(), role.access()).map_err(words);
        let mut clients = [begin(Role::User)?, begin(Role::Subtree)?];
        let roots = [root, Ino::ROOT];
        for _ in 0..CALLS {
            let (inodes, bytes) = within(&mut clients[0], root)?;
            let has_room = inodes < INODES && bytes + RECORDS <= BYTES;
            let of = rng.within(0..2) as usize;
            call(&mut clients[of], roots[of], has_room, rng)?;
        }
        // Open files go with the process: nothing of its memory reaches the device any more.
        let image = {
            let mut device = disk.device();
            device.note_flushers();
            let events = device.events();
            device.faults.stop_after = Some(events);
            match power {
                true => device.power_loss(Survival::Seed(rng.number())),
                false => device.process_crash(),
            }
        };
        drop(clients);
        device = FaultDevice::from_image(image);
        // A check counts what the directory takes.
        sound(&device, lives[at + 1])?;
    }
    Ok(())
}

/// One call that makes the directory fuller, or emptier. It has room for a name if `has_room`.
fn call(client: &mut Session<Fs<Disk>>, dir: Ino, has_room: bool, rng: &mut Rng) -> Outcome<()> {
    let text = [b'a' + rng.within(0..NAMES) as u8];
    let at = name(&text)?;
    let tried = match rng.within(0..6) {
        0 | 1 => match client.create(&CX, dir, at, 0o666, OpenFlags::WRITE) {
            Ok((attr, handle)) => client.release(&CX, attr.ino, handle),
            Err(Errno::EDQUOT) if has_room => {
                return Err("a file is refused below a quota that has room".into());
            }
            Err(error) => Err(error),
        },
        2 => client.unlink(&CX, dir, at),
        3 => client.lookup(&CX, dir, at).and_then(|attr| {
            let set = SetAttr { size: Some(rng.within(0..3) * BLOCK), ..SetAttr::default() };
            client.setattr(&CX, attr.ino, None, &set).map(drop)
        }),
        _ => client.lookup(&CX, dir, at).and_then(|attr| {
            let handle = client.open(&CX, attr.ino, OpenFlags::WRITE)?;
            let bytes = vec![1; (rng.within(1..12) * BLOCK) as usize];
            let written = client.write(&CX, attr.ino, handle, rng.within(0..8) * BLOCK, &bytes);
            client.release(&CX, attr.ino, handle)?;
            written.map(drop)
        }),
    };
    match tried {
        Ok(()) | Err(Errno::ENOENT | Errno::EEXIST | Errno::EDQUOT) => Ok(()),
        Err(error) => Err(format!("a call below a quota fails: {error}")),
    }
}

/// Judges by a walk what is below `root`, and says how many inodes and bytes that is.
fn within(client: &mut Session<Fs<Disk>>, root: Ino) -> Outcome<(u64, u64)> {
    let (mut inodes, mut bytes) = (1, 0);
    for at in 0..NAMES {
        match client.lookup(&CX, root, name(&[b'a' + at as u8])?) {
            Ok(attr) => {
                inodes += 1;
                bytes += attr.blocks * 512;
            }
            Err(Errno::ENOENT) => {}
            Err(error) => return Err(words(error)),
        }
    }
    if inodes > INODES || bytes > BYTES {
        let has = format!("{inodes} inodes and {bytes} bytes");
        return Err(format!("a directory has {has}, and its quota is {INODES} and {BYTES}"));
    }
    Ok((inodes, bytes))
}

fn name(bytes: &[u8]) -> Outcome<Name<'_>> {
    Name::new(bytes).map_err(words)
}

fn words(error: Errno) -> String {
    error.to_string()
}

fn failed(error: impl Into<Errno>) -> String {
    words(error.into())
}
