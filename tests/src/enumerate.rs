//! The crash contract, tried on every short sequence of operations.
//!
//! Where [`crash`](crate::crash) makes long random workloads crash, this takes each pair of some
//! fifty [`operations`], and triples of them, some of which are known to meet, with syncs between
//! and behind or none, in one piece or in halves, on small volumes that are prepared once; with
//! little and much memory for the cache, before the crash and, drawn apart, after it; some with
//! discards of freed space. At every event of a sequence the process ends or the power goes, as in
//! [`crate::crash`], which also judges the result.
//!
//! A [`Case`] is one sequence and its circumstances; its text says all of it, so that a failure can
//! be replayed alone.

pub mod operations;

use std::fmt;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use atoll_block::FaultDevice;
use atoll_block::fault::{Discarded, Image, Survival};
use atoll_fs::Quota;
use atoll_vfs::model::ModelFs;
use atoll_vfs::{Ino, Timespec};

use crate::crash::halves::Halves;
use crate::crash::{
    Crash, CrashTarget, LIFE, Plan, Tried, Verdicts, Volume, Workload, missing_bytes, try_one,
};
use crate::differential::{Differential, Rest};
use crate::ops::Op;
use crate::rng::Rng;
use crate::subject::Quirks;
use operations::{FAMILIES, OPERATIONS, SYNCS, calls, filler, pieces, prepared};

/// A size of the cache, by its name in a case.
const CACHES: [(&str, usize); 3] = [("64K", 64 << 10), ("512K", 512 << 10), ("64M", 64 << 20)];

/// A volume that sequences run on.
#[derive(Debug)]
struct Place {
    name: &'static str,
    blocks: u64,
    /// Small, so that a few large attributes fill it.
    journal_blocks: u64,
    /// Blocks that are left free; a file takes the others, which nobody writes to.
    left: Option<u64>,
    /// Blocks for which the host has storage before the crash.
    host: Option<u64>,
    /// Pieces that one file has beyond its end: more than one transaction frees.
    pieces: u64,
    /// All counts against a quota.
    quota: bool,
}

impl Place {
    const fn new(name: &'static str, blocks: u64, journal_blocks: u64) -> Place {
        Place { name, blocks, journal_blocks, left: None, host: None, pieces: 0, quota: false }
    }
}

/// With room; so full that freed blocks are wanted at once; with the first group full; with the
/// first nearly full, and the second not made yet; on a host that is nearly full; with a file in
/// many pieces and a quota.
const PLACES: [Place; 6] = [
    Place::new("roomy", 1024, 256),
    Place { left: Some(52), ..Place::new("full", 288, 128) },
    Place { left: Some(660), ..Place::new("groups", 33_000, 128) },
    Place { left: Some(616), ..Place::new("next-group", 33_000, 128) },
    Place { host: Some(24), ..Place::new("full-host", 1024, 256) },
    Place { pieces: 300, quota: true, ..Place::new("pieces", 1024, 256) },
];

/// How syncs are made, and how freed space is discarded, by its name in a case.
const SYNCING: [(&str, bool, Option<Discarded>); 8] = [
    ("whole", false, None),
    ("whole+discards", false, Some(Discarded::Zeros)),
    ("whole+discards-kept", false, Some(Discarded::Kept)),
    ("whole+discards-noise", false, Some(Discarded::Noise)),
    ("halves", true, None),
    ("halves+discards", true, Some(Discarded::Zeros)),
    ("halves+discards-kept", true, Some(Discarded::Kept)),
    ("halves+discards-noise", true, Some(Discarded::Noise)),
];

/// One sequence and its circumstances.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Case {
    place: usize,
    syncing: usize,
    /// Which cache before the crash, and which after it.
    caches: (usize, usize),
    steps: Vec<&'static str>,
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let syncs = SYNCING[self.syncing].0;
        let (before, after) = (CACHES[self.caches.0].0, CACHES[self.caches.1].0);
        write!(f, "{}/{syncs}/{before}/{after}/{}", PLACES[self.place].name, self.steps.join(","))
    }
}

