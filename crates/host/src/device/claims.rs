//! The owner of a file or disk: locks and claims, held as long as the descriptors that they belong
//! to.
//!
//! - flock(2) on what was opened: shared by those who look, alone for who writes. It belongs to the
//!   open file and not, as fcntl's, to the process, so that closing another descriptor of the file
//!   does not drop it; unlike locks of open file descriptions, the kernel tells who holds it; and
//!   on block devices it is what keeps udev away while it is held. But it is on the inode: another
//!   device node has none of it.
//! - O_EXCL on a block device: the kernel's own claim on the disk, whatever node it is reached by.
//!   It keeps away who writes to the disk, its partitions and what they are part of, mounts among
//!   them, and who claims it; not who merely opens it.
//! - A loop device and its file are one disk by two names: who opens either takes the other as
//!   well.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{FileType, FlockOperation, Mode, OFlags, Stat};
use rustix::io::Errno;

use super::error::OpenError;
use super::ioctls;

/// Disks over disks that are looked through.
const STACK_MAX: u32 = 4;
/// A process that only looks claims a disk for a moment, to see that nobody has it. So often it
/// tries again.
const TRIES: u32 = 20;
const PAUSE: Duration = Duration::from_millis(5);

/// The descriptors that have to stay open.
#[derive(Debug, Default)]
pub(super) struct Claims(Vec<OwnedFd>);

impl Claims {
    /// Takes `file`, opened at `path` with `flags`, and whatever else is the same storage: alone,
    /// or together with others who only look. Returns what to use in place of `file`: to the
    /// kernel, who discards blocks of a disk that is claimed must be who claimed it.
    pub(super) fn take(
        file: OwnedFd,
        path: &Path,
        stat: &Stat,
        flags: OFlags,
        shared: bool,
    ) -> Result<(OwnedFd, Claims), OpenError> {
        let mut claims = Claims::default();
        let file = claims.one(file, path, stat, (flags, shared), (STACK_MAX, Path::new("")))?;
        Ok((file, claims))
    }

    /// `below`: how many disks may still be below this file, and the folder in sysfs of the loop
    /// device that it is the file of.
    fn one(
        &mut self,
        file: OwnedFd,
        path: &Path,
        stat: &Stat,
        (flags, shared): (OFlags, bool),
        (depth, above): (u32, &Path),
    ) -> Result<OwnedFd, OpenError> {
        let is_disk = FileType::from_raw_mode(stat.st_mode) == FileType::BlockDevice;
        let file = match is_disk {
            true => {
                let claim = claim(path, stat, flags)?;
                if shared { file } else { claim }
            }
            false => file,
        };
        lock(&file, stat, shared)?;
        if is_disk && depth > 0 {
            self.below(&file, stat, shared, depth)?;
        }
        if !is_disk && !shared {
            self.above(stat, above)?;
        }
        Ok(file)
    }

    /// Takes the file of a loop device, if it can be reached.
    fn below(
        &mut self,
        disk: &OwnedFd,
        stat: &Stat,
        shared: bool,
        depth: u32,
    ) -> Result<(), OpenError> {
        let (major, minor) = (rustix::fs::major(stat.st_rdev), rustix::fs::minor(stat.st_rdev));
        let folder = PathBuf::from(format!("/sys/dev/block/{major}:{minor}"));
        // In the folder of the disk, where this is a partition.
        let names = [folder.join("loop/backing_file"), folder.join("../loop/backing_file")];
        let Some(name) = names.iter().find_map(|name| std::fs::read_to_string(name).ok()) else {
            return Ok(());
        };
        let path = Path::new(name.trim_end_matches('\n'));
        let Ok(file) = rustix::fs::open(path, OFlags::RDONLY | FLAGS, Mode::empty()) else {
            return Ok(());
        };
        let Ok(found) = rustix::fs::fstat(&file) else { return Ok(()) };
        // The name is that of when it was attached. A partition cannot be asked.
        let expected = ioctls::loop_file(disk.as_fd());
        if expected.is_some_and(|expected| expected != (found.st_dev, found.st_ino)) {
            return Ok(());
        }
        let above = folder.canonicalize().unwrap_or_default();
        let flags = OFlags::RDONLY | FLAGS;
        let file = self.one(file, path, &found, (flags, shared), (depth - 1, &above))?;
        self.0.push(file);
        Ok(())
    }

