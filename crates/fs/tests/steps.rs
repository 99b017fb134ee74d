//! Checkpoints in steps: the host that takes the steps may stop after any of them, for good or for
//! a while.
mod common;

use atoll_block::FaultDevice;
use atoll_block::fault::Survival;
use atoll_fs::{CheckOptions, FormatOptions, Fs, MountOptions, check, format};
use atoll_vfs::{
    CheckpointStep, Errno, FileSystem, Ino, Name, OpenFlags, PendingSync, SyncId, XattrFlags,
};
use common::*;

/// The smallest journal: it is full after some hundred operations.
const JOURNAL_BLOCKS: u64 = 128;

fn volume() -> Fs<FaultDevice> {
    let mut device = FaultDevice::new(2000);
    let journal_blocks = Some(JOURNAL_BLOCKS);
    format(&mut device, &FormatOptions { journal_blocks, ..FormatOptions::default() }).unwrap();
    Fs::mount(device, &options([7; 16])).unwrap()
}

/// A cache so large that no operation writes home early.
fn options(incarnation: [u8; 16]) -> MountOptions {
    MountOptions { incarnation, cache_bytes: 64 << 20, ..mount_options() }
}

fn named(number: u64) -> String {
    format!("{number:0>40}")
}

/// Makes the file `number`, and removes one from long before; all of it is durable.
fn operate(fs: &mut Fs<FaultDevice>, number: u64) {
    const THERE: u64 = 30;
    let (new, old) = (named(number), named(number.saturating_sub(THERE)));
    let flags = OpenFlags::READ | OpenFlags::WRITE;
    let new = Name::new(new.as_bytes()).unwrap();
    let (attr, handle) = fs.create(&CX, Ino::ROOT, new, 0o644, flags).unwrap();
    fs.write(&CX, attr.ino, handle, 0, &number.to_le_bytes()).unwrap();
    fs.release(&CX, attr.ino, handle).unwrap();
    // Enough of them for nodes that come and go.
    let value = [number as u8; 900];
    let attribute = Name::new(b"user.a").unwrap();
    fs.setxattr(&CX, attr.ino, attribute.bytes(), &value, XattrFlags::empty()).unwrap();
    if number >= THERE {
        fs.unlink(&CX, Ino::ROOT, Name::new(old.as_bytes()).unwrap()).unwrap();
    }
    fs.syncfs(&CX).unwrap();
}

/// After a crash of either kind the last file is there, with its bytes, and the volume is sound.
fn assert_durable(fs: &Fs<FaultDevice>, number: u64, what: &str) {
    let device = fs.device();
    for (incarnation, image) in [
        ([7; 16], device.process_crash()),
        ([8; 16], device.power_loss(Survival::None)),
        ([8; 16], device.power_loss(Survival::Seed(number))),
    ] {
        let mut device = FaultDevice::from_image(image);
        let found = check(&mut device, &CheckOptions { incarnation, ..CheckOptions::default() });
        let report = found.unwrap_or_else(|e| panic!("{what}: {e}"));
        assert!(report.is_clean(), "{what}: {:#?}", report.findings);
        let mounted = Fs::mount(device, &options(incarnation));
        let mut fs = mounted.unwrap_or_else(|e| panic!("{what}: {e}"));
        let attr = fs.lookup(&CX, Ino::ROOT, Name::new(named(number).as_bytes()).unwrap());
        let ino = attr.unwrap_or_else(|e| panic!("{what}: {e}")).ino;
        let handle = fs.open(&CX, ino, OpenFlags::READ).unwrap();
        let mut bytes = [0; 8];
        fs.read(&CX, ino, handle, 0, &mut bytes).unwrap();
        assert_eq!(u64::from_le_bytes(bytes), number, "{what}");
        let device = fs.unmount().unwrap();
        let report = check(&mut device.clone(), &CheckOptions::default()).unwrap();
        assert!(report.is_clean(), "{what}: after use: {:#?}", report.findings);
    }
}

/// A host that takes the steps of checkpoints.
#[derive(Default)]
struct Stepper {
    waits: Option<PendingSync>,
    flushed: Option<(SyncId, Result<(), Errno>)>,
}

