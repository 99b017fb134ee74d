//! Trees of files that can be copied between: volumes and the system's own.

mod host;
mod volume;

use std::ffi::{OsStr, OsString};
use std::io;
use std::path::Path;

use atoll_vfs::Attr;

pub use host::HostTree;
pub use volume::{VolumeTree, bytes, error, names, tree};

/// A tree of files. Symbolic links are followed within paths, and at their end only where that is
/// said. Errors are those of the system calls that do the same. Open files are numbers.
pub trait Tree {
    /// What `path` is; the link itself if it is one, unless `follow`.
    fn meta(&mut self, path: &Path, follow: bool) -> io::Result<Attr>;
    /// The names in a directory, without the dots, sorted.
    fn list(&mut self, path: &Path) -> io::Result<Vec<OsString>>;
    /// The target of a symbolic link.
    fn read_link(&mut self, path: &Path) -> io::Result<OsString>;
    /// Opens a regular file for reading.
    fn open(&mut self, path: &Path) -> io::Result<i32>;
    /// Makes a regular file, or empties the one that is there, and opens it for writing.
    fn create(&mut self, path: &Path, mode: u32) -> io::Result<i32>;
    /// Reads into `buf` from `offset`: nothing only at the end of file.
    fn read(&mut self, file: i32, offset: u64, buf: &mut [u8]) -> io::Result<usize>;
    /// Writes all of `data` at `offset`.
    fn write(&mut self, file: i32, offset: u64, data: &[u8]) -> io::Result<()>;
    /// Where the next stored bytes at or after `offset` begin and end; `None` if none follow.
    fn next_data(&mut self, file: i32, offset: u64) -> io::Result<Option<(u64, u64)>>;
    /// Sets the length.
    fn set_len(&mut self, file: i32, len: u64) -> io::Result<()>;
    /// Closes a file.
    fn close(&mut self, file: i32) -> io::Result<()>;
    /// Makes a directory.
    fn make_dir(&mut self, path: &Path, mode: u32) -> io::Result<()>;
    /// Makes a symbolic link that says `target`.
    fn make_link(&mut self, path: &Path, target: &OsStr) -> io::Result<()>;
    /// Gives the file `existing` another name.
    fn hard_link(&mut self, existing: &Path, path: &Path) -> io::Result<()>;
    /// Makes a pipe, socket or device file like the one that `attr` describes.
    fn make_node(&mut self, path: &Path, attr: &Attr) -> io::Result<()>;
    /// Gives `path` the mode and times of `attr`, and with `owner` its owner and group.
    fn set_meta(&mut self, path: &Path, attr: &Attr, owner: bool) -> io::Result<()>;
    /// The extended attributes that users make.
    fn attributes(&mut self, path: &Path) -> io::Result<Vec<(OsString, Vec<u8>)>>;
    /// Sets an extended attribute.
    fn set_attribute(&mut self, path: &Path, name: &OsStr, value: &[u8]) -> io::Result<()>;
    /// Removes a name of what is no directory.
    fn unlink(&mut self, path: &Path) -> io::Result<()>;
}
