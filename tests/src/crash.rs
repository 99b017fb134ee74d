//! The crash contract, tried at every point where a workload touches its device.
//!
//! A seeded workload runs once on a recording [`FaultDevice`], beside the model; the model's state
//! after each operation is kept ([`Workload`]). Then, for every event of the recording, the process
//! ends there or within it, and the power goes there with many choices of what survives. The
//! harness checks each image, mounts it, compares it ([`judge`]) and checks it again; some it
//! crashes again during recovery, and some it uses on, to see that the recovered volume is sound.
//!
//! The demands on a mounted image, when `r` operations had returned and `s` is the number of
//! operations up to the last sync among them:
//!
//! - After the end of the process: exactly the state after `r` operations, or the one in flight as
//!   well, or a part of it if it has parts.
//! - After power loss: names, attributes and lengths are those after `p` operations, `s <= p`, the
//!   one in flight counted; every byte of a file is the one that this file had there after `p`, or
//!   one that a later operation stored over it.
//! - Timestamps that calls set by themselves may lag: atime and btime are compared, which no call
//!   sets by itself later than at creation; mtime and ctime are not.

pub mod halves;
pub mod judge;
pub mod removals;
pub mod steps;
pub mod verdicts;
pub mod volume;
pub mod workload;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;

use atoll_block::FaultDevice;
use atoll_block::fault::{Image, Media, Recording, Survival};
use atoll_vfs::model::{Snapshot, snapshot};
use atoll_vfs::*;

use crate::differential::seeds;
use crate::ops::Profile;
use crate::rng::{Rng, environment};
use crate::subject::{RW, name, pattern};
pub use judge::process_crash;
pub use verdicts::Verdicts;
use verdicts::{Found, Key};
pub use volume::Volume;
pub use workload::{State, Workload};

/// A file system that can be crashed.
pub trait CrashTarget {
    /// A mounted file system.
    type Fs: FileSystem;

    /// Makes an empty file system, durably; its root has mode 0755 and belongs to 0:0, and every
    /// timestamp is 0.
    ///
    /// # Errors
    /// For people.
    fn format(&self, device: &mut FaultDevice) -> std::result::Result<(), String>;

    /// Recovers and mounts. `incarnation` is that of the last mount if nothing that was written
    /// since then has been lost, and another one if it may have been.
    ///
    /// # Errors
    /// For people.
    fn mount(
        &self,
        device: FaultDevice,
        incarnation: [u8; 16],
    ) -> std::result::Result<Self::Fs, String>;

    /// As [`mount`](Self::mount), by the process after a crash, which may have other means.
    ///
    /// # Errors
    /// For people.
    fn recover(
        &self,
        device: FaultDevice,
        incarnation: [u8; 16],
    ) -> std::result::Result<Self::Fs, String> {
        self.mount(device, incarnation)
    }

    /// The device below a mounted file system.
    fn device<'a>(&self, fs: &'a mut Self::Fs) -> &'a mut FaultDevice;

    /// The steps in which it has freed what long calls had left.
    fn removal_steps(&self, fs: &Self::Fs) -> u64 {
        let _ = fs;
        0
    }

    /// Unmounts in order.
    ///
    /// # Errors
    /// For people.
    fn unmount(&self, fs: Self::Fs) -> std::result::Result<FaultDevice, String>;

    /// Checks an image that is not mounted, and changes nothing. `incarnation` as for
    /// [`mount`](Self::mount).
    ///
    /// # Errors
    /// The damage that a repair would have to mend.
    fn check(
        &self,
        device: &mut FaultDevice,
        incarnation: [u8; 16],
    ) -> std::result::Result<(), String>;
}

/// How much is tried.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Blocks of the device.
    pub blocks: u64,
    /// Operations of each workload.
    pub operations: usize,
    /// Which.
    pub profile: Profile,
    /// Seeds, each with a workload of its own.
    pub seeds: u64,
    /// How many random cuts within each event.
    pub cuts: u64,
    /// How many random choices of what survives power loss at each event, besides all and nothing.
    pub losses: u64,
    /// One of how many images is also crashed during recovery, and one is used on.
    pub further: u64,
    /// How many of a hundred syncs are made in halves, with operations between them.
    pub halves: u64,
}

