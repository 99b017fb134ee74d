//! A private view of the file tree, in which a program finds a volume mounted.
//!
//! A process enters a mount namespace of its own ([`Namespace::enter`]), and with it a user
//! namespace where it is no superuser. Nobody else sees what it mounts there, and these mounts go
//! when the last process of the namespace ends.
//!
//! A mount point that does not exist is made to appear without touching the directory that it is
//! missing from ([`Namespace::mount_point`]): an empty file system in memory is laid over that
//! directory, everything that the directory holds is mounted in it again at its name, and it gets
//! the mount point besides. It is read-only, so that a new entry of that one directory is refused
//! instead of lost; everything below its entries is the real thing.

use std::ffi::OsString;
use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{MountFlags, MountPropagationFlags, OpenTreeFlags, UnmountFlags};
use rustix::process::{chdir, chroot, pivot_root};
use rustix::thread::UnshareFlags;

use crate::fuse::mount;
use crate::process::unshare;

/// The most entries of a directory that are mounted again for a missing mount point.
const ENTRIES_MAX: usize = 512;

/// Why there is no private view, in words for the person who asked.
#[derive(Debug)]
pub enum NamespaceError {
    /// The system gives this user no namespaces.
    Refused(io::Error),
    /// The mount point does not exist and would have to be made where the user's own files are.
    Missing(PathBuf),
    /// The mount point cannot be made.
    MountPoint(PathBuf, io::Error),
    /// A step failed that should not.
    Failed(&'static str, PathBuf, io::Error),
}

/// The value of a kernel setting under /proc/sys, if it is there.
fn setting(path: &str) -> Option<String> {
    Some(std::fs::read_to_string(Path::new("/proc/sys").join(path)).ok()?.trim().to_owned())
}

impl fmt::Display for NamespaceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NamespaceError::Refused(error) => {
                write!(f, "the system refuses a private mount namespace: {error}; ")?;
                if setting("kernel/unprivileged_userns_clone").as_deref() == Some("0") {
                    f.write_str("allow it with `sudo sysctl kernel.unprivileged_userns_clone=1`")
                } else if setting("user/max_user_namespaces").as_deref() == Some("0") {
                    f.write_str("allow it with `sudo sysctl user.max_user_namespaces=10000`")
                } else if setting("kernel/apparmor_restrict_unprivileged_userns").as_deref()
                    == Some("1")
                {
                    f.write_str(
                        "allow it with `sudo sysctl kernel.apparmor_restrict_unprivileged_userns=0`",
                    )
                } else {
                    f.write_str(
                        "run the command as root (in a container, start it with \
                         `--cap-add SYS_ADMIN --security-opt apparmor=unconfined \
                         --security-opt seccomp=unconfined`)",
                    )
                }
            }
            NamespaceError::Missing(path) => write!(
                f,
                "the mount point {0} does not exist; make it with `mkdir -p {0}`, or name another",
                path.display()
            ),
            NamespaceError::MountPoint(path, error) => {
                write!(f, "cannot mount at {}: {error}", path.display())
            }
            NamespaceError::Failed(what, path, error) => {
                write!(f, "cannot {what} {}: {error}", path.display())
            }
        }
    }
}

impl std::error::Error for NamespaceError {}

/// The namespace that this process is in since it entered it.
#[derive(Debug)]
pub struct Namespace {
    user: bool,
    /// Directories that lie under a file system of ours.
    staged: Vec<PathBuf>,
}

