//! The interposer of programs under `atoll run`: a shared library in C that the dynamic linker
//! loads into every program (`LD_PRELOAD`).
//!
//! Every file is opened through the kernel, on a FUSE mount, so that descriptors are real:
//! duplication, fork, exec, locks, names in /proc and whatever else the kernel does with them
//! works as always. The library takes only data and attributes of open files to the server by a
//! way of its own, the backend (`c/backend.h`). Read `c/table.h` first, which says whose a file
//! offset is; `data.c`, `descriptors.c`, `processes.c` and `signals.c` are the calls by kind.
//!
//! # What it relies on
//!
//! - **A private offset** needs an open(2) of this process that came here. Streams of the C library
//!   never have one (their system calls do not come here), nor do the standard streams, nor
//!   what was inherited or received.
//! - **Another process** that could get a descriptor gets it with the offset in the kernel: before
//!   fork, vfork, clone, posix_spawn, system, popen, exec, and SCM_RIGHTS.
//! - **A wrong guess is the kernel**: what is not known to be ours is a system call. The library is
//!   told what a descriptor is by the server alone, for regular files alone.
//! - **Signal handlers** wait while a call is in progress, as for a system call on a file.
//! - **Identity**: a process that changes its user, namespaces or seccomp filter makes system calls
//!   only from then on. Set-user-ID programs do not load the library, static ones do not know it.
//!
//! # What it takes where
//!
//! Only files on mounts that a server serves: `atoll run` names them in [`SERVERS`]. A process
//! connects when it has made some calls on them, and adopts a file when it has used it more than
//! once: what is opened, read and closed is best left to the kernel. Each process has a connection
//! of its own, a child another. If there is none to be had, or it is lost, the kernel makes the
//! calls. One that asks for the same attributes and pages again and again is given a View, in which
//! it finds them without asking.
//!
//! # What is different
//!
//! - A buffer that is not mapped is SIGSEGV and not EFAULT, unless it is where no program has
//!   anything.
//! - A process reads and writes a file that it maps through the kernel from then on. Bytes that
//!   *others* write past the kernel, or it by another open of the same file, are not seen in the
//!   mapping, as with any other client of the server.
//! - The descriptors that the library needs have high numbers, and cannot be closed.
//! - fork(2) waits while another thread makes the connection: a millisecond or two, some seconds
//!   where the server does not answer.
//! - A program that makes system calls in its own machine code (io_uring's library does), on
//!   descriptors that it also uses through the C library, can see a stale offset or O_APPEND. Where
//!   it closes one in that way and opens another file by its number, the library takes that for the
//!   old one until the server says that it was closed, which it is not asked while the View has
//!   what is wanted.
//! - A program with the address sanitizer's shared library insists on its being the first, and
//!   refuses to run: `atoll run --no-preload`.
//! - The dynamic linker says of 32-bit programs that it ignores the library.
#![forbid(unsafe_code)]

mod places;

use std::ffi::{OsStr, OsString};
use std::fs::{self, File, OpenOptions, Permissions};
use std::hash::{DefaultHasher, Hasher};
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

pub use places::in_directory;
use places::refused;
use rustix::fs::{OFlags, StatVfsMountFlags};

/// The shared library, for 64-bit programs of this machine's C library.
pub const LIBRARY: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/preload.so"));

/// The variable that names it to the dynamic linker.
pub const VARIABLE: &str = "LD_PRELOAD";

/// The variable that tells it which mounts have which servers; see the crate
/// `atoll-preload-backend`.
pub const SERVERS: &str = "ATOLL_SERVERS";

/// The purpose of a mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// For changes, among other mounts.
    Write,
    /// For looking only, among other mounts.
    Read,
    /// For changes, as the volume's one mount.
    Own,
    /// For looking only, at what nobody changes.
    Unchanging,
}

/// The part of the value of [`SERVERS`] about one mount: its device number, what it is for, the
/// user and group that it shows as the owners of everything, if so, and `place`: the server's
/// socket, and the volume's name there. Empty if it cannot be said, and the kernel is to make all
/// calls.
pub fn server(
    device: u64,
    mount: Use,
    owner: Option<(u32, u32)>,
    place: impl std::fmt::Display,
) -> String {
    let place = place.to_string();
    if !place.starts_with('/') || place.contains(['\n', char::REPLACEMENT_CHARACTER]) {
        return String::new();
    }
    let mode = match mount {
        Use::Write => "rw",
        Use::Read => "ro",
        Use::Own => "own",
        Use::Unchanging => "fixed",
    };
    let owner = owner.map_or_else(|| "-".to_owned(), |(uid, gid)| format!("{uid}:{gid}"));
    format!("{device:x} {mode} {owner} {place}\n")
}

