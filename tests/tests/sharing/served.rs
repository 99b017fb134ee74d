//! A volume, its server, and clients of all kinds.

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use atoll_block::RamDevice;
use atoll_fs::{CheckOptions, FormatOptions, Fs, MountOptions, check, format};
use atoll_host::client::{Connection, Place, Ring};
use atoll_host::fuse::mount;
use atoll_host::server::bind::bind;
use atoll_host::server::listen::Server;
use atoll_host::server::rules::{Mode, Rules as Grants};
use atoll_host::server::{Access, Credentials, Identity, Session, Volume};
use atoll_tests::linear::clients::{Dawdling, PAGE, PosixClient, SeamClient, prepare};
use atoll_tests::linear::run::{AnyClient, World};
use atoll_tests::linear::spec::{Kernel, Rules};
use atoll_transport::channel::{Config, RingKind};
use nix::mount::MsFlags;
use nix::sched::{CloneFlags, unshare};
use tempfile::TempDir;

pub type Real = Dawdling<Fs<RamDevice>>;

/// How long a server looks for requests before it sleeps: so little that it does both.
pub const SPIN: Duration = Duration::from_micros(50);
/// Blocks of a volume.
const BLOCKS: u64 = 4096;

pub fn volume() -> Real {
    let mut device = RamDevice::new(BLOCKS);
    format(&mut device, &FormatOptions::default()).expect("format");
    Dawdling::new(Fs::mount(device, &MountOptions::default()).expect("mount"))
}

/// The ways to a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A session in this process.
    Session,
    /// A connection of its own.
    Ring,
    /// A lane of a connection that all of this kind share.
    Lane,
    /// A connection of its own, with cached reads.
    Cached,
    /// A lane of the shared connection, with cached reads.
    CachedLane,
    /// A FUSE mount of its own.
    Mount,
    /// The same, with reads through the kernel's page cache. At most one: two may see a page change in
    /// either order while it is being written.
    CachingMount,
}

/// Gives this thread a mount namespace of its own. False, and says so, where mounting is not
/// permitted.
pub fn in_namespace() -> bool {
    let private = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
    let may = unshare(CloneFlags::CLONE_NEWNS).is_ok()
        && nix::mount::mount(None::<&str>, "/", None::<&str>, private, None::<&str>).is_ok()
        && mount::open_device().is_ok();
    if !may {
        println!("skipped: this needs root, and /dev/fuse");
    }
    may
}

/// A volume's name, and what the server gives back of it.
type Ended = (String, Option<Real>);

/// A served volume.
pub struct Served {
    volume: Option<Arc<Volume<Real>>>,
    stop: Option<std::io::PipeWriter>,
    thread: Option<JoinHandle<std::io::Result<Vec<Ended>>>>,
    folder: TempDir,
    mounts: Vec<(PathBuf, Connection)>,
}

impl Served {
    /// Serves a new volume with the world on it.
    pub fn new(kept: bool) -> Served {
        let folder = tempfile::tempdir().expect("a folder");
        let volume = Volume::new(volume(), "v");
        let listener: OwnedFd = bind(&folder.path().join("s"), false).expect("a socket");
        let (stopped, stop) = std::io::pipe().expect("a pipe");
        let grants = Grants::new(Vec::new(), nix::unistd::getuid().as_raw());
        let server =
            Server::new(listener, grants, vec![Arc::clone(&volume)], SPIN).expect("a server");
        let thread = std::thread::spawn(move || server.run(stopped.as_fd()));
        let served = Served {
            volume: Some(volume),
            stop: Some(stop),
            thread: Some(thread),
            folder,
            mounts: Vec::new(),
        };
        prepare(&mut served.session(), kept).expect("an empty volume");
        served
    }

    /// The socket.
    pub fn socket(&self) -> PathBuf {
        self.folder.path().join("s")
    }

    /// A session in this process.
    pub fn session(&self) -> Session<Real> {
        let access = Access { identity: Identity::Checked, ..Access::default() };
        let volume = self.volume.as_ref().expect("it is served");
        volume.session(Credentials::default(), access).expect("a session")
    }

