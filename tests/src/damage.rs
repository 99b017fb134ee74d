//! One sector of a volume comes back different, at a moment of the volume's life.
//!
//! A seeded workload runs on a recorded device, as in [`crash`](crate::crash). At some [`Moment`]s
//! of it every sector that is not file data is damaged in turn: zeros, noise, the content that it
//! had before, the content that it had when the volume was made. The sound image tells which
//! sectors are file data: those of the blocks that a file's extent names once the journal is
//! replayed. Free blocks are damaged too; that must not matter.
//!
//! Then the image is checked, mounted, walked, used, unmounted, checked, mounted and walked again,
//! and a copy of it is repaired. The right outcomes for each:
//!
//! - **harmless**: everything is as in the sound image, or only unsynced changes are missing, as
//!   after power loss;
//! - **reported**: the same, and the mount or the check says that something was wrong;
//! - **refused**: the mount fails, or a call on the mounted volume says `EUCLEAN` or `EIO`; then
//!   the check must have found something.
//!
//! One thing more can happen where power may have been lost: a record that the last sync covers is
//! damaged, and nothing was stored after that sync which says that it was done. Then this looks
//! like a sync that the power loss cut short. The mount leaves it out, and says so, and so does the
//! check, in the same words (**told**).
//!
//! Anything else is silent. In every case, after a repair the volume mounts and a check finds
//! nothing.

use std::collections::BTreeSet;
use std::fmt;

use atoll_block::fault::{Event, Image, Media, Survival};
use atoll_block::{BLOCK_SIZE, FaultDevice, SECTOR_SIZE};
use atoll_fs::{CheckOptions, DumpOptions, Element, Fs, ItemValue, MountNote, check, visit};
use atoll_vfs::model::{Snapshot, SnapshotError, snapshot};
use atoll_vfs::{Context, Errno, FileSystem, Ino, OpenFlags, Timespec};

use crate::crash::judge::without_lag;
use crate::crash::verdicts::Found;
use crate::crash::{Crash, CrashTarget, LIFE, NEXT_LIFE, Plan, Volume, Workload, caught};
use crate::ops::Profile;
use crate::subject::{RW, name, pattern};

const SECTORS_PER_BLOCK: u64 = (BLOCK_SIZE / SECTOR_SIZE) as u64;
const BLOCKS: u64 = 320;
const JOURNAL_BLOCKS: u64 = 128;
/// The name of the file that tells whether a volume can be used.
const USED: &[u8] = b"used after the damage";

/// The damage to a sector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Damage {
    /// Zeros.
    Zeros,
    /// Bytes that mean nothing.
    Noise,
    /// Its content before it was last changed.
    Older,
    /// Its content when the volume was made.
    First,
}

impl Damage {
    /// All.
    pub const ALL: [Damage; 4] = [Damage::Zeros, Damage::Noise, Damage::Older, Damage::First];
}

/// A sound image from some moment of a volume's life.
pub struct Moment {
    /// For people.
    pub name: &'static str,
    image: Image,
    life: [u8; 16],
    /// The event of the workload, unless it is before that.
    event: Option<usize>,
    /// The content that a mount shows.
    sound: Snapshot,
    /// Blocks of file data.
    data: BTreeSet<u64>,
}

/// The outcome of damage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Nothing is missing but unsynced changes, and nothing was said.
    Harmless,
    /// The same, and the mount or the check said something.
    Reported,
    /// An error said it.
    Refused,
    /// Changes that the last sync covers are missing, and mount and check said so: power may have
    /// been lost before that sync was done.
    Told,
    /// The volume shows something else, or is inconsistent, and the mount did not say so.
    Silent(String),
    /// Something is lost, and the check found nothing wrong.
    Unchecked(String),
    /// A repair failed, or left something.
    Unrepaired(String),
}

/// How often there was which outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Of each outcome, in the order of their declaration.
    pub counts: [u64; 7],
}

impl Tally {
    /// Counts one.
    pub fn add(&mut self, outcome: &Outcome) {
        let at = match outcome {
            Outcome::Harmless => 0,
            Outcome::Reported => 1,
            Outcome::Refused => 2,
            Outcome::Told => 3,
            Outcome::Silent(_) => 4,
            Outcome::Unchecked(_) => 5,
            Outcome::Unrepaired(_) => 6,
        };
        self.counts[at] += 1;
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [harmless, reported, refused, told, silent, unchecked, unrepaired] = self.counts;
        write!(
            f,
            "{harmless:6} harmless {reported:6} reported {refused:6} refused {told:6} told \
             {silent:6} silent \
             {unchecked:6} unchecked {unrepaired:6} unrepaired"
        )
    }
}