impl Case {
    /// The case that is written as `text`.
    ///
    /// # Errors
    /// The part of it that is not known.
    pub fn parse(text: &str) -> Result<Case, String> {
        let parts: Vec<&str> = text.split('/').collect();
        let [place, syncs, before, after, steps] = parts[..] else {
            return Err(format!("{text}: not PLACE/SYNCS/CACHE/CACHE/STEPS"));
        };
        let cache = |name: &str| {
            let found = CACHES.iter().position(|cache| cache.0 == name);
            found.ok_or_else(|| format!("no cache {name}"))
        };
        let step = |name: &str| {
            let mut known = OPERATIONS.iter().chain(&SYNCS);
            known.find(|known| **known == name).copied().ok_or_else(|| format!("no step {name}"))
        };
        Ok(Case {
            place: PLACES
                .iter()
                .position(|known| known.name == place)
                .ok_or_else(|| format!("no place {place}"))?,
            syncing: SYNCING
                .iter()
                .position(|known| known.0 == syncs)
                .ok_or_else(|| format!("no way to sync {syncs}"))?,
            caches: (cache(before)?, cache(after)?),
            steps: steps.split(',').map(step).collect::<Result<_, _>>()?,
        })
    }

    /// The case number `index` of a run with `seed`: by turns one of all pairs with each kind of
    /// sync in each of their places, in an order that the seed sets, and a triple, of a family half
    /// of the time.
    pub fn of(index: u64, seed: u64) -> Case {
        let mut rng = Rng::new(seed.wrapping_mul(0x1_0000_0001) ^ index << 20);
        let (names, count) = (&OPERATIONS, OPERATIONS.len() as u64);
        let pairs = count * count * 8;
        let sync = |rng: &mut Rng| rng.pick(&SYNCS);
        let (halves, steps) = if index.is_multiple_of(2) && index / 2 < pairs {
            // A step without a common divisor visits each once.
            let at = (index / 2 * 9973 + seed) % pairs;
            let (first, second, rest) = (at / 8 / count, at / 8 % count, at % 8);
            let mut steps = vec![names[first as usize]];
            if rest & 1 != 0 {
                steps.push(sync(&mut rng));
            }
            steps.push(names[second as usize]);
            if rest & 2 != 0 {
                steps.push(sync(&mut rng));
            }
            (rest & 4 != 0, steps)
        } else {
            let family = rng.chance(50).then(|| rng.pick(&FAMILIES));
            let mut steps = Vec::new();
            for at in 0..3 {
                let names = family.map_or(&names[..], |family| family[at]);
                steps.push(rng.pick(names));
                // A faulty commit mostly loses data that was synced before: a sync is likelier
                // here.
                let percent = if family.is_some() && at == 0 { 70 } else { 45 };
                if rng.chance(percent) {
                    steps.push(sync(&mut rng));
                }
            }
            (rng.chance(50), steps)
        };
        let place = rng.pick(&[0, 0, 0, 1, 1, 1, 1, 2, 3, 4, 5, 5]);
        let discards = if rng.chance(25) { rng.within(1..4) as usize } else { 0 };
        let syncing = if halves { 4 + discards } else { discards };
        let caches = (rng.within(0..3) as usize, rng.within(0..3) as usize);
        Case { place, syncing, caches, steps }
    }

    fn volume(&self) -> Volume {
        Volume {
            journal_blocks: Some(PLACES[self.place].journal_blocks),
            cache_bytes: CACHES[self.caches.0].1,
            recovery_cache_bytes: CACHES[self.caches.1].1,
            discards: SYNCING[self.syncing].2,
            in_steps: self.in_halves(),
        }
    }

    /// Whether syncs are made in halves, and long calls in steps, as a server makes them.
    fn in_halves(&self) -> bool {
        SYNCING[self.syncing].1
    }

