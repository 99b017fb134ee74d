//! The system's side of a FUSE mount: the device, the mount point, the table of mounts.

use std::ffi::{CString, OsStr, OsString};
use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use atoll_vfs::AccessTimes;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{CWD, inotify};
use rustix::io::Errno;
use rustix::mount::{MountFlags, MoveMountFlags, UnmountFlags};

use crate::control;

/// Where the kernel's FUSE is reached.
pub const DEVICE: &str = "/dev/fuse";

/// The type of file system that the table of mounts shows.
pub const TYPE: &str = "fuse.atoll";

/// Why a file system could not be mounted, in words for the person who asked.
#[derive(Debug)]
pub enum MountError {
    /// The device of FUSE is missing: the kernel has no FUSE, or its module is not loaded.
    NoDevice(io::Error),
    /// This user may not open the device.
    DeviceRefused(io::Error),
    /// The mount point cannot be used.
    MountPoint(PathBuf, io::Error),
    /// This user may not mount here.
    Refused(PathBuf, io::Error),
    /// Anything else that mount(2) said.
    Failed(PathBuf, io::Error),
}

impl fmt::Display for MountError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MountError::NoDevice(error) => write!(
                f,
                "cannot open {DEVICE}: {error}; the kernel's FUSE is missing. Load it with \
                 `sudo modprobe fuse` (in a container, start it with `--device {DEVICE}`)"
            ),
            MountError::DeviceRefused(error) => write!(
                f,
                "cannot open {DEVICE}: {error}; this user may not use FUSE. Allow it with \
                 `sudo chmod 666 {DEVICE}` (installing the package fuse3 does so at every start), or run \
                 the command as root"
            ),
            MountError::MountPoint(path, error) => {
                write!(f, "cannot mount at {}: {error}", path.display())
            }
            MountError::Refused(path, error) => write!(
                f,
                "cannot mount at {}: {error}; mounting was refused by the system (in a container, \
                 start it with `--cap-add SYS_ADMIN --security-opt apparmor=unconfined`)",
                path.display()
            ),
            MountError::Failed(path, error) => {
                write!(f, "cannot mount at {}: {error}", path.display())
            }
        }
    }
}

impl std::error::Error for MountError {}

/// Opens the device of FUSE. It must be opened in the user namespace in which it will be mounted.
///
/// # Errors
/// [`MountError::NoDevice`] and [`MountError::DeviceRefused`].
pub fn open_device() -> Result<OwnedFd, MountError> {
    let opened =
        OpenOptions::new().read(true).write(true).custom_flags(libc::O_CLOEXEC).open(DEVICE);
    match opened {
        Ok(file) => Ok(File::into(file)),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            Err(MountError::DeviceRefused(error))
        }
        Err(error) => Err(MountError::NoDevice(error)),
    }
}

/// The properties of a mount that the kernel gets and the table of mounts shows.
#[derive(Clone, Debug)]
pub struct MountOptions<'a> {
    /// The volume, as the table of mounts shows it.
    pub source: &'a Path,
    /// Refuse changes.
    pub read_only: bool,
    /// The user and group that mount.
    pub owner: (u32, u32),
    /// The kernel checks permissions, by the owners and modes that it gets; otherwise the server
    /// does.
    pub checked: bool,
    /// The effect of reading on times of last access, as the table of mounts shows it: the kernel
    /// leaves them to the server. Where the effect is not known, the safe answer is that nobody
    /// sets them.
    pub access_times: AccessTimes,
}

/// Mounts what will be served on `device` at the directory `target`. Programs that use it wait
/// until it is served. Set-user-ID bits and device files on it have no effect.
///
/// # Errors
/// See [`MountError`].
pub fn mount(device: impl AsFd, target: &Path, options: &MountOptions) -> Result<(), MountError> {
    let is_directory = std::fs::metadata(target)
        .map_err(|error| MountError::MountPoint(target.to_owned(), error))?
        .is_dir();
    if !is_directory {
        let error = io::Error::from(Errno::NOTDIR);
        return Err(MountError::MountPoint(target.to_owned(), error));
    }
    let data = CString::new(format!(
        "fd={},rootmode=40000,user_id={},group_id={},allow_other{}",
        device.as_fd().as_raw_fd(),
        options.owner.0,
        options.owner.1,
        if options.checked { ",default_permissions" } else { "" },
    ))
    .map_err(|error| MountError::Failed(target.to_owned(), error.into()))?;
    let mut flags = MountFlags::NOSUID | MountFlags::NODEV;
    flags |= match options.access_times {
        AccessTimes::Noatime => MountFlags::NOATIME,
        AccessTimes::Relatime => MountFlags::RELATIME,
    };
    flags.set(MountFlags::RDONLY, options.read_only);
    rustix::mount::mount(options.source, target, TYPE, flags, &*data).map_err(|errno| {
        let error = io::Error::from(errno);
        match errno {
            Errno::PERM | Errno::ACCESS => MountError::Refused(target.to_owned(), error),
            Errno::NODEV => MountError::NoDevice(error),
            _ => MountError::Failed(target.to_owned(), error),
        }
    })
}

