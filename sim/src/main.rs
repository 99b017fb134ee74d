//! `cargo xtask sim`: runs schedules and says what they came to.
#![forbid(unsafe_code)]

use std::process::ExitCode;
use std::time::Instant;

use atoll_sim::measure;
use atoll_sim::parallel::{Total, run_all};
use atoll_sim::world::{Options, Template};
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
    /// Threads that run schedules, each its own; 0: one for each processor
    #[arg(long, default_value_t = 0)]
    threads: usize,
    /// Say everything that happens, in one thread
    #[arg(long)]
    trace: bool,
    /// Measure what hostile clients cost others, instead
    #[arg(long)]
    hostile: bool,
}

fn main() -> ExitCode {
    let Arguments { seed, count, turns, threads, trace, hostile } = Arguments::parse();
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
    let began = Instant::now();
    let threads = match threads {
        _ if trace => 1,
        0 => std::thread::available_parallelism().map_or(1, usize::from),
        threads => threads,
    };
    let Total { counts, digest, failure } =
        run_all(&template, seed..seed.saturating_add(count), options, threads);
    if let Some((seed, failure)) = failure {
        eprintln!("seed {seed}: {failure}");
        eprintln!("again: cargo xtask sim --seed {seed} --count 1 --turns {turns} --trace");
        return ExitCode::FAILURE;
    }
    let seconds = began.elapsed().as_secs_f64();
    let a_second = |number: u64| number as f64 / seconds;
    println!("{count} schedules in {seconds:.1} s, {:.0} a second", a_second(count));
    println!("{} events, {:.0} a second", counts.events, a_second(counts.events));
    println!("{counts:?}");
    println!("digest {digest:016x}");
    ExitCode::SUCCESS
}