    /// A number that depends on the case alone.
    fn number(&self) -> u64 {
        let text = self.to_string();
        text.bytes().fold(0, |number, byte| Rng::new(number ^ u64::from(byte)).number())
    }
}

/// The volumes that sequences begin with, made once for each thread.
pub struct Prepared(Vec<(Image, Rest)>);

impl Prepared {
    /// Makes them.
    ///
    /// # Errors
    /// For people.
    pub fn new() -> Result<Prepared, String> {
        let places = PLACES.iter().map(|place| {
            let volume = Volume { journal_blocks: Some(place.journal_blocks), ..Volume::DEFAULT };
            let mut device = FaultDevice::new(place.blocks);
            volume.format(&mut device)?;
            let mut fs = volume.mount(device, LIFE)?;
            if place.quota {
                let quota = Quota { bytes: Some(1 << 40), inodes: Some(1 << 40) };
                fs.fs.set_quotas(&[(Ino::ROOT, quota)]).map_err(|error| error.to_string())?;
            }
            let model = ModelFs::new(0o755, Timespec::default());
            let mut pair = Differential::with_model(fs, model, Quirks::default());
            let wrong = |error| format!("preparing {}: {error}", place.name);
            for op in prepared() {
                pair.step(&op).map_err(wrong)?;
            }
            for op in pieces(place.pieces) {
                pair.step(&op).map_err(wrong)?;
            }
            if let Some(left) = place.left {
                let free = pair.fs.fs.info().free_blocks;
                for op in filler(free.saturating_sub(left)) {
                    pair.step(&op).map_err(wrong)?;
                }
            }
            if pair.out_of_space() > 0 {
                return Err(format!("{} has no room for what is prepared", place.name));
            }
            let (fs, rest) = pair.rest();
            Ok((volume.unmount(fs)?.process_crash(), rest))
        });
        Ok(Prepared(places.collect::<Result<_, String>>()?))
    }
}

/// How much is tried of each case.
#[derive(Clone, Copy, Debug)]
pub struct Depth {
    /// Crashes at one of how many events.
    pub stride: u64,
    /// How many choices of surviving sectors by seed at each event; beside these are all, none, all
    /// but one, only one, and the end of the process.
    pub losses: u64,
    /// One of how many images is crashed again during recovery, and one is used on.
    pub further: u64,
}

