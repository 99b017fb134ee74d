//! `atoll completions`: completion scripts for shells.

use clap::CommandFactory;

use crate::failure::Outcome;

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
    clap_complete::generate(args.shell, &mut command, "atoll", &mut std::io::stdout());
    Ok(0)
}