/// A workload, the moments of its volume's life, and every content that its sectors have had.
pub struct Lives {
    /// The moments.
    pub moments: Vec<Moment>,
    workload: Workload,
    /// The device after each event.
    history: Vec<Image>,
    volume: Volume,
    seed: u64,
}

impl Lives {
    /// Runs the workload of `seed`, with syncs in halves or in one piece.
    ///
    /// # Errors
    /// A difference without any damage.
    pub fn new(seed: u64, halves: bool) -> Result<Lives, String> {
        let volume = Volume {
            journal_blocks: Some(JOURNAL_BLOCKS),

            recovery_cache_bytes: 64 << 10,
            ..Volume::DEFAULT
        };
        let plan = Plan {
            blocks: BLOCKS,
            operations: 700,
            profile: Profile { max_write: 20_000, max_offset: 60_000, ..Profile::LARGE },
            halves: if halves { 80 } else { 0 },
            ..Plan::DEFAULT
        };
        let workload = Workload::run(&volume, &plan, seed, LIFE)?;
        let mut replay = workload.recording.replay();
        let mut history = vec![replay.media().current().clone()];
        let mut media = vec![replay.media().clone()];
        while replay.step() {
            history.push(replay.media().current().clone());
            media.push(replay.media().clone());
        }
        let mut lives = Lives { moments: Vec::new(), workload, history, volume, seed };
        lives.find_moments(&media)?;
        Ok(lives)
    }

    fn find_moments(&mut self, media: &[Media]) -> Result<(), String> {
        let events = self.workload.recording.events();
        let end = events.len();
        // A checkpoint ends with a header, in block 1 or 2, and its flush.
        let is_header = |event: &Event| {
            let Event::Store { at, .. } = event else { return false };
            (1..3).contains(&(at / BLOCK_SIZE as u64))
        };
        let flushed = |from: usize| {
            let flush = |event: &Event| matches!(event, Event::Flush { .. });
            events[from..].iter().position(flush).map_or(end, |at| from + at + 1)
        };
        let worked = self.workload.worked();
        let header = (0..worked).rev().find(|&at| is_header(&events[at]));
        let header = header.ok_or("no checkpoint during the workload")?;
        // The operation that made the checkpoint, with the journal as full as it gets.
        let full = self.workload.returned_before(header);
        let within = full + (header - full) / 2;
        let done = flushed(header);
        let power = |event: usize| media[event].power_loss(Survival::Seed(self.seed));
        let current = |event: usize| media[event].current().clone();
        let images = [
            ("made", current(0), NEXT_LIFE, None),
            ("full, process", current(full), LIFE, Some(full)),
            ("full, unknown", current(full), NEXT_LIFE, Some(full)),
            ("full, power", power(full), NEXT_LIFE, Some(full)),
            ("in checkpoint, process", current(within), LIFE, Some(within)),
            ("in checkpoint, power", power(within), NEXT_LIFE, Some(within)),
            ("checkpointed, process", current(done), LIFE, Some(done)),
            ("checkpointed, power", power(done), NEXT_LIFE, Some(done)),
            ("working, process", current(worked), LIFE, Some(worked)),
            ("working, power", power(worked), NEXT_LIFE, Some(worked)),
            ("unmounted", current(end), LIFE, Some(end)),
            ("unmounted, later", current(end), NEXT_LIFE, Some(end)),
        ];
        for (name, image, life, event) in images {
            self.volume.check(&mut FaultDevice::from_image(image.clone()), life)?;
            let mut data = BTreeSet::new();
            let options = DumpOptions { incarnation: life, ..DumpOptions::default() };
            visit(&mut FaultDevice::from_image(image.clone()), &options, &mut |element| {
                if let Element::Item { value: ItemValue::Extent { start, len, .. }, .. } = element {
                    data.extend(*start..start + len);
                }
                true
            })
            .map_err(|error| error.to_string())?;
            let mut fs = self.volume.recover(FaultDevice::from_image(image.clone()), life)?;
            let sound = snapshot(&mut fs).map_err(|error| error.to_string())?;
            let moment = Moment { name, image, life, event, sound, data };
            self.accepts(&moment, &moment.sound).map_err(|error| format!("{name}: {error}"))?;
            self.moments.push(moment);
        }
        Ok(())
    }

