//! The developer's commands, one for each thing a developer does: `cargo xtask COMMAND`.
//!
//! Read in this order: [`steps`] runs other programs and says how long they took; [`ci`] runs
//! everything that must pass; [`c`] its checks of the C sources; [`repeat`] finds tests that fail
//! now and then; [`enumerate`] crashes by the million; [`fuzz`] the fuzzer; [`fuse_header`]
//! takes a new header of Linux in; [`unikernel`] builds the bare image; [`dist`] makes a release;
//! [`tidy`] the project's rules about itself.
#![forbid(unsafe_code)]

mod c;
mod ci;
mod dist;
mod enumerate;
mod fuse_header;
mod fuzz;
mod repeat;
mod steps;
mod tidy;
mod unikernel;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::steps::{Failure, cargo, program};

/// The developer's commands of Atoll.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run all tests; arguments go to `cargo test`
    Test {
        /// What `cargo test` takes, such as `-p atoll-fs` or the name of a test
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Run all tests again and again, and say which failed how often
    Repeat {
        /// How many times
        #[arg(default_value_t = 10)]
        times: u32,
        /// Threads beside it that keep a processor busy each
        #[arg(long, default_value_t = 0)]
        load: usize,
        /// What `cargo test` takes, after `--`
        #[arg(last = true)]
        arguments: Vec<String>,
    },
    /// Run everything that must pass: format, lints, tidy, C, tests, smoke runs, documentation
    Ci,
    /// Measure; `cargo xtask bench embedded --help` says what
    Bench {
        /// Arguments of the benchmark program
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Run suites of tests that others wrote, at each place where programs have files, longer than
    /// the tests do
    Suites {
        /// How many times as long
        #[arg(default_value_t = 20)]
        times: u32,
    },
    /// Fuzz a target until stopped; without one, list them
    Fuzz {
        /// The target
        target: Option<String>,
        /// Arguments of libFuzzer, such as `-max_total_time=600`
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Make the list of FUSE's numbers and structures that the codec is held against
    FuseHeader {
        /// Linux's include/uapi/linux/fuse.h
        header: PathBuf,
    },
    /// Try crashes of short sequences of operations by the million
    Enumerate(enumerate::Arguments),
    /// Run schedules of server, clients, kernels, device and crashes, each from a seed
    Sim {
        /// Arguments of the simulation, such as `--seed 1 --count 10000`; `--help` says which
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Run the tests of shared memory and of the drivers under Miri, which needs a nightly
    /// toolchain with it, and long
    Miri,
    /// Check the C sources: every warning, gcc's analyzer, cppcheck
    C,
    /// Check the project's own rules: layers, unsafe code, sizes of files, words, links, licences
    Tidy,
    /// Make a release: tarball, Debian package and image for containers
    Dist(dist::Arguments),
    /// Build the bare image, where `atoll unikernel run` of this checkout finds it
    Unikernel,
    /// Install the system packages and the toolchain that building and testing need
    Setup,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let result = match arguments.command {
        Command::Test { arguments } => cargo(&["test", "--workspace"]).args(arguments).run(),
        Command::Repeat { times, load, arguments } => repeat::run(times, load, &arguments),
        Command::Ci => ci::run(),
        Command::Bench { arguments } => bench(&arguments),
        Command::Suites { times } => cargo(&["test", "-p", "atoll-cli", "--test", "suites"])
            .env("ATOLL_SUITES", &times.to_string())
            .run(),
        Command::Fuzz { target, arguments } => fuzz::run(target.as_deref(), &arguments),
        Command::FuseHeader { header } => fuse_header::run(&header),
        Command::Enumerate(arguments) => enumerate::run(&arguments),
        Command::Sim { arguments } => {
            cargo(&["run", "--quiet", "--release", "-p", "atoll-sim", "--"]).args(arguments).run()
        }
        Command::Miri => miri(),
        Command::C => c::check(),
        Command::Tidy => tidy::run(),
        Command::Dist(arguments) => dist::run(&arguments),
        Command::Unikernel => unikernel::run(),
        Command::Setup => program("xtask/setup.sh").arg("test").run(),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure(reason)) => {
            eprintln!("error: {reason}");
            ExitCode::FAILURE
        }
    }
}

/// Runs the benchmarks: optimised, or as tests are built when they only have to show that they
/// work.
fn bench(arguments: &[String]) -> Result<(), Failure> {
    let smoke = arguments.iter().any(|argument| argument == "--smoke");
    let profile = if smoke { "dev" } else { "release" };
    cargo(&[
        "build",
        "--profile",
        profile,
        "-p",
        "libatoll",
        "-p",
        "atoll-cli",
        "-p",
        "atoll-bench",
    ])
    .run()?;
    // What calls cost in the image is counted as well.
    if !smoke && arguments.first().is_some_and(|first| first == "guest") {
        unikernel::run()?;
    }
    cargo(&["run", "--quiet", "--profile", profile, "-p", "atoll-bench", "--"])
        .args(arguments)
        .run()
}

/// Runs the tests of the crates whose unsafe code Miri can judge. Loom has no memory of its own,
/// and the memory that the drivers' tests share with their device is never given back.
fn miri() -> Result<(), Failure> {
    if !program("cargo").args(["+nightly", "miri", "--version"]).succeeds() {
        return Err(Failure(
            "Miri is missing; run: rustup toolchain install nightly --component miri,rust-src"
                .into(),
        ));
    }
    let judge = |tests: [&str; 2], flags: &str| {
        let miri = program("cargo").args(["+nightly", "miri", "test", "-p"]).args(tests);
        miri.env("MIRIFLAGS", flags).run()
    };
    judge(["atoll-transport", "--test=channel"], "-Zmiri-strict-provenance")?;
    judge(["atoll-virtio", "--lib"], "-Zmiri-strict-provenance -Zmiri-ignore-leaks")
}

/// The root of the repository.
fn root() -> PathBuf {
    let xtask = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    xtask.parent().map(PathBuf::from).unwrap_or(xtask)
}