/// Runs `case` and its crashes, or those at the event `only`. The same `seed` chooses the same.
///
/// # Errors
/// The event at which the contract broke, and how.
pub fn try_case(
    prepared: &Prepared,
    case: &Case,
    seed: u64,
    depth: &Depth,
    only: Option<u64>,
    tried: &mut Tried,
) -> Result<(), (usize, String)> {
    let number = case.number() ^ seed;
    let target = case.volume();
    let (image, rest) = &prepared.0[case.place];
    let steps = case.steps.iter().zip(0..);
    let mut ops: Vec<Op> =
        steps.flat_map(|(name, step)| calls(name, step).unwrap_or_default()).collect();
    if case.in_halves() {
        // Time for syncs in halves to end.
        ops.extend(vec![Op::Statfs; 16]);
    }
    let mut device = FaultDevice::from_image(image.clone());
    device.faults.free_blocks = PLACES[case.place].host;
    // Slow enough for a few operations to come between.
    let halves = Halves::new(number, if case.in_halves() { 100 } else { 0 }).going_on(30);
    let pair = |fs| Differential::going_on(fs, rest.clone());
    let workload =
        Workload::of(&target, device, pair, ops, halves, LIFE).map_err(|error| (0, error))?;
    tried.out_of_space += workload.out_of_space;
    tried.halves += workload.halves.ended;
    tried.in_two_waits += workload.halves.in_two_waits;
    tried.in_steps += workload.halves.steps.ended;
    tried.removal_steps += workload.removal_steps;
    let plan = Plan { further: depth.further, ..Plan::DEFAULT };
    let mut replay = workload.recording.replay();
    let mut verdicts = Verdicts::default();
    loop {
        let event = replay.position();
        // Of the case and the event alone, so that one event can be replayed alone.
        let mut rng = Rng::new(number ^ (event as u64) << 40);
        let chosen = rng.within(0..depth.stride.max(1)) == 0;
        if only.map_or(chosen, |only| only == event as u64) {
            let mut crashes = vec![
                Crash::Process,
                Crash::Power(Survival::None),
                Crash::Power(Survival::All),
                Crash::Power(Survival::AllBut(rng.number())),
                Crash::Power(Survival::Only(rng.number())),
            ];
            let by_seed = (0..depth.losses).map(|_| Crash::Power(Survival::Seed(rng.number())));
            crashes.extend(by_seed);
            let before = String::from("before");
            let mut tries: Vec<_> =
                crashes.into_iter().map(|crash| (replay.media(), crash, &before)).collect();
            let length = replay.next_event().map_or(0, |event| event.len());
            let missing = missing_bytes(&mut rng, length);
            let within = format!("{missing:?} of {length} bytes missing of");
            let cut = (length > 1).then(|| replay.media_within(missing));
            if let Some(media) = &cut {
                let power = Crash::Power(Survival::Seed(rng.number()));
                tries.push((media, Crash::Process, &within));
                tries.push((media, power, &within));
            }
            for (media, crash, what) in tries {
                let image = (event, media, crash);
                try_one(&target, &workload, image, &plan, &mut rng, &mut verdicts, tried)
                    .map_err(|error| (event, workload.describe(event, what, crash, &error)))?;
            }
        }
        if !replay.step() {
            return Ok(());
        }
    }
}

/// The extent of a run.
#[derive(Clone, Copy, Debug)]
pub struct Run {
    /// Ends after the case in which this many images have been tried.
    pub images: u64,
    /// Chooses among cases and crashes.
    pub seed: u64,
    /// How many threads.
    pub threads: usize,
    /// Of each case.
    pub depth: Depth,
}

/// Runs cases until enough images have been tried. `progress` is told from time to time how many
/// cases and images there have been.
///
/// # Errors
/// The first case that was found to break the contract, at which event, and how.
pub fn run(
    run: &Run,
    progress: impl Fn(u64, u64) + Sync,
) -> Result<(u64, Tried), (Case, usize, String)> {
    let next = AtomicU64::new(0);
    let images = AtomicU64::new(0);
    let failed: Mutex<Option<(Case, usize, String)>> = Mutex::new(None);
    let sum = Mutex::new(Tried::default());
    let fails = |case: Case, event, error| {
        let mut failed = failed.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        failed.get_or_insert((case, event, error));
        images.store(u64::MAX / 2, Ordering::Relaxed);
    };
    std::thread::scope(|scope| {
        for _ in 0..run.threads {
            scope.spawn(|| {
                let mut all = Tried::default();
                match Prepared::new() {
                    Err(error) => fails(Case::of(0, run.seed), 0, error),
                    Ok(prepared) => {
                        while images.load(Ordering::Relaxed) < run.images {
                            let index = next.fetch_add(1, Ordering::Relaxed);
                            let case = Case::of(index, run.seed);
                            let mut tried = Tried::default();
                            let outcome =
                                try_case(&prepared, &case, run.seed, &run.depth, None, &mut tried);
                            if let Err((event, error)) = outcome {
                                fails(case, event, error);
                            }
                            let more = tried.images();
                            let now = images.fetch_add(more, Ordering::Relaxed) + more;
                            if index.is_multiple_of(100) {
                                progress(index, now);
                            }
                            all.add(&tried);
                        }
                    }
                }
                sum.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).add(&all);
            });
        }
    });
    match failed.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner()) {
        Some(failure) => Err(failure),
        None => Ok((
            next.into_inner(),
            sum.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner()),
        )),
    }
}
