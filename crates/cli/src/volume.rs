//! Opening volumes, and saying why one cannot be opened.

use std::ffi::OsString;
use std::fmt;
use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::{FileExt, FileTypeExt};
use std::path::{Path, PathBuf};

use atoll::storage;
use atoll_block::{BLOCK_SIZE, BlockDevice, BlockError, BlockIndex};
use atoll_fs::{BLOCK_COUNT_MIN, Corruption, FormatOptions, Fs, FsError, MountOptions};
use atoll_host::client::Address;
use atoll_host::device::{self, HostDevice, NewFile, OpenError, OpenOptions};
use atoll_host::guest;
use atoll_host::memory;
use atoll_posix::Credentials;
use atoll_vfs::AccessTimes;

use crate::failure::Failure;
use crate::notes;
use crate::size;

/// A volume that this process has open.
pub type Volume = Fs<HostDevice>;

/// The size of a volume when none is given, in bytes. It takes the space that is used.
pub const DEFAULT_SIZE: u64 = 1 << 30;

/// How a volume is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// For looking only: nothing is written, and others may look as well.
    Read,
    /// For changes, by this process alone.
    Write,
}

/// The effect of reading on times of last access, in the words of mount(8).
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Atime {
    /// Nothing.
    Noatime,
    /// The first read after a change sets it, and one when it is a day old.
    Relatime,
}

impl From<Atime> for AccessTimes {
    fn from(atime: Atime) -> AccessTimes {
        match atime {
            Atime::Noatime => AccessTimes::Noatime,
            Atime::Relatime => AccessTimes::Relatime,
        }
    }
}

/// The effect of reading on times of last access of `volume`, from the option `asked`. If a server
/// has the volume (`served`), the server decides it, and the option may not be given.
pub fn access_times(
    asked: Option<Atime>,
    volume: &Path,
    served: bool,
) -> Result<AccessTimes, Failure> {
    match asked {
        Some(_) if served => Err(Failure::new(format!(
            "--atime is for who serves a volume, and {} is a server's: give it to `atoll serve`",
            volume.display()
        ))),
        asked => Ok(asked.map(AccessTimes::from).unwrap_or_default()),
    }
}

/// `path` from the root, so that it means the same in every directory.
pub fn absolute(path: &Path) -> Result<PathBuf, Failure> {
    let named = |error| Failure::new(format!("{}: {error}", path.display()));
    let Some(socket) = guest::disk_socket(path) else {
        return std::path::absolute(path).map_err(named);
    };
    let mut text = OsString::from(guest::DISK_PREFIX);
    text.push(std::path::absolute(socket).map_err(named)?);
    Ok(text.into())
}

/// Why the storage of the volume at `path` cannot be opened, and what to do.
pub fn cannot_open(path: &Path, error: OpenError) -> Failure {
    let shown = path.display();
    let hint = match error {
        // A path below a socket, or the socket.
        _ if Address::find(path).is_some() => {
            "; it is a server's: `atoll run` and `atoll mount` take it, for this command end the server and \
             name the volume's file"
                .to_owned()
        }
        OpenError::NotFound => format!("; make a volume with `atoll mkfs {shown}`"),
        OpenError::PermissionDenied => "; its permissions do not allow you to".to_owned(),
        OpenError::ReadOnlyMedium => {
            "; it can be looked at: `:ro` after the volume for `run`, `mount` and `serve`, and `ls`, `cat`, `cp`"
                .to_owned()
        }
        _ => String::new(),
    };
    Failure::new(format!("cannot open the volume {shown}: {error}{hint}"))
}

/// Whether [`unusable`] has a sentence of its own for this: it is not for `fsck` to mend.
pub fn says_all(what: Corruption) -> bool {
    matches!(
        what,
        Corruption::NotAVolume
            | Corruption::Truncated
            | Corruption::Version
            | Corruption::EarlierVersion
    )
}

/// Why the volume at `path` cannot be used, and what to do.
pub fn unusable(path: &Path, error: FsError) -> Failure {
    let shown = path.display();
    let advice: &dyn fmt::Display = match error {
        FsError::Corrupt(Corruption::NotAVolume) => {
            return Failure::new(format!(
                "{shown} is not an Atoll volume; nothing was changed. `atoll mkfs` makes one, in a file of its own"
            ));
        }
        FsError::Corrupt(Corruption::Truncated) => {
            return Failure::new(format!(
                "{shown} is cut off: the file is shorter than the volume in it. Bring back the whole file; \
                 nothing was changed"
            ));
        }
        FsError::Corrupt(Corruption::Version) => {
            return Failure::new(format!(
                "{shown} was made by another version of Atoll, which this one ({}) does not know; use that one",
                env!("CARGO_PKG_VERSION")
            ));
        }
        FsError::Corrupt(Corruption::EarlierVersion) => {
            return Failure::new(format!(
                "{shown} was made by an earlier, unreleased format (version 1), which this version does not \
                 read; nothing was changed"
            ));
        }
        FsError::Corrupt(_) => &format!(
            "; look at the damage with `atoll fsck {shown}`, mend it with `atoll fsck --repair {shown}`"
        ),
        FsError::Device(BlockError::NoSpace) => &"; make room where the file is",
        _ => &"",
    };
    Failure::new(format!("cannot use the volume {shown}: {error}{advice}"))
}

