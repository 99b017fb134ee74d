//! Schedules of threads: several clients, each its script, some of which die.

use std::cell::RefCell;
use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::yield_now;
use std::time::Duration;

use atoll_vfs::FileSystem;

use super::checker;
use super::clients::{Client, SeamClient, prepare};
use super::history::{Call, Mix, inspection, script};
use super::spec::{Kernel, Rules};
use crate::differential::{replay, seeds};
use crate::rng::{Rng, environment};

/// Operations in each script.
pub const LENGTH: usize = 12;
/// Looks of a client at whether the others are as far, before it goes on alone.
const MEETING: u32 = 200;
/// Of a hundred calls, at least so many have to be at the same time as another client's.
const OVERLAP_MIN: usize = 5;

/// A client of whatever kind.
pub type AnyClient = Box<dyn Client + Send>;

/// Several clients of one new world.
pub struct World {
    /// The clients.
    pub clients: Vec<AnyClient>,
    /// The rules that hold there.
    pub rules: Rules,
    /// Ends the world when the clients are gone, and examines the rest.
    pub end: Box<dyn FnOnce()>,
}

impl World {
    /// The world of `clients` of an empty file system.
    ///
    /// # Panics
    /// When the world cannot be made.
    pub fn new<F: FileSystem + Send + 'static>(mut clients: Vec<F>) -> World {
        prepare(&mut clients[0], false).expect("an empty file system");
        let client = |fs| -> AnyClient { Box::new(SeamClient::new(fs).expect("a client")) };
        World {
            clients: clients.into_iter().map(client).collect(),
            rules: Rules { kernel: Kernel::None, kept: false },
            end: Box::new(|| {}),
        }
    }
}

/// Runs one script on each client at the same time; returns the history. All but the first client
/// may die: in the middle of its script it starts an operation and never tells its outcome. The
/// first looks at everything in the end.
pub fn history<C: Client + Send>(seed: u64, clients: Vec<C>, mix: &Mix) -> Vec<Call> {
    let clock = &AtomicU64::new(1);
    let now = || clock.fetch_add(1, Ordering::SeqCst);
    let start = &Barrier::new(clients.len());
    // The call that each client is at.
    let progress: &Vec<_> = &clients.iter().map(|_| AtomicUsize::new(0)).collect();
    let mut calls = Vec::new();
    let mut first = None;
    std::thread::scope(|scope| {
        let threads: Vec<_> = clients
            .into_iter()
            .enumerate()
            .map(|(i, mut client)| {
                scope.spawn(move || {
                    let mut rng = Rng::new(!seed << 8 | i as u64);
                    let mut calls = Vec::new();
                    let death = (i > 0 && rng.chance(25)).then(|| rng.within(0..LENGTH as u64));
                    start.wait();
                    for (k, op) in script(seed, i, LENGTH, mix).into_iter().enumerate() {
                        // Mostly at the same call as the others, but at slightly different times.
                        progress[i].store(k, Ordering::SeqCst);
                        let all_here = || progress.iter().all(|p| p.load(Ordering::SeqCst) >= k);
                        if rng.chance(80) {
                            (0..MEETING).take_while(|_| !all_here()).for_each(|_| yield_now());
                        }
                        for _ in 0..rng.within(0..60) {
                            std::hint::spin_loop();
                        }
                        client.rest();
                        let invoked = now();
                        if death == Some(k as u64) {
                            if rng.chance(50) {
                                let _ = client.call(&op);
                            }
                            calls.push(Call { client: i, op, invoked, returned: None });
                            break;
                        }
                        let outcome = client.call(&op);
                        let returned = Some((now(), outcome));
                        calls.push(Call { client: i, op, invoked, returned });
                    }
                    progress[i].store(usize::MAX, Ordering::SeqCst);
                    // A client that died is dropped here.
                    (calls, (i == 0).then_some(client))
                })
            })
            .collect();
        for thread in threads {
            let (more, client) = thread.join().expect("a client panicked");
            calls.extend(more);
            first = first.take().or(client);
        }
    });
    if let Some(client) = &mut first {
        let after = clock.load(Ordering::SeqCst);
        inspect(client, mix, after, &mut calls);
    }
    calls
}