    /// Mounts it once more, and says where.
    pub fn mount(&mut self) -> PathBuf {
        let target = self.folder.path().join(format!("m{}", self.mounts.len()));
        std::fs::create_dir(&target).expect("a folder");
        let device = mount::open_device().expect("/dev/fuse");
        let options = mount::MountOptions {
            source: Path::new("v"),
            read_only: false,
            owner: (0, 0),
            checked: true,
        };
        mount::mount(&device, &target, &options).expect("a mount");
        let place = Place { socket: self.socket(), volume: String::new() };
        let connection = Connection::open(&place).expect("a connection");
        connection.mount(device.as_fd(), Mode::Write, false).expect("a served mount");
        self.mounts.push((target.clone(), connection));
        target
    }

    /// Ends it when all clients have gone, and examines the volume: nobody has left anything.
    pub fn end(mut self) {
        for (target, connection) in std::mem::take(&mut self.mounts) {
            mount::detach(&target).expect("a mount");
            assert!(connection.wait(), "the session of a mount was lost");
        }
        drop((self.volume.take(), self.stop.take()));
        let ended = self.thread.take().expect("a server").join().expect("it panicked");
        let [(_, Some(fs))] = <[_; 1]>::try_from(ended.expect("it failed")).expect("one volume")
        else {
            panic!("the volume is in use, or was lost")
        };
        let mut device = fs.into_inner().unmount().expect("unmount");
        let report = check(&mut device, &CheckOptions::default()).expect("check");
        assert!(report.is_clean(), "{:#?}", report.findings);
    }
}

impl Drop for Served {
    /// After a failure: leaves no mount, and waits for nobody.
    fn drop(&mut self) {
        for (target, _) in &self.mounts {
            let _ = mount::detach(target);
        }
    }
}

/// A connection through a ring with `lanes`.
pub fn ring(socket: &Path, kind: RingKind, lanes: u32) -> Ring {
    let place = Place { socket: socket.to_owned(), volume: String::new() };
    let config = Config { ring: kind, lanes, ..Config::default() };
    Connection::open(&place).expect("a server").ring(Mode::Write, &config).expect("a session")
}

/// A world on a served volume with clients of these kinds; both kinds of rings by turns.
pub fn world(seed: u64, kinds: &[Kind]) -> World {
    let mut served = Served::new(false);
    let rings = if seed.is_multiple_of(2) { RingKind::Spsc } else { RingKind::Scq };
    let mut shared = ring(&served.socket(), rings, kinds.len() as u32);
    let mut clients: Vec<AnyClient> = Vec::new();
    for kind in kinds {
        clients.push(match kind {
            Kind::Session => Box::new(SeamClient::new(served.session()).expect("the world")),
            Kind::Ring => {
                let client = ring(&served.socket(), rings, 1).client().expect("a lane");
                Box::new(SeamClient::new(client).expect("the world"))
            }
            Kind::Lane => {
                Box::new(SeamClient::new(shared.client().expect("a lane")).expect("the world"))
            }
            Kind::Cached => {
                let client = ring(&served.socket(), rings, 1).cached().expect("a lane");
                Box::new(SeamClient::new(client).expect("the world"))
            }
            Kind::CachedLane => {
                Box::new(SeamClient::new(shared.cached().expect("a lane")).expect("the world"))
            }
            Kind::Mount => Box::new(PosixClient::new(&served.mount(), PAGE).expect("the world")),
            Kind::CachingMount => {
                Box::new(PosixClient::caching(&served.mount(), PAGE).expect("the world"))
            }
        });
    }
    let between = kinds.iter().any(|kind| matches!(kind, Kind::Mount | Kind::CachingMount));
    World {
        clients,
        rules: Rules { kernel: if between { Kernel::Between } else { Kernel::None }, kept: false },
        end: Box::new(move || {
            drop(shared);
            served.end();
        }),
    }
}
