//! The file systems that are measured side by side, and the rings.

use std::ffi::CString;
use std::fmt;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::system;

/// A subject of measurement: a file system, or a ring.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Serialize,
    Deserialize,
    clap::ValueEnum,
)]
#[serde(rename_all = "kebab-case")]
pub enum Subject {
    /// A volume in a file on the disk, mapped into memory.
    AtollMmap,
    /// A volume in a file on the disk, by pread and pwrite alone.
    AtollPread,
    /// A volume in the memory of the process.
    AtollRam,
    /// The file system of the disk, by system calls.
    Disk,
    /// tmpfs, by system calls.
    Tmpfs,
    /// A volume that a server serves, through the rings of a client in the program.
    #[value(name = "server")]
    #[serde(rename = "server")]
    AtollServer,
    /// The same, by system calls on a FUSE mount.
    #[value(name = "fuse")]
    #[serde(rename = "fuse")]
    AtollFuse,
    /// A volume that `atoll run` alone serves, to be read and written.
    #[value(name = "alone")]
    #[serde(rename = "alone")]
    AtollAlone,
    /// The same, to be read only.
    #[value(name = "read-only")]
    #[serde(rename = "read-only")]
    AtollReadOnly,
    /// The ring for one producer, one for each.
    Spsc,
    /// The ring for many producers.
    Scq,
    /// The ring for one producer, with a lock for many.
    Locked,
}

impl Subject {
    /// All, in the order of the tables' columns.
    pub const ALL: [Subject; 12] = [
        Subject::AtollServer,
        Subject::AtollFuse,
        Subject::AtollAlone,
        Subject::AtollReadOnly,
        Subject::AtollMmap,
        Subject::AtollPread,
        Subject::AtollRam,
        Subject::Disk,
        Subject::Tmpfs,
        Subject::Spsc,
        Subject::Scq,
        Subject::Locked,
    ];
    /// Atoll inside the program's process, and the kernel's.
    pub const EMBEDDED: [Subject; 5] =
        [Subject::AtollMmap, Subject::AtollPread, Subject::AtollRam, Subject::Disk, Subject::Tmpfs];
    /// Atoll in a process of its own, and the kernel's.
    pub const SERVED: [Subject; 4] =
        [Subject::AtollServer, Subject::AtollFuse, Subject::Disk, Subject::Tmpfs];

    /// Whether it is Atoll.
    pub fn is_atoll(self) -> bool {
        !matches!(self, Subject::Disk | Subject::Tmpfs | Subject::Locked)
    }

    /// Whether a server of its own serves it.
    pub fn is_served(self) -> bool {
        matches!(self, Subject::AtollServer | Subject::AtollFuse)
    }

    /// Whether programs reach it by system calls, below a mount.
    pub fn is_mounted(self) -> bool {
        use Subject::{AtollAlone, AtollFuse, AtollReadOnly};
        matches!(self, AtollFuse | AtollAlone | AtollReadOnly)
    }

    /// Whether it is a volume in a file, made before it is measured.
    pub fn is_volume(self) -> bool {
        self.is_served()
            || self.is_mounted()
            || matches!(self, Subject::AtollMmap | Subject::AtollPread)
    }

    /// The name on the command line and in JSON.
    pub fn key(self) -> &'static str {
        match self {
            Subject::AtollMmap => "atoll-mmap",
            Subject::AtollPread => "atoll-pread",
            Subject::AtollRam => "atoll-ram",
            Subject::Disk => "disk",
            Subject::Tmpfs => "tmpfs",
            Subject::AtollServer => "server",
            Subject::AtollFuse => "fuse",
            Subject::AtollAlone => "alone",
            Subject::AtollReadOnly => "read-only",
            Subject::Spsc => "spsc",
            Subject::Scq => "scq",
            Subject::Locked => "locked",
        }
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.key())
    }
}

/// Where subjects keep their files.
#[derive(Clone, Debug)]
pub struct Places {
    /// A folder on the disk.
    pub disk: PathBuf,
    /// A folder on a tmpfs.
    pub memory: PathBuf,
}

impl Places {
    /// A new empty folder for one measurement of `subject`, removed with everything in it when the
    /// value goes.
    pub fn fresh(&self, subject: Subject) -> io::Result<tempfile::TempDir> {
        let place = if subject == Subject::Tmpfs { &self.memory } else { &self.disk };
        tempfile::Builder::new().prefix("atoll-bench-").tempdir_in(place)
    }

    /// The name of the disk's file system, for the tables.
    pub fn disk_name(&self) -> &'static str {
        name_at(&self.disk).unwrap_or("disk")
    }

    /// Checks that the memory folder is on a tmpfs, without which the ratios would mean nothing.
    pub fn check(&self) -> Result<(), String> {
        match name_at(&self.memory) {
            Some("tmpfs") => Ok(()),
            other => Err(format!(
                "{} is on {}, not on a tmpfs; name a folder that is with --memory",
                self.memory.display(),
                other.unwrap_or("another file system"),
            )),
        }
    }
}

fn name_at(folder: &Path) -> Option<&'static str> {
    system::file_system_name(&CString::new(folder.as_os_str().as_bytes()).ok()?)
}