    /// The sectors of a moment that are not file data and were ever written.
    pub fn sectors(&self, moment: &Moment) -> Vec<u64> {
        let blocks = 0..moment.image.block_count();
        blocks
            .filter(|block| moment.image.is_stored(*block) && !moment.data.contains(block))
            .flat_map(|block| block * SECTORS_PER_BLOCK..(block + 1) * SECTORS_PER_BLOCK)
            .collect()
    }

    /// Whether a sector lies neither in the journal's ring nor in blocks that are given out, but in
    /// a block that stands twice.
    pub fn is_of_the_volume(&self, sector: u64) -> bool {
        let block = sector / SECTORS_PER_BLOCK;
        let ring_end = 3 + JOURNAL_BLOCKS;
        block < 3 || (ring_end..ring_end + 4).contains(&block) || block == BLOCKS - 1
    }

    /// The content of a sector after `damage`; `None` if it is the same.
    fn content(&self, moment: &Moment, sector: u64, damage: Damage) -> Option<Vec<u8>> {
        let now = moment.image.sector(sector);
        let bytes = match damage {
            Damage::Zeros => vec![0; SECTOR_SIZE],
            Damage::Noise => pattern(self.seed ^ sector << 8, SECTOR_SIZE),
            Damage::First => self.history[0].sector(sector).to_vec(),
            Damage::Older => {
                let past = &self.history[..moment.event.unwrap_or(0) + 1];
                let other = past.iter().rev().map(|image| image.sector(sector));
                other.into_iter().find(|content| *content != now)?.to_vec()
            }
        };
        (bytes != now).then_some(bytes)
    }

    /// As the sound image, or without unsynced changes.
    fn accepts(&self, moment: &Moment, is: &Snapshot) -> Result<(), String> {
        if without_lag(is.clone()) == without_lag(moment.sound.clone()) {
            return Ok(());
        }
        match moment.event {
            Some(event) => {
                self.workload.accepts(event, Crash::Power(Survival::None), &Found::new(is.clone()))
            }
            None => Err(is.differences(&moment.sound, 6).join("\n")),
        }
    }

    /// Damages one sector, and returns the outcome; `None` if that does not change it.
    pub fn damage(&self, moment: &Moment, sector: u64, damage: Damage) -> Option<Outcome> {
        let content = self.content(moment, sector, damage)?;
        let mut image = moment.image.clone();
        image.write(sector * SECTOR_SIZE as u64, &content);
        let mut device = FaultDevice::from_image(image.clone());
        let options = CheckOptions { incarnation: moment.life, ..CheckOptions::default() };
        let checked = caught("check", || Ok(check(&mut device, &options)));
        let (found, told) = match checked {
            Err(panic) => return Some(Outcome::Silent(panic)),
            Ok(Ok(report)) => (!report.is_clean(), report.notes.contains(&MountNote::Journal)),
            Ok(Err(_)) => (true, false),
        };
        let used = caught("use", || Ok(self.used(moment, FaultDevice::from_image(image.clone()))));
        let outcome = match used {
            Err(panic) => Outcome::Silent(panic),
            Ok(Used::Wrong { error, noted: false }) => {
                let check = if found { "a check finds it" } else { "a check finds nothing" };
                Outcome::Silent(format!("{error}; {check}"))
            }
            Ok(Used::Wrong { .. }) if told && !found && moment.life != LIFE => Outcome::Told,
            Ok(Used::Wrong { error, .. } | Used::Refused(error)) if !found => {
                Outcome::Unchecked(error)
            }
            Ok(Used::Wrong { .. } | Used::Refused(_)) => Outcome::Refused,
            Ok(Used::Unsound(error)) if !found => Outcome::Silent(error),
            Ok(Used::Unsound(_)) => Outcome::Reported,
            Ok(Used::Sound { noted }) if noted || found => Outcome::Reported,
            Ok(Used::Sound { .. }) => Outcome::Harmless,
        };
        if matches!(outcome, Outcome::Silent(_) | Outcome::Unchecked(_)) {
            return Some(outcome);
        }
        let repaired = caught("repair", || self.repaired(moment, FaultDevice::from_image(image)));
        Some(match repaired {
            Ok(()) => outcome,
            Err(error) => Outcome::Unrepaired(error),
        })
    }

