//! Several clients of one file system: their results have a sequential order.

#[path = "sharing/killed.rs"]
mod killed;
#[path = "sharing/machine.rs"]
mod machine;
#[path = "sharing/restarted.rs"]
mod restarted;
#[path = "sharing/served.rs"]
mod served;

use std::time::Duration;

use atoll_tests::linear::clients::{Dawdling, Locked};
use atoll_tests::linear::history::Mix;
use atoll_tests::linear::planted::{Defect, Planted};
use atoll_tests::linear::run::{World, linearizable, run, within};
use atoll_vfs::model::ModelFs;
use served::{Kind, in_namespace, volume, world};

/// Seeds in which a planted defect has to show.
const PATIENCE: u64 = 6000;
/// The longest that one seed of a test may take.
const LIMIT: Duration = Duration::from_secs(60);

#[test]
fn locked_model() {
    within(LIMIT, || {
        linearizable("--test sharing locked_model", 300, &Mix::ALL, |_, n| {
            World::new(Locked::clients(Dawdling::new(ModelFs::default()), n))
        });
    });
}

#[test]
fn locked_volume() {
    within(LIMIT, || {
        linearizable("--test sharing locked_volume", 100, &Mix::ALL, |_, n| {
            World::new(Locked::clients(volume(), n))
        });
    });
}

/// Each defect is found, with a history that says so.
#[test]
fn defects_are_found() {
    within(LIMIT, || {
        for defect in Defect::ALL {
            let found = (0..PATIENCE).find_map(|seed| {
                let clients = Planted::clients(ModelFs::default(), 3, defect);
                let mix = Mix { names: if seed % 2 == 0 { 20 } else { 90 }, ..Mix::ALL };
                run(seed, World::new(clients), &mix).err().map(|error| (seed, error))
            });
            let (seed, error) = found.unwrap_or_else(|| panic!("{defect:?} was never seen"));
            assert!(error.contains("no order explains"), "{defect:?}: {error}");
            println!("{defect:?}, seed {seed}: {error}");
        }
    });
}

/// Clients of the kinds that `kind` gives for a seed and a number.
fn served(test: &'static str, count: u64, kind: fn(u64, usize) -> Kind) {
    within(LIMIT, move || {
        let test = format!("--test sharing {test}");
        linearizable(&test, count, &Mix::ALL, |seed, n| {
            world(&(0..n).map(|i| kind(seed, i)).collect::<Vec<_>>())
        });
    });
}

/// As [`served`], with mounts; skipped where mounting is not permitted.
fn mounted(test: &'static str, count: u64, kind: fn(u64, usize) -> Kind) {
    within(LIMIT, move || {
        if in_namespace() {
            let test = format!("--test sharing {test}");
            linearizable(&test, count, &Mix::ALL, |seed, n| {
                world(&(0..n).map(|i| kind(seed, i)).collect::<Vec<_>>())
            });
        }
    });
}

#[test]
fn sessions() {
    served("sessions", 100, |_, _| Kind::Session);
}

#[test]
fn rings() {
    served("rings", 60, |_, _| Kind::Ring);
}

/// The lanes of one connection.
#[test]
fn lanes() {
    served("lanes", 60, |_, _| Kind::Lane);
}

#[test]
fn mounts() {
    mounted("mounts", 20, |_, _| Kind::Mount);
}

/// A kernel's page cache, whose pages clients of all kinds change.
#[test]
fn caching_mount() {
    mounted("caching_mount", 30, |seed, i| match i {
        0 => Kind::CachingMount,
        _ => [Kind::Mount, Kind::Cached, Kind::Ring, Kind::Session][(seed as usize / 3 + i) % 4],
    });
}

/// Cached reads, whose pages and names other clients change.
#[test]
fn cached() {
    served("cached", 60, |seed, i| {
        [Kind::Cached, Kind::CachedLane, Kind::Ring][(seed as usize / 3 + i) % 3]
    });
}

/// Virtual machines, whose drivers hear of no change.
#[test]
fn guests() {
    served("guests", 60, |seed, i| match (seed as usize / 3 + i) % 4 {
        0 => Kind::Ring,
        _ => Kind::Guest,
    });
}

/// Processes that are guests, and keep what they learn until they are told of changes.
#[test]
fn told_guests() {
    served("told_guests", 60, |seed, i| match (seed as usize / 3 + i) % 4 {
        0 => [Kind::Ring, Kind::Cached, Kind::Session][seed as usize % 3],
        _ => Kind::ToldGuest,
    });
}

/// The same beside a mount's page cache.
#[test]
fn told_guests_and_mounts() {
    mounted("told_guests_and_mounts", 20, |seed, i| match (seed as usize / 3 + i) % 3 {
        0 if i == 0 => Kind::CachingMount,
        0 => Kind::Mount,
        _ => Kind::ToldGuest,
    });
}

/// A device that answers from a copy of what others change is found.
#[test]
fn a_stale_device_is_found() {
    within(LIMIT, || {
        let mut kinds = [Kind::StaleGuest, Kind::Ring, Kind::Session].into_iter().cycle();
        let found = (0..PATIENCE).find_map(|seed| {
            let kinds: Vec<Kind> = kinds.by_ref().take(3).collect();
            run(seed, world(&kinds), &Mix::ALL).err().map(|error| (seed, error))
        });
        let (seed, error) = found.expect("it was never seen");
        assert!(error.contains("no order explains"), "{error}");
        println!("seed {seed}: {error}");
    });
}

/// Virtual machines and mounts, neither of whose kernels waits for the other.
#[test]
fn guests_and_mounts() {
    mounted("guests_and_mounts", 20, |seed, i| match (seed as usize / 3 + i) % 4 {
        0 => Kind::Mount,
        2 => Kind::Ring,
        _ => Kind::Guest,
    });
}

#[test]
fn all_kinds_together() {
    mounted("all_kinds_together", 20, |seed, i| {
        let kinds = [
            Kind::Mount,
            Kind::Cached,
            Kind::Guest,
            Kind::Session,
            Kind::CachedLane,
            Kind::Lane,
            Kind::Ring,
        ];
        kinds[(seed as usize / 3 + i) % kinds.len()]
    });
}