/// Has `client`, alone by now, look at everything from the time `after` on.
pub fn inspect<C: Client>(client: &mut C, mix: &Mix, after: u64, calls: &mut Vec<Call>) {
    for (i, op) in (0..).zip(inspection(mix)) {
        let invoked = after + 2 * i;
        let outcome = client.call(&op);
        calls.push(Call { client: 0, op, invoked, returned: Some((invoked + 1, outcome)) });
    }
}

/// How much happened at the same time.
#[derive(Clone, Copy, Debug, Default)]
pub struct Overlap {
    /// Calls of scripts that returned.
    pub calls: usize,
    /// Those of them during which another client's was under way.
    pub overlapped: usize,
}

impl Overlap {
    /// That of a history that ends with an inspection.
    pub fn of(calls: &[Call], mix: &Mix) -> Overlap {
        let ended = |call: &Call| Some((call.client, call.invoked, call.returned.as_ref()?.0));
        let ended: Vec<_> = calls.iter().filter_map(ended).collect();
        let overlaps = |&&(client, begin, end): &&(usize, u64, u64)| {
            ended.iter().any(|other| other.0 != client && other.1 < end && begin < other.2)
        };
        Overlap {
            calls: ended.len() - inspection(mix).len(),
            overlapped: ended.iter().filter(overlaps).count(),
        }
    }

    /// Adds that of another history.
    pub fn add(&mut self, other: Overlap) {
        self.calls += other.calls;
        self.overlapped += other.overlapped;
    }

    /// Says how much it was.
    ///
    /// # Panics
    /// If there was hardly any, unless a single seed is being replayed.
    pub fn judge(self, test: &str) {
        let Overlap { calls, overlapped } = self;
        println!("{test}: {overlapped} of {calls} calls were at the same time as another's");
        let enough = overlapped * 100 >= calls * OVERLAP_MIN;
        assert!(enough || environment("ATOLL_SEED").is_some(), "clients hardly met");
    }
}

/// One run in `world`.
///
/// # Errors
/// A history that no order explains.
pub fn run(seed: u64, world: World, mix: &Mix) -> Result<Overlap, String> {
    PROGRESS.with_borrow(|progress| {
        if let Some(progress) = progress {
            // The watcher waits until the test has ended.
            let _ = progress.send(());
        }
    });
    let calls = history(seed, world.clients, mix);
    (world.end)();
    checker::check(&calls, world.rules)?;
    Ok(Overlap::of(&calls, mix))
}

/// Checks `count` seeds, or as many as `ATOLL_SEEDS` says, with 2 to 4 clients in turn; `make`
/// gives a world with that many, from a seed. `test` names the test for the command that replays
/// a failure: the same scripts, though threads meet as they will.
///
/// # Panics
/// On a history that is not linearizable, and when clients hardly met.
pub fn linearizable(test: &str, count: u64, mix: &Mix, mut make: impl FnMut(u64, usize) -> World) {
    let mut overlap = Overlap::default();
    for seed in seeds(count) {
        match run(seed, make(seed, 2 + seed as usize % 3), mix) {
            Ok(more) => overlap.add(more),
            Err(error) => panic!("seed {seed}: {error}{}", replay(seed, test)),
        }
    }
    overlap.judge(test);
}

thread_local! {
    /// Told of each run, by a test that is watched.
    static PROGRESS: RefCell<Option<Sender<()>>> = const { RefCell::new(None) };
}

/// Runs a test that could wait for ever: when `limit` has passed without another [`run`], the whole
/// process ends, with its mounts in namespaces of its own. The number of runs, and the load of the
/// machine, do not matter.
///
/// # Panics
/// When the test does.
pub fn within(limit: Duration, test: impl FnOnce() + Send + 'static) {
    let (progress, waiting) = channel();
    let tester = std::thread::spawn(move || {
        PROGRESS.set(Some(progress));
        test();
    });
    loop {
        match waiting.recv_timeout(limit) {
            Ok(()) => {}
            Err(RecvTimeoutError::Disconnected) => break,
            Err(RecvTimeoutError::Timeout) => {
                eprintln!("a test did not go on within {limit:?}");
                std::process::exit(101);
            }
        }
    }
    if let Err(panic) = tester.join() {
        std::panic::resume_unwind(panic);
    }
}
