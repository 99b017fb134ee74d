//! Every target on a fixed set of inputs: the smoke run of `cargo test`.
//!
//! `ATOLL_FUZZ_RUNS` sets how many inputs, `ATOLL_FUZZ_SEED` the one to run alone.

use std::panic::catch_unwind;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

/// The longest that one input may take, many times the slowest.
const PATIENCE: Duration = Duration::from_secs(60);
/// The most memory that the process may ever use, in KiB: images are of 2 MiB.
const MEMORY_KIB: u64 = 1 << 20;

/// Pseudo-random bytes (SplitMix64), the same for a seed everywhere.
fn input(seed: u64) -> Vec<u8> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    };
    // Short and long ones: short ones fail in ways that people understand.
    let len = 8 << (next() % 9);
    (0..len).flat_map(|_| next().to_le_bytes()).collect()
}

fn variable(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// Peak memory of this process in KiB.
fn peak_memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|rest| rest.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}

/// Runs `target` on the inputs of `runs` seeds, in a thread that is watched.
fn smoke(name: &'static str, runs: u64, target: fn(&[u8])) {
    let seeds: Vec<u64> = match variable("ATOLL_FUZZ_SEED") {
        Some(seed) => vec![seed],
        None => (0..variable("ATOLL_FUZZ_RUNS").unwrap_or(runs)).collect(),
    };
    let replay = |seed: u64| format!("ATOLL_FUZZ_SEED={seed} cargo test -p atoll-fuzz {name}");
    let current = Arc::new(AtomicU64::new(0));
    let (done, finished) = mpsc::channel();
    let worker = {
        let current = current.clone();
        std::thread::spawn(move || {
            for seed in seeds {
                current.store(seed, Ordering::Relaxed);
                let panicked = catch_unwind(|| target(&input(seed))).is_err();
                if done.send((seed, panicked)).is_err() || panicked {
                    return;
                }
            }
        })
    };
    let begin = Instant::now();
    let mut count = 0;
    loop {
        match finished.recv_timeout(PATIENCE) {
            Ok((seed, panicked)) => {
                count += 1;
                assert!(!panicked, "{name} panicked; replay with: {}", replay(seed));
                let peak = peak_memory();
                assert!(peak < MEMORY_KIB, "{name} used {peak} KiB; replay with: {}", replay(seed));
            }
            Err(mpsc::RecvTimeoutError::Disconnected) => break,
            Err(mpsc::RecvTimeoutError::Timeout) => {
                let seed = current.load(Ordering::Relaxed);
                panic!("{name} does not end; replay with: {}", replay(seed));
            }
        }
    }
    worker.join().expect("panics were caught");
    println!("{name}: {count} inputs in {:.1} s", begin.elapsed().as_secs_f64());
}

#[test]
fn mount() {
    smoke("mount", 1500, crate::mount::run);
}

#[test]
fn check() {
    smoke("check", 1500, crate::check::run);
}

#[test]
fn operations() {
    smoke("operations", 300, crate::operations::run);
}

#[test]
fn requests() {
    smoke("requests", 3000, crate::requests::run);
}

#[test]
fn replies() {
    smoke("replies", 3000, crate::replies::run);
}

#[test]
fn channel() {
    smoke("channel", 3000, crate::channel::run);
}

#[test]
fn device() {
    smoke("device", 2500, crate::device::run);
}

#[test]
fn driver() {
    smoke("driver", 3000, crate::driver::run);
}

#[test]
fn program() {
    smoke("program", 20_000, crate::program::run);
}
