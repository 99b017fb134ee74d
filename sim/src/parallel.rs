//! Many schedules by several threads. Each schedule is one thread's alone, and what all of them
//! come to is put together in the order of their seeds: it is the same for any number of threads.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::schedule::run;
use crate::world::{Counts, Options, Template};

/// Schedules that a thread takes at a time.
const BATCH: u64 = 32;

/// The outcome of many schedules.
#[derive(Clone, Debug, Default)]
pub struct Total {
    /// How often each thing happened.
    pub counts: Counts,
    /// All their digests, in the order of the seeds.
    pub digest: u64,
    /// The lowest seed that failed, and how. Counts and digest are those of the seeds before it.
    pub failure: Option<(u64, String)>,
}

impl Total {
    /// The schedules of `seeds`, one after the other, up to the first that fails.
    fn of(template: &Template, seeds: Range<u64>, options: Options) -> (Vec<u64>, Total) {
        let (mut digests, mut total) = (Vec::new(), Total::default());
        for seed in seeds {
            let report = run(template, seed, options);
            if let Some(failure) = report.failure {
                total.failure = Some((seed, failure));
                break;
            }
            total.counts.add(&report.counts);
            digests.push(report.digest);
        }
        (digests, total)
    }
}

/// Runs the schedules of `seeds` in so many `threads`.
pub fn run_all(template: &Template, seeds: Range<u64>, options: Options, threads: usize) -> Total {
    let next = AtomicU64::new(seeds.start);
    // Nothing from here on is of interest: a seed before it has failed.
    let end = AtomicU64::new(seeds.end);
    let parts = Mutex::new(BTreeMap::new());
    let work = || {
        loop {
            let from = next.fetch_add(BATCH, Ordering::Relaxed);
            if from >= end.load(Ordering::Relaxed) {
                return;
            }
            let part = Total::of(template, from..seeds.end.min(from + BATCH), options);
            if let Some((seed, _)) = part.1.failure {
                end.fetch_min(seed, Ordering::Relaxed);
            }
            parts.lock().unwrap_or_else(PoisonError::into_inner).insert(from, part);
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..threads {
            scope.spawn(work);
        }
        work();
    });
    let mut total = Total::default();
    for (digests, part) in parts.into_inner().unwrap_or_else(PoisonError::into_inner).into_values()
    {
        total.counts.add(&part.counts);
        for digest in digests {
            total.digest = total.digest.rotate_left(1) ^ digest;
        }
        if part.failure.is_some() {
            total.failure = part.failure;
            break;
        }
    }
    total
}