/// Attaches `mount`, which is attached nowhere yet, at the directory `target`. Its own flags count.
///
/// # Errors
/// Those of move_mount(2): `EPERM` without the right to mount here, `ENOSYS` before Linux 5.2.
pub fn attach(mount: impl AsFd, target: &Path) -> io::Result<()> {
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
    Ok(rustix::mount::move_mount(mount, "", CWD, target, flags)?)
}

/// The same, over an empty file system that nobody sees and that goes with the mount namespace.
/// What is returned can be read when it has gone.
///
/// # Errors
/// As [`attach`]; those of mount(2) and inotify(7).
pub fn attach_watched(mount: impl AsFd, target: &Path) -> io::Result<OwnedFd> {
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC | MountFlags::RDONLY;
    rustix::mount::mount("none", target, "tmpfs", flags, c"size=4k,nr_inodes=2")?;
    let attached = inotify::init(inotify::CreateFlags::CLOEXEC)
        .and_then(|watch| {
            inotify::add_watch(&watch, target, inotify::WatchFlags::DELETE_SELF)?;
            Ok(watch)
        })
        .map_err(io::Error::from)
        .and_then(|watch| attach(mount, target).map(|()| watch));
    if attached.is_err() {
        let _ = detach(target);
    }
    attached
}

/// The number of the mount that `at` lies in, which another may get once this one has gone.
///
/// # Errors
/// When /proc is not mounted.
pub fn number(at: impl AsFd) -> io::Result<u64> {
    let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", at.as_fd().as_raw_fd()))?;
    let number = info.lines().find_map(|line| line.strip_prefix("mnt_id:")?.trim().parse().ok());
    number.ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// Waits until the mount `number` is no longer in this mount namespace, or `line` can be read.
/// Returns whether it has gone.
///
/// # Errors
/// When /proc is not mounted.
pub fn wait_gone(number: u64, line: impl AsFd) -> io::Result<bool> {
    let mut table = File::open("/proc/self/mountinfo")?;
    loop {
        let mut text = Vec::new();
        table.rewind()?;
        table.read_to_end(&mut text)?;
        let first =
            |line: &[u8]| line.split(|&b| b == b' ').next() == Some(number.to_string().as_bytes());
        if !text.split(|&b| b == b'\n').any(first) {
            return Ok(true);
        }
        let mut watched = [PollFd::new(&table, PollFlags::PRI), PollFd::new(&line, PollFlags::IN)];
        rustix::io::retry_on_intr(|| poll(&mut watched, None))?;
        if !watched[1].revents().is_empty() {
            return Ok(false);
        }
    }
}

/// Takes the file system at `target` out of sight. Programs that have files open on it keep them,
/// and its server goes on until they are closed.
///
/// # Errors
/// Those of umount(2); `EINVAL` when nothing is mounted there.
pub fn detach(target: &Path) -> io::Result<()> {
    Ok(rustix::mount::unmount(target, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW)?)
}

/// Unmounts the file system at `target`, unless programs use it.
///
/// # Errors
/// Those of umount(2): `EBUSY` when it is in use, `EINVAL` when nothing is mounted there.
pub fn unmount(target: &Path) -> io::Result<()> {
    Ok(rustix::mount::unmount(target, UnmountFlags::NOFOLLOW)?)
}

/// The name of the helper that mounts for users who may not.
const HELPER: &str = "fusermount3";

/// Where the helper is.
///
/// # Errors
/// `NotFound`, with what to do, when it is not installed.
pub fn helper() -> io::Result<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain([PathBuf::from("/usr/bin"), PathBuf::from("/bin")])
        .map(|dir| dir.join(HELPER))
        .find(|place| place.is_file())
        .ok_or_else(|| {
            io::Error::new(
                io::ErrorKind::NotFound,
                format!(
                    "{HELPER}, which mounts for users other than the superuser, is not installed; \
                     install it with `sudo apt-get install fuse3`, or use `atoll run`, which does not need it"
                ),
            )
        })
}