impl Namespace {
    /// Moves this process, which must have one thread, into a mount namespace of its own: as the
    /// superuser directly, otherwise within a user namespace in which its user and group keep
    /// their numbers. Its working directory must be entered anew once all is mounted.
    ///
    /// # Errors
    /// [`NamespaceError::Refused`] by the system's policy.
    pub fn enter() -> Result<Namespace, NamespaceError> {
        let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
        let mut user = false;
        let privileged =
            if uid.is_root() { unshare(UnshareFlags::NEWNS) } else { Err(Errno::PERM) };
        if let Err(Errno::PERM) = privileged {
            user = true;
            unshare(UnshareFlags::NEWUSER | UnshareFlags::NEWNS)
                .map_err(|errno| NamespaceError::Refused(errno.into()))?;
            // A group may be mapped by a user only where no process can drop groups.
            for (file, content) in [
                ("/proc/self/setgroups", "deny".to_owned()),
                ("/proc/self/uid_map", format!("{uid} {uid} 1")),
                ("/proc/self/gid_map", format!("{gid} {gid} 1")),
            ] {
                std::fs::write(file, content).map_err(NamespaceError::Refused)?;
            }
        } else {
            privileged.map_err(|errno| NamespaceError::Refused(errno.into()))?;
        }
        // Mounts and unmounts elsewhere still show here; mounts made here show nowhere else.
        let flags = MountPropagationFlags::REC | MountPropagationFlags::DOWNSTREAM;
        rustix::mount::mount_change("/", flags)
            .map_err(|errno| NamespaceError::Refused(errno.into()))?;
        Ok(Namespace { user, staged: Vec::new() })
    }

    /// Whether this is a user namespace as well, which knows one user and one group.
    pub fn is_user(&self) -> bool {
        self.user
    }

    /// The directory `path`, which must be absolute, to mount at; made to appear if it is missing
    /// from the root or from a directory in which this user could not make it.
    ///
    /// # Errors
    /// [`NamespaceError::Missing`] where the user can make the directory, `ENOTDIR`, or any step
    /// that failed.
    pub fn mount_point(&mut self, path: &Path) -> Result<(), NamespaceError> {
        let failed = |error: io::Error| NamespaceError::MountPoint(path.to_owned(), error);
        if path.components().any(|c| matches!(c, Component::ParentDir | Component::CurDir)) {
            return Err(failed(Errno::INVAL.into()));
        }
        let mut existing = path;
        loop {
            match std::fs::metadata(existing) {
                Ok(found) if !found.is_dir() => return Err(failed(Errno::NOTDIR.into())),
                Ok(_) if existing == path => return Ok(()),
                Ok(_) => break,
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    existing = existing.parent().ok_or_else(|| failed(error))?;
                }
                Err(error) => return Err(failed(error)),
            }
        }
        let staged = self.staged.iter().any(|dir| dir == existing);
        let writable = rustix::fs::access(existing, rustix::fs::Access::WRITE_OK).is_ok();
        if !staged && existing != Path::new("/") && writable {
            return Err(NamespaceError::Missing(path.to_owned()));
        }
        if staged {
            remount(existing, false)?;
            std::fs::create_dir_all(path).map_err(failed)?;
            remount(existing, true)
        } else {
            let missing = path.strip_prefix(existing).unwrap_or(path);
            stage(existing, missing)?;
            self.staged.push(existing.to_owned());
            Ok(())
        }
    }
}

/// Makes the file system of ours at `dir` read-only, or takes that back.
fn remount(dir: &Path, read_only: bool) -> Result<(), NamespaceError> {
    let mut flags = MountFlags::BIND | MountFlags::NOSUID | MountFlags::NODEV;
    flags.set(MountFlags::RDONLY, read_only);
    rustix::mount::mount_remount(dir, flags, "")
        .map_err(|errno| NamespaceError::Failed("remount", dir.to_owned(), errno.into()))
}

/// One entry of a directory that is to be laid over.
struct Entry {
    name: OsString,
    what: What,
}

enum What {
    Link(PathBuf),
    /// A copy, mounted nowhere yet, of a directory and what is mounted below it.
    Directory(OwnedFd),
    /// The same for anything else.
    File(OwnedFd),
}

