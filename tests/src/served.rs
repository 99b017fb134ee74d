//! A volume with a server in this process, for clients through its socket and through mounts.

use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use atoll_host::client::{Address, Connection, Ring};
use atoll_host::fuse::mount;
use atoll_host::server::bind::{bind, bind_stream};
use atoll_host::server::guests::{self, Ids};
use atoll_host::server::listen::{Door, SocketServer};
use atoll_host::server::rules::{Mode, Rules};
use atoll_host::virtio::device::DeviceOptions;
use atoll_server::route::kernel::KernelOptions;
use atoll_server::{Access, Credentials, Identity, KnownMost, Session, Volume};
use atoll_transport::Transport;
use atoll_transport::channel::Config;
use atoll_vfs::wire::Extensions;
use atoll_vfs::{AccessTimes, Client, ClientOptions, FileSystem};
use nix::mount::MsFlags;
use nix::sched::{CloneFlags, unshare};
use tempfile::TempDir;

use crate::guest::{Guest, Setup};

/// How long a server looks for requests before it sleeps: so little that it does both.
pub const SPIN: Duration = Duration::from_micros(50);

/// A user that no process of a test runs as.
const NOBODYS: u32 = 0x7fff_0000;

/// Calls `act` in a thread that a server of [`Served::to_strangers`] does not trust: of the user
/// `uid` where this process is the superuser's, else of this process's own.
///
/// # Panics
/// When `act` does.
pub fn as_stranger<T: Send>(uid: u32, act: impl FnOnce() -> T + Send) -> T {
    let strange = || {
        if nix::unistd::geteuid().is_root() {
            let user = rustix::process::Uid::from_raw(uid);
            rustix::thread::set_thread_res_uid(user, user, user).expect("another user");
        }
        act()
    };
    std::thread::scope(|scope| scope.spawn(strange).join().expect("it failed"))
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

/// How tests mount: as the superuser, for whom the kernel checks permissions.
pub fn mount_options(read_only: bool) -> mount::MountOptions<'static> {
    let access_times = AccessTimes::default();
    mount::MountOptions {
        source: Path::new("v"),
        read_only,
        owner: (0, 0),
        checked: true,
        access_times,
    }
}

/// A volume's name, and the file system that the server gives back.
type Ended<F> = (String, Option<F>);

/// A served volume.
pub struct Served<F: FileSystem + Send + 'static> {
    volume: Option<Arc<Volume<F>>>,
    stop: Option<std::io::PipeWriter>,
    thread: Option<JoinHandle<std::io::Result<Vec<Ended<F>>>>>,
    folder: TempDir,
    mounts: Vec<(PathBuf, Connection)>,
    /// Devices of virtual machines that have no front end yet.
    devices: Vec<PathBuf>,
}