impl Plan {
    /// Enough for every run of the tests.
    pub const DEFAULT: Plan = Plan {
        blocks: 2048,
        operations: 300,
        profile: Profile::CRASH,
        seeds: 4,
        cuts: 1,
        losses: 2,
        further: 8,
        halves: 0,
    };
}

/// Counts of tried crashes, for a test that there were some.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tried {
    /// Images after the end of the process.
    pub process_crashes: u64,
    /// Images after power loss.
    pub power_losses: u64,
    /// Images crashed again during recovery.
    pub in_recovery: u64,
    /// Images that were used on.
    pub used_on: u64,
    /// Images that were like none before: each of the others has the content of one of these.
    pub distinct: u64,
    /// Operations that found no space.
    pub out_of_space: u64,
    /// Syncs in halves that ended, with operations since they began.
    pub halves: u64,
    /// Of these, those that had two things to wait for.
    pub in_two_waits: u64,
    /// Checkpoints in steps that ended.
    pub in_steps: u64,
    /// Steps in which was freed what long calls had left.
    pub removal_steps: u64,
}

impl Tried {
    /// How many images, those of a crash in recovery counted too.
    pub fn images(&self) -> u64 {
        self.process_crashes + self.power_losses + self.in_recovery
    }

    /// Adds the counts of `more`.
    pub fn add(&mut self, more: &Tried) {
        self.process_crashes += more.process_crashes;
        self.power_losses += more.power_losses;
        self.in_recovery += more.in_recovery;
        self.used_on += more.used_on;
        self.distinct += more.distinct;
        self.out_of_space += more.out_of_space;
        self.halves += more.halves;
        self.in_two_waits += more.in_two_waits;
        self.in_steps += more.in_steps;
        self.removal_steps += more.removal_steps;
    }
}

/// The life in which workloads run.
pub(crate) const LIFE: [u8; 16] = *b"the first life  ";
/// Another.
pub(crate) const NEXT_LIFE: [u8; 16] = *b"the second life ";
/// And another.
const THIRD_LIFE: [u8; 16] = *b"the third life  ";

/// Which crash it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Crash {
    /// The process ended; all its writes are there.
    Process,
    /// The machine lost power.
    Power(Survival),
}

impl Crash {
    fn image(self, media: &Media) -> Image {
        match self {
            Crash::Process => media.current().clone(),
            Crash::Power(survival) => media.power_loss(survival),
        }
    }

    fn life(self) -> [u8; 16] {
        match self {
            Crash::Process => LIFE,
            Crash::Power(_) => NEXT_LIFE,
        }
    }
}

/// Runs `plan` for all of its seeds. `test` names the test, for the command that replays a failure.
///
/// `ATOLL_SEED` runs one seed, `ATOLL_SEEDS` more of them, `ATOLL_CRASH` one event of each.
///
/// # Panics
/// On the first image that breaks the contract.
pub fn crash_seeds<T: CrashTarget>(test: &str, target: &T, plan: &Plan) -> Tried {
    let mut tried = Tried::default();
    for seed in seeds(plan.seeds) {
        if let Err((event, error)) = crash_seed(target, plan, seed, &mut tried) {
            panic!(
                "seed {seed}: {error}\nreplay with: ATOLL_SEED={seed} ATOLL_CRASH={event} \
                 cargo test -p atoll-tests {test}"
            );
        }
    }
    tried
}

