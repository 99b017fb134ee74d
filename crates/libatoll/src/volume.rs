//! Which file system, on which device: the one place where both are chosen.

use core::fmt;
use std::os::fd::{AsRawFd, RawFd};
use std::path::{Path, PathBuf};

use atoll_block::{BLOCK_SIZE, BlockDevice, BlockError, RamDevice, memory_of_variants};
use atoll_fs::{Corruption, Fs, FsError};
use atoll_host::client::{Address, CachedClient, ConnectError, Connection};
use atoll_host::device::{self, Access, HostDevice, NewFile, OpenError, OpenOptions};
use atoll_host::guest::{self, AttachError, GuestFs};
use atoll_host::memory;
use atoll_host::seal::{self, Permissions, SealError};
use atoll_host::server::rules::Mode;
use atoll_posix::{Credentials, Options, Posix};
use atoll_transport::channel::Config;
use atoll_vfs::{AccessTimes, Context, Errno, Forgetting, Ino, Locks, StatFs};

use crate::clock::HostClock;
use crate::storage;
use crate::zeros::zeros;

/// The file system of the library.
// A process has one, and asks it all the time: no box.
#[allow(clippy::large_enum_variant)]
pub enum FileSystem {
    /// A volume that this process owns.
    Own(Fs<Device>),
    /// One that a server serves, with the descriptors by which it is reached.
    Served(CachedClient, [RawFd; 3]),
    /// One that another process offers to virtual machines, with the descriptors by which it is
    /// reached.
    Guest(Forgetting<GuestFs>, [RawFd; 2]),
}

macro_rules! by_variant {
    ($self:ident $verb:ident ($($arg:ident),*)) => {
        match $self {
            FileSystem::Own(fs) => atoll_vfs::FileSystem::$verb(fs, $($arg),*),
            FileSystem::Served(client, _) => atoll_vfs::FileSystem::$verb(client, $($arg),*),
            FileSystem::Guest(client, _) => atoll_vfs::FileSystem::$verb(client, $($arg),*),
        }
    };
}

impl atoll_vfs::FileSystem for FileSystem {
    atoll_vfs::verbs!(by_variant: all);

    fn statfs_below(&mut self, cx: &Context, dir: Ino) -> Result<StatFs, Errno> {
        by_variant!(self statfs_below (cx, dir))
    }

    #[inline]
    fn shared_locks(&mut self) -> Option<&mut dyn Locks> {
        by_variant!(self shared_locks ())
    }

    #[inline]
    fn recall(&mut self, ino: Ino, count: u64) {
        by_variant!(self recall (ino, count));
    }

    #[inline]
    fn checkpoint_due(&self) -> bool {
        by_variant!(self checkpoint_due ())
    }
}

/// A mounted volume, with the descriptors and the working directory of its user.
pub type Volume = Posix<FileSystem, HostClock>;

/// The storage of a volume.
#[derive(Debug)]
pub enum Device {
    /// Memory of this process.
    Ram(RamDevice),
    /// A file or block device of the host.
    Host(HostDevice),
}

memory_of_variants!(Device { Ram, Host });

/// Where a volume is stored, and how it is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Storage {
    /// A host file or block device, mapped into memory.
    Mapped(PathBuf),
    /// A host file or block device, reached by pread and pwrite alone.
    Direct(PathBuf),
    /// Memory: a new volume of this many bytes, gone with the process.
    Ram(u64),
    /// In the hands of a server.
    Served(Address),
    /// A virtio-fs device, which listens at this socket.
    Guest(PathBuf),
}

/// How to mount.
#[derive(Clone, Debug)]
pub struct MountOptions {
    /// Where the volume is.
    pub storage: Storage,
    /// Refuse every change.
    pub read_only: bool,
    /// The process will be sealed: what is open afterwards is reached with the calls that are left.
    pub sealable: bool,
    /// Bound of the memory for cached blocks, in bytes.
    pub cache_bytes: usize,
    /// The lowest descriptor number given out.
    pub first_descriptor: i32,
    /// Owner and group of what is created.
    pub credentials: Credentials,
    /// How a read changes the time of last access; for a server's volume its server says so.
    pub access_times: AccessTimes,
}

