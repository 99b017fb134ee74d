//! A fresh directory of the host under test, and where the host differs from the contract.
//!
//! It tests [`HostDirectory`], and holds the model against Linux: what the host's file system does
//! passes through unchanged but for what [`atoll_host::directory`] says.

use std::path::Path;

use atoll_host::directory::{HostDirectory, Options};
use atoll_vfs::*;
use rustix::fs as sys;
use tempfile::TempDir;

use crate::subject::Quirks;

/// A fresh directory on a host file system, removed when this is dropped.
pub struct HostDir {
    fs: HostDirectory,
    dir: TempDir,
}

/// The magic numbers that statfs(2) gives.
const EXT4_MAGIC: i64 = 0xef53;
const TMPFS_MAGIC: i64 = 0x0102_1994;

macro_rules! pass {
    ($self:ident $verb:ident ($($arg:ident),*)) => { $self.fs.$verb($($arg),*) };
}

impl FileSystem for HostDir {
    verbs!(pass: all);

    fn statfs_below(&mut self, cx: &Context, dir: Ino) -> Result<StatFs> {
        self.fs.statfs_below(cx, dir)
    }
}

impl HostDir {
    /// Makes a directory in `parent`, with the quirks of the file system there; or says why tests
    /// cannot be run on it.
    ///
    /// # Errors
    /// A sentence for people: the file system is one whose quirks are not known.
    pub fn new(parent: &Path) -> std::result::Result<(HostDir, Quirks), String> {
        HostDir::with(parent, &Options::default())
    }

    /// As [`new`](Self::new), opened with `options`.
    ///
    /// # Errors
    /// As there.
    pub fn with(
        parent: &Path,
        options: &Options,
    ) -> std::result::Result<(HostDir, Quirks), String> {
        raise_descriptor_limit();
        // Those of clients are kept, whoever may make the host's.
        let quirks = Quirks { devices: true, ..quirks_of(parent)? };
        let explained = |error: std::io::Error| format!("{}: {error}", parent.display());
        let dir = tempfile::Builder::new()
            .prefix("atoll-hostdir-")
            .permissions(std::os::unix::fs::PermissionsExt::from_mode(0o755))
            .tempdir_in(parent)
            .map_err(explained)?;
        let fs = HostDirectory::open(dir.path(), options).map_err(explained)?;
        // The umask is not the tests'.
        std::fs::set_permissions(dir.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755))
            .map_err(explained)?;
        Ok((HostDir { fs, dir }, quirks))
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    /// The file system itself.
    pub fn inner(&mut self) -> &mut HostDirectory {
        &mut self.fs
    }
}

/// The quirks of the file system that `parent` is on.
///
/// # Errors
/// A sentence for people, as of [`HostDir::new`].
pub fn quirks_of(parent: &Path) -> std::result::Result<Quirks, String> {
    if !parent.is_dir() {
        return Err(format!("{} is no directory", parent.display()));
    }
    let statfs = sys::statfs(parent).map_err(|error| error.to_string())?;
    match statfs.f_type as i64 {
        EXT4_MAGIC if statfs.f_bsize != 4096 => Err("ext4 with other blocks than of 4 KiB".into()),
        magic => quirks_by_magic(magic),
    }
}

/// The quirks of the file system with this number, as statfs(2) says it.
///
/// # Errors
/// As of [`quirks_of`].
pub fn quirks_by_magic(magic: i64) -> std::result::Result<Quirks, String> {
    let quirks = Quirks {
        caller_time: false,
        // As an ordinary user nothing can be given to others.
        ownership: rustix::process::geteuid().is_root(),
        devices: false,
        relink: false,
        link_modes: false,
        xattr_everywhere: false,
        xattr_value_max: 2000,
        ..Quirks::default()
    };
    match magic {
        EXT4_MAGIC => Ok(Quirks { file_size_max: (16 << 40) - 4096, ..quirks }),
        TMPFS_MAGIC => {
            Ok(Quirks { zero_range: false, link_max: None, stable_cookies: false, ..quirks })
        }
        magic => Err(format!("the quirks of file system {magic:#x} are not known")),
    }
}

/// Has this process have as many descriptors as it may: tests that run side by side have thousands
/// of files open.
pub fn raise_descriptor_limit() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    // Where it cannot be raised, a test that needs more fails with ENFILE or EMFILE.
    let _ = setrlimit(Resource::Nofile, limit);
}