/// Runs the workload of one seed and all of its crashes.
///
/// # Errors
/// The event at which the contract broke, and how.
pub fn crash_seed<T: CrashTarget>(
    target: &T,
    plan: &Plan,
    seed: u64,
    tried: &mut Tried,
) -> std::result::Result<(), (usize, String)> {
    let workload = Workload::run(target, plan, seed, LIFE).map_err(|error| (0, error))?;
    tried.out_of_space += workload.out_of_space;
    tried.halves += workload.halves.ended;
    tried.in_two_waits += workload.halves.in_two_waits;
    tried.in_steps += workload.halves.steps.ended;
    tried.removal_steps += workload.removal_steps;
    let mut replay = workload.recording.replay();
    let mut verdicts = Verdicts::default();
    let only = environment("ATOLL_CRASH");
    loop {
        let event = replay.position();
        if only.is_none_or(|only| only == event as u64) {
            // Of the seed and the event alone, so that one event can be replayed alone.
            let mut rng = Rng::new(seed << 32 ^ event as u64);
            let length = replay.next_event().map_or(0, |event| event.len());
            let mut media = vec![(replay.media().clone(), String::from("before"))];
            for _ in 0..if length > 1 { plan.cuts } else { 0 } {
                let missing = missing_bytes(&mut rng, length);
                let what = format!("{missing:?} of {length} bytes missing of");
                media.push((replay.media_within(missing), what));
            }
            for (i, (media, where_)) in media.into_iter().enumerate() {
                let mut crashes = vec![Crash::Process];
                // Within an event the sectors that it touched differ; keeping all or nothing of
                // them gives no image that the next event does not give.
                if i == 0 {
                    crashes.extend([Survival::None, Survival::All].map(Crash::Power));
                }
                let losses = (0..plan.losses).map(|_| Survival::Seed(rng.number()));
                crashes.extend(losses.map(Crash::Power));
                for crash in crashes {
                    let image = (event, &media, crash);
                    try_one(target, &workload, image, plan, &mut rng, &mut verdicts, tried)
                        .map_err(|error| {
                            (event, workload.describe(event, &where_, crash, &error))
                        })?;
                }
            }
        }
        if !replay.step() {
            return Ok(());
        }
    }
}

/// Which of `length` bytes a cut leaves out: the end mostly, else the start or some within.
pub(crate) fn missing_bytes(rng: &mut Rng, length: u64) -> std::ops::Range<u64> {
    let (a, b) = (rng.within(0..length + 1), rng.within(0..length + 1));
    match rng.within(0..4) {
        0 | 1 => a..length,
        2 => 0..a,
        _ => a.min(b)..a.max(b),
    }
}

/// Takes the image of a crash before or within an event of `workload` through check, mount,
/// comparison and check.
pub(crate) fn try_one<T: CrashTarget>(
    target: &T,
    workload: &Workload,
    (event, media, crash): (usize, &Media, Crash),
    plan: &Plan,
    rng: &mut Rng,
    verdicts: &mut Verdicts,
    tried: &mut Tried,
) -> std::result::Result<(), String> {
    match crash {
        Crash::Process => tried.process_crashes += 1,
        Crash::Power(_) => tried.power_losses += 1,
    }
    let device = match crash {
        // Data that survived the process may still be lost with the power.
        Crash::Process => FaultDevice::from_media(media.clone()),
        Crash::Power(_) => FaultDevice::from_image(crash.image(media)),
    };
    let life = crash.life();

    if rng.within(0..plan.further) == 0 {
        tried.in_recovery += 1;
        let (media, lost) = crash_in_recovery(target, &device, crash, rng)?;
        let again = FaultDevice::from_image(media);
        let worst = if lost { Crash::Power(Survival::None) } else { crash };
        let life = if lost { THIRD_LIFE } else { life };
        find(target, again, life, verdicts, tried)
            .and_then(|found| workload.accepts(event, worst, &found))
            .map_err(|error| {
                format!("crashed again while mounting (power lost: {lost}): {error}")
            })?;
    }

    // After the end of a process, power may still take data: such images count as different.
    let uses_on = rng.within(0..plan.further) == 0;
    let differs = crash == Crash::Process || uses_on && verdicts.first_use(Key::new(&device, life));
    tried.used_on += u64::from(uses_on);
    if uses_on && differs {
        checked(target, "check before mounting", &mut device.clone(), life)?;
        let fs = caught("mount", || target.recover(device, life))?;
        return use_on(target, fs, |is| workload.accepts(event, crash, is));
    }
    let found = find(target, device, life, verdicts, tried)?;
    workload.accepts(event, crash, &found)
}

/// The content that a mount of `device` finds, between a check before it and one after the unmount.
fn find<T: CrashTarget>(
    target: &T,
    mut device: FaultDevice,
    life: [u8; 16],
    verdicts: &mut Verdicts,
    tried: &mut Tried,
) -> std::result::Result<Rc<Found>, String> {
    let key = Key::new(&device, life);
    if let Some(found) = verdicts.found(&key) {
        return Ok(found);
    }
    tried.distinct += 1;
    checked(target, "check before mounting", &mut device, life)?;
    let fs = caught("mount", || target.recover(device, life))?;
    let found = Found::new(finish(target, fs)?);
    Ok(verdicts.note(key, found))
}

