//! A short run of the simulation: nothing is found, the same seed is the same run, and what is
//! planted is found.

use atoll_sim::plant::{PLANTS, Plant};
use atoll_sim::schedule::run;
use atoll_sim::world::{Counts, Options, Template};

/// The schedules of a short run.
const SCHEDULES: u64 = 2000;

#[test]
fn nothing_is_found() {
    let (template, mut counts) = (Template::default(), Counts::default());
    for seed in 1..=SCHEDULES {
        let report = run(&template, seed, Options::default());
        assert_eq!(report.failure, None, "cargo xtask sim --seed {seed} --count 1 --trace");
        counts.add(&report.counts);
    }
    // After a change of what is generated, this shows that everything is still tried.
    let least = SCHEDULES / 50;
    for (what, count) in [
        ("calls", counts.calls),
        ("syncs", counts.syncs),
        ("locks", counts.locks),
        ("notices", counts.notices),
        ("what kernels show", counts.shown),
        ("deaths of clients", counts.deaths),
        ("ends of processes", counts.process_ends),
        ("power losses", counts.power_losses),
        ("checkpoint steps", counts.checkpoint_steps),
        ("attacks", counts.attacks),
        ("hostile clients dropped", counts.dropped),
        ("errors of the device", counts.errors),
        ("answers in Views", counts.looks),
    ] {
        assert!(count > least, "hardly any {what}: {count}");
    }
    assert!(counts.fences > 0, "no mount was fenced");
    assert!(counts.interrupted > 0, "nobody who waited for a lock was interrupted");
    assert!(counts.bounded > 0, "no hostile client had as many locks as it may");
}

#[test]
fn the_same_seed_is_the_same_run() {
    let template = Template::default();
    let mut different = std::collections::BTreeSet::new();
    for seed in 1..=200 {
        let [a, b] = [0, 1].map(|_| run(&template, seed, Options::default()));
        assert_eq!(a.digest, b.digest, "seed {seed}");
        different.insert(a.digest);
    }
    assert_eq!(different.len(), 200, "seeds make no difference");
}

/// How many schedules it takes to find `plant`, and what is said then.
fn found_after(plant: Plant) -> Option<(u64, String)> {
    let template = Template::default();
    let options = Options { plant: Some(plant), ..Options::default() };
    (1..=SCHEDULES).find_map(|seed| Some((seed, run(&template, seed, options).failure?)))
}

#[test]
fn what_is_planted_is_found() {
    for plant in PLANTS {
        let (schedules, words) =
            found_after(plant).unwrap_or_else(|| panic!("{plant:?} is not found"));
        println!("{plant:?}: after {schedules} schedules: {words}");
        let wanted = match plant {
            Plant::LostRing | Plant::HostileFirst => "waits for ever",
            // By a request that waits for a lock, or is refused one, with nothing in the way.
            Plant::LeakedSession => "Asked {",
            Plant::UncheckedUser => "was allowed",
            Plant::StaleView => "a View shows",
            Plant::DroppedNeighbour => "is dropped",
            Plant::EndlessLocks => "a client has",
            Plant::KeptAttributes | Plant::HastyAnswer => "a kernel shows",
            Plant::KeptPages => "a kernel shows the content",
            Plant::TurnsByRequests | Plant::ConnectionsAsUsers => "for an answer",
            Plant::KeptCharges => "has left",
            Plant::WholeRemovals => "are freed at once",
            Plant::TrustedStrangers | Plant::ForgivenLies => "mounts of a stranger",
            Plant::WholeListings => "is one turn",
            Plant::WholeEnds => "are closed in one hold",
            Plant::ConnectionsAsAccounts => "a user has",
            Plant::ConnectionsAsHolders => "a user holds",
            Plant::ForgottenQuotas => "and its quota is",
            // By the check, or by what is missing.
            Plant::LyingFlush | Plant::SwallowedError => "",
        };
        assert!(words.contains(wanted), "{plant:?} is found by another judge: {words}");
    }
}

/// The costs of hostile clients can be measured: others wait once for the mounts of a user that
/// never take their notices, however many there are, for the gate's patience and for as long as an
/// ended mount is drained.
#[test]
fn hostile_clients_are_measured() {
    let findings = atoll_sim::measure::all(&Template::default()).unwrap();
    let late = |count: u32| {
        let what = format!("{count} in a row: one change each waits 3.0s in all");
        assert!(findings.iter().any(|(_, finding)| *finding == what), "{findings:#?}");
    };
    [1, 2, 4, 8].into_iter().for_each(late);
}
