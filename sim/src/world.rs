//! The world of one schedule: a volume and its machine, the clients that use it, and what happens
//! next.

use std::sync::Arc;
use std::time::Duration;

use atoll_block::FaultDevice;
use atoll_block::fault::Image;
use atoll_fs::{Fs, MountOptions};
use atoll_server::Volume;
use atoll_server::checkpoints::Checkpointer;
use atoll_server::host::Host;
use atoll_server::leases::caches::Lends;
use atoll_server::removals::Remover;
use atoll_server::revocable::Revocable;
use atoll_server::rights::accounts::{Account, Accounts, Resource, Shares};
use atoll_server::rights::identity::Identity;
use atoll_server::route::kernel::{Kernel as KernelRoute, KernelOptions};
use atoll_server::route::router::{Router, serve_next};
use atoll_server::syncs::Syncer;
use atoll_tests::rng::Rng;
use atoll_vfs::model::ModelFs;
use atoll_vfs::server::ServerOptions;
use atoll_vfs::wire::Extensions;
use atoll_vfs::{Context, Ino, Result as FsResult, Timespec};
use xxhash_rust::xxh3::Xxh3Default;

use crate::call::{Call, Node, Side, Twin};
use crate::carrier::{Letter, Line, Manner, Outbox};
use crate::codec;
use crate::disk::{self, Disk};
use crate::ends;
use crate::generate::Habits;
use crate::jobs::{Job, Keeper};
use crate::kernel::Kernel;
use crate::listings::long_directory;
use crate::locks::Locks;
use crate::machine::{Machine, Rung};
use crate::mirror::Mirror;
use crate::plant::Plant;
use crate::removals::Fragmented;
use crate::seat::{MEETING, Pending, ROLES, Role, Seat};
use crate::views::View;

/// A result, or what went wrong.
pub type Outcome<T> = Result<T, String>;

/// The life of the machine's memory until the power is lost.
pub const LIFE: [u8; 16] = *b"before the loss ";
/// And after.
pub const NEXT_LIFE: [u8; 16] = *b"after the loss  ";
/// Memory for cached blocks.
pub(crate) const CACHE_BYTES: usize = 256 << 10;

/// A volume that worlds begin with, and what is in it.
pub struct Template {
    pub(crate) image: Image,
    model: ModelFs,
    subtree: Ino,
    /// The same with a file of many extents, for who removes it.
    pub(crate) long: Fragmented,
    /// And with a directory of many long names.
    pub(crate) listed: Image,
}

impl Default for Template {
    /// With a directory `s` for everybody.
    fn default() -> Template {
        let mut model = ModelFs::default();
        let device = FaultDevice::from_image(disk::template());
        let options = MountOptions { cache_bytes: CACHE_BYTES, ..MountOptions::default() };
        let mut fs = Fs::mount(device, &options).expect("it was just made");
        let cx = Context { uid: 0, gid: 0, now: Timespec::default() };
        let root = Twin { served: Ino::ROOT, model: Ino::ROOT };
        let set = atoll_vfs::SetAttr { mode: Some(0o777), ..Default::default() };
        for call in [
            Call::Setattr { node: root, file: None, set },
            Call::Mkdir { parent: root, name: b's', mode: 0o777 },
            Call::Mknod { parent: root, name: b'a', mode: 0o666 },
        ] {
            call.ask(&mut fs, &cx, Side::Served).expect("there is room");
            call.ask(&mut model, &cx, Side::Model).expect("as there");
        }
        let name = atoll_vfs::Name::new(b"s").expect("a name");
        let subtree = atoll_vfs::FileSystem::lookup(&mut model, &cx, Ino::ROOT, name);
        let image = fs.unmount().expect("nothing fails").process_crash();
        let long = Fragmented::new(&image).expect("there is room");
        let listed = long_directory(&image).expect("there is room");
        Template { image, model, subtree: subtree.expect("it was made").ino, long, listed }
    }
}

/// The options of a schedule.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Turns in which requests are made.
    pub turns: u64,
    /// The planted defect.
    pub plant: Option<Plant>,
    /// Say what happens.
    pub trace: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options { turns: 100, plant: None, trace: false }
    }
}

