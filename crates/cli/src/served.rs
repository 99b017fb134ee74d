//! The things that are served: a volume, a directory of the host, and a file system that another
//! process offers to virtual machines.

use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::Arc;

use atoll_host::directory::{HostDirectory, Options, Owners};
use atoll_host::guest::{self, GuestFs};
use atoll_server::KnownMost;
use atoll_vfs::{
    Context, FileSystem, Handle, Ino, Locks, OutsideLocks, Result as VfsResult, StatFs,
};

use crate::failure::Failure;
use crate::volume::{self, Access, Volume};

/// A volume, a directory of the host, or a file system that this process is a guest of, in use.
// A server has few of them.
#[allow(clippy::large_enum_variant)]
pub enum Served {
    /// A volume.
    Volume(Volume),
    /// A directory of the host.
    Directory(HostDirectory),
    /// A file system on the other side of vhost-user.
    Guest(GuestFs),
}

macro_rules! by_variant {
    ($self:ident $verb:ident ($($arg:ident),*)) => {
        match $self {
            Served::Volume(fs) => FileSystem::$verb(fs, $($arg),*),
            Served::Directory(fs) => FileSystem::$verb(fs, $($arg),*),
            Served::Guest(fs) => FileSystem::$verb(fs, $($arg),*),
        }
    };
}

impl FileSystem for Served {
    atoll_vfs::verbs!(by_variant: all);

    fn statfs_below(&mut self, cx: &Context, dir: Ino) -> VfsResult<StatFs> {
        by_variant!(self statfs_below (cx, dir))
    }

    fn outside_locks(
        &mut self,
        ino: Ino,
        handle: Handle,
    ) -> VfsResult<Option<Arc<dyn OutsideLocks>>> {
        by_variant!(self outside_locks (ino, handle))
    }

    fn identity(&self) -> [u8; 16] {
        by_variant!(self identity ())
    }

    fn place(&self, ino: Ino) -> Option<(Ino, Vec<u8>)> {
        by_variant!(self place (ino))
    }

    fn recall(&mut self, ino: Ino, count: u64) {
        by_variant!(self recall (ino, count));
    }

    fn shared_locks(&mut self) -> Option<&mut dyn Locks> {
        by_variant!(self shared_locks ())
    }

    #[inline]
    fn checkpoint_due(&self) -> bool {
        by_variant!(self checkpoint_due ())
    }
}

/// Whether `path` is a directory of the host, and no volume.
pub fn is_directory(path: &Path) -> bool {
    path.is_dir()
}

/// Whether others may change what is at `path` without a call of this process's: a directory of the
/// host, or a file system that another process offers.
pub fn is_foreign(path: &Path) -> bool {
    is_directory(path) || guest::socket(path).is_some()
}

/// All files of a directory are this user's and group's; not given: nobody's, or this process's
/// user's where that may make none for others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Squash {
    /// The user.
    pub uid: Option<u32>,
    /// The group.
    pub gid: Option<u32>,
}

/// How a directory is served, beside what may be done with it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OfDirectory {
    /// All files are one user's.
    pub squash: Option<Squash>,
    /// File systems mounted in it are served too.
    pub submounts: bool,
}

/// The user and group of nobody, as in exports(5).
const NOBODY: u32 = 65534;

impl Squash {
    fn owners(self) -> Owners {
        let (own_uid, own_gid) = match Owners::of_process() {
            Owners::Kept => (NOBODY, NOBODY),
            Owners::Squashed { uid, gid } => (uid, gid),
        };
        Owners::Squashed { uid: self.uid.unwrap_or(own_uid), gid: self.gid.unwrap_or(own_gid) }
    }
}

impl Served {
    /// Opens the volume at `path`, or attaches to the file system whose socket it names.
    pub fn open_for_command(path: &Path, access: Access) -> Result<Served, Failure> {
        match guest::socket(path) {
            Some(socket) => guest::attach(socket).map(Served::Guest).map_err(Failure::new),
            None => volume::open(path, access).map(Served::Volume),
        }
    }

    /// Opens what is at `path`. With any of `how` it has to be a directory.
    pub fn open(path: &Path, access: Access, how: OfDirectory) -> Result<Served, Failure> {
        let OfDirectory { squash, submounts } = how;
        let cannot = |why: &str| Failure::new(format!("cannot serve {}: {why}", path.display()));
        if !is_directory(path) {
            if how != OfDirectory::default() {
                let options = "all_squash, anonuid, anongid and submounts";
                return Err(cannot(&format!("{options} are for directories")));
            }
            return Served::open_for_command(path, access);
        }
        let owners = squash.map(Squash::owners);
        let possible = Owners::of_process();
        if possible != Owners::Kept && owners.is_some_and(|owners| owners != possible) {
            return Err(cannot("only the superuser can make files for others"));
        }
        let read_only = access == Access::Read;
        let options = Options { read_only, owners, submounts, ..Options::default() };
        HostDirectory::open(path, &options).map(Served::Directory).map_err(|error| {
            Failure::new(format!("cannot open the directory {}: {error}", path.display()))
        })
    }

    /// Closes what was opened at `path`. Everything of a volume is durable afterwards.
    pub fn close(self, path: &Path) -> Result<(), Failure> {
        match self {
            Served::Volume(volume) => volume::close(path, volume),
            // Its files are the host's, which writes them back as those of its programs.
            Served::Directory(_) => Ok(()),
            Served::Guest(fs) => {
                fs.into_inner().disconnect();
                Ok(())
            }
        }
    }

    /// Has as little of the host in reach as it may: see [`HostDirectory::isolate`].
    pub fn isolate(&mut self) {
        if let Served::Directory(directory) = self
            && let Err(error) = directory.isolate()
        {
            log::debug!("a directory of the host has no mount of its own: {error}");
        }
    }

    /// Its clients are others than this process's user: see [`HostDirectory::serve_strangers`].
    pub fn serve_strangers(&mut self) {
        if let Served::Directory(directory) = self {
            directory.serve_strangers();
        }
    }

    /// The root of a directory of the host.
    pub fn directory(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Served::Volume(_) | Served::Guest(_) => None,
            Served::Directory(directory) => Some(directory.root()),
        }
    }

    /// Shares it as `name` with clients.
    pub fn share(
        self,
        name: impl Into<String>,
    ) -> Result<Arc<atoll_server::Volume<Served>>, atoll_vfs::Errno> {
        let foreign = matches!(self, Served::Directory(_) | Served::Guest(_));
        let submounts = matches!(&self, Served::Directory(directory) if directory.has_submounts());
        let volume = atoll_host::server::volume(self, name);
        if foreign {
            volume.set_foreign(KnownMost::default())?;
        }
        if submounts {
            volume.set_submounts();
        }
        Ok(volume)
    }
}