impl MountOptions {
    /// The numbers below are left to the standard streams.
    pub const FIRST_DESCRIPTOR: i32 = 3;
    /// The defaults for a volume in `storage`.
    pub fn new(storage: Storage) -> Self {
        // A cache of data is laid out for its bound at once.
        let most = match storage {
            Storage::Direct(_) => 64 << 20,
            Storage::Mapped(_) | Storage::Ram(_) | Storage::Served(_) | Storage::Guest(_) => {
                usize::MAX
            }
        };
        MountOptions {
            storage,
            read_only: false,
            sealable: false,
            cache_bytes: memory::cache_bytes().min(most),
            first_descriptor: Self::FIRST_DESCRIPTOR,
            credentials: Credentials::default(),
            access_times: AccessTimes::default(),
        }
    }
}

/// How to make a volume.
#[derive(Clone, Copy, Debug, Default)]
pub struct FormatOptions {
    /// Bytes of a file to be made or lengthened; 0: the file exists, and all of it is used.
    pub volume_bytes: u64,
    /// Overwrite what is there, even if it is no volume.
    pub force: bool,
    /// Owner and group of the root directory.
    pub owner: Credentials,
}

/// Why a volume could not be made or mounted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountError {
    /// The error's number, as for errno.
    pub errno: i32,
    /// The fault and what to do, for people.
    pub message: String,
}

impl MountError {
    /// An error in words.
    pub fn new(errno: i32, message: impl Into<String>) -> Self {
        MountError { errno, message: message.into() }
    }

    fn open(path: &Path, error: OpenError) -> Self {
        let errno = match error {
            OpenError::NotFound => libc::ENOENT,
            OpenError::Exists => libc::EEXIST,
            OpenError::PermissionDenied => libc::EACCES,
            OpenError::ReadOnlyMedium => libc::EROFS,
            OpenError::InUse { .. } => libc::EBUSY,
            OpenError::NotStorage | OpenError::TooSmall { .. } => libc::EINVAL,
            OpenError::NoSpace => libc::ENOSPC,
            OpenError::FileSizeLimit { .. } => libc::EFBIG,
            OpenError::Host { errno, .. } => errno,
            _ => libc::EIO,
        };
        MountError::new(errno, format!("{}: {error}", path.display()))
    }

    fn seal(error: SealError) -> Self {
        let (errno, advice) = match error {
            SealError::NotSealable => (libc::EINVAL, "; mount it with ATOLL_SEALABLE"),
            SealError::OutOfMemory { .. } => (libc::ENOMEM, ""),
            _ => (libc::ENOSYS, ""),
        };
        MountError::new(errno, format!("seal: {error}{advice}"))
    }

    fn fs(place: &str, error: FsError) -> Self {
        let advice = match error {
            FsError::Corrupt(Corruption::NotAVolume) => {
                let message = format!("{place}: not an Atoll volume; make one with atoll_mkfs");
                return MountError::new(libc::EMEDIUMTYPE, message);
            }
            FsError::Corrupt(
                Corruption::Version | Corruption::EarlierVersion | Corruption::Truncated,
            ) => "",
            FsError::Corrupt(_) => "; `atoll fsck --repair` may save it",
            _ => "",
        };
        MountError::new(Errno::from(error).raw(), format!("{place}: {error}{advice}"))
    }
}

impl fmt::Display for MountError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for MountError {}

fn format(device: &mut Device, place: &str, owner: Credentials) -> Result<(), MountError> {
    let mut options = storage::new_volume(owner).map_err(|error| {
        let errno = error.raw_os_error().unwrap_or(libc::EIO);
        MountError::new(errno, format!("no random numbers: {error}"))
    })?;
    // Flushing memory costs nothing, so checkpoints may come often: a small journal stays in the
    // processor's caches.
    options.journal_blocks = matches!(device, Device::Ram(_)).then_some(256);
    atoll_fs::format(device, &options).map_err(|error| MountError::fs(place, error))
}

/// Makes a volume in the host file or block device `path`. A new file has its name once it is a
/// volume.
///
/// # Errors
/// `EEXIST` for a file that holds something, without `force`; else what was wrong.
pub fn mkfs(path: &Path, options: &FormatOptions) -> Result<(), MountError> {
    let failed = |error| MountError::open(path, error);
    let missing =
        std::fs::metadata(path).is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound);
    if !missing || options.volume_bytes == 0 || guest::disk_socket(path).is_some() {
        return make(path, path, options);
    }
    match NewFile::make(path) {
        // Another process was faster.
        Err(OpenError::Exists) => make(path, path, options),
        new => {
            let new = new.map_err(failed)?;
            make(path, new.path(), options)?;
            new.give().map_err(failed)
        }
    }
}

