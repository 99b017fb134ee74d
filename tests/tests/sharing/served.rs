//! A volume, its server, and clients of all kinds.

use atoll_block::RamDevice;
use atoll_fs::{CheckOptions, FormatOptions, Fs, MountOptions, check, format};
use atoll_host::guest::attach;
use atoll_tests::guest::{Guest, Setup};
use atoll_tests::linear::clients::{Dawdling, PAGE, PosixClient, SeamClient, prepare};
use atoll_tests::linear::run::{AnyClient, World};
use atoll_tests::linear::spec::{Kernel, Rules};
use atoll_tests::linear::stale::Stale;
use atoll_tests::served::guest_by;
pub use atoll_tests::served::{SPIN, Served, guest, in_namespace, ring};

pub type Real = Dawdling<Fs<RamDevice>>;

/// Blocks of a volume.
const BLOCKS: u64 = 4096;

/// A volume's root that is the user's who runs the tests: a server judges its clients.
pub fn owned() -> FormatOptions<'static> {
    let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
    FormatOptions { uid: uid.as_raw(), gid: gid.as_raw(), ..FormatOptions::default() }
}

pub fn volume() -> Real {
    let mut device = RamDevice::new(BLOCKS);
    format(&mut device, &owned()).expect("format");
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
    /// The same, with reads through the kernel's page cache. At most one: two may see a page change
    /// in either order while it is being written.
    CachingMount,
    /// A virtual machine's device, of whose data the driver keeps nothing.
    Guest,
    /// A process that is the guest, and keeps what it learns until it is told.
    ToldGuest,
    /// The same, of a device that is wrong: it answers from a copy.
    StaleGuest,
}

/// Serves a new volume with the world on it, and so many devices for virtual machines.
pub fn serve_to(guests: usize, kept: bool) -> Served<Real> {
    let served = Served::with_devices(volume(), guests);
    prepare(&mut served.session(), kept).expect("an empty volume");
    served
}

/// Ends it when all clients have gone, and examines the volume: nobody has left anything.
pub fn examine(served: Served<Real>) {
    let fs = served.end().expect("the volume is in use, or was lost");
    let mut device = fs.into_inner().unmount().expect("unmount");
    let report = check(&mut device, &CheckOptions::default()).expect("check");
    assert!(report.is_clean(), "{:#?}", report.findings);
}

/// A world on a served volume with clients of these kinds.
pub fn world(kinds: &[Kind]) -> World {
    let of_guest = |kind: &&Kind| matches!(kind, Kind::Guest | Kind::ToldGuest | Kind::StaleGuest);
    let guests = kinds.iter().filter(of_guest).count();
    let mut served = serve_to(guests, false);
    let mut shared = ring(&served.socket(), kinds.len() as u32);
    let mut clients: Vec<AnyClient> = Vec::new();
    for kind in kinds {
        clients.push(match kind {
            Kind::Session => Box::new(SeamClient::new(served.session()).expect("the world")),
            Kind::Ring => {
                let client = ring(&served.socket(), 1).client().expect("a lane");
                Box::new(SeamClient::new(client).expect("the world"))
            }
            Kind::Lane => {
                Box::new(SeamClient::new(shared.client().expect("a lane")).expect("the world"))
            }
            Kind::Cached => {
                let client = ring(&served.socket(), 1).cached().expect("a lane");
                Box::new(SeamClient::new(client).expect("the world"))
            }
            Kind::CachedLane => {
                Box::new(SeamClient::new(shared.cached().expect("a lane")).expect("the world"))
            }
            Kind::Guest => {
                let client = guest(&served.device());
                Box::new(SeamClient::new(client).expect("the world").untold())
            }
            Kind::ToldGuest => {
                let client = attach(&served.device()).expect("a device");
                Box::new(SeamClient::caching(client).expect("the world").untold())
            }
            Kind::StaleGuest => {
                let device = Guest::connect(&served.device(), Setup::default());
                let client = guest_by(Stale::new(device));
                Box::new(SeamClient::new(client).expect("the world").untold())
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
            examine(served);
        }),
    }
}
