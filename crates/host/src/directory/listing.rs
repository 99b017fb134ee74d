//! Listings of directories.

use std::ffi::CStr;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};

use atoll_vfs::{DirEntry, Errno, FileType, Handle, Ino, Name, Result};
use rustix::fs::{self as sys, AtFlags, RawDir, SeekFrom};

use super::{HostDirectory, attributes, errno};

/// Bytes of entries that the host is asked for at a time.
const BUFFER: usize = 32 << 10;

impl HostDirectory {
    /// Lists entries; their numbers are the host's, which others may have as well, unless they are
    /// to be `numbered`: that takes a call of each.
    pub(super) fn list(
        &mut self,
        ino: Ino,
        handle: Handle,
        cookie: u64,
        numbered: bool,
        emit: &mut dyn FnMut(&DirEntry<'_>) -> bool,
    ) -> Result<()> {
        let parent = self.table.get(ino)?.place.0;
        let fd = self.handle(ino, handle, true)?.fd.clone();
        // The position is this handle's alone, and each call says where it goes on.
        sys::seek(&fd, SeekFrom::Start(cookie)).map_err(errno)?;
        let mut buf = [MaybeUninit::uninit(); BUFFER];
        let mut entries = RawDir::new(&fd, &mut buf);
        while let Some(entry) = entries.next() {
            let entry = match entry {
                // The directory has been removed.
                Err(rustix::io::Errno::NOENT) => return Ok(()),
                entry => entry.map_err(errno)?,
            };
            let name = entry.file_name();
            let known = match name.to_bytes() {
                b"." => Some(ino),
                b".." => Some(parent),
                _ => None,
            };
            let (number, file_type) = match known {
                Some(known) => (known, FileType::Directory),
                None => {
                    let Some(file_type) = self.type_of(&fd, name, entry.file_type()) else {
                        // Gone since it was listed.
                        continue;
                    };
                    let file_type = match file_type {
                        FileType::Regular if numbered => self.type_shown((ino, &fd), name),
                        file_type => file_type,
                    };
                    match numbered.then(|| self.identify_entry(ino, &fd, name)).transpose() {
                        Ok(Some(identity)) => {
                            (self.table.number(identity).ok_or(Errno::EIO)?, file_type)
                        }
                        Ok(None) => (Ino(entry.ino().max(Ino::ROOT.0 + 1)), file_type),
                        Err(Errno::ENOENT) => continue,
                        Err(error) => return Err(error),
                    }
                }
            };
            let cookie = entry.next_entry_cookie();
            let entry = DirEntry { ino: number, file_type, cookie, name: name.to_bytes() };
            if !emit(&entry) {
                break;
            }
        }
        Ok(())
    }

    /// The type that clients see of an entry that is a file: it may be a node that is kept.
    fn type_shown(&mut self, (dir, fd): (Ino, &OwnedFd), name: &CStr) -> FileType {
        let said = attributes::said_of_name(fd, name.to_bytes());
        let may_be = said.is_ok_and(|stat| self.may_be_node(&attributes::as_said(dir, &stat)));
        let node = Name::new(name.to_bytes()).ok().filter(|_| may_be);
        let found = node.and_then(|name| self.find(dir, name).ok());
        found.map_or(FileType::Regular, |(attr, _)| attr.file_type())
    }

    /// The type of an entry, which some file systems do not list.
    fn type_of(&self, dir: impl AsFd, name: &CStr, listed: sys::FileType) -> Option<FileType> {
        let listed = match listed {
            sys::FileType::Unknown => {
                let stat = sys::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW).ok()?;
                sys::FileType::from_raw_mode(stat.st_mode)
            }
            listed => listed,
        };
        FileType::from_mode(listed.as_raw_mode())
    }
}