impl<F: FileSystem + Send + 'static> Served<F> {
    /// Serves `fs`.
    ///
    /// # Panics
    /// When it cannot be served.
    pub fn new(fs: F) -> Served<F> {
        Served::with_devices(fs, 0)
    }

    /// The same, with so many devices for virtual machines.
    ///
    /// # Panics
    /// When it cannot be served.
    pub fn with_devices(fs: F, devices: usize) -> Served<F> {
        Served::with_devices_of(fs, &vec![0; devices])
    }

    /// The same, each of whose guests may rely for so many seconds on what it has learnt.
    ///
    /// # Panics
    /// When it cannot be served.
    pub fn with_devices_of(fs: F, devices: &[u64]) -> Served<F> {
        Served::by(fs, &[], nix::unistd::getuid().as_raw(), devices, false)
    }

    /// Serves a directory of the host, with so many devices for virtual machines.
    ///
    /// # Panics
    /// When it cannot be served.
    pub fn of_directory(fs: F, devices: usize) -> Served<F> {
        Served::by(fs, &[], nix::unistd::getuid().as_raw(), &vec![0; devices], true)
    }

    /// Serves `fs` to everybody, as a user that is nobody's own: see [`as_stranger`].
    ///
    /// # Panics
    /// When it cannot be served.
    pub fn to_strangers(fs: F) -> Served<F> {
        let served = Served::by(fs, &["all=rw"], NOBODYS, &[], false);
        let all = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(served.folder.path(), all).expect("a folder");
        served
    }

    fn by(fs: F, rules: &[&str], own: u32, seconds: &[u64], is_foreign: bool) -> Served<F> {
        let rules = || {
            let rules = rules.iter().map(|rule| rule.parse().expect("a rule")).collect();
            Rules::new(rules, own)
        };
        let folder = tempfile::tempdir().expect("a folder");
        let volume = atoll_host::server::volume(fs, "v");
        if is_foreign {
            volume.set_foreign(KnownMost::default()).expect("a directory");
        }
        let others = rules().admit_others();
        let listener = bind(&folder.path().join("s"), others).expect("a socket");
        let (stopped, stop) = std::io::pipe().expect("a pipe");
        let door = Door { listener, rules: rules() };
        let mut server =
            SocketServer::new(vec![door], None, vec![Arc::clone(&volume)], SPIN).expect("a server");
        let devices: Vec<PathBuf> =
            (0..seconds.len()).map(|number| folder.path().join(format!("d{number}"))).collect();
        for (socket, seconds) in devices.iter().zip(seconds) {
            let kernel = KernelOptions { untold: Some(*seconds), ..KernelOptions::default() };
            let tag = "data".to_owned();
            let machine = guests::Guest {
                listener: bind_stream(socket, false).expect("a socket"),
                rules: rules(),
                volume: "v".to_owned(),
                read_only: false,
                ids: Ids::Guest,
                away: guests::AWAY,
                device: DeviceOptions {
                    tag,
                    queues: 1,
                    kernel,
                    spin: SPIN,
                    window: 0,
                    copies: false,
                    // A driver that takes no notices is served as by one that has none.
                    tells: *seconds == 0 && !is_foreign,
                },
            };
            server.attach(machine).expect("a device");
        }
        let thread = std::thread::spawn(move || server.run(stopped.as_fd()));
        Served {
            volume: Some(volume),
            stop: Some(stop),
            thread: Some(thread),
            folder,
            mounts: Vec::new(),
            devices,
        }
    }

    /// The socket.
    pub fn socket(&self) -> PathBuf {
        self.folder.path().join("s")
    }

    /// A session in this process.
    ///
    /// # Panics
    /// When the volume has ended.
    pub fn session(&self) -> Session<F> {
        let access = Access { identity: Identity::Checked, ..Access::default() };
        let volume = self.volume.as_ref().expect("it is served");
        volume.session(Credentials::default(), access).expect("a session")
    }

    /// Mounts it once more, and says where.
    ///
    /// # Panics
    /// When it cannot be mounted.
    pub fn mount(&mut self) -> PathBuf {
        let target = self.folder.path().join(format!("m{}", self.mounts.len()));
        std::fs::create_dir(&target).expect("a folder");
        let device = mount::open_device().expect("/dev/fuse");
        let options = mount_options(false);
        mount::mount(&device, &target, &options).expect("a mount");
        let place = Address { socket: self.socket(), volume: String::new() };
        let connection = Connection::open(&place).expect("a connection");
        connection.mount(device.as_fd(), Mode::Write, false).expect("a served mount");
        self.mounts.push((target.clone(), connection));
        target
    }

    /// Where the sockets are: of devices, `d` and a number.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The socket of a device that has no front end.
    ///
    /// # Panics
    /// When there is none.
    pub fn device(&mut self) -> PathBuf {
        self.devices.pop().expect("a device")
    }

    /// The socket of a device, which others may be given too.
    pub fn device_at(&self, number: usize) -> &Path {
        &self.devices[number]
    }

    /// Tells the server to end, and does not wait for it.
    pub fn stop(&mut self) {
        drop((self.volume.take(), self.stop.take()));
    }

    /// Ends it when all clients have gone, and returns the file system: nobody uses it any more.
    /// `None` if it was lost.
    ///
    /// # Panics
    /// When the server or a mount has failed.
    pub fn end(mut self) -> Option<F> {
        for (target, connection) in std::mem::take(&mut self.mounts) {
            mount::detach(&target).expect("a mount");
            assert!(connection.wait(), "the session of a mount was lost");
        }
        self.stop();
        let ended = self.thread.take().expect("a server").join().expect("it panicked");
        let [(_, fs)] = <[_; 1]>::try_from(ended.expect("it failed"))
            .unwrap_or_else(|_| panic!("it serves one volume"));
        fs
    }
}

impl<F: FileSystem + Send + 'static> Drop for Served<F> {
    /// After a failure: leaves no mount, and waits for nobody.
    fn drop(&mut self) {
        for (target, _) in &self.mounts {
            let _ = mount::detach(target);
        }
    }
}

/// A guest of the device at `socket`: its driver is in this process, its requests say who makes
/// them.
///
/// # Panics
/// When the device does not answer.
pub fn guest(socket: &Path) -> Client<Guest> {
    guest_by(Guest::connect(socket, Setup::default()))
}

/// The same, by a transport that leads to a guest.
///
/// # Panics
/// When the device does not answer.
pub fn guest_by<T: Transport>(transport: T) -> Client<T> {
    let options = ClientOptions { extensions: Extensions::empty(), ..ClientOptions::default() };
    Client::connect(transport, options).expect("a session")
}

/// A connection through a ring with `lanes`.
///
/// # Panics
/// When there is none to be had.
pub fn ring(socket: &Path, lanes: u32) -> Ring {
    let place = Address { socket: socket.to_owned(), volume: String::new() };
    let config = Config { lanes, ..Config::default() };
    Connection::open(&place).expect("a server").ring(Mode::Write, &config).expect("a session")
}