/// Opens the storage of a volume, locked against others.
pub fn open_device(path: &Path, access: Access) -> Result<HostDevice, Failure> {
    let read_only = access == Access::Read;
    let options = OpenOptions { read_only, flusher: true, ..OpenOptions::default() };
    storage::open(path, &options).map_err(|error| match error {
        // It has not one block.
        OpenError::TooSmall { .. } => unusable(path, FsError::Corrupt(Corruption::NotAVolume)),
        error => cannot_open(path, error),
    })
}

/// Opens the volume at `path` and recovers what the last process to use it had not written home.
/// Damage found then or later is [printed](notes).
pub fn open(path: &Path, access: Access) -> Result<Volume, Failure> {
    let device = open_device(path, access)?;
    let mount = storage::mounting(&device, access == Access::Read, memory::cache_bytes());
    let mount = MountOptions { listener: Some(notes::listener(path)), ..mount };
    Fs::mount(device, &mount).map_err(|error| unusable(path, error))
}

/// Closes a volume. Everything is durable afterwards.
pub fn close(path: &Path, volume: Volume) -> Result<(), Failure> {
    volume.unmount().map(drop).map_err(|error| {
        Failure::new(format!(
            "cannot close the volume {}: {error}; what it has is recovered when it is opened again",
            path.display()
        ))
    })
}

/// Whether another process has the volume at `path` open, if only for looking.
pub fn is_in_use(path: &Path) -> bool {
    use rustix::fs::{FlockOperation, Mode, OFlags};
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let Ok(file) = rustix::fs::open(path, flags, Mode::empty()) else { return false };
    // The lock that volumes are opened with; it goes with the descriptor.
    let locked = rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive);
    locked == Err(rustix::io::Errno::WOULDBLOCK)
}

/// Whether the file or disk at `path` is a volume, of whatever version and in whatever state. One
/// that this user may not read is none of the user's volumes.
pub fn is_volume(path: &Path) -> io::Result<bool> {
    use io::ErrorKind::{PermissionDenied, UnexpectedEof};
    let mut block = [0; BLOCK_SIZE];
    match File::open(path).and_then(|file| file.read_exact_at(&mut block, 0)) {
        Err(error) if matches!(error.kind(), PermissionDenied | UnexpectedEof) => return Ok(false),
        read => read?,
    }
    let parsed = atoll_fs::layout::Superblock::parse(&block, BlockIndex(0), u64::MAX);
    Ok(!matches!(parsed, Err(FsError::Corrupt(Corruption::NotAVolume))))
}

/// How to make a volume.
#[derive(Clone, Debug, Default)]
pub struct CreateOptions<'a> {
    /// Its size in bytes; what is there, or [`DEFAULT_SIZE`], if not given.
    pub size: Option<u64>,
    /// A name for people.
    pub label: &'a str,
    /// Replace what is there.
    pub force: bool,
    /// The size of the journal in bytes.
    pub journal: Option<u64>,
}

/// Makes a volume in a new file, an empty one, a block device, or the disk of a back end, and opens
/// it. A new file has its name once it is a volume.
///
/// Storage that holds data is left alone unless `force` is given.
pub fn create(path: &Path, options: &CreateOptions<'_>) -> Result<Volume, Failure> {
    if let Some(size) = options.size
        && size < size::of_blocks(BLOCK_COUNT_MIN)
    {
        return Err(Failure::new(format!(
            "a volume of {} is too small; the smallest has {}",
            size::show(size),
            size::show(size::of_blocks(BLOCK_COUNT_MIN))
        )));
    }
    let failed = cannot_make(path);
    if guest::disk_socket(path).is_some() {
        return create_at_back_end(path, options);
    }
    match std::fs::metadata(path) {
        Ok(found) => create_over(path, &found, options),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let new = NewFile::make(path).map_err(|error| failed(&error))?;
            let size = options.size.unwrap_or(DEFAULT_SIZE);
            let device = open_blank(path, new.path(), Some(size))?;
            let volume = make(path, device, options)?;
            new.give().map_err(|error| failed(&error))?;
            Ok(volume)
        }
        Err(error) => Err(failed(&error)),
    }
}

fn cannot_make(path: &Path) -> impl Fn(&dyn fmt::Display) -> Failure {
    move |error| Failure::new(format!("cannot make the volume {}: {error}", path.display()))
}