    /// Claims the loop devices whose file this is, as far as they may be opened, without the one
    /// with this folder in sysfs, by which we came.
    fn above(&mut self, stat: &Stat, known: &Path) -> Result<(), OpenError> {
        for disk in loop_devices() {
            let is_known = known.iter().any(|part| *part == *disk);
            if is_known || !Path::new("/sys/block").join(&disk).join("loop/backing_file").exists() {
                continue;
            }
            let node = Path::new("/dev").join(disk);
            let open = rustix::fs::open(&node, OFlags::RDONLY | FLAGS, Mode::empty());
            let Ok(found) = open.and_then(|disk| Ok((rustix::fs::fstat(&disk)?, disk))) else {
                continue;
            };
            if ioctls::loop_file(found.1.as_fd()) == Some((stat.st_dev, stat.st_ino)) {
                self.0.push(claim(&node, &found.0, OFlags::RDONLY | FLAGS)?);
            }
        }
        Ok(())
    }
}

const FLAGS: OFlags = OFlags::CLOEXEC.union(OFlags::NONBLOCK).union(OFlags::NOCTTY);

/// The names of all disks that may be loop devices with a file.
fn loop_devices() -> Vec<OsString> {
    let is_loop = |name: &OsStr| name.as_encoded_bytes().starts_with(b"loop");
    // The kernel lists disks that are not empty: major and minor number, blocks, name. A machine
    // has more loop devices without a file, and to ask for each costs more than the list.
    if let Ok(list) = std::fs::read_to_string("/proc/partitions") {
        let names = list.lines().filter_map(|line| line.split_ascii_whitespace().nth(3));
        return names.map(OsString::from).filter(|name| is_loop(name)).collect();
    }
    let disks = std::fs::read_dir("/sys/block").into_iter().flatten().flatten();
    disks.map(|disk| disk.file_name()).filter(|name| is_loop(name)).collect()
}

/// Claims the disk at `path`, for as long as the descriptor is open.
fn claim(path: &Path, stat: &Stat, flags: OFlags) -> Result<OwnedFd, OpenError> {
    let mut tries = TRIES;
    let disk = loop {
        match rustix::fs::open(path, flags | OFlags::EXCL, Mode::empty()) {
            Err(Errno::BUSY) if tries > 0 => std::thread::sleep(PAUSE),
            Err(Errno::BUSY) => return Err(OpenError::InUse { pid: None }),
            outcome => break outcome.map_err(super::error::host("open"))?,
        }
        tries -= 1;
    };
    let found = rustix::fs::fstat(&disk).map_err(super::error::host("fstat"))?;
    if found.st_rdev != stat.st_rdev {
        return Err(OpenError::NotFound);
    }
    Ok(disk)
}

/// Locks what is open for as long as it is.
fn lock(file: &OwnedFd, stat: &Stat, shared: bool) -> Result<(), OpenError> {
    let operation = if shared {
        FlockOperation::NonBlockingLockShared
    } else {
        FlockOperation::NonBlockingLockExclusive
    };
    match rustix::fs::flock(file.as_fd(), operation) {
        Ok(()) => Ok(()),
        Err(Errno::WOULDBLOCK) => Err(OpenError::InUse { pid: lock_holder(stat) }),
        Err(errno) => Err(super::error::host("flock")(errno)),
    }
}

/// The process that holds a lock on the file, as /proc/locks has it.
fn lock_holder(stat: &Stat) -> Option<u32> {
    let locks = BufReader::new(File::open("/proc/locks").ok()?);
    let (major, minor) = (rustix::fs::major(stat.st_dev), rustix::fs::minor(stat.st_dev));
    let file = format!("{major:02x}:{minor:02x}:{}", stat.st_ino);
    // number, kind, ADVISORY, READ or WRITE, process, file, first byte, last byte. The process is
    // 0 if it is in another namespace.
    locks.lines().map_while(Result::ok).find_map(|line| {
        let mut fields = line.split_ascii_whitespace().skip(1);
        let kind = fields.next()?;
        let pid = fields.nth(2)?;
        let holds = kind == "FLOCK" && fields.next()? == file;
        pid.parse().ok().filter(|&pid| holds && pid > 0)
    })
}