fn entries(dir: &Path) -> io::Result<Vec<Entry>> {
    let at =
        rustix::fs::open(dir, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let mut entries = Vec::new();
    for entry in std::fs::read_dir(dir)? {
        let name = entry?.file_name();
        let kind = match rustix::fs::statat(&at, &name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => rustix::fs::FileType::from_raw_mode(stat.st_mode),
            // Removed since it was listed.
            Err(Errno::NOENT) => continue,
            Err(error) => return Err(error.into()),
        };
        let copy = || {
            rustix::mount::open_tree(
                &at,
                &name,
                OpenTreeFlags::OPEN_TREE_CLONE
                    | OpenTreeFlags::OPEN_TREE_CLOEXEC
                    | OpenTreeFlags::AT_SYMLINK_NOFOLLOW
                    | OpenTreeFlags::AT_RECURSIVE,
            )
        };
        let what = match kind {
            rustix::fs::FileType::Symlink => {
                let target = rustix::fs::readlinkat(&at, &name, Vec::new())?;
                What::Link(PathBuf::from(OsString::from_vec(target.into_bytes())))
            }
            rustix::fs::FileType::Directory => What::Directory(copy()?),
            _ => What::File(copy()?),
        };
        entries.push(Entry { name, what });
        if entries.len() > ENTRIES_MAX {
            return Err(io::Error::other(format!(
                "it does not exist, and {} has too many entries to show them beside it; make it \
                 with mkdir",
                dir.display()
            )));
        }
    }
    Ok(entries)
}

/// Lays a file system in memory over `dir`, with all that `dir` holds and the directory `missing`.
fn stage(dir: &Path, missing: &Path) -> Result<(), NamespaceError> {
    let target = dir.join(missing);
    let entries =
        entries(dir).map_err(|error| NamespaceError::MountPoint(target.clone(), error))?;
    let root = dir == Path::new("/");
    // The root itself is exchanged at the end, and until then its successor lies elsewhere.
    let base = if root {
        let place = entries.iter().find(|e| matches!(e.what, What::Directory(_)));
        place.map_or_else(|| PathBuf::from("/tmp"), |e| dir.join(&e.name))
    } else {
        dir.to_owned()
    };
    let failed =
        |what, path: &Path, errno: io::Error| NamespaceError::Failed(what, path.to_owned(), errno);
    let flags = MountFlags::NOSUID | MountFlags::NODEV;
    rustix::mount::mount("tmpfs", &base, "tmpfs", flags, c"mode=0755,size=1m")
        .map_err(|errno| NamespaceError::Refused(errno.into()))?;
    for entry in &entries {
        let place = base.join(&entry.name);
        let shown = dir.join(&entry.name);
        let done = match &entry.what {
            What::Link(link) => std::os::unix::fs::symlink(link, &place),
            What::Directory(copy) => {
                std::fs::create_dir(&place).and_then(|()| mount::attach(copy, &place))
            }
            What::File(copy) => {
                std::fs::File::create_new(&place).and_then(|_| mount::attach(copy, &place))
            }
        };
        done.map_err(|error| failed("show", &shown, error))?;
    }
    let place = base.join(missing);
    std::fs::create_dir_all(&place).map_err(|error| failed("make", &target, error))?;
    remount(&base, true)?;
    if root { exchange_root(&base) } else { Ok(()) }
}

/// Makes the file system mounted at `base` the root.
fn exchange_root(base: &Path) -> Result<(), NamespaceError> {
    let failed = |errno: Errno| {
        NamespaceError::Failed("exchange the root directory for", base.to_owned(), errno.into())
    };
    chdir(base).map_err(failed)?;
    match pivot_root(".", ".") {
        Ok(()) => {
            // The old root now lies on the new one.
            rustix::mount::unmount(".", UnmountFlags::DETACH).map_err(failed)?;
        }
        // The root is no mount (inside a chroot) or one that cannot move (an initial RAM disk).
        Err(Errno::INVAL) => {
            chroot(".").map_err(failed)?;
        }
        Err(errno) => return Err(failed(errno)),
    }
    chdir("/").map_err(failed)
}

/// The number of the mount namespace of process `pid` (`self` for this one), the same for all
/// processes in it. `None` if the process is gone or another user's.
pub fn number(pid: &str) -> Option<u64> {
    let stat = rustix::fs::statat(CWD, format!("/proc/{pid}/ns/mnt"), AtFlags::empty()).ok()?;
    Some(stat.st_ino)
}

/// The processes in the mount namespace of that number, with their names.
pub fn processes(namespace: u64) -> Vec<(i32, String)> {
    let Ok(all) = std::fs::read_dir("/proc") else { return Vec::new() };
    all.flatten()
        .filter_map(|entry| {
            let pid = entry.file_name().into_string().ok()?;
            let found: i32 = pid.parse().ok()?;
            (number(&pid)? == namespace).then(|| {
                let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
                (found, name.trim().to_owned())
            })
        })
        .collect()
}
