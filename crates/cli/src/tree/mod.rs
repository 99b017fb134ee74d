//! Trees of files that can be copied between: volumes and the system's own.

mod host;
mod volume;

use std::ffi::OsString;
use std::io;
use std::path::Path;

use atoll_vfs::{FileType, Timespec};

pub use host::HostTree;
pub use volume::VolumeTree;

/// What is kept of a file besides its content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Meta {
    /// Number of the file, the same for all its names.
    pub ino: u64,
    /// Type.
    pub kind: FileType,
    /// Permission bits.
    pub mode: u32,
    /// Number of names.
    pub nlink: u64,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Length in bytes.
    pub size: u64,
    /// Storage in bytes.
    pub stored: u64,
    /// Device number of a device file.
    pub rdev: u64,
    /// Last access.
    pub atime: Timespec,
    /// Last change of content.
    pub mtime: Timespec,
}

impl Meta {
    /// Whether it is a directory.
    pub fn is_dir(&self) -> bool {
        self.kind == FileType::Directory
    }
}

/// An open file of a tree.
#[derive(Clone, Copy, Debug)]
pub struct FileId(pub usize);

/// A tree of files. Symbolic links are followed within paths, and at their end only where that is
/// said. Errors are those of the system calls that do the same.
pub trait Tree {
    /// What `path` is; the link itself if it is one, unless `follow`.
    fn meta(&mut self, path: &Path, follow: bool) -> io::Result<Meta>;
    /// The names in a directory, without the dots, sorted.
    fn list(&mut self, path: &Path) -> io::Result<Vec<OsString>>;
    /// What a symbolic link says.
    fn read_link(&mut self, path: &Path) -> io::Result<OsString>;
    /// Opens a regular file for reading.
    fn open(&mut self, path: &Path) -> io::Result<FileId>;
    /// Makes a regular file, or empties the one that is there, and opens it for writing.
    fn create(&mut self, path: &Path, mode: u32) -> io::Result<FileId>;
    /// Reads into `buf` from `offset`, short only at the end of file.
    fn read(&mut self, file: FileId, offset: u64, buf: &mut [u8]) -> io::Result<usize>;
    /// Writes all of `data` at `offset`.
    fn write(&mut self, file: FileId, offset: u64, data: &[u8]) -> io::Result<()>;
    /// Where the next stored bytes at or after `offset` begin and end; `None` if none follow.
    fn next_data(&mut self, file: FileId, offset: u64) -> io::Result<Option<(u64, u64)>>;
    /// Sets the length.
    fn set_len(&mut self, file: FileId, len: u64) -> io::Result<()>;
    /// Closes a file.
    fn close(&mut self, file: FileId) -> io::Result<()>;
    /// Makes a directory.
    fn make_dir(&mut self, path: &Path, mode: u32) -> io::Result<()>;
    /// Makes a symbolic link that says `target`.
    fn make_link(&mut self, path: &Path, target: &OsString) -> io::Result<()>;
    /// Gives the file `existing` another name.
    fn hard_link(&mut self, existing: &Path, path: &Path) -> io::Result<()>;
    /// Makes a pipe, socket or device file like the one that `meta` describes.
    fn make_node(&mut self, path: &Path, meta: &Meta) -> io::Result<()>;
    /// Gives `path` the mode and times of `meta`, and with `owner` its owner and group.
    fn set_meta(&mut self, path: &Path, meta: &Meta, owner: bool) -> io::Result<()>;
    /// The extended attributes that users make.
    fn attributes(&mut self, path: &Path) -> io::Result<Vec<(OsString, Vec<u8>)>>;
    /// Sets an extended attribute.
    fn set_attribute(&mut self, path: &Path, name: &OsString, value: &[u8]) -> io::Result<()>;
    /// Removes a name of what is no directory.
    fn unlink(&mut self, path: &Path) -> io::Result<()>;
    /// Removes an empty directory.
    fn remove_dir(&mut self, path: &Path) -> io::Result<()>;
}