impl Stepper {
    /// Takes one step, a flush among them. Returns whether that was the last one of a checkpoint.
    fn step(&mut self, fs: &mut Fs<FaultDevice>) -> Result<bool, Errno> {
        if let Some(waits) = self.waits.take() {
            self.flushed = Some(waits.flush());
            fs.device_mut().note_flushers();
            return Ok(false);
        }
        match fs.checkpoint_step(self.flushed.take())? {
            CheckpointStep::Idle => return Ok(true),
            CheckpointStep::More => {}
            CheckpointStep::Sync => fs.syncfs(&CX)?,
            CheckpointStep::Wait(flush) => self.waits = Some(flush),
        }
        Ok(false)
    }
}

/// How many steps the first checkpoint of such a volume takes.
fn steps(prepared: u64) -> usize {
    let mut fs = volume();
    (0..prepared).for_each(|number| operate(&mut fs, number));
    let mut stepper = Stepper::default();
    let mut count = 1;
    while !stepper.step(&mut fs).unwrap() {
        count += 1;
    }
    count
}

/// However many steps the host has taken, the journal fills up, an operation empties it meanwhile,
/// and nothing is lost: neither then, nor when the host goes on.
#[test]
fn who_takes_the_steps_may_stop_anywhere() {
    const PREPARED: u64 = 40;
    let count = steps(PREPARED);
    assert!(count > 8, "{count} steps are hardly a checkpoint");
    for stop in 0..=count {
        let mut fs = volume();
        (0..PREPARED).for_each(|number| operate(&mut fs, number));
        let mut stepper = Stepper::default();
        for _ in 0..stop {
            stepper.step(&mut fs).unwrap();
        }
        let mut number = PREPARED;
        // Twice around the ring.
        for _ in 0..2 {
            let begun = fs.device().events();
            while fs.device().events() - begun < 6000 {
                operate(&mut fs, number);
                if number.is_multiple_of(16) {
                    assert_durable(&fs, number, &format!("after {stop} steps, file {number}"));
                }
                number += 1;
            }
            // Operations have long done what the step waited for.
            for _ in 0..3 {
                stepper.step(&mut fs).unwrap();
                assert_durable(&fs, number - 1, &format!("going on after {stop} steps"));
            }
        }
        let mut device = fs.unmount().unwrap();
        assert!(check(&mut device, &CheckOptions::default()).unwrap().is_clean());
    }
}

/// A checkpoint after each operation, a step at a time with operations between: the journal never
/// fills up.
#[test]
fn steps_keep_the_journal_short() {
    let mut fs = volume();
    let mut stepper = Stepper::default();
    let mut ended = 0;
    for number in 0..1500 {
        operate(&mut fs, number);
        for _ in 0..3 {
            ended += u64::from(stepper.step(&mut fs).unwrap());
        }
        assert!(number < 50 || ended > 0, "no checkpoint ends");
        if number % 100 == 99 {
            assert_durable(&fs, number, &format!("file {number}"));
        }
    }
    assert!(ended > 100, "{ended} checkpoints");
    drop(fs.unmount().unwrap());
}

/// A flush that fails apart from the volume fails it, at whichever step.
#[test]
fn a_flush_that_fails_is_remembered() {
    let mut failures = 0;
    for stop in 0..steps(20) {
        let mut fs = volume();
        (0..20).for_each(|number| operate(&mut fs, number));
        let mut stepper = Stepper::default();
        for _ in 0..stop {
            stepper.step(&mut fs).unwrap();
        }
        let Some((id, _)) = stepper.flushed.take() else { continue };
        failures += 1;
        assert_eq!(fs.checkpoint_step(Some((id, Err(Errno::EIO)))).map(drop), Err(Errno::EIO));
        assert_eq!(fs.checkpoint_step(None).map(drop), Err(Errno::EIO));
        assert_eq!(
            fs.mkdir(&CX, Ino::ROOT, Name::new(b"d").unwrap(), 0o755).map(drop),
            Err(Errno::EIO)
        );
        assert!(!fs.checkpoint_due());
        let mut device = FaultDevice::from_image(fs.device().process_crash());
        let report = check(&mut device, &CheckOptions::default()).unwrap();
        assert!(report.failed, "the medium says nothing");
    }
    assert!(failures >= 2, "{failures} steps wait for a flush");
}

