//! Trees of files that can be copied between: volumes and the system's own.

mod host;
mod opened;
mod volume;

use std::ffi::{OsStr, OsString};
use std::io;
use std::ops::Deref;
use std::path::Path;

use atoll_vfs::Attr;

pub use host::HostTree;
pub use opened::{Opened, close_tree, read_tree, write_tree};
pub use volume::{VolumeTree, bytes, error, names, tree};

/// A file of a tree, with the device that its number is of.
#[derive(Clone, Copy, Debug)]
pub struct Meta {
    /// The file's attributes.
    pub attr: Attr,
    /// The device that has the file, if the tree has several.
    pub device: u64,
}

impl Meta {
    /// Tells the file from all others of its tree, by whatever names.
    pub fn id(&self) -> (u64, u64) {
        (self.device, self.attr.ino.0)
    }
}

impl Deref for Meta {
    type Target = Attr;

    fn deref(&self) -> &Attr {
        &self.attr
    }
}

/// A tree of files. Symbolic links are followed within paths, and at their end only where that is
/// said. Errors are those of the system calls that do the same. Open files are numbers.
pub trait Tree {
    /// The file at `path`; the link itself if it is one, unless `follow`.
    fn meta(&mut self, path: &Path, follow: bool) -> io::Result<Meta>;
    /// The names in a directory, without the dots, sorted.
    fn list(&mut self, path: &Path) -> io::Result<Vec<OsString>>;
    /// The target of a symbolic link.
    fn read_link(&mut self, path: &Path) -> io::Result<OsString>;
    /// Opens a regular file for reading.
    fn open(&mut self, path: &Path) -> io::Result<i32>;
    /// Makes a regular file, where there is no name yet, and opens it for writing.
    fn create(&mut self, path: &Path, mode: u32) -> io::Result<i32>;
    /// Empties the file that is there, whatever it is, and opens it for writing.
    fn overwrite(&mut self, path: &Path) -> io::Result<i32>;
    /// Reads into `buf` from `offset`: nothing only at the end of file.
    fn read(&mut self, file: i32, offset: u64, buf: &mut [u8]) -> io::Result<usize>;
    /// Writes all of `data` at `offset`.
    fn write(&mut self, file: i32, offset: u64, data: &[u8]) -> io::Result<()>;
    /// Where the next stored bytes at or after `offset` begin and end; `None` if none follow.
    fn next_data(&mut self, file: i32, offset: u64) -> io::Result<Option<(u64, u64)>>;
    /// The length, as far as it is known.
    fn len(&mut self, file: i32) -> io::Result<u64>;
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
    /// Gives what is at `from` the name `to`, in the place of what has it.
    fn rename(&mut self, from: &Path, to: &Path) -> io::Result<()>;
    /// Whether the file at `path` is a volume, so that more is lost with it than one file.
    fn is_volume(&mut self, path: &Path) -> io::Result<bool>;
    /// Removes a name of what is no directory.
    fn unlink(&mut self, path: &Path) -> io::Result<()>;
}