/// Mounts at `target` for a user who may not: by the helper, which hands the device back. Only this
/// user will see the files.
///
/// # Errors
/// That the helper is missing, or what it says.
pub fn mount_by_helper(target: &Path, options: &MountOptions) -> io::Result<OwnedFd> {
    let (line, helpers_line) = UnixStream::pair()?;
    let mut text = b"fsname=".to_vec();
    for &byte in options.source.as_os_str().as_bytes() {
        // A comma in the name would end it.
        if matches!(byte, b',' | b'\\') {
            text.push(b'\\');
        }
        text.push(byte);
    }
    let mut text = OsString::from_vec(text);
    text.push(",subtype=atoll,nosuid,nodev");
    if options.access_times == AccessTimes::Noatime {
        text.push(",noatime");
    }
    text.push(if options.read_only { ",ro" } else { ",rw" });
    if options.checked {
        text.push(",default_permissions");
    }
    let output = std::process::Command::new(helper()?)
        .args([OsStr::new("-o"), &text, OsStr::new("--"), target.as_os_str()])
        // It sends the device through the descriptor of that number, here its standard input.
        .env("_FUSE_COMMFD", "0")
        .stdin(OwnedFd::from(helpers_line))
        .output()?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(io::Error::other(said.trim().to_owned()));
    }
    let (_, device) = control::receive(&line)?;
    let nothing = || io::Error::other(format!("{HELPER} has handed nothing over"));
    device.into_iter().next().ok_or_else(nothing)
}

/// Unmounts what the helper has mounted at `target`, or with `detach` takes it out of sight.
///
/// # Errors
/// The helper's message, or that it is missing.
pub fn unmount_by_helper(target: &Path, detach: bool) -> io::Result<()> {
    let mut command = std::process::Command::new(helper()?);
    command.arg("-u");
    if detach {
        command.arg("-z");
    }
    let output = command.arg("--").arg(target).output()?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    if said.contains("busy") {
        return Err(Errno::BUSY.into());
    }
    Err(io::Error::other(said.trim().to_owned()))
}

/// Something mounted, of the table of mounts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mounted {
    /// The source: for Atoll the volume's path.
    pub source: PathBuf,
    /// Where it is mounted.
    pub target: PathBuf,
    /// The type of file system.
    pub kind: String,
}

/// The mounts of this mount namespace, the latest last.
///
/// # Errors
/// When /proc is not mounted.
pub fn mounts() -> io::Result<Vec<Mounted>> {
    let table = std::fs::read("/proc/self/mounts")?;
    Ok(table.split(|&b| b == b'\n').filter_map(parse_mount).collect())
}

/// One line of /proc/self/mounts: fields between blanks, with blanks inside them escaped.
fn parse_mount(line: &[u8]) -> Option<Mounted> {
    let mut fields = line.split(|&b| b == b' ');
    let path = |field: &[u8]| PathBuf::from(OsString::from_vec(unescape(field)));
    let source = path(fields.next().filter(|f| !f.is_empty())?);
    let target = path(fields.next()?);
    let kind = String::from_utf8_lossy(fields.next()?).into_owned();
    Some(Mounted { source, target, kind })
}

/// Undoes the kernel's escapes: a backslash and three octal digits.
fn unescape(field: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(field.len());
    let mut rest = field;
    while let [first, tail @ ..] = rest {
        let octal =
            tail.get(..3).filter(|d| *first == b'\\' && d.iter().all(|d| matches!(d, b'0'..=b'7')));
        match octal {
            Some(digits) => {
                out.push(digits.iter().fold(0u8, |n, d| n.wrapping_mul(8).wrapping_add(d - b'0')));
                rest = &tail[3..];
            }
            None => {
                out.push(*first);
                rest = tail;
            }
        }
    }
    out
}

/// The Atoll volume that is mounted at `target`, if one is.
///
/// # Errors
/// As [`mounts`].
pub fn mounted_at(target: &Path) -> io::Result<Option<Mounted>> {
    Ok(mounts()?
        .into_iter()
        .rfind(|m| m.target.as_os_str().as_bytes() == target.as_os_str().as_bytes())
        .filter(|m| m.kind == TYPE))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_lines() {
        let line = br"/home/a\040b/x.vol /mnt/with\134slash fuse.atoll rw,nosuid 0 0";
        assert_eq!(
            parse_mount(line),
            Some(Mounted {
                source: "/home/a b/x.vol".into(),
                target: r"/mnt/with\slash".into(),
                kind: TYPE.into(),
            })
        );
        assert_eq!(parse_mount(b""), None);
        assert_eq!(parse_mount(b"a"), None);
        assert_eq!(unescape(br"\04"), br"\04");
    }
}