/// Unsynced operations come between any two steps, and free or change blocks that the checkpoint is
/// about to write: power loss brings back the old state, whole.
#[test]
fn what_is_not_synced_comes_between_any_two_steps() {
    const FILES: u64 = 60;
    let attribute = b"user.a";
    let value = |number: u64, round: u8| vec![number as u8 ^ round; 900];
    let find = |fs: &mut Fs<FaultDevice>, number| {
        let named = named(number);
        fs.lookup(&CX, Ino::ROOT, Name::new(named.as_bytes()).unwrap()).map(|attr| attr.ino)
    };
    let prepared = || {
        let mut fs = volume();
        (0..FILES).for_each(|number| operate(&mut fs, number));
        let mut stepper = Stepper::default();
        while !stepper.step(&mut fs).unwrap() {}
        for number in FILES / 2..FILES {
            let ino = find(&mut fs, number).unwrap();
            fs.setxattr(&CX, ino, attribute, &value(number, 1), XattrFlags::empty()).unwrap();
        }
        fs.syncfs(&CX).unwrap();
        fs
    };
    for stop in 0.. {
        for removes in [true, false] {
            let mut fs = prepared();
            let mut stepper = Stepper::default();
            let mut ended = false;
            for _ in 0..stop {
                ended = ended || stepper.step(&mut fs).unwrap();
            }
            if ended {
                assert!(stop > 8, "{stop} steps are hardly a checkpoint");
                return;
            }
            for number in FILES / 2..FILES - 2 {
                let named = named(number);
                if removes {
                    fs.unlink(&CX, Ino::ROOT, Name::new(named.as_bytes()).unwrap()).unwrap();
                } else {
                    let ino = find(&mut fs, number).unwrap();
                    let new = value(number, 2);
                    fs.setxattr(&CX, ino, attribute, &new, XattrFlags::empty()).unwrap();
                }
            }
            while !stepper.step(&mut fs).unwrap() {}
            let what = format!("after {stop} steps, removes: {removes}");
            let device = FaultDevice::from_image(fs.device().power_loss(Survival::None));
            let mut fs = Fs::mount(device, &options([8; 16])).unwrap();
            let mut seen = Vec::new();
            for number in FILES / 2..FILES {
                let changes = number < FILES - 2;
                let mut is = Vec::new();
                match find(&mut fs, number) {
                    Ok(ino) => fs.getxattr(&CX, ino, attribute, &mut is).unwrap(),
                    Err(Errno::ENOENT) if changes && removes => {}
                    Err(error) => panic!("{what}: file {number}: {error}"),
                }
                let old = is == value(number, 1);
                assert!(old || changes && (is.is_empty() || is == value(number, 2)), "{what}");
                if changes {
                    seen.push(old);
                }
            }
            assert!(seen.iter().all(|old| *old == seen[0]), "{what}: half of what was synced");
            let mut device = fs.unmount().unwrap();
            let report = check(&mut device, &CheckOptions::default()).unwrap();
            assert!(report.is_clean(), "{what}: {:#?}", report.findings);
        }
    }
}

/// A sync holds at whichever step a checkpoint stands, and also if it finds the journal full and
/// ends the checkpoint.
#[test]
fn a_sync_is_one_whatever_the_checkpoint() {
    const PREPARED: u64 = 40;
    let attribute = b"user.a";
    let mut checkpoints = 0;
    for stop in 0..=steps(PREPARED) {
        // Whether the record or the mark is what fills the journal depends on its length.
        for len in (200..1800).step_by(100) {
            let mut fs = volume();
            (0..PREPARED).for_each(|number| operate(&mut fs, number));
            let mut stepper = Stepper::default();
            for _ in 0..stop {
                stepper.step(&mut fs).unwrap();
            }
            let named = named(PREPARED - 1);
            let name = Name::new(named.as_bytes()).unwrap();
            let ino = fs.lookup(&CX, Ino::ROOT, name).unwrap().ino;
            for round in 0..400_000 / len as u64 {
                let value = [round.to_le_bytes().as_slice(), &vec![3; len]].concat();
                fs.setxattr(&CX, ino, attribute, &value, XattrFlags::empty()).unwrap();
                let before = fs.device().events();
                fs.syncfs(&CX).unwrap();
                if fs.device().events() - before < 8 {
                    continue;
                }
                // It did more than store a mark.
                checkpoints += 1;
                let image = fs.device().power_loss(Survival::None);
                let mut after =
                    Fs::mount(FaultDevice::from_image(image), &options([8; 16])).unwrap();
                let mut is = Vec::new();
                after.getxattr(&CX, ino, attribute, &mut is).unwrap();
                assert!(is == value, "after {stop} steps, sync {round} of {len} bytes");
            }
        }
    }
    assert!(checkpoints > 20, "{checkpoints} syncs found the journal full");
}
