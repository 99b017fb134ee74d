//! The crash contract on the on-disk file system.

use atoll_tests::crash::{Plan, Volume, crash_seeds};
use atoll_tests::ops::Profile;

#[test]
fn every_crash_point() {
    let volume = Volume { recovery_cache_bytes: 64 << 10, ..Volume::DEFAULT };
    let tried = crash_seeds("--test crash every_crash_point", &volume, &Plan::DEFAULT);
    println!("{tried:?}");
    assert!(tried.process_crashes > 1000 && tried.power_losses > 1000 && tried.in_recovery > 100);
}

/// A journal and a cache so small that checkpoints come all the time.
#[test]
fn every_crash_point_of_checkpoints() {
    let volume = Volume { journal_blocks: Some(128), cache_bytes: 64 << 10, ..Volume::DEFAULT };
    let plan = Plan { profile: Profile { syncs: 20, ..Profile::LARGE }, ..Plan::DEFAULT };
    let test = "--test crash every_crash_point_of_checkpoints";
    println!("{:?}", crash_seeds(test, &volume, &plan));
}

/// A volume so full that freed blocks are wanted again at once.
#[test]
fn every_crash_point_of_a_full_volume() {
    let volume = Volume { journal_blocks: Some(128), ..Volume::DEFAULT };
    let plan = Plan { blocks: 256, profile: Profile::LARGE, ..Plan::DEFAULT };
    let test = "--test crash every_crash_point_of_a_full_volume";
    let tried = crash_seeds(test, &volume, &plan);
    println!("{tried:?}");
    assert!(tried.out_of_space > 10, "the volume was never full");
}

/// Syncs in halves, with operations and other syncs between.
#[test]
fn every_crash_point_between_halves() {
    let volume = Volume::DEFAULT;
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
    let volume = Volume {
        journal_blocks: Some(128),
        cache_bytes: 64 << 10,
        recovery_cache_bytes: 64 << 10,
        ..Volume::DEFAULT
    };
    let profile = Profile { syncs: 10, long_writes: 15, ..Profile::LARGE };
    let plan = Plan { profile, halves: 80, ..Plan::DEFAULT };
    let test = "--test crash every_crash_point_between_halves_and_checkpoints";
    let tried = crash_seeds(test, &volume, &plan);
    println!("{tried:?}");
    assert!(tried.halves > 30 && tried.in_two_waits > 10, "hardly anything was made in halves");
    assert!(tried.in_steps > 10, "hardly any checkpoint was made in steps");
}

/// The same on a volume so full that freed blocks are wanted again at once.
#[test]
fn every_crash_point_between_halves_of_a_full_volume() {
    let volume = Volume { journal_blocks: Some(128), ..Volume::DEFAULT };
    let profile = Profile { syncs: 10, long_writes: 15, ..Profile::LARGE };
    let plan = Plan { blocks: 256, profile, halves: 80, ..Plan::DEFAULT };
    let test = "--test crash every_crash_point_between_halves_of_a_full_volume";
    let tried = crash_seeds(test, &volume, &plan);
    println!("{tried:?}");
    assert!(tried.halves > 30, "hardly anything was made in halves");
    assert!(tried.out_of_space > 10, "the volume was never full");
}
