//! `atoll completions`: completion scripts for shells.

use clap::CommandFactory;

use crate::failure::Outcome;
use crate::output;

/// Print a shell's completion script.
///
/// For bash: atoll completions bash > ~/.local/share/bash-completion/completions/atoll
#[derive(clap::Args)]
pub struct Args {
    /// The shell.
    shell: clap_complete::Shell,
}

/// Prints it.
pub fn run(args: &Args) -> Outcome {
    let mut command = crate::Cli::command();
    // Into memory, since it panics where it cannot write.
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command, "atoll", &mut script);
    output::print(&script)?;
    Ok(0)
}
