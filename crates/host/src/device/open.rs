//! Opening a volume's storage: one way, for files and block devices, mapped or not.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use atoll_block::{BLOCK_SIZE, BlockDevice, BlockIndex, Cached};
use rustix::fs::{FileType, Mode, OFlags, SeekFrom, Stat};
use rustix::io::Errno;

use super::claims::Claims;
use super::error::{OpenError, host};
use super::guest_disk::GuestDisk;
use super::lengthened::Lengthened;
use super::naming::NewFile;
use super::{FileDevice, HostDevice, MappedDevice};
use crate::guest;

/// The cache of a disk that another process offers, in bytes, where nobody says how much.
const GUEST_CACHE: usize = 32 << 20;

/// How the storage is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Mapped into memory: loads and stores without system calls, cached by the host alone.
    Mapped,
    /// By pread64 and pwrite64, through a cache of our own of this many bytes.
    Direct {
        /// The cache's memory.
        cache_bytes: usize,
    },
}

/// Whether the file may be, or must be, made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Create {
    /// It must exist.
    Never,
    /// It is made if it does not exist.
    IfMissing,
    /// It must not exist.
    New,
}

/// How to open a device. A volume's storage is always locked, by whatever name it is reached: by
/// one writer alone, or by any number of readers (`claims`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenOptions {
    /// How the storage is reached.
    pub access: Access,
    /// Nothing can be written.
    pub read_only: bool,
    /// Only the calls that a sealed process has are made once the device is open (see
    /// [`seal`](crate::seal)).
    pub sealable: bool,
    /// It has [`Flusher`](atoll_block::Flusher)s, by other descriptors of the file, and other
    /// mappings of it if it is mapped. None where it is read-only or sealable.
    pub flusher: bool,
    /// Whether a file is made. A new file needs `blocks`.
    pub create: Create,
    /// Makes a file of fewer blocks this long, with a hole, unless it cannot be opened then
    /// (see [`HostDevice::close_as_found`]); refuses a block device that is smaller.
    pub blocks: Option<u64>,
}

impl Default for OpenOptions {
    /// An existing file or block device, mapped, for reading and writing.
    fn default() -> Self {
        OpenOptions {
            access: Access::Mapped,
            read_only: false,
            sealable: false,
            flusher: false,
            create: Create::Never,
            blocks: None,
        }
    }
}

/// Opens the storage at `path`. A file that is made has this name once it is locked and as long as
/// was asked. A path that begins with [`guest::DISK_PREFIX`] is that of a back end's socket: its
/// disk is this process's as long as it is connected, and is never mapped.
///
/// # Errors
/// See [`OpenError`]. Storage that was there stays, and no other is made.
pub fn open(path: &Path, options: &OpenOptions) -> Result<HostDevice, OpenError> {
    if let Some(socket) = guest::disk_socket(path) {
        return attach(socket, options);
    }
    if options.create == Create::New {
        return make(path, options);
    }
    match (open_existing(path, options), options.create) {
        (Err(OpenError::NotFound), Create::IfMissing) => match make(path, options) {
            // Another process was faster.
            Err(OpenError::Exists) => open_existing(path, options),
            made => made,
        },
        (opened, _) => opened,
    }
}

/// Attaches to the disk whose back end listens at `socket`.
fn attach(socket: &Path, options: &OpenOptions) -> Result<HostDevice, OpenError> {
    if options.create == Create::New {
        return Err(OpenError::Exists);
    }
    if options.sealable {
        return Err(OpenError::NotSealable);
    }
    let disk = GuestDisk::attach(socket, options.read_only)?;
    let (found, needed) = (disk.block_count(), options.blocks.unwrap_or(1));
    if found < needed {
        let bytes = |blocks: u64| blocks.saturating_mul(BLOCK_SIZE as u64);
        return Err(OpenError::TooSmall { bytes: bytes(found), needed: bytes(needed) });
    }
    let cache_bytes = match options.access {
        Access::Mapped => GUEST_CACHE,
        Access::Direct { cache_bytes } => cache_bytes,
    };
    Ok(HostDevice::Guest(Box::new(Cached::new(disk, cache_bytes))))
}

fn make(path: &Path, options: &OpenOptions) -> Result<HostDevice, OpenError> {
    let new = NewFile::make(path)?;
    let device = open_existing(new.path(), options)?;
    new.give()?;
    Ok(device)
}

fn flags(options: &OpenOptions) -> OFlags {
    // Without waiting, should it be a pipe.
    let access = if options.read_only { OFlags::RDONLY } else { OFlags::RDWR };
    access | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY
}