/// Makes a volume of a disk that another process offers.
fn create_at_back_end(path: &Path, options: &CreateOptions<'_>) -> Result<Volume, Failure> {
    let failed = cannot_make(path);
    if !options.force && !device::is_blank(path).map_err(|error| failed(&error))? {
        return Err(Failure::new(format!(
            "{} holds data; nothing was changed. --force makes a volume of it, and what it holds is lost",
            path.display()
        )));
    }
    // Another process may have had it meanwhile.
    let mut device = open_blank(path, path, options.size)?;
    if !options.force && storage::was_taken(&mut device).map_err(|error| failed(&error))? {
        return Err(failed(&"another process has made a volume there"));
    }
    let length = size::of_blocks(device.block_count());
    if options.size.is_some_and(|size| size::of_blocks(size::to_blocks(size)) < length) {
        return Err(failed(&format!(
            "the disk has {}, and a volume takes all of it; give no --size",
            size::show(length)
        )));
    }
    storage::empty(&mut device).map_err(|error| failed(&error))?;
    make(path, device, options)
}

/// Makes a volume of what is there.
fn create_over(
    path: &Path,
    found: &Metadata,
    options: &CreateOptions<'_>,
) -> Result<Volume, Failure> {
    let failed = cannot_make(path);
    if !options.force {
        refuse_content(path, found)?;
    }
    let size = options.size.or((found.is_file() && found.len() == 0).then_some(DEFAULT_SIZE));
    // Blank before it was locked.
    let untaken = |mut device: HostDevice| {
        let looked = match options.force {
            true => Ok(false),
            false => storage::was_taken(&mut device).map_err(|error| failed(&error)),
        };
        match looked.and_then(|taken| if taken { refuse_content(path, found) } else { Ok(()) }) {
            Ok(()) => Ok(device),
            Err(failure) => {
                device.close_as_found();
                Err(failure)
            }
        }
    };
    let mut device = untaken(open_blank(path, path, size)?)?;
    let (length, blocks) = (device.block_count(), size.map_or(u64::MAX, size::to_blocks));
    if length > blocks {
        if !found.is_file() {
            return Err(failed(&format!(
                "the device has {}, and a volume takes all of it; give no --size, or make a partition",
                size::show(size::of_blocks(length))
            )));
        }
        File::options()
            .write(true)
            .open(path)
            .and_then(|file| file.set_len(size::of_blocks(blocks)))
            .map_err(|error| failed(&error))?;
        drop(device);
        device = untaken(open_blank(path, path, size)?)?;
    }
    // It may have held something else.
    if let Err(error) = storage::empty(&mut device) {
        device.close_as_found();
        return Err(failed(&error));
    }
    make(path, device, options)
}

/// Opens the file at `place` for the volume that will be at `path`, `size` bytes long at least.
fn open_blank(path: &Path, place: &Path, size: Option<u64>) -> Result<HostDevice, Failure> {
    let blocks = size.map(size::to_blocks);
    let failed = cannot_make(path);
    storage::open(place, &OpenOptions { blocks, ..OpenOptions::default() }).map_err(|error| {
        match error {
            OpenError::TooSmall { .. } => {
                failed(&format!("{error}; give a smaller --size, or none"))
            }
            _ => failed(&error),
        }
    })
}

fn make(
    path: &Path,
    mut device: HostDevice,
    options: &CreateOptions<'_>,
) -> Result<Volume, Failure> {
    if let Err(failure) = format(path, &mut device, options) {
        device.close_as_found();
        return Err(failure);
    }
    let mount = storage::mounting(&device, false, memory::cache_bytes());
    Fs::mount(device, &mount).map_err(|error| unusable(path, error))
}

fn format(
    path: &Path,
    device: &mut HostDevice,
    options: &CreateOptions<'_>,
) -> Result<(), Failure> {
    let shown = path.display();
    let uid = rustix::process::geteuid().as_raw();
    let gid = rustix::process::getegid().as_raw();
    let format = FormatOptions {
        label: options.label,
        journal_blocks: options.journal.map(size::to_blocks),
        ..storage::new_volume(Credentials { uid, gid })
            .map_err(|error| Failure::new(format!("no random numbers: {error}")))?
    };
    atoll_fs::format(device, &format).map_err(|error| match error {
        FsError::Unsuitable => Failure::new(format!(
            "cannot make the volume {shown}: it needs at least {}, a label of at most 64 bytes, and a journal \
             that fits in it",
            size::show(size::of_blocks(BLOCK_COUNT_MIN))
        )),
        error => Failure::new(format!("cannot make the volume {shown}: {error}")),
    })
}

/// Refuses a file or block device that holds anything but zeros.
fn refuse_content(path: &Path, found: &Metadata) -> Result<(), Failure> {
    let shown = path.display();
    let refused = |what: &str| {
        Failure::new(format!(
            "{shown} {what}; nothing was changed. --force makes a volume of it, and what it holds is lost"
        ))
    };
    if !found.is_file() && !found.file_type().is_block_device() {
        return Err(Failure::new(format!("{shown} is neither a file nor a block device")));
    }
    let failed = |error| Failure::new(format!("cannot look into {shown}: {error}"));
    if device::is_blank(path).map_err(failed)? {
        return Ok(());
    }
    let is_volume = is_volume(path).map_err(failed)?;
    Err(refused(if is_volume { "is an Atoll volume already" } else { "holds data" }))
}
