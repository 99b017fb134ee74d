//! The file systems: made, mounted and attached as the command line says.

use alloc::vec;
use alloc::vec::Vec;

use atoll_block::{BLOCK_SIZE, Cached, RamDevice};
use atoll_fs::{FormatOptions, Fs, FsError, MountOptions};
use atoll_unikernel::command_line::{self, CommandLine, Source};
use atoll_unikernel::devices::{Devices, Machine};
use atoll_unikernel::tree::Tree;
use atoll_vfs::{Attr, Context, Errno, FileSystem, Ino, Name, Result};

use crate::end::stop;
use crate::storage::Storage;
use crate::virtio::{self, Served};
use crate::{clock, frames, random, serial};

/// Bytes of the root volume where the command line names none.
const ROOT_BYTES: u64 = 16 << 20;
/// Blocks of the journal of a volume in memory: flushes cost nothing there, so checkpoints may come
/// often.
const JOURNAL: u64 = 256;
/// Such a volume has so many times the journal at least.
const JOURNAL_PART: u64 = 16;

/// A file system of the image.
// There are few, and all are used all the time: no box.
#[allow(clippy::large_enum_variant)]
pub enum Volume {
    /// One of ours.
    Own(Fs<Storage>),
    /// What a device serves.
    Served(Served),
    /// The devices.
    Devices(Devices<Console>),
}

/// Keeps what others than a volume of ours do out of its way: a call there is short.
#[cold]
#[inline(never)]
fn apart<T>(call: impl FnOnce() -> T) -> T {
    call()
}

macro_rules! by_variant {
    ($self:ident $verb:ident ($($arg:ident),*)) => {
        match $self {
            Volume::Own(fs) => fs.$verb($($arg),*),
            Volume::Served(client) => apart(|| client.$verb($($arg),*)),
            Volume::Devices(devices) => apart(|| devices.$verb($($arg),*)),
        }
    };
}

impl FileSystem for Volume {
    atoll_vfs::verbs!(by_variant: all);

    fn recall(&mut self, ino: Ino, count: u64) {
        by_variant!(self recall (ino, count));
    }
}

/// The machine, as devices need it.
#[derive(Debug, Default)]
pub struct Console {
    input: serial::Input,
}

impl Machine for Console {
    fn input(&mut self, buf: &mut [u8]) -> Result<usize> {
        Ok(self.input.read(buf))
    }

    fn output(&mut self, data: &[u8], error: bool) {
        serial::write(data, error);
    }

    fn random(&mut self, buf: &mut [u8]) -> Result<()> {
        random::fill(buf)
    }
}

/// The volumes that the image is given in memory, each for one use.
pub struct Given {
    /// The initial module.
    pub module: Option<&'static mut [u8]>,
    /// What is built in.
    pub built_in: Option<&'static mut [u8]>,
}

/// Makes the tree of all file systems.
pub fn attach(line: &CommandLine, mut given: Given) -> Tree<Volume> {
    let root = line.volumes.iter().find(|volume| volume.path == b"/");
    let first = match root {
        Some(volume) => open(volume, &mut given),
        None => Volume::Own(new(ROOT_BYTES)),
    };
    let mut tree = Tree::new(first);
    for volume in line.volumes.iter().filter(|volume| volume.path != b"/") {
        let at = directory(&mut tree, &volume.path);
        let opened = open(volume, &mut given);
        if let Err(error) = at.and_then(|at| tree.attach(at, opened)) {
            stop(format_args!("{}: {error}", shown(&volume.path)));
        }
    }
    let devices = Volume::Devices(Devices::new(Console::default(), clock::now()));
    if let Err(error) = directory(&mut tree, b"/dev").and_then(|at| tree.attach(at, devices)) {
        stop(format_args!("/dev: {error}"));
    }
    tree
}

/// Bytes as text, for messages.
pub fn shown(path: &[u8]) -> impl core::fmt::Display + '_ {
    path.utf8_chunks().fold(alloc::string::String::new(), |mut text, chunk| {
        text.push_str(chunk.valid());
        if !chunk.invalid().is_empty() {
            text.push(char::REPLACEMENT_CHARACTER);
        }
        text
    })
}

