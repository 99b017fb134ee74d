//! Extended attributes. The names of clients are not the host's: of these a client could make its
//! files trusted, or the host's programs obey.
//!
//! `user.NAME` is `user.NAME` on the host. `security.`, `trusted.` and `system.` are
//! kept there as `user.atoll.NAME`, where they mean something to clients alone; and those of the
//! host are not shown.

use std::os::fd::OwnedFd;

use atoll_vfs::{Errno, FileType, Ino, Result, XATTR_LIST_MAX, XATTR_SIZE_MAX, XattrFlags};
use rustix::fs::{self as sys, OFlags};

use super::{HostDirectory, errno};

const USER: &[u8] = b"user.";
/// Before the names of attributes that are the clients' alone.
const PREFIX: &[u8] = b"user.atoll.";
/// The longest name that the host takes.
const NAME_MAX: usize = 255;

/// Whether `name` is in a namespace that is kept apart for clients.
fn is_clients(name: &[u8]) -> bool {
    [&b"security."[..], b"trusted.", b"system."].iter().any(|space| name.starts_with(space))
}

/// The host's name for a client's `name`.
///
/// # Errors
/// `EPERM` for one that would be another's; `ERANGE` for its length; `EOPNOTSUPP` for other
/// namespaces.
fn to_host(name: &[u8]) -> Result<Vec<u8>> {
    if name.is_empty() || name.len() > NAME_MAX {
        return Err(Errno::ERANGE);
    }
    if name.starts_with(PREFIX) {
        return Err(Errno::EPERM);
    }
    if name.starts_with(USER) {
        return Ok(name.to_vec());
    }
    if !is_clients(name) {
        return Err(Errno::EOPNOTSUPP);
    }
    let name = [PREFIX, name].concat();
    if name.len() > NAME_MAX { Err(Errno::ERANGE) } else { Ok(name) }
}

/// As [`to_host`], to look for what may be there.
///
/// # Errors
/// `ENODATA` for a name that clients do not have; `ERANGE`.
fn to_find(name: &[u8]) -> Result<Vec<u8>> {
    match to_host(name) {
        Err(Errno::EPERM) => Err(Errno::ENODATA),
        found => found,
    }
}

/// The client's name for the host's `name`, if it has one.
fn to_client(name: &[u8]) -> Option<&[u8]> {
    match name.strip_prefix(PREFIX) {
        // A program of the host may have made any.
        Some(name) => is_clients(name).then_some(name),
        None => name.starts_with(USER).then_some(name),
    }
}

impl HostDirectory {
    /// The inode, open; `None` for one that has no attributes.
    fn with_attributes(&mut self, ino: Ino) -> Result<Option<OwnedFd>> {
        let (attr, fd) = self.stat(ino)?;
        let always = OFlags::NONBLOCK | OFlags::NOCTTY;
        match attr.file_type() {
            FileType::Directory => self.anew(&fd, OFlags::RDONLY | OFlags::DIRECTORY).map(Some),
            FileType::Regular => match self.anew(&fd, OFlags::RDONLY | always) {
                // Its owner may not read it, who is this process.
                Err(Errno::EACCES) => self.anew(&fd, OFlags::WRONLY | always).map(Some),
                fd => fd.map(Some),
            },
            _ => Ok(None),
        }
    }

    pub(super) fn set_attribute(
        &mut self,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        flags: XattrFlags,
    ) -> Result<()> {
        self.may_change()?;
        self.settled(ino)?;
        let fd = self.with_attributes(ino)?.ok_or(Errno::EPERM)?;
        let name = to_host(name)?;
        if value.len() > XATTR_SIZE_MAX {
            return Err(Errno::E2BIG);
        }
        let flags = sys::XattrFlags::from_bits_retain(flags.bits());
        sys::fsetxattr(&fd, name, value, flags).map_err(errno)
    }

    pub(super) fn attribute(&mut self, ino: Ino, name: &[u8], value: &mut Vec<u8>) -> Result<()> {
        let fd = self.with_attributes(ino)?.ok_or(Errno::ENODATA)?;
        let name = to_find(name)?;
        let mut buf = vec![0; XATTR_SIZE_MAX];
        let len = sys::fgetxattr(&fd, name, &mut buf[..]).map_err(errno)?;
        value.extend_from_slice(&buf[..len]);
        Ok(())
    }

    pub(super) fn list_attributes(&mut self, ino: Ino, names: &mut Vec<u8>) -> Result<()> {
        let Some(fd) = self.with_attributes(ino)? else { return Ok(()) };
        let mut buf = vec![0; XATTR_LIST_MAX];
        let len = match sys::flistxattr(&fd, &mut buf[..]) {
            Err(rustix::io::Errno::OPNOTSUPP) => 0,
            len => len.map_err(errno)?,
        };
        for name in buf[..len].split(|&byte| byte == 0).filter_map(to_client) {
            names.extend_from_slice(name);
            names.push(0);
        }
        Ok(())
    }

    pub(super) fn remove_attribute(&mut self, ino: Ino, name: &[u8]) -> Result<()> {
        self.may_change()?;
        self.settled(ino)?;
        let fd = self.with_attributes(ino)?.ok_or(Errno::ENODATA)?;
        let name = to_find(name)?;
        match sys::fremovexattr(&fd, name) {
            // A file system without any.
            Err(rustix::io::Errno::OPNOTSUPP) => Err(Errno::ENODATA),
            result => result.map_err(errno),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_go_there_and_back() {
        for name in [&b"user.a"[..], b"security.capability", b"trusted.x", b"system.y"] {
            let host = to_host(name).unwrap();
            assert!(host.starts_with(USER));
            assert_eq!(to_client(&host), Some(name));
        }
        assert_eq!(to_host(b"user.atoll.security.capability"), Err(Errno::EPERM));
        let hidden = ["security.capability", "user.atoll.", "user.atoll.user.a", "user.atoll.node"];
        for hidden in hidden {
            assert_eq!(to_client(hidden.as_bytes()), None);
        }
        assert_eq!(to_host(b"node"), Err(Errno::EOPNOTSUPP));
        let long = [&b"trusted."[..], &[b'x'; 242]].concat();
        assert_eq!(to_host(&long), Err(Errno::ERANGE));
    }
}