/// Makes the volume that will be at `path` in the file at `at`.
fn make(path: &Path, at: &Path, options: &FormatOptions) -> Result<(), MountError> {
    let open = OpenOptions {
        blocks: (options.volume_bytes > 0).then_some(options.volume_bytes / BLOCK_SIZE as u64),
        ..OpenOptions::default()
    };
    let place = path.display().to_string();
    let is_disk = guest::disk_socket(at).is_some();
    let empty =
        !is_disk && std::fs::metadata(at).map_or(true, |found| found.is_file() && found.len() == 0);
    // Before it is opened, which may make it longer. Storage that cannot be looked into cannot be
    // opened.
    let taken = || {
        let message = format!("{place}: holds something already; force to overwrite it");
        MountError::new(libc::EEXIST, message)
    };
    if !empty && !options.force && device::is_blank(at).is_ok_and(|blank| !blank) {
        return Err(taken());
    }
    let mut device = storage::open(at, &open).map_err(|error| MountError::open(path, error))?;
    let failed = |error: BlockError| MountError::fs(&place, error.into());
    let emptied = (|| {
        if !options.force && storage::was_taken(&mut device).map_err(failed)? {
            return Err(taken());
        }
        // The storage held something else.
        if empty { Ok(()) } else { storage::empty(&mut device).map_err(failed) }
    })();
    let mut device = Device::Host(device);
    let made = emptied
        .and_then(|()| format(&mut device, &place, options.owner))
        .and_then(|()| device.flush().map_err(failed));
    if made.is_err()
        && let Device::Host(device) = device
    {
        device.close_as_found();
    }
    made
}

/// Mounts a volume.
///
/// # Errors
/// The fault, with the error's number.
pub fn mount(options: &MountOptions) -> Result<Volume, MountError> {
    let (device, place) = match &options.storage {
        Storage::Ram(bytes) => {
            let bytes = zeros(bytes - bytes % BLOCK_SIZE as u64).ok_or_else(|| {
                let message = format!("{bytes} bytes of memory are not to be had");
                MountError::new(libc::ENOMEM, message)
            })?;
            let mut device = Device::Ram(RamDevice::from_bytes(bytes));
            let place = "volume in memory".to_owned();
            format(&mut device, &place, options.credentials)?;
            (device, place)
        }
        Storage::Served(place) => return attach(place, options),
        Storage::Guest(socket) => return be_guest(socket, options),
        Storage::Mapped(path) => (host_device(path, Access::Mapped, options)?, shown(path)),
        Storage::Direct(path) => {
            // Half for data, half for metadata.
            let access = Access::Direct { cache_bytes: options.cache_bytes / 2 };
            (host_device(path, access, options)?, shown(path))
        }
    };
    let direct = matches!(options.storage, Storage::Direct(_));
    let cache_bytes = if direct { options.cache_bytes / 2 } else { options.cache_bytes };
    let how = match &device {
        // Nothing of it outlives this process.
        Device::Ram(_) => atoll_fs::MountOptions {
            read_only: options.read_only,
            owner: device::owner(),
            cache_bytes,
            new_slab: Some(memory::use_huge_pages),
            ..atoll_fs::MountOptions::default()
        },
        Device::Host(device) => storage::mounting(device, options.read_only, cache_bytes),
    };
    let fs = Fs::mount(device, &how).map_err(|error| MountError::fs(&place, error))?;
    if let Device::Host(device) = fs.device() {
        // What a mount looks at is mostly not looked at again: an idle program has the memory.
        device.unmap_pages();
    }
    // The volume is locked, and its file system is in here.
    Ok(user_of(FileSystem::Own(fs), options, true))
}

fn user_of(fs: FileSystem, options: &MountOptions, sole_user: bool) -> Volume {
    let options = Options {
        first_descriptor: options.first_descriptor,
        credentials: options.credentials,
        sole_user,
        access_times: options.access_times,
        ..Options::default()
    };
    Posix::new(fs, HostClock, &options)
}