/// The directory at `path`, made where it is missing.
fn directory(tree: &mut Tree<Volume>, path: &[u8]) -> Result<Ino> {
    let cx = Context { uid: 0, gid: 0, now: clock::now() };
    let mut at = Ino::ROOT;
    for part in path.split(|&byte| byte == b'/').filter(|part| !part.is_empty()) {
        let name = Name::new(part)?;
        let found: Attr = match tree.lookup(&cx, at, name) {
            Err(Errno::ENOENT) => tree.mkdir(&cx, at, name, 0o755)?,
            found => found?,
        };
        if !found.is_dir() {
            return Err(Errno::ENOTDIR);
        }
        at = found.ino;
    }
    Ok(at)
}

fn open(volume: &command_line::Volume, given: &mut Given) -> Volume {
    let path = shown(&volume.path);
    match volume.source {
        Source::Ram(bytes) => Volume::Own(new(bytes)),
        Source::Module => in_memory(volume, given.module.take(), "the initial module"),
        Source::BuiltIn => in_memory(volume, given.built_in.take(), "what is built in"),
        Source::Disk(number) => {
            let disk = match virtio::disk(number) {
                Ok(disk) => disk,
                Err(error) => stop(format_args!("{path}: disk {number}: {error}")),
            };
            let device = Storage::Disk(Cached::new(disk, cache_bytes()));
            match mount(device, volume) {
                Ok(fs) => Volume::Own(fs),
                Err(error) => stop(format_args!("{path}: disk {number}: {error}")),
            }
        }
        Source::Served(number) => match virtio::served(number) {
            Ok(Ok(client)) => Volume::Served(client),
            Ok(Err(error)) => stop(format_args!("{path}: file system {number}: {error}")),
            Err(error) => stop(format_args!("{path}: file system {number}: {error}")),
        },
    }
}

/// The volume that is `bytes`, in place.
fn in_memory(
    volume: &command_line::Volume,
    bytes: Option<&'static mut [u8]>,
    which: &str,
) -> Volume {
    let path = shown(&volume.path);
    let Some(bytes) = bytes else {
        stop(format_args!("{path}: {which}: there is none, or it is used already"))
    };
    let blocks = bytes.len() / BLOCK_SIZE * BLOCK_SIZE;
    match mount(Storage::Memory(RamDevice::over(&mut bytes[..blocks])), volume) {
        Ok(fs) => Volume::Own(fs),
        Err(error) => stop(format_args!("{path}: {which}: {error}")),
    }
}

/// Bytes of memory for the cache of a disk, and for that of a volume's metadata.
fn cache_bytes() -> usize {
    let (memory, _) = frames::sizes();
    (memory / 8) as usize
}

fn mount(
    device: Storage,
    volume: &command_line::Volume,
) -> core::result::Result<Fs<Storage>, FsError> {
    let options = MountOptions {
        read_only: volume.read_only,
        incarnation: volume.incarnation,
        cache_bytes: cache_bytes(),
        ..MountOptions::default()
    };
    Fs::mount(device, &options)
}

/// A new volume in memory, which gets memory as it is used.
fn new(bytes: u64) -> Fs<Storage> {
    let blocks = bytes / BLOCK_SIZE as u64;
    let (_, free) = frames::sizes();
    if bytes > free {
        stop(format_args!("a volume of {bytes} bytes does not fit in {free} bytes of memory"));
    }
    let memory: Vec<u8> = vec![0; blocks as usize * BLOCK_SIZE];
    let mut device = Storage::Memory(RamDevice::over(memory.leak()));
    let mut secrets = [0; 32];
    if random::fill(&mut secrets).is_err() {
        stop(format_args!(
            "no random numbers: give seed= on the command line, or a virtio-rng device"
        ));
    }
    let (uuid, key) = secrets.split_at(16);
    let mut options = FormatOptions { now: clock::now(), ..FormatOptions::default() };
    options.uuid.copy_from_slice(uuid);
    options.hash_key.copy_from_slice(key);
    // Version 4, variant 1: made of random bits (RFC 9562).
    options.uuid[6] = options.uuid[6] & 0x0f | 0x40;
    options.uuid[8] = options.uuid[8] & 0x3f | 0x80;
    options.journal_blocks = (blocks >= JOURNAL * JOURNAL_PART).then_some(JOURNAL);
    let unnamed = command_line::Volume {
        path: Vec::new(),
        source: Source::Ram(bytes),
        read_only: false,
        incarnation: [0; 16],
    };
    let made = atoll_fs::format(&mut device, &options).and_then(|()| mount(device, &unnamed));
    match made {
        Ok(fs) => fs,
        Err(error) => stop(format_args!("a volume of {bytes} bytes in memory: {error}")),
    }
}