/// Puts the library into a file that every program can load, and returns its path. It stays for the
/// next time, [`in_directory`].
///
/// # Errors
/// Why none of these directories would do: the last one's reason.
pub fn place(hidden: &[&Path]) -> io::Result<PathBuf> {
    in_directory(hidden, place_in)
}

/// The mode of the library, whatever the umask: every user's programs load it.
const MODE: u32 = 0o755;

fn place_in(dir: &Path) -> io::Result<PathBuf> {
    if rustix::fs::statvfs(dir)?.f_flag.contains(StatVfsMountFlags::NOEXEC) {
        return Err(refused(dir, "is on a file system whose programs may not be run"));
    }
    let uid = rustix::process::geteuid().as_raw();
    let mut hasher = DefaultHasher::new();
    hasher.write(LIBRARY);
    let name = format!("preload-{:016x}.so", hasher.finish());
    let path = dir.join(&name);
    if is_there(&path, uid) {
        return Ok(path);
    }
    let new = dir.join(format!("{name}.{}", std::process::id()));
    // Left by a process of the same number that was killed.
    let _ = fs::remove_file(&new);
    let written = OpenOptions::new()
        .write(true)
        .create_new(true)
        .open(&new)
        .and_then(|mut file| {
            file.set_permissions(Permissions::from_mode(MODE))?;
            file.write_all(LIBRARY)
        })
        .and_then(|()| fs::rename(&new, &path));
    if written.is_err() {
        let _ = fs::remove_file(&new);
    }
    written.map(|()| path)
}

/// Whether the file is whole and cannot have been put there by another.
fn is_there(path: &Path, uid: u32) -> bool {
    let flags = OFlags::NOFOLLOW.bits() as i32;
    let Ok(mut file) = OpenOptions::new().read(true).custom_flags(flags).open(path) else {
        return false;
    };
    let sound = |file: &File| {
        let meta = file.metadata()?;
        Ok::<_, io::Error>(
            meta.is_file()
                && meta.uid() == uid
                && meta.mode() & MODE == MODE
                && meta.len() == LIBRARY.len() as u64,
        )
    };
    let mut found = Vec::with_capacity(LIBRARY.len());
    sound(&file).unwrap_or(false) && file.read_to_end(&mut found).is_ok() && found == LIBRARY
}

/// The value of [`VARIABLE`] with the library at `path` after what is in it `already`. Last,
/// because others insist on being the first.
pub fn variable(already: Option<&OsStr>, path: &Path) -> OsString {
    let already = already.unwrap_or_default();
    let separates = |b: &u8| b.is_ascii_whitespace() || *b == b':';
    if already.as_bytes().split(separates).any(|name| name == path.as_os_str().as_bytes()) {
        return already.to_owned();
    }
    let mut all = already.to_owned();
    if !all.is_empty() {
        all.push(":");
    }
    all.push(path);
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_users_own_libraries_stay() {
        let path = Path::new("/run/a.so");
        assert_eq!(variable(None, path), "/run/a.so");
        assert_eq!(variable(Some("".as_ref()), path), "/run/a.so");
        assert_eq!(variable(Some("x.so y.so".as_ref()), path), "x.so y.so:/run/a.so");
        assert_eq!(variable(Some("/run/a.so:x.so".as_ref()), path), "/run/a.so:x.so");
    }

    #[test]
    fn a_place_that_the_volumes_hide_will_not_do() {
        let path = place(&[]).unwrap();
        assert!(path.is_file());
        let other = place(&[path.parent().unwrap()]).unwrap();
        assert!(!other.starts_with(path.parent().unwrap()), "{}", other.display());
        place(&[Path::new("/")]).unwrap_err();
    }

    #[test]
    fn only_a_file_that_is_whole_is_used() {
        let folder = tempfile::tempdir().unwrap();
        let path = place_in(folder.path()).unwrap();
        assert!(fs::read(&path).unwrap() == LIBRARY);
        let before = fs::metadata(&path).unwrap();
        assert_eq!(place_in(folder.path()).unwrap(), path);
        assert_eq!(fs::metadata(&path).unwrap().ino(), before.ino(), "it is used again");
        // As a strict umask leaves it.
        fs::set_permissions(&path, Permissions::from_mode(0o700)).unwrap();
        place_in(folder.path()).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o755);
        // Something else of that name is replaced.
        fs::write(&path, vec![0; LIBRARY.len()]).unwrap();
        place_in(folder.path()).unwrap();
        assert!(fs::read(&path).unwrap() == LIBRARY);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "nothing is left behind");
    }
}
