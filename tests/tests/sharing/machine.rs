//! Linux in a virtual machine, with other clients of its volume.
//!
//! The machine has no clock in common with this one. So it is told each operation by its serial
//! port and says there what came of it: an operation has begun no earlier than it was told, and
//! ended when its answer is here.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use atoll_server::Session;
use atoll_tests::linear::clients::{Client, PAGE, Paced, PosixClient, SeamClient, prepare};
use atoll_tests::linear::history::{Mix, Op, Outcome};
use atoll_tests::linear::processes::decode;
use atoll_tests::linear::run::{AnyClient, Overlap, World, run, within};
use atoll_tests::linear::spec::{Kernel, Rules};
use atoll_tests::subject::name;
use atoll_vfs::{Context, FileSystem, Ino, Timespec};
use atoll_vm::{Guest, Image, Machine, programs};

use super::served::{Real, Served, examine, in_namespace, ring, volume};

/// The longest that a machine may take to boot, and then a seed.
const LIMIT: Duration = Duration::from_secs(300);
/// How long the others wait between calls, at most: as long as the machine takes for one.
const PACE: Duration = Duration::from_millis(4);
/// Seeds in which a guest that relies on what it has learnt has to be found.
const PATIENCE: u64 = 60;
const CX: Context = Context { uid: 0, gid: 0, now: Timespec { sec: 0, nsec: 0 } };

/// The machine, which runs one client at a time.
type Shared = Arc<Mutex<Guest>>;

fn locked(guest: &Shared) -> MutexGuard<'_, Guest> {
    guest.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A program in the machine.
struct Inside(Shared);

impl Inside {
    fn new(guest: &Shared, root: &str) -> Inside {
        let mut inside = locked(guest);
        inside.begin(&format!("exec sharer {root} < /dev/ttyS1"));
        assert_eq!(inside.line(), "ready");
        Inside(Arc::clone(guest))
    }
}

impl Client for Inside {
    fn call(&mut self, op: &Op) -> Outcome {
        let numbers = |letter: &str, numbers: &[u64]| {
            let numbers: Vec<String> = numbers.iter().map(u64::to_string).collect();
            format!("{letter} {}", numbers.join(" "))
        };
        let place = |letter: &str, a: (usize, usize)| numbers(letter, &[a.0 as u64, a.1 as u64]);
        let two = |letter: &str, a: (usize, usize), b: (usize, usize)| {
            numbers(letter, &[a.0, a.1, b.0, b.1].map(|number| number as u64))
        };
        let line = match *op {
            Op::Create(a) => place("c", a),
            Op::Mkdir(a) => place("m", a),
            Op::Unlink(a) => place("u", a),
            Op::Rmdir(a) => place("d", a),
            Op::Rename(a, b) => two("r", a, b),
            Op::RenameNew(a, b) => two("n", a, b),
            Op::Exchange(a, b) => two("x", a, b),
            Op::Link(file, a) => numbers("k", &[file as u64, a.0 as u64, a.1 as u64]),
            Op::Lookup(a) => place("l", a),
            Op::List(_) => unreachable!("a machine is asked for no listing"),
            Op::Stat(file) => numbers("s", &[file as u64]),
            Op::Read(file, page) => numbers("p", &[file as u64, page]),
            Op::Write(file, page, byte) => numbers("w", &[file as u64, page, byte.into()]),
            Op::Append(file, byte) => numbers("a", &[file as u64, byte.into()]),
            Op::Truncate(file, pages) => numbers("t", &[file as u64, pages]),
        };
        let mut guest = locked(&self.0);
        guest.say(&line);
        let answer = guest.line();
        decode(&answer).unwrap_or_else(|| panic!("{line}: {answer}{}", guest.log()))
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        let mut guest = locked(&self.0);
        guest.say("q");
        assert_eq!(guest.ended(), 0);
    }
}

/// Removes what a world has left, and makes the next.
fn begin(session: &mut Session<Real>) {
    let found = session.lookup(&CX, Ino::ROOT, name("d")).map(|attr| attr.ino);
    for dir in [found.ok(), Some(Ino::ROOT)].into_iter().flatten() {
        for named in ["n0", "n1", "n2", "n3", "d"] {
            let _ = session.unlink(&CX, dir, name(named));
            let _ = session.rmdir(&CX, dir, name(named));
        }
    }
    prepare(session, false).expect("an empty volume");
}

/// All kinds that there are, beside a machine: a ring and a mount, or two rings.
fn clients(
    (guest, root): (&Shared, &str),
    served: &Served<Real>,
    mount: Option<&std::path::Path>,
    seed: u64,
) -> Vec<AnyClient> {
    let seam = || SeamClient::new(ring(&served.socket(), 1).client().expect("a lane"));
    let mut clients: Vec<AnyClient> = vec![
        Box::new(Inside::new(guest, root)),
        Box::new(Paced::new(seam().expect("the world"), seed, PACE)),
    ];
    clients.push(match mount.filter(|_| seed.is_multiple_of(2)) {
        Some(root) => {
            let client = PosixClient::new(root, PAGE).expect("the world");
            Box::new(Paced::new(client, !seed, PACE))
        }
        None => Box::new(Paced::new(seam().expect("the world"), !seed, PACE)),
    });
    clients
}

/// A machine on one volume with rings and a mount. A second device of it lets the kernel rely on
/// what it has learnt: through that one the machine has to be found wrong.
#[test]
fn machine() {
    within(LIMIT, || {
        // The last device is given first.
        let mut served = Served::with_devices_of(volume(), &[3600, 0]);
        let devices = [served.device(), served.device()];
        let machine = Machine::new().virtiofs("right", &devices[0]).virtiofs("stale", &devices[1]);
        let folder = tempfile::tempdir().expect("a folder");
        let sharer = programs::sharer(folder.path());
        let mut guest = Guest::boot(&machine, &Image::new().program(&sharer));
        guest.ok("mkdir /tmp/right /tmp/stale");
        guest.ok("mount -t virtiofs right /tmp/right; mount -t virtiofs stale /tmp/stale");
        let mount = in_namespace().then(|| served.mount());
        let guest: Shared = Arc::new(Mutex::new(guest));
        let mut session = served.session();
        let mix = Mix { list: false, ..Mix::ALL };
        let mut overlap = Overlap::default();
        let mut judge = |root: &str, seed: u64| {
            begin(&mut session);
            let clients = clients((&guest, root), &served, mount.as_deref(), seed);
            let rules = Rules { kernel: Kernel::Between, kept: false };
            let judged = run(seed, World { clients, rules, end: Box::new(|| {}) }, &mix);
            if root == "/tmp/right"
                && let Ok(more) = judged
            {
                overlap.add(more);
            }
            judged.err()
        };
        for seed in atoll_tests::differential::seeds(12) {
            if let Some(error) = judge("/tmp/right", seed) {
                let again =
                    atoll_tests::differential::replay(seed, "--test sharing machine::machine");
                panic!("seed {seed}: {error}{again}");
            }
        }
        let found = (0..PATIENCE).find_map(|seed| judge("/tmp/stale", seed));
        let error = found.expect("a guest that relies on what it has learnt was never found");
        assert!(error.contains("no order explains"), "{error}");
        overlap.judge("--test sharing machine::machine");
        let guest = Arc::into_inner(guest).expect("its clients have gone");
        let guest = guest.into_inner().unwrap_or_else(PoisonError::into_inner);
        guest.end();
        drop(session);
        examine(served);
    });
}
