//! The crash harness on a file system with bugs to order: it finds each, and none where none is.

use atoll_tests::crash::{Plan, Tried, crash_seed, crash_seeds};
use atoll_tests::toy::{Bug, Toy};

const PLAN: Plan = Plan { blocks: 4096, operations: 120, seeds: 2, ..Plan::DEFAULT };

#[test]
fn a_sound_file_system_passes() {
    let tried = crash_seeds("--test harness a_sound_file_system_passes", &Toy(Bug::None), &PLAN);
    assert!(tried.process_crashes > 100 && tried.power_losses > 100);
    assert!(tried.in_recovery > 10 && tried.used_on > 10);
}

/// Runs seeds until the contract breaks, and says how it did.
fn found(bug: Bug) -> String {
    let mut tried = Tried::default();
    (0..6)
        .find_map(|seed| crash_seed(&Toy(bug), &PLAN, seed, &mut tried).err())
        .map(|(_, error)| error)
        .unwrap_or_else(|| panic!("{bug:?} was not found in {tried:?}"))
}

#[test]
fn planted_bugs_are_found() {
    for bug in [
        Bug::AcknowledgesEarly,
        Bug::SyncsNothing,
        Bug::NoChecksums,
        Bug::PassesOverGaps,
        Bug::Reorders,
        Bug::ForgetsRenames,
        Bug::ShowsOtherBytes,
        Bug::CutsWrites,
        Bug::ChecksBadly,
        Bug::RecoveryTearsTheLog,
    ] {
        println!("{bug:?}: {}\n", found(bug));
    }
}