/// The world.
pub struct World {
    pub(crate) rng: Rng,
    pub(crate) options: Options,
    pub(crate) habits: Habits,
    pub(crate) machine: Arc<Machine>,
    pub(crate) disk: Disk,
    pub(crate) volume: Option<Arc<Volume<Fs<Disk>>>>,
    pub(crate) jobs: Vec<Job>,
    pub(crate) keeper: Option<Keeper>,
    pub(crate) seats: Vec<Seat>,
    /// The kernels of mounts that have ended, which still get notices.
    pub(crate) ghosts: Vec<Kernel>,
    /// Planted: sessions that nobody ends.
    pub(crate) leaked: Vec<Seat>,
    pub(crate) pending: Vec<Pending>,
    pub(crate) outbox: Outbox,
    /// Answers that may be given, and the outcomes of their waits.
    pub(crate) due: Vec<(u64, FsResult<()>)>,
    pub(crate) mirror: Mirror,
    pub(crate) locks: Locks,
    /// Each user's use of the server.
    accounts: Accounts,
    open_accounts: Vec<Arc<Account>>,
    pub(crate) subtree: Ino,
    /// Planted: the user that comes next is this number higher.
    pub(crate) incognito: u32,
    pub(crate) next_id: u64,
    /// The model cannot follow any more.
    pub(crate) over: bool,
    digest: Xxh3Default,
    /// The events so far, in numbers.
    pub counts: Counts,
}

/// The outcome of a schedule, in numbers.
#[derive(Clone, Copy, Debug, Default)]
#[allow(missing_docs)]
pub struct Counts {
    pub events: u64,
    pub calls: u64,
    pub syncs: u64,
    pub locks: u64,
    pub notices: u64,
    pub fences: u64,
    pub shown: u64,
    pub deaths: u64,
    pub process_ends: u64,
    pub power_losses: u64,
    pub checkpoint_steps: u64,
    /// The most turns until all were answered, when only hostile clients went on.
    pub longest_rest: u64,
    /// Locks that were waited for until a signal came.
    pub interrupted: u64,
    /// Lives of the server whose device failed.
    pub failures: u64,
    /// Calls and syncs that were answered EIO.
    pub errors: u64,
    /// Answers that were found in Views.
    pub looks: u64,
    /// Messages that hostile clients sent.
    pub attacks: u64,
    /// Hostile clients that the server has dropped.
    pub dropped: u64,
    /// Requests refused to hostile clients that have too much.
    pub bounded: u64,
}

impl Counts {
    /// Adds those of another schedule.
    pub fn add(&mut self, other: &Counts) {
        self.events += other.events;
        self.calls += other.calls;
        self.syncs += other.syncs;
        self.locks += other.locks;
        self.notices += other.notices;
        self.fences += other.fences;
        self.shown += other.shown;
        self.deaths += other.deaths;
        self.process_ends += other.process_ends;
        self.power_losses += other.power_losses;
        self.checkpoint_steps += other.checkpoint_steps;
        self.longest_rest = self.longest_rest.max(other.longest_rest);
        self.interrupted += other.interrupted;
        self.failures += other.failures;
        self.errors += other.errors;
        self.looks += other.looks;
        self.attacks += other.attacks;
        self.dropped += other.dropped;
        self.bounded += other.bounded;
    }
}

/// Prints what happens, where that is asked for.
macro_rules! trace {
    ($world:expr, $($what:tt)*) => {
        if $world.options.trace {
            println!("{:>5} {}", $world.counts.events, format_args!($($what)*));
        }
    };
}
pub(crate) use trace;

impl World {
    /// The world of `seed`.
    ///
    /// # Errors
    /// The server cannot begin.
    pub fn new(template: &Template, seed: u64, options: Options) -> Outcome<World> {
        World::on(template, &template.image, seed, options)
    }