    /// Mounts, walks, uses, unmounts, checks, mounts and walks again.
    fn used(&self, moment: &Moment, device: FaultDevice) -> Used {
        let mut fs = match self.volume.recover(device, moment.life) {
            Ok(fs) => fs,
            Err(error) => return Used::Refused(format!("mount: {error}")),
        };
        let noted = notes(&fs.fs);
        let is = match walked(&mut fs.fs) {
            Ok(is) => is,
            Err(used) => return used.noted(noted),
        };
        if let Err(error) = self.accepts(moment, &is) {
            return Used::Wrong { error, noted };
        }
        match write_file(&mut fs.fs) {
            Ok(()) | Err(Errno::ENOSPC) => {}
            Err(error) => return Used::refused("use", error),
        }
        let mut device = match fs.fs.unmount() {
            Ok(device) => device,
            Err(error) => return Used::Refused(format!("unmount: {error}")),
        };
        if let Err(error) = self.volume.check(&mut device, NEXT_LIFE)
            && !noted
        {
            return Used::Unsound(format!("check after use: {error}"));
        }
        let mut fs = match self.volume.recover(device, NEXT_LIFE) {
            Ok(fs) => fs,
            Err(error) => return Used::Refused(format!("mount after use: {error}")),
        };
        let mut again = match walked(&mut fs.fs) {
            Ok(again) => again,
            Err(used) => return used.noted(noted),
        };
        again.nodes.remove([b"/", USED].concat().as_slice());
        match again.without_times().differences(&is.without_times(), 6).as_slice() {
            [] => Used::Sound { noted },
            changes => Used::Wrong { error: format!("use: {}", changes.join("\n")), noted },
        }
    }

    fn repaired(&self, moment: &Moment, mut device: FaultDevice) -> Result<(), String> {
        let incarnation = moment.life;
        let options = CheckOptions { repair: true, incarnation, ..CheckOptions::default() };
        check(&mut device, &options).map_err(|error| format!("repair: {error}"))?;
        let check = |device: &mut FaultDevice| {
            // Where nothing had to be repaired, nothing was: the journal is as it was.
            let checked = self.volume.check(device, moment.life);
            checked.map_err(|error| format!("check after repair: {error}"))
        };
        check(&mut device)?;
        let fs = self.volume.recover(device, moment.life);
        let mut fs = fs.map_err(|error| format!("mount after repair: {error}"))?;
        snapshot(&mut fs).map_err(|error| format!("walk after repair: {error}"))?;
        let device = fs.fs.unmount();
        check(&mut device.map_err(|error| format!("unmount after repair: {error}"))?)
    }
}

/// The outcome of using a damaged volume.
enum Used {
    Sound {
        noted: bool,
    },
    /// As it should be, but a check after it finds something.
    Unsound(String),
    Refused(String),
    Wrong {
        error: String,
        noted: bool,
    },
}

impl Used {
    fn refused(what: &str, error: Errno) -> Used {
        let text = format!("{what}: {error}");
        match error {
            Errno::EUCLEAN | Errno::EIO => Used::Refused(text),
            _ => Used::Wrong { error: text, noted: false },
        }
    }

    fn noted(self, noted: bool) -> Used {
        match self {
            Used::Wrong { error, .. } => Used::Wrong { error, noted },
            other => other,
        }
    }
}

fn walked(fs: &mut Fs<FaultDevice>) -> Result<Snapshot, Used> {
    snapshot(fs).map_err(|error| match error {
        SnapshotError::Call { error, .. } => Used::refused("walk", error),
        error => Used::Wrong { error: error.to_string(), noted: false },
    })
}

fn write_file(fs: &mut Fs<FaultDevice>) -> Result<(), Errno> {
    let cx = Context { uid: 5, gid: 6, now: Timespec { sec: 7, nsec: 8 } };
    let (attr, handle) = fs.create(&cx, Ino::ROOT, name(USED), 0o600, RW | OpenFlags::EXCL)?;
    fs.write(&cx, attr.ino, handle, 0, &pattern(9, 9000))?;
    fs.fsync(&cx, attr.ino, handle, false)?;
    fs.release(&cx, attr.ino, handle)
}

/// Whether the mount said that something was wrong.
fn notes(fs: &Fs<FaultDevice>) -> bool {
    !fs.notes().is_empty()
}
