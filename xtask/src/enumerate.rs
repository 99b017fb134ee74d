//! The crash contract on short sequences of operations, optimised and for long.

use clap::Args;

use crate::steps::{Failure, cargo};

/// The extent of a run.
#[derive(Args)]
pub struct Arguments {
    /// Ends after about so many crash images
    #[arg(long, default_value_t = 10_000_000)]
    images: u64,
    /// Chooses triples, circumstances and crashes
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// How many threads; as many as there are processors if nothing is said
    #[arg(long)]
    threads: Option<u64>,
    /// One sequence alone, as a failure names it
    #[arg(long)]
    case: Option<String>,
    /// Of that, the crashes at one event alone
    #[arg(long, requires = "case")]
    event: Option<u64>,
}

/// Runs the long form of the test `enumerate`.
pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    let processors = std::thread::available_parallelism().map_or(1, |count| count.get() as u64);
    let mut step = cargo(&["test", "--release", "-p", "atoll-tests", "--test", "enumerate", "--"])
        .args(["--ignored", "--exact", "long_form", "--nocapture"])
        .env("ATOLL_IMAGES", &arguments.images.to_string())
        .env("ATOLL_SEED", &arguments.seed.to_string())
        .env("ATOLL_THREADS", &arguments.threads.unwrap_or(processors).to_string());
    if let Some(case) = &arguments.case {
        step = step.env("ATOLL_CASE", case);
    }
    if let Some(event) = arguments.event {
        step = step.env("ATOLL_CRASH", &event.to_string());
    }
    step.run()
}
