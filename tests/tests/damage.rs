//! Every sector that is not file data, damaged at several moments of a volume's life.

use std::collections::BTreeSet;

use atoll_tests::damage::{Damage, Lives, Outcome, Tally};
use atoll_tests::rng::{Rng, environment};

/// Of the sectors that lie between the first blocks and the last, one of how many is damaged in a short
/// run.
const STRIDE: u64 = 24;

fn run(test: &str, halves: bool) {
    let long = environment("ATOLL_SEEDS");
    let seeds = match environment("ATOLL_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..long.unwrap_or(1),
    };
    let only = std::env::var("ATOLL_DAMAGE").ok();
    let mut failures = Vec::new();
    for seed in seeds {
        let lives = Lives::new(seed, halves).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        for moment in &lives.moments {
            let mut tally = Tally::default();
            for sector in lives.sectors(moment) {
                for damage in Damage::ALL {
                    let what = format!("{}/{sector}/{damage:?}", moment.name);
                    let chosen = match &only {
                        Some(only) => *only == what,
                        None => {
                            let number = sector << 8 ^ seed << 40 ^ damage as u64;
                            long.is_some()
                                || lives.is_first_or_last(sector)
                                || Rng::new(number).within(0..STRIDE) == 0
                        }
                    };
                    if !chosen {
                        continue;
                    }
                    let Some(outcome) = lives.damage(moment, sector, damage) else { continue };
                    tally.add(&outcome);
                    if !matches!(outcome, Outcome::Harmless | Outcome::Reported | Outcome::Refused)
                    {
                        failures.push((seed, what, outcome));
                    }
                }
            }
            println!("seed {seed} {:24} {tally}", moment.name);
        }
    }
    // The first of each kind at each moment.
    let mut told = BTreeSet::new();
    for (seed, what, outcome) in &failures {
        let kind = format!("{outcome:?}");
        let kind = kind.split('(').next().unwrap_or_default().to_string();
        let moment = what.split('/').next().unwrap_or_default().to_string();
        if !told.insert((moment, kind)) {
            continue;
        }
        let text: String = format!("{outcome:?}").chars().take(400).collect();
        println!(
            "{text}\nreplay with: ATOLL_SEED={seed} ATOLL_DAMAGE='{what}' \
             cargo test -p atoll-tests --test damage {test} -- --nocapture"
        );
    }
    assert!(failures.is_empty(), "{} of the damages were not handled", failures.len());
}

#[test]
#[ignore = "the journal's records exist once"]
fn damaged_sectors() {
    run("damaged_sectors", false);
}

#[test]
#[ignore = "the journal's records exist once"]
fn damaged_sectors_with_syncs_in_halves() {
    run("damaged_sectors_with_syncs_in_halves", true);
}
