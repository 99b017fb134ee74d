//! How much of a directory one turn lists: a client that offers a large room gets a bounded part,
//! and asks again for the rest. Neither names nor turns are lost by that.

use std::collections::BTreeSet;

use atoll_block::FaultDevice;
use atoll_block::fault::Image;
use atoll_fs::{Fs, MountOptions};
use atoll_server::route::router::serve_next;
use atoll_tests::rng::Rng;
use atoll_vfs::wire::attributes::{EntryOut, Time};
use atoll_vfs::wire::directory::get_dirent;
use atoll_vfs::wire::files::ReadIn;
use atoll_vfs::wire::{Fixed, Request};
use atoll_vfs::{Context, FileSystem, FileType, Handle, Ino, Name, Timespec};

use crate::carrier::Letter;
use crate::codec::{Asker, Dialect};
use crate::measure::emptied;
use crate::plant::Plant;
use crate::seat::{Role, Seat};
use crate::world::{CACHE_BYTES, Options, Outcome, Template, World};

const CX: Context = Context { uid: 0, gid: 0, now: Timespec { sec: 1, nsec: 0 } };
/// Names that the directory has beside `.`, `..` and those of the template.
const NAMES: usize = 400;
/// The bytes of each.
const NAME: usize = 200;
/// The most bytes of a listing in one answer, whatever room there is.
const LISTING: usize = 64 << 10;

/// A volume whose root lists more than one answer may.
///
/// # Errors
/// The volume's.
pub(crate) fn long_directory(image: &Image) -> atoll_fs::Result<Image> {
    let device = FaultDevice::from_image(image.clone());
    let options = MountOptions { cache_bytes: CACHE_BYTES, ..MountOptions::default() };
    let mut fs = Fs::mount(device, &options)?;
    for at in 0..NAMES {
        let name = format!("{at:0NAME$}");
        let mode = FileType::Regular.mode_bits() | 0o644;
        fs.mknod(&CX, Ino::ROOT, Name::new(name.as_bytes())?, mode, 0)?;
    }
    Ok(fs.unmount()?.process_crash())
}

/// A client that lists the directory.
struct Lister {
    handle: Handle,
    /// With attributes.
    plus: bool,
    room: usize,
}

impl Lister {
    /// The answer to one request for what comes after `offset`.
    fn ask(&self, world: &mut World, offset: u64) -> Outcome<Vec<u8>> {
        let args =
            ReadIn { fh: self.handle.0, offset, size: self.room as u32, ..ReadIn::default() };
        let request = if self.plus { Request::Readdirplus(args) } else { Request::Readdir(args) };
        let asker = Asker { dialect: Dialect::Client, uid: 0, id: 1 };
        let Seat { line, router, place, .. } = &mut world.seats[0];
        line.push(asker.pack(Ino::ROOT, &request, self.room));
        serve_next(line, router, place).map_err(|ended| format!("{ended:?}"))?;
        match &mut world.outbox.take()[..] {
            [Letter::Answered { reply, .. }] => Ok(std::mem::take(&mut reply.data)),
            _ => Err("a listing is not answered".into()),
        }
    }

    /// The names in an answer, and the place after the last.
    fn names(&self, mut bytes: &[u8], names: &mut BTreeSet<Vec<u8>>) -> Outcome<u64> {
        let front = if self.plus { EntryOut::SIZE + Time::SIZE } else { 0 };
        let mut offset = 0;
        while !bytes.is_empty() {
            let entry = bytes.get(front..).and_then(get_dirent);
            let (entry, rest) = entry.ok_or("a listing that is none")?;
            if !names.insert(entry.name.to_vec()) {
                return Err(format!("{:?} is listed twice", entry.name));
            }
            (offset, bytes) = (entry.cookie, rest);
        }
        Ok(offset)
    }
}

/// Lists the directory into a room of any size, and judges what each turn brings.
pub(crate) fn judge(template: &Template, rng: &mut Rng, plant: Option<Plant>) -> Outcome<()> {
    let options = Options { plant, ..Options::default() };
    let mut world = emptied(World::on(template, &template.listed, 1, options)?)?;
    world.sit_down(Role::ReadOnly)?;
    world.take_letters(None)?;
    let handle = world.seats[0].place.with(|session| session.opendir(&CX, Ino::ROOT));
    let handle = handle.ok_or("no session")?.map_err(|error| error.to_string())?;
    let room = rng.pick(&[4096, LISTING, 3 * LISTING]);
    let lister = Lister { handle, plus: rng.chance(50), room };
    let (mut names, mut offset) = (BTreeSet::new(), 0);
    loop {
        let mut answer = lister.ask(&mut world, offset)?;
        if answer.is_empty() {
            break;
        }
        offset = lister.names(&answer, &mut names)?;
        // Planted: the carrier fills the room, however often it has to ask for that.
        while plant == Some(Plant::WholeListings) && answer.len() < room {
            let more = lister.ask(&mut world, offset)?;
            if more.is_empty() {
                break;
            }
            offset = lister.names(&more, &mut names)?;
            answer.extend(more);
        }
        if answer.len() > LISTING {
            return Err(format!("a listing of {} bytes is one turn", answer.len()));
        }
    }
    // `.`, `..`, and the template's two.
    match names.len() == NAMES + 4 {
        true => Ok(()),
        false => Err(format!("{} names are listed of {}", names.len(), NAMES + 4)),
    }
}