/// Walks, unmounts, checks.
fn finish<T: CrashTarget>(target: &T, mut fs: T::Fs) -> std::result::Result<Snapshot, String> {
    let is = caught("walk", || snapshot(&mut fs).map_err(|error| error.to_string()))?;
    let mut device = caught("unmount", || target.unmount(fs))?;
    checked(target, "check after unmounting", &mut device, THIRD_LIFE)?;
    Ok(is)
}

/// An image from a crash while `device` is being mounted, and whether the power was lost.
fn crash_in_recovery<T: CrashTarget>(
    target: &T,
    device: &FaultDevice,
    crash: Crash,
    rng: &mut Rng,
) -> std::result::Result<(Image, bool), String> {
    let mut device = device.clone();
    device.start_recording();
    let mut fs = caught("mount", || target.recover(device, crash.life()))?;
    let recording: Recording = target.device(&mut fs).take_recording().expect("was started");
    let mut replay = recording.replay();
    replay.advance_to(rng.within(0..recording.events().len() as u64 + 1) as usize);
    let length = replay.next_event().map_or(0, |event| event.len());
    let media = replay.media_within(missing_bytes(rng, length));
    let lost = rng.chance(70);
    let survival = Survival::Seed(rng.number());
    Ok((if lost { media.power_loss(survival) } else { media.current().clone() }, lost))
}

/// Writes a file, syncs it, loses the power, and checks that everything is as it was and the file
/// is there.
fn use_on<T: CrashTarget>(
    target: &T,
    mut fs: T::Fs,
    accepts: impl FnOnce(&Found) -> std::result::Result<(), String>,
) -> std::result::Result<(), String> {
    let before = caught("walk", || snapshot(&mut fs).map_err(|error| error.to_string()))?;
    accepts(&Found::new(before.clone()))?;
    let cx = Context { uid: 5, gid: 6, now: Timespec { sec: 7, nsec: 8 } };
    let at = b"used after the crash";
    let data = pattern(9, 30_000);
    let mut write = || {
        let (attr, handle) = fs.create(&cx, Ino::ROOT, name(at), 0o600, RW | OpenFlags::EXCL)?;
        let written = fs.write(&cx, attr.ino, handle, 0, &data)?;
        fs.fsync(&cx, attr.ino, handle, false)?;
        Ok(written.len)
    };
    let len = match write() {
        // The volume was full before.
        Err(Errno::ENOSPC) => return finish(target, fs).map(drop),
        len => len.map_err(|error: Errno| format!("a write after the crash: {error}"))?,
    };
    let image = target.device(&mut fs).power_loss(Survival::Seed(len as u64));
    let mut device = FaultDevice::from_image(image);
    checked(target, "check after use and power loss", &mut device, THIRD_LIFE)?;
    let fs = caught("mount after use and power loss", || target.recover(device, THIRD_LIFE))?;
    let mut is = finish(target, fs)?;
    let file = is.nodes.remove([b"/", &at[..]].concat().as_slice());
    let content = file.and_then(|node| node.content);
    let whole = content.is_some_and(|content| {
        content.size == len as u64 && (0..len).all(|i| content.byte(i as u64) == data[i])
    });
    if !whole {
        return Err("a file that was synced after the crash was lost with the power".into());
    }
    match is.without_times().differences(&before.without_times(), 5).as_slice() {
        [] => Ok(()),
        differences => Err(format!("use after the crash changed:\n{}", differences.join("\n"))),
    }
}

/// Checks, and that the check left the device alone.
fn checked<T: CrashTarget>(
    target: &T,
    what: &str,
    device: &mut FaultDevice,
    incarnation: [u8; 16],
) -> std::result::Result<(), String> {
    let before = device.events();
    caught(what, || target.check(device, incarnation))?;
    if device.events() > before { Err(format!("{what}: it wrote")) } else { Ok(()) }
}

/// A call whose panic is a failure like another.
pub(crate) fn caught<R>(
    what: &str,
    call: impl FnOnce() -> std::result::Result<R, String>,
) -> std::result::Result<R, String> {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(result) => result.map_err(|error| format!("{what}: {error}")),
        Err(_) => Err(format!("{what}: panicked")),
    }
}
