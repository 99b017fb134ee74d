//! Every crash of short sequences of operations; `cargo xtask enumerate` is the long form.

use std::time::Instant;

use atoll_tests::crash::Tried;
use atoll_tests::enumerate::{Case, Depth, Prepared, Run, run, try_case};
use atoll_tests::rng::environment;

/// Sequences that chance may leave out: a block that goes from file data to a node within a window,
/// recovered in less memory than before; data in the journal that newer data has made void; blocks
/// that are freed and taken again between the halves of a commit, allocated before it or long ago;
/// data that is newer than the journal's and has no record; data of a write that was undone; a file
/// in many pieces, freed in steps between other operations or in one call.
const KNOWN: [&str; 15] = [
    "roomy/whole/64M/64K/temporary,setxattr-many,syncfs",
    "roomy/halves/64M/64K/temporary,setxattr-many,syncfs",
    "roomy/whole/64M/64M/overwrite,fsync,write-300k,syncfs",
    "roomy/halves/64M/64M/overwrite,fsync,write-300k,syncfs",
    "roomy/halves/64M/64M/write-beyond,syncfs,unlink,temporary",
    "full/halves/64M/64M/truncate-zero,syncfs,write-64k,append,temporary-large",
    "roomy/halves/64M/64M/write-300k,syncfs,truncate-write,write-300k",
    "roomy/halves/64M/64M/write-300k,syncfs,append,tmpfile-link",
    "roomy/whole/64M/64M/truncate-down,extend",
    "roomy/halves/64M/64M/overwrite-part,fdatasync,overwrite-large,fdatasync,mkdir",
    "full-host/halves/64M/64M/write-300k,setxattr-many,syncfs,chmod-chown,syncfs",
    "pieces/halves/64M/64K/unlink-large,write-300k,syncfs,create-many",
    "pieces/halves/64K/64M/truncate-zero,syncfs,extend,truncate-down",
    "pieces/halves/64M/64M/unlink-open-close,temporary-large,fsync",
    "pieces/whole/64M/64K/truncate-down,syncfs,extend",
];

fn failure(case: &Case, seed: u64, event: usize, error: &str) -> String {
    format!(
        "{case}: {error}\n\
         replay with: cargo xtask enumerate --seed {seed} --case {case} --event {event}"
    )
}

#[test]
fn known_sequences() {
    let prepared = Prepared::new().unwrap();
    let depth = Depth { stride: 4, losses: 1, further: 8 };
    let mut tried = Tried::default();
    for text in KNOWN {
        let case = Case::parse(text).unwrap();
        assert_eq!(case.to_string(), text);
        for seed in 0..3 {
            let outcome = try_case(&prepared, &case, seed, &depth, None, &mut tried);
            if let Err((event, error)) = outcome {
                panic!("{}", failure(&case, seed, event, &error));
            }
        }
    }
    println!("{tried:?}");
}

#[test]
fn pairs_and_triples() {
    let depth = Depth { stride: 8, losses: 1, further: 8 };
    let plan = Run { images: 15_000, seed: 1, threads: 1, depth };
    match run(&plan, |_, _| {}) {
        Err((case, event, error)) => panic!("{}", failure(&case, plan.seed, event, &error)),
        Ok((cases, tried)) => {
            println!("{cases} cases: {tried:?}");
            assert!(cases > 100 && tried.in_recovery > 300 && tried.halves > 20);
            assert!(tried.out_of_space > 10, "no volume was ever full");
            assert!(tried.removal_steps > 2, "nothing was freed in steps");
        }
    }
}

/// `cargo xtask enumerate`: `ATOLL_IMAGES`, `ATOLL_SEED`, `ATOLL_THREADS`; `ATOLL_CASE` and
/// `ATOLL_CRASH` for one case and one event of it.
#[test]
#[ignore = "takes long; cargo xtask enumerate runs it"]
fn long_form() {
    let seed = environment("ATOLL_SEED").unwrap_or(1);
    let depth = Depth { stride: 1, losses: 2, further: 8 };
    if let Ok(text) = std::env::var("ATOLL_CASE") {
        let case = Case::parse(&text).unwrap();
        let prepared = Prepared::new().unwrap();
        let mut tried = Tried::default();
        let only = environment("ATOLL_CRASH");
        if let Err((event, error)) = try_case(&prepared, &case, seed, &depth, only, &mut tried) {
            panic!("{}", failure(&case, seed, event, &error));
        }
        println!("{case}: {tried:?}");
        return;
    }
    let plan = Run {
        images: environment("ATOLL_IMAGES").unwrap_or(10_000_000),
        seed,
        threads: environment("ATOLL_THREADS").unwrap_or(1) as usize,
        depth,
    };
    let begin = Instant::now();
    let outcome = run(&plan, |cases, images| {
        let seconds = begin.elapsed().as_secs_f64();
        let rate = images as f64 / seconds.max(0.001);
        println!("{cases} sequences, {images} images, {seconds:.0} s, {rate:.0} images a second");
    });
    match outcome {
        Err((case, event, error)) => panic!("{}", failure(&case, seed, event, &error)),
        Ok((cases, tried)) => println!("{cases} sequences, {} images: {tried:?}", tried.images()),
    }
}
