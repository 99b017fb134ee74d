//! `cargo xtask sim`: runs schedules and says what they came to.
#![forbid(unsafe_code)]

use std::process::ExitCode;
use std::time::Instant;

use atoll_sim::measure;
use atoll_sim::schedule::run;
use atoll_sim::world::{Counts, Options, Template};
use clap::Parser;

/// Runs schedules of server, clients, kernels, device and crashes, each from a seed.
#[derive(Parser)]
#[command(name = "cargo xtask sim")]
struct Arguments {
    /// The first seed
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// How many schedules, of seeds one after the other
    #[arg(long, default_value_t = 10_000)]
    count: u64,
    /// Turns of each in which requests are made
    #[arg(long, default_value_t = Options::default().turns)]
    turns: u64,
    /// Say everything that happens
    #[arg(long)]
    trace: bool,
    /// Measure what hostile clients cost others, instead
    #[arg(long)]
    hostile: bool,
}

fn main() -> ExitCode {
    let Arguments { seed, count, turns, trace, hostile } = Arguments::parse();
    let template = Template::default();
    if hostile {
        return match measure::all(&template) {
            Ok(findings) => {
                findings.iter().for_each(|(what, finding)| println!("known: {what}: {finding}"));
                ExitCode::SUCCESS
            }
            Err(error) => {
                eprintln!("{error}");
                ExitCode::FAILURE
            }
        };
    }
    let options = Options { turns, trace, ..Options::default() };
    // The words of a panic are in the report.
    std::panic::set_hook(Box::new(|_| {}));
    let (began, mut counts, mut digest) = (Instant::now(), Counts::default(), 0u64);
    for seed in seed..seed.saturating_add(count) {
        let report = run(&template, seed, options);
        counts.add(&report.counts);
        digest = digest.rotate_left(1) ^ report.digest;
        if let Some(failure) = report.failure {
            eprintln!("seed {seed}: {failure}");
            eprintln!("again: cargo xtask sim --seed {seed} --count 1 --turns {turns} --trace");
            return ExitCode::FAILURE;
        }
    }
    let seconds = began.elapsed().as_secs_f64();
    println!("{count} schedules in {seconds:.1} s, {:.0} a second", count as f64 / seconds);
    println!("{counts:?}");
    println!("digest {digest:016x}");
    ExitCode::SUCCESS
}