/// Begins a session with a server, which judges what this process may do.
fn attach(place: &Address, options: &MountOptions) -> Result<Volume, MountError> {
    let explained = |error: ConnectError| {
        let errno = match &error {
            ConnectError::NoServer(_) => libc::ECONNREFUSED,
            ConnectError::Refused(..) | ConnectError::Unexpected(..) => libc::EACCES,
            ConnectError::Failed(_, error) => error.raw_os_error().unwrap_or(libc::EIO),
            ConnectError::Lost(..) => libc::EIO,
        };
        MountError::new(errno, error.to_string())
    };
    if options.sealable {
        let message = format!("{place}: what a server serves cannot be sealed");
        return Err(MountError::new(libc::EINVAL, message));
    }
    if options.access_times != AccessTimes::default() {
        let message =
            format!("{place}: its access times are the server's affair: `atoll serve --atime`");
        return Err(MountError::new(libc::EINVAL, message));
    }
    let mode = if options.read_only { Mode::Read } else { Mode::Write };
    let connection = Connection::open(place).map_err(explained)?;
    let mut ring = connection.ring(mode, &Config::default()).map_err(explained)?;
    let client = ring.cached().ok_or_else(|| {
        MountError::new(libc::EIO, format!("{place}: the server ended the session"))
    })?;
    let descriptors = ring.descriptors().map(|descriptor| descriptor.as_raw_fd());
    Ok(user_of(FileSystem::Served(client, descriptors), options, false))
}

/// Begins a session with a virtio-fs device, whose only guest this process then is.
fn be_guest(socket: &Path, options: &MountOptions) -> Result<Volume, MountError> {
    let refused = |message: &str| {
        let message = format!("{}{}: {message}", guest::PREFIX, socket.display());
        Err(MountError::new(libc::EINVAL, message))
    };
    if options.sealable {
        return refused("what a device offers cannot be sealed");
    }
    if options.read_only {
        return refused("whether a device may be written its server says");
    }
    if options.access_times != AccessTimes::default() {
        return refused("its access times are the server's affair");
    }
    let mut fs = guest::attach(socket).map_err(|error| {
        let errno = match &error {
            AttachError::Connect(_, error) => error.raw_os_error().unwrap_or(libc::ECONNREFUSED),
            AttachError::Refused(_) => libc::EACCES,
            AttachError::Device(..) => libc::EPROTO,
            AttachError::Session(_, errno) => errno.raw(),
        };
        MountError::new(errno, error.to_string())
    })?;
    let descriptors = fs.inner().transport().device().descriptors();
    Ok(user_of(FileSystem::Guest(Forgetting::new(fs), descriptors), options, false))
}

fn shown(path: &Path) -> String {
    path.display().to_string()
}

fn host_device(path: &Path, access: Access, options: &MountOptions) -> Result<Device, MountError> {
    let open = OpenOptions {
        access,
        read_only: options.read_only,
        sealable: options.sealable,
        ..OpenOptions::default()
    };
    let device = storage::open(path, &open).map_err(|error| MountError::open(path, error))?;
    Ok(Device::Host(device))
}

/// Closes every descriptor, makes everything durable and lets go of the device.
///
/// # Errors
/// When not everything could be made durable: the volume is then as after the end of a process.
pub fn unmount(volume: Volume) -> Result<(), MountError> {
    match volume.into_fs() {
        FileSystem::Own(fs) => {
            let device = fs.unmount().map_err(|error| MountError::fs("unmount", error))?;
            if let Device::Host(device) = &device {
                device.unlock();
            }
            Ok(())
        }
        FileSystem::Served(client, _) => {
            client.into_inner().disconnect();
            Ok(())
        }
        FileSystem::Guest(client, _) => {
            client.into_inner().into_inner().disconnect();
            Ok(())
        }
    }
}

/// The descriptors by which the server learns of this process's end: no other process may have
/// them.
pub fn descriptors(volume: &Volume) -> &[RawFd] {
    match volume.fs() {
        FileSystem::Own(_) => &[],
        FileSystem::Guest(_, descriptors) => descriptors,
        FileSystem::Served(_, descriptors) => descriptors,
    }
}

/// Whether a server has the volume, which other processes may use too.
pub fn is_served(volume: &Volume) -> bool {
    matches!(volume.fs(), FileSystem::Served(..) | FileSystem::Guest(..))
}

/// Seals the process: it keeps this volume, its standard output, and nothing else of the host. See
/// [`atoll_host::seal`]. `reserve_bytes` of memory are made ready before, since nothing can be
/// added afterwards.
///
/// # Errors
/// When the volume was not mounted to be sealed, or the kernel refused.
pub fn seal(volume: &Volume, reserve_bytes: usize) -> Result<(), MountError> {
    let FileSystem::Own(fs) = volume.fs() else {
        return Err(MountError::seal(SealError::NotSealable));
    };
    let permissions = match fs.device() {
        Device::Ram(_) => Permissions::none(),
        Device::Host(device) => Permissions::none().allow(device).map_err(MountError::seal)?,
    };
    seal::reserve_memory(reserve_bytes).map_err(MountError::seal)?;
    seal::seal(&permissions).map_err(MountError::seal)
}
