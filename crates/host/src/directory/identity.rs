//! Which inode of the host one is, and its number for clients.
//!
//! The host gives the number of a removed inode to a new one, at once. The handle that the host's
//! file system has for each inode tells the two apart: its number and a generation. Where there are
//! no handles the time of birth does; where there is nothing but the number, two inodes that have
//! it one after the other are one to us.
//!
//! A client's number is made of this identity and of nothing else: it is the same however often the
//! inode is forgotten and found again, and after the server has been started anew.

use std::ffi::CStr;
use std::os::fd::{AsFd, BorrowedFd};

use atoll_vfs::Ino;
use rustix::fs::{AtFlags, StatxFlags, statx};
use rustix::io::Errno;
use xxhash_rust::xxh3::xxh3_128;

use super::calls::{self, AT_EMPTY_PATH, AT_HANDLE_FID};

/// The magic number of overlayfs, whose inodes get another handle and another time of birth when
/// they are first changed.
const OVERLAY: i64 = 0x794c_7630;

/// One inode among all that the host ever has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Identity(u128);

/// An inode that was found, and the number of the mount that it was found in.
#[derive(Clone, Copy, Debug)]
pub(super) struct Found {
    pub(super) identity: Identity,
    pub(super) mount: u64,
}

impl Identity {
    /// The identity of an inode of a mount that `tells` tells from others.
    pub(super) fn in_mount(self, tells: u64) -> Identity {
        Identity(xxh3_128(&[&self.to_bytes()[..], &tells.to_le_bytes()].concat()))
    }

    /// Its bytes.
    pub(super) fn to_bytes(self) -> [u8; 16] {
        self.0.to_le_bytes()
    }

    /// The number for clients: the `attempt`th, if those before are taken by others.
    pub(super) fn ino(self, attempt: u8) -> Ino {
        let digest = match attempt {
            0 => self.0 as u64,
            _ => xxh3_128(&[&self.0.to_le_bytes()[..], &[attempt]].concat()) as u64,
        };
        // Below 2^56: a guest with several file systems in one tree has the bits above to tell them
        // apart (`atoll_unikernel::tree`). 0 is none, and 1 the root.
        Ino((digest >> 8).max(Ino::ROOT.0 + 1))
    }
}

/// The means to tell inodes with one number apart on this file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Means {
    /// Handles, asked for with these flags.
    Handle(i32),
    /// The time of birth.
    Birth,
    /// Nothing.
    Number,
}

impl Means {
    /// Finds out what the file system of the directory `root` has.
    pub(super) fn of(root: BorrowedFd<'_>) -> rustix::io::Result<Means> {
        if rustix::fs::fstatfs(root)?.f_type as i64 == OVERLAY {
            return Ok(Means::Number);
        }
        for flags in [0, AT_HANDLE_FID] {
            if calls::handle(root, c"", flags | AT_EMPTY_PATH).is_ok() {
                return Ok(Means::Handle(flags));
            }
        }
        let stat = statx(root, c"", AtFlags::EMPTY_PATH, StatxFlags::BTIME)?;
        let births = StatxFlags::from_bits_retain(stat.stx_mask).contains(StatxFlags::BTIME);
        Ok(if births { Means::Birth } else { Means::Number })
    }

    /// The inode that `fd` is open on.
    pub(super) fn identify(self, fd: impl AsFd) -> rustix::io::Result<Found> {
        self.at(fd.as_fd(), c"", true)
    }

    /// What `name` is in the directory `dir`, to be shown and not to be relied on.
    pub(super) fn entry(self, dir: BorrowedFd<'_>, name: &CStr) -> rustix::io::Result<Found> {
        self.at(dir, name, false)
    }

    fn at(self, fd: BorrowedFd<'_>, name: &CStr, itself: bool) -> rustix::io::Result<Found> {
        let mut bytes = Vec::with_capacity(160);
        if let Means::Handle(flags) = self {
            let flags = if itself { flags | AT_EMPTY_PATH } else { flags };
            match calls::handle(fd, name, flags) {
                Ok((handle, mount)) => {
                    let (kind, handle) = handle.parts();
                    bytes.extend_from_slice(&kind.to_le_bytes());
                    bytes.extend_from_slice(handle);
                    return Ok(Found { identity: Identity(xxh3_128(&bytes)), mount });
                }
                // One inode without, as the root of what is mounted there.
                Err(Errno::OPNOTSUPP | Errno::OVERFLOW) => {}
                Err(error) => return Err(error),
            }
        }
        let flags = if itself { AtFlags::EMPTY_PATH } else { AtFlags::SYMLINK_NOFOLLOW };
        let flags = flags | AtFlags::NO_AUTOMOUNT;
        let asked = StatxFlags::INO | StatxFlags::BTIME | StatxFlags::MNT_ID;
        let stat = statx(fd, name, flags, asked)?;
        bytes.extend_from_slice(&stat.stx_dev_major.to_le_bytes());
        bytes.extend_from_slice(&stat.stx_dev_minor.to_le_bytes());
        bytes.extend_from_slice(&stat.stx_ino.to_le_bytes());
        if self != Means::Number {
            bytes.extend_from_slice(&stat.stx_btime.tv_sec.to_le_bytes());
            bytes.extend_from_slice(&stat.stx_btime.tv_nsec.to_le_bytes());
        }
        Ok(Found { identity: Identity(xxh3_128(&bytes)), mount: stat.stx_mnt_id })
    }
}
