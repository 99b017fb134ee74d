//! The crash contract on the on-disk file system.

use atoll_block::FaultDevice;
use atoll_fs::{CheckOptions, FormatOptions, Fs, MountOptions, check, format};
use atoll_tests::crash::{CrashTarget, Plan, crash_seeds};
use atoll_tests::ops::Profile;

/// A volume, with a cache and a journal of these sizes.
struct Volume {
    journal_blocks: Option<u64>,
    cache_bytes: usize,
}

impl CrashTarget for Volume {
    type Fs = Fs<FaultDevice>;

    fn format(&self, device: &mut FaultDevice) -> Result<(), String> {
        let options = FormatOptions {
            hash_key: [7; 16],
            journal_blocks: self.journal_blocks,
            ..FormatOptions::default()
        };
        format(device, &options).map_err(|error| error.to_string())
    }

    fn mount(&self, device: FaultDevice, incarnation: [u8; 16]) -> Result<Self::Fs, String> {
        let cache_bytes = self.cache_bytes;
        let options = MountOptions { incarnation, cache_bytes, ..MountOptions::default() };
        Fs::mount(device, &options).map_err(|error| error.to_string())
    }

    fn device<'a>(&self, fs: &'a mut Self::Fs) -> &'a mut FaultDevice {
        fs.device_mut()
    }

    fn unmount(&self, fs: Self::Fs) -> Result<FaultDevice, String> {
        fs.unmount().map_err(|error| error.to_string())
    }

    fn check(&self, device: &mut FaultDevice, incarnation: [u8; 16]) -> Result<(), String> {
        let options = CheckOptions { incarnation, ..CheckOptions::default() };
        match check(device, &options) {
            Ok(report) if report.is_clean() => Ok(()),
            Ok(report) => Err(format!("{:#?}", report.findings)),
            Err(error) => Err(error.to_string()),
        }
    }
}

#[test]
fn every_crash_point() {
    let volume = Volume { journal_blocks: None, cache_bytes: 64 << 20 };
    let tried = crash_seeds("--test crash every_crash_point", &volume, &Plan::DEFAULT);
    println!("{tried:?}");
    assert!(tried.process_crashes > 1000 && tried.power_losses > 1000 && tried.in_recovery > 100);
}

/// A journal and a cache so small that checkpoints come all the time.
#[test]
fn every_crash_point_of_checkpoints() {
    let volume = Volume { journal_blocks: Some(128), cache_bytes: 64 << 10 };
    let plan = Plan { profile: Profile { syncs: 20, ..Profile::LARGE }, ..Plan::DEFAULT };
    let test = "--test crash every_crash_point_of_checkpoints";
    println!("{:?}", crash_seeds(test, &volume, &plan));
}

/// A volume so full that freed blocks are wanted again at once.
#[test]
fn every_crash_point_of_a_full_volume() {
    let volume = Volume { journal_blocks: Some(128), cache_bytes: 64 << 20 };
    let plan = Plan { blocks: 256, profile: Profile::LARGE, ..Plan::DEFAULT };
    let test = "--test crash every_crash_point_of_a_full_volume";
    let tried = crash_seeds(test, &volume, &plan);
    println!("{tried:?}");
    assert!(tried.out_of_space > 10, "the volume was never full");
}

/// Syncs in halves, with operations and other syncs between.
#[test]
fn every_crash_point_between_halves() {
    let volume = Volume { journal_blocks: None, cache_bytes: 64 << 20 };
    let plan = Plan {
        profile: Profile { syncs: 10, max_write: 120_000, long_writes: 15, ..Profile::CRASH },
        halves: 80,
        seeds: 6,
        ..Plan::DEFAULT
    };
    let tried = crash_seeds("--test crash every_crash_point_between_halves", &volume, &plan);
    println!("{tried:?}");
    assert!(tried.halves > 50 && tried.in_two_waits > 10, "hardly anything was made in halves");
}

/// The same with a journal and a cache so small that checkpoints come between.
#[test]
fn every_crash_point_between_halves_and_checkpoints() {
    let volume = Volume { journal_blocks: Some(128), cache_bytes: 64 << 10 };
    let profile = Profile { syncs: 10, long_writes: 15, ..Profile::LARGE };
    let plan = Plan { profile, halves: 80, ..Plan::DEFAULT };
    let test = "--test crash every_crash_point_between_halves_and_checkpoints";
    let tried = crash_seeds(test, &volume, &plan);
    println!("{tried:?}");
    assert!(tried.halves > 30 && tried.in_two_waits > 10, "hardly anything was made in halves");
}

/// The same on a volume so full that freed blocks are wanted again at once.
#[test]
fn every_crash_point_between_halves_of_a_full_volume() {
    let volume = Volume { journal_blocks: Some(128), cache_bytes: 64 << 20 };
    let profile = Profile { syncs: 10, long_writes: 15, ..Profile::LARGE };
    let plan = Plan { blocks: 256, profile, halves: 80, ..Plan::DEFAULT };
    let test = "--test crash every_crash_point_between_halves_of_a_full_volume";
    let tried = crash_seeds(test, &volume, &plan);
    println!("{tried:?}");
    assert!(tried.halves > 30, "hardly anything was made in halves");
    assert!(tried.out_of_space > 10, "the volume was never full");
}
