//! Benchmarks: Atoll beside the file systems of the kernel, in one run, by the same code.
//!
//! Read in this order: [`table`] what is measured and what is aimed at; [`subject`] the file
//! systems and [`calls`] what they are asked to do; [`workloads`]; [`child`] one measurement in a
//! process of its own; [`measure`] all of them, interleaved; [`goals`], [`report`] and [`plot`]
//! what comes out; [`hostile`] a server under attack; [`virtiofs`] the device of virtual machines,
//! and programs as its guests; [`programs`] real programs on each way to a file system.
#![deny(unsafe_code)]

mod atoll;
mod calls;
mod child;
mod goals;
mod hostile;
mod limit;
mod machine;
mod measure;
mod over;
mod plot;
mod processor;
mod programs;
mod record;
mod report;
mod resident;
mod scq;
mod served;
mod subject;
mod system;
mod table;
mod virtiofs;
mod workloads;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::measure::{Extent, Outcomes};
use crate::record::Broken;
use crate::subject::{Places, Subject};
use crate::table::{EMBEDDED, SERVER, Suite};

/// Measures Atoll beside the file systems of the kernel.
#[derive(Parser)]
#[command(name = "cargo xtask bench", bin_name = "cargo xtask bench")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Atoll inside the program's own process
    Embedded(Options),
    /// Atoll in a process of its own, for many programs
    Server(Options),
    /// A server under attack by strangers, for the program of another user
    Hostile(hostile::Options),
    /// The virtio-fs device, beside the stock daemons
    Virtiofs(virtiofs::Options),
    /// A process as the guest of a virtio-fs device, beside the stock daemons and native calls
    Guest(virtiofs::guest::Guests),
    /// Real programs, unmodified, on each way to a file system
    Programs(programs::Options),
    /// The process that runs them where their files are
    #[command(hide = true)]
    Play(programs::Part),
    /// A stranger; a process that the attacks start
    #[command(hide = true)]
    Attack(hostile::Part),
    /// Whom the attacks are to hit, or a newcomer
    #[command(hide = true)]
    Victim(hostile::Visit),
    /// One measurement; the process that the others start again and again
    #[command(hide = true)]
    Child(child::Order),
}

#[derive(clap::Args)]
struct Options {
    /// Only show that every workload works, in a minute or two
    #[arg(long)]
    smoke: bool,
    /// Measure the workloads whose name contains this
    #[arg(long, value_name = "NAME")]
    filter: Option<String>,
    /// List the workloads
    #[arg(long)]
    list: bool,
    /// Measure these subjects only
    #[arg(long, value_delimiter = ',')]
    subjects: Vec<Subject>,
    /// How often each point is measured on each subject
    #[arg(long, default_value_t = 7)]
    rounds: usize,
    /// Write the results as JSON to this file instead of one in DIR
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Where the tables, JSON and plots go
    #[arg(long, value_name = "DIR", default_value = "target/bench")]
    out: PathBuf,
    /// A folder on the disk to measure; also where Atoll's volumes are
    #[arg(long, value_name = "DIR", default_value = "target/bench")]
    disk: PathBuf,
    /// A folder on a tmpfs
    #[arg(long, value_name = "DIR", default_value = "/dev/shm")]
    memory: PathBuf,
}

fn main() -> ExitCode {
    let result = match Arguments::parse().command {
        Command::Embedded(options) => suite(&EMBEDDED, &options),
        Command::Server(options) => suite(&SERVER, &options),
        Command::Hostile(options) => hostile::run(&options),
        Command::Virtiofs(options) => virtiofs::run(&options),
        Command::Guest(guests) => virtiofs::guest::run(&guests),
        Command::Programs(options) => programs::run(&options),
        Command::Play(part) => part.play(),
        Command::Attack(part) => part.play(),
        Command::Victim(visit) => visit.pay(),
        Command::Child(order) => child::obey(&order).and_then(|record| {
            println!("{}", serde_json::to_string(&record).map_err(|e| Broken(e.to_string()))?);
            Ok(())
        }),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(Broken(reason)) => {
            eprintln!("{reason}");
            ExitCode::FAILURE
        }
    }
}

/// Measures the workloads of `suite`.
fn suite(suite: &Suite, options: &Options) -> Result<(), Broken> {
    let filter = options.filter.as_deref().unwrap_or("");
    let workloads: Vec<_> = suite.workloads.iter().filter(|w| w.name.contains(filter)).collect();
    if workloads.is_empty() {
        return Err(Broken(format!("no workload's name contains `{filter}`; --list lists them")));
    }
    if options.list {
        for workload in workloads {
            println!("{:<18} {}", workload.name, workload.title);
        }
        return Ok(());
    }
    std::fs::create_dir_all(&options.out)?;
    std::fs::create_dir_all(&options.disk)?;
    let places =
        Places { disk: std::path::absolute(&options.disk)?, memory: options.memory.clone() };
    places.check().map_err(Broken)?;
    let binaries = std::path::absolute(options.out.join("programs"))?;
    workloads::programs::compile(&binaries)?;

    let all = options.subjects.is_empty();
    let extent = Extent {
        smoke: options.smoke,
        rounds: if options.smoke { 1 } else { options.rounds.max(1) },
        subjects: if all { Subject::ALL.into() } else { options.subjects.clone() },
    };
    let outcomes = measure::measure(&workloads, &places, &binaries, &extent, |doing| {
        eprintln!("{doing}");
    });
    write(suite, &outcomes, options)
}

/// Writes what was measured, and fails if anything did.
fn write(suite: &Suite, outcomes: &Outcomes, options: &Options) -> Result<(), Broken> {
    let verdicts = goals::verdicts(suite, outcomes);
    let text = report::text(outcomes, &verdicts);
    println!("{text}");
    let save = |file: &Path, content: &str| {
        std::fs::write(file, content).map_err(|e| Broken(format!("{}: {e}", file.display())))
    };
    let file = |ending: &str| options.out.join(format!("{}.{ending}", suite.name));
    save(&file("txt"), &text)?;
    let json = serde_json::json!({ "outcomes": outcomes, "goals": verdicts });
    let json = serde_json::to_string_pretty(&json).map_err(|e| Broken(e.to_string()))?;
    let default = file("json");
    save(options.json.as_deref().unwrap_or(&default), &json)?;
    for outcome in &outcomes.workloads {
        let file = options.out.join(format!("{}.svg", outcome.workload.name));
        plot::draw(outcome, outcomes.disk, &file).map_err(Broken)?;
    }
    match outcomes.failures().len() {
        0 => Ok(()),
        failures => Err(Broken(format!("{failures} measurements failed"))),
    }
}