fn open_existing(path: &Path, options: &OpenOptions) -> Result<HostDevice, OpenError> {
    let fd = rustix::fs::open(path, flags(options), Mode::empty()).map_err(host("open"))?;
    open_file(path, fd, options)
}

fn open_file(path: &Path, fd: OwnedFd, options: &OpenOptions) -> Result<HostDevice, OpenError> {
    let stat = rustix::fs::fstat(&fd).map_err(host("fstat"))?;
    let is_file = match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => true,
        FileType::BlockDevice => false,
        _ => return Err(OpenError::NotStorage),
    };
    let (fd, claims) = Claims::take(fd, path, &stat, flags(options), options.read_only)?;
    let needed = BlockIndex(options.blocks.unwrap_or(1));
    let needed = needed.0.checked_mul(BLOCK_SIZE as u64).ok_or(OpenError::NoSpace)?;
    let bytes = rustix::fs::seek(&fd, SeekFrom::End(0)).map_err(host("lseek"))?;
    let writable = !options.read_only;
    let lengthen = bytes < needed && options.blocks.is_some() && is_file && writable;
    if writable && is_file {
        // A write beyond the limit would be answered by SIGXFSZ.
        let limit = rustix::process::getrlimit(rustix::process::Resource::Fsize).current;
        if let Some(limit) = limit
            && limit < if lengthen { needed } else { bytes }
        {
            return Err(OpenError::FileSizeLimit { limit });
        }
    }
    if bytes < needed && !lengthen {
        return Err(OpenError::TooSmall { bytes, needed });
    }
    if !lengthen {
        return device_of(path, fd, options, &stat, bytes)
            .map(|opened| opened.holding(claims, None));
    }
    let lengthened = Lengthened::make(fd.as_fd(), bytes, needed)?;
    match device_of(path, fd, options, &stat, needed) {
        Ok(opened) => Ok(opened.holding(claims, Some(lengthened))),
        Err(error) => {
            lengthened.undo();
            Err(error)
        }
    }
}

/// A device that is open and holds nothing yet.
enum Opened {
    Mapped(MappedDevice),
    Direct(FileDevice, usize),
}

impl Opened {
    fn holding(self, claims: Claims, lengthened: Option<Lengthened>) -> HostDevice {
        match self {
            Opened::Mapped(device) => HostDevice::Mapped(device.holding(claims, lengthened)),
            Opened::Direct(device, cache_bytes) => {
                let device = device.holding(claims, lengthened);
                HostDevice::Direct(Box::new(Cached::new(device, cache_bytes)))
            }
        }
    }
}

/// The first `bytes` of the file as a device.
fn device_of(
    path: &Path,
    fd: OwnedFd,
    options: &OpenOptions,
    stat: &Stat,
    bytes: u64,
) -> Result<Opened, OpenError> {
    let writable = !options.read_only;
    let blocks = bytes / BLOCK_SIZE as u64;
    let flushed_by = match options.flusher && writable && !options.sealable {
        true => {
            let again = || open_again(path, stat, options, OFlags::empty()).map(File::from);
            Some([again()?, again()?])
        }
        false => None,
    };
    match options.access {
        Access::Mapped => MappedDevice::new(File::from(fd), blocks, writable, options.sealable)
            .and_then(|device| device.flushed_by(flushed_by))
            .map(Opened::Mapped)
            .map_err(|errno| match errno {
                Errno::NODEV | Errno::NOMEM | Errno::INVAL => OpenError::NotMappable,
                errno => host("mmap")(errno),
            }),
        Access::Direct { cache_bytes } => {
            let device = if options.sealable {
                let synced = open_again(path, stat, options, OFlags::DSYNC)?;
                FileDevice::sealable(File::from(fd), File::from(synced), blocks, writable)
            } else {
                FileDevice::new(File::from(fd), blocks, writable, flushed_by)
            };
            Ok(Opened::Direct(device, cache_bytes))
        }
    }
}

/// Opens the file a second time, with `more` flags, and makes sure that it is the same.
fn open_again(
    path: &Path,
    stat: &Stat,
    options: &OpenOptions,
    more: OFlags,
) -> Result<OwnedFd, OpenError> {
    let fd = rustix::fs::open(path, flags(options) | more, Mode::empty()).map_err(host("open"))?;
    let again = rustix::fs::fstat(&fd).map_err(host("fstat"))?;
    if (again.st_dev, again.st_ino) != (stat.st_dev, stat.st_ino) {
        return Err(OpenError::NotFound);
    }
    Ok(fd)
}
