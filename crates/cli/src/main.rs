//! The command `atoll`: makes volumes, checks them, looks into them, mounts them, and runs programs
//! on them.
//!
//! One file per command, named after it. [`volume`] opens volumes for all of them, [`location`]
//! names places inside them, [`tree`] has their files as the system's are; [`attend`] and [`job`]
//! are the two processes behind `run`; [`unikernel`] runs programs in a bare
//! image; [`signals`] are as they were found.
#![deny(unsafe_code)]

#[macro_use]
mod say;

mod attend;
mod cat;
mod completions;
mod cp;
mod dump;
mod failure;
mod fsck;
mod grow;
mod guests;
mod info;
mod job;
mod location;
mod logging;
mod ls;
mod man;
mod mkdir;
mod mkfs;
mod mount;
mod notes;
mod output;
mod progress;
mod rm;
mod run;
mod serve;
mod served;
mod signals;
mod size;
mod sole;
mod tree;
mod trim;
mod umount;
mod unikernel;
mod volume;

use std::io;

use clap::{Parser, Subcommand};

use failure::{Failure, Outcome};

/// Files in a volume: fast, crash-safe storage for isolated programs, in one ordinary file or
/// device.
#[derive(Parser)]
#[command(name = "atoll", version, arg_required_else_help = true)]
#[command(after_help = "A place inside a volume is written VOLUME:/path.\n\n\
    Exit status: 0 done; 1 something went wrong, which is said; 2 the command line makes no sense. \
    `run` and `fsck` have statuses of their own.")]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Run(run::Args),
    Mkfs(mkfs::Args),
    Fsck(fsck::Args),
    Info(info::Args),
    Grow(grow::Args),
    Trim(trim::Args),
    Dump(dump::Args),
    Ls(ls::Args),
    Cat(cat::Args),
    Cp(cp::Args),
    Rm(rm::Args),
    Mkdir(mkdir::Args),
    Serve(serve::Args),
    Mount(mount::Args),
    Umount(umount::Args),
    Unikernel(unikernel::Args),
    Completions(completions::Args),
    Man(man::Args),
}

fn main() -> std::process::ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            let printed = error.print();
            let asked_for = || match printed {
                Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
                    say!("cannot write the output: {error}");
                    failure::FAILED
                }
                _ => 0,
            };
            let status = if error.use_stderr() { usage_status() } else { asked_for() };
            return status.into();
        }
    };
    // It cannot fail, and nothing is started yet.
    let _ = signals::mind_children();
    let outcome: Outcome = match cli.command {
        Command::Run(args) => run::run(&args),
        Command::Fsck(args) => fsck::run(&args),
        Command::Mkfs(args) => mkfs::run(&args),
        Command::Dump(args) => dump::run(&args),
        Command::Grow(args) => grow::run(&args),
        Command::Trim(args) => trim::run(&args),
        Command::Info(args) => info::run(&args),
        Command::Ls(args) => ls::run(&args),
        Command::Cat(args) => cat::run(&args),
        Command::Cp(args) => cp::run(&args),
        Command::Rm(args) => rm::run(&args),
        Command::Mkdir(args) => mkdir::run(&args),
        Command::Serve(args) => serve::run(&args),
        Command::Mount(args) => mount::run(&args),
        Command::Umount(args) => umount::run(&args),
        Command::Unikernel(args) => unikernel::run(&args),
        Command::Completions(args) => completions::run(&args),
        Command::Man(args) => man::run(&args),
    };
    match outcome {
        Ok(status) => status.into(),
        Err(Failure { message, status }) => {
            if !message.is_empty() {
                say!("{message}");
            }
            status.into()
        }
    }
}

/// The status for a command line that makes no sense, which two commands have a convention for.
fn usage_status() -> u8 {
    match std::env::args_os().nth(1).as_deref().and_then(|command| command.to_str()) {
        Some("fsck") => failure::FSCK_USAGE,
        Some("run" | "unikernel") => failure::RUN_FAILED,
        _ => failure::USAGE,
    }
}
