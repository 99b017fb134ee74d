//! Schedules of threads: several clients, each its script, some of which die.

use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};

use atoll_vfs::FileSystem;

use super::checker;
use super::clients::{Client, SeamClient, prepare};
use super::history::{Call, Mix, inspection, script};
use crate::differential::{replay, seeds};
use crate::rng::Rng;

/// Operations in each script.
const LENGTH: usize = 12;

/// Runs one script on each client at the same time; returns the history. All but the first client
/// may die: in the middle of its script it starts an operation of which nobody hears again. The
/// first looks at everything in the end.
pub fn history<C: Client + Send>(seed: u64, clients: Vec<C>, mix: &Mix) -> Vec<Call> {
    let clock = &AtomicU64::new(1);
    let now = || clock.fetch_add(1, Ordering::SeqCst);
    let start = &Barrier::new(clients.len());
    let mut calls = Vec::new();
    let mut first = None;
    std::thread::scope(|scope| {
        let threads: Vec<_> = clients
            .into_iter()
            .enumerate()
            .map(|(i, mut client)| {
                scope.spawn(move || {
                    let mut rng = Rng::new(!seed << 8 | i as u64);
                    let mut calls = Vec::new();
                    let death = (i > 0 && rng.chance(25)).then(|| rng.within(0..LENGTH as u64));
                    start.wait();
                    for (k, op) in script(seed, i, LENGTH, mix).into_iter().enumerate() {
                        for _ in 0..rng.within(0..2000) {
                            std::hint::spin_loop();
                        }
                        let invoked = now();
                        if death == Some(k as u64) {
                            if rng.chance(50) {
                                let _ = client.call(&op);
                            }
                            calls.push(Call { client: i, op, invoked, returned: None });
                            break;
                        }
                        let outcome = client.call(&op);
                        let returned = Some((now(), outcome));
                        calls.push(Call { client: i, op, invoked, returned });
                    }
                    // A client that died is dropped here.
                    (calls, (i == 0).then_some(client))
                })
            })
            .collect();
        for thread in threads {
            let (more, client) = thread.join().expect("a client panicked");
            calls.extend(more);
            first = first.take().or(client);
        }
    });
    if let Some(client) = &mut first {
        for op in inspection(mix) {
            let invoked = now();
            let outcome = client.call(&op);
            calls.push(Call { client: 0, op, invoked, returned: Some((now(), outcome)) });
        }
    }
    calls
}

/// One run of clients that `make` gives for an empty file system.
///
/// # Errors
/// A history that no order explains.
///
/// # Panics
/// When the world cannot be made.
pub fn run<F: FileSystem + Send>(seed: u64, mut clients: Vec<F>, mix: &Mix) -> Result<(), String> {
    prepare(&mut clients[0]).expect("an empty file system");
    let clients = clients.into_iter().map(|fs| SeamClient::new(fs).expect("a client")).collect();
    checker::check(&history(seed, clients, mix), true)
}

/// Checks `count` seeds, or as many as `ATOLL_SEEDS` says, with 2 to 4 clients in turn; `make`
/// gives that many clients of an empty file system. `test` names the test for the command that
/// replays a failure: the same scripts, though threads meet as they will.
///
/// # Panics
/// On a history that is not linearizable.
pub fn linearizable<F: FileSystem + Send>(
    test: &str,
    count: u64,
    mut make: impl FnMut(usize) -> Vec<F>,
) {
    for seed in seeds(count) {
        if let Err(error) = run(seed, make(2 + seed as usize % 3), &Mix::ALL) {
            panic!("seed {seed}: {error}{}", replay(seed, test));
        }
    }
}
