//! A place with nothing in it: what is left of the system to a server that has rights to lose.
//!
//! The server gets a mount namespace whose one file system is empty and cannot be written, and
//! namespaces of its own for the network, for System V IPC and for names of the host. Its open
//! files stay: the volumes, its sockets, its log. Should seccomp and Landlock have a hole, there is
//! nothing behind it.
//!
//! It takes the rights of the superuser. In a user namespace others could have them too, but that
//! has no numbers for other users, so that the server would not know its clients. A process
//! namespace is not for it either: the kernel would not tell it the numbers of its clients'
//! processes, which its messages have, and neither does anything by them.

use std::ffi::CStr;

use rustix::io::Errno;
use rustix::mount::{MountFlags, MountPropagationFlags, UnmountFlags};
use rustix::thread::{CapabilitySet, UnshareFlags};

use crate::process;

/// A directory that is there wherever a server runs. In the server's own mount namespace the empty
/// file system covers it for a moment.
const PLACE: &CStr = c"/proc";

/// Whether the server goes there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Jail {
    /// Where it has the rights to, and the system lets it.
    #[default]
    Auto,
    /// Or it does not serve.
    Require,
    /// No.
    Off,
}

/// Goes there. The process must have one thread.
///
/// # Errors
/// `EPERM` without the rights, and what unshare(2), mount(2) and pivot_root(2) say; the process may
/// then have namespaces of its own, with what was in the system's.
pub(super) fn enter() -> Result<(), Errno> {
    let had = rustix::thread::capabilities(None)?;
    if !had.effective.contains(CapabilitySet::SYS_ADMIN) {
        return Err(Errno::PERM);
    }
    let flags = MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    empty(flags, c"size=4k,nr_inodes=2,mode=555")
}

/// Goes to an empty place of those `flags` and `options` of tmpfs(5).
///
/// # Errors
/// As [`enter`].
pub(super) fn empty(flags: MountFlags, options: &CStr) -> Result<(), Errno> {
    process::unshare(
        UnshareFlags::NEWNS
            | UnshareFlags::NEWNET
            | UnshareFlags::NEWIPC
            | UnshareFlags::NEWUTS
            | UnshareFlags::FS,
    )?;
    // The mount that is unmounted below must stay for others.
    let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    rustix::mount::mount_change("/", private)?;
    rustix::mount::mount("none", PLACE, "tmpfs", flags, options)?;
    rustix::process::chdir(PLACE)?;
    // With one and the same name the old root comes to lie on the new one: pivot_root(2).
    rustix::process::pivot_root(c".", c".")?;
    rustix::mount::unmount(c".", UnmountFlags::DETACH)?;
    rustix::process::chdir(c"/")
}