    /// The same on the volume `image`, of which no model needs to know.
    pub(crate) fn on(
        template: &Template,
        image: &Image,
        seed: u64,
        options: Options,
    ) -> Outcome<World> {
        let mut rng = Rng::new(seed ^ u64::from_be_bytes(*b"schedule"));
        let heavy = rng.chance(10);
        let habits = Habits {
            write_max: if heavy { 40_000 } else { 600 },
            xattr_max: if heavy { 60_000 } else { 200 },
            meets: rng.chance(35),
            trouble: rng.chance(8) || options.plant == Some(Plant::SwallowedError),
        };
        let device = FaultDevice::from_image(image.clone());
        let disk = Disk::new(device, options.plant == Some(Plant::LyingFlush));
        let machine = Arc::new(Machine::new(rng.number()));
        let mut world = World {
            rng,
            options,
            habits,
            machine,
            disk,
            volume: None,
            jobs: Vec::new(),
            keeper: None,
            seats: Vec::new(),
            ghosts: Vec::new(),
            leaked: Vec::new(),
            pending: Vec::new(),
            outbox: Outbox::default(),
            due: Vec::new(),
            mirror: Mirror::new(template.model.clone()),
            locks: Locks::default(),
            accounts: Accounts::new(Shares::UNLIMITED),
            open_accounts: Vec::new(),
            subtree: template.subtree,
            incognito: 0,
            next_id: 1,
            over: false,
            digest: Xxh3Default::new(),
            counts: Counts::default(),
        };
        let fs = ends::mount(world.disk.clone(), LIFE)?;
        world.begin_server(fs)?;
        Ok(world)
    }

    /// A server begins.
    pub(crate) fn begin_server(&mut self, fs: Fs<Disk>) -> Outcome<()> {
        let machine: Arc<dyn Host> = Arc::<Machine>::clone(&self.machine);
        let volume = Volume::new(fs, "v", machine);
        let loses = match self.options.plant {
            Some(Plant::LostRing) => self.rng.within(1..4) as u32,
            _ => 0,
        };
        let bell = Arc::new(Rung::losing(loses));
        let syncer = Syncer::new(&volume, Arc::<Rung>::clone(&bell));
        self.jobs.push(Job::new(Box::new(syncer), bell));
        let bell = Arc::new(Rung::default());
        let checkpointer = Checkpointer::new(&volume, Arc::<Rung>::clone(&bell));
        self.jobs.push(Job::new(Box::new(checkpointer), bell));
        if self.options.plant != Some(Plant::WholeRemovals) {
            let bell = Arc::new(Rung::default());
            let remover = Remover::new(&volume, Arc::<Rung>::clone(&bell));
            self.jobs.push(Job::new(Box::new(remover), bell));
        }
        self.volume = Some(volume);
        self.accounts = Accounts::new(Shares::UNLIMITED);
        self.open_accounts.clear();
        for _ in 0..self.rng.within(1..5) {
            self.arrive()?;
        }
        Ok(())
    }

    /// Somebody connects.
    pub(crate) fn arrive(&mut self) -> Outcome<()> {
        let role = self.rng.pick(if self.habits.meets { &MEETING } else { &ROLES });
        self.sit_down(role)
    }

    /// A client connects.
    pub(crate) fn sit_down(&mut self, role: Role) -> Outcome<()> {
        let Some(volume) = &self.volume else { return Ok(()) };
        let mut access = role.access();
        match self.options.plant {
            Some(Plant::EndlessLocks) => access.limits.locks = usize::MAX,
            Some(Plant::UncheckedUser) => access.identity = Identity::Checked,
            _ => {}
        }
        if !role.is_free() {
            let account = self.accounts.open(role.uid(), Shares::UNLIMITED);
            if self.options.plant == Some(Plant::KeptCharges) {
                std::mem::forget(account.charge(Resource::Memory, 1));
            }
            access.account = Some(Arc::clone(&account));
            self.open_accounts.push(account);
        }
        let mut peer = role.peer();
        peer.uid += self.incognito;
        let session = volume.session(peer, access);
        let mut session = match session {
            Ok(session) => session,
            // The directory was renamed or removed.
            Err(_) if role.is_subtree() => return Ok(()),
            Err(_) if self.disk.errors() > 0 => return Ok(()),
            Err(error) => return Err(format!("a session of {role:?} is refused: {error}")),
        };
        session.carried();
        let view = match role.is_mount() || role.is_hostile() || self.rng.chance(40) {
            true => None,
            false => {
                let view = session.begin_view(usize::MAX, |memory| Ok(View::reader(memory)));
                view.map_err(|error| format!("a View is refused: {error}"))?.flatten()
            }
        };
        let model = if role.is_subtree() { self.subtree } else { Ino::ROOT };
        let root = Node { served: Ino::ROOT, model };
        let kernel = if role.is_mount() {
            let bell = Arc::new(Rung::default());
            let is_full =
                role == Role::Mount || self.options.plant == Some(Plant::TrustedStrangers);
            let lends = if is_full { Lends::Pages } else { Lends::Attributes };
            let cache = session.begin_cache(lends, Arc::<Rung>::clone(&bell) as _);
            let cache = cache.map_err(|error| format!("a mount is refused: {error}"))?;
            let mut kernel = Kernel::new(cache, bell, root);
            kernel.stubborn = self.rng.chance(if role.is_hostile() { 50 } else { 5 });
            kernel.is_believed = !role.is_hostile();
            let plant = self.options.plant;
            let kept = [Plant::KeptAttributes, Plant::KeptPages].map(|kept| plant == Some(kept));
            kernel.forgets = (!kept[0], !kept[1]);
            if let Some(keeper) = Keeper::of(volume.gate()) {
                self.keeper = Some(keeper);
            }
            Some(kernel)
        } else {
            None
        };
        let id = session.id();
        trace!(self, "session {} of {role:?} begins", id.0);
        let (extensions, valid) = (Extensions::empty(), KernelOptions::default().valid());
        let agrees = ServerOptions { max_data: 1 << 20, extensions, valid };
        let router = match &kernel {
            Some(Kernel { cache, .. }) => {
                let kernel = KernelRoute::new(Arc::clone(cache), KernelOptions::default());
                Router::of_kernel(agrees, kernel)
            }
            None => Router::new(ServerOptions::default()),
        };
        let is_hasty = self.options.plant == Some(Plant::HastyAnswer);
        let line = Line::new(&self.outbox, Manner { is_device: role.is_mount(), is_hasty });
        let place = Revocable::default();
        place.begin(session);
        let hoards = role == Role::HostileMount && self.rng.chance(50);
        let takes_none = role.is_hostile() && !hoards && self.rng.chance(30);
        let (nodes, files) = (vec![root], Vec::new());
        let mut seat = Seat {
            view,
            seen: Default::default(),
            place,
            router,
            line,
            id,
            role,
            kernel,
            nodes,
            files,
            takes_none,
            hoards,
            is_lost: false,
        };
        self.begin_talk(&mut seat)?;
        self.seats.push(seat);
        self.note(&[1, id.0, role as u64]);
        Ok(())
    }

    /// Judges that nobody has anything of the server once all have left.
    pub(crate) fn judge_accounts(&self) -> Outcome<()> {
        for account in &self.open_accounts {
            for resource in [Resource::Connections, Resource::Memory, Resource::OpenFiles] {
                let has = account.has(resource);
                if has > 0 {
                    return Err(format!("user {} has left, with {has} {resource}", account.uid()));
                }
            }
        }
        Ok(())
    }

    /// The first request, which is answered at once.
    fn begin_talk(&mut self, seat: &mut Seat) -> Outcome<()> {
        let id = self.next_id;
        self.next_id += 1;
        seat.line.push(seat.asker(id).init());
        let Seat { line, router, place, .. } = seat;
        serve_next(line, router, place).map_err(|ended| format!("INIT: {ended:?}"))?;
        match &self.outbox.take()[..] {
            [Letter::Answered { id: of, reply }] if *of == id => {
                codec::begun(id, reply, seat.role.dialect())
            }
            _ => Err("INIT is not answered".into()),
        }
    }

    /// Something happened that is the same whenever the seed is.
    pub(crate) fn note(&mut self, numbers: &[u64]) {
        self.counts.events += 1;
        numbers.iter().for_each(|number| self.digest.update(&number.to_le_bytes()));
    }

    /// All events until now, as a number.
    pub fn digest(&self) -> u64 {
        self.digest.digest()
    }

    /// The time since the world began.
    pub(crate) fn now(&self) -> Duration {
        self.machine.uptime()
    }
}
