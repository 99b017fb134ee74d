//! `atoll man`: manual pages.

use std::path::PathBuf;

use clap::CommandFactory;

use crate::failure::{Failure, Outcome};

/// Write the manual pages to a directory.
///
/// They become readable by man(1) in a directory of its path, such as ~/.local/share/man/man1.
#[derive(clap::Args)]
pub struct Args {
    /// Where to write atoll.1 and a page per command; made if it is missing.
    directory: PathBuf,
}

/// Writes them.
pub fn run(args: &Args) -> Outcome {
    let failed = |error: std::io::Error| {
        Failure::new(format!("cannot write manual pages to {}: {error}", args.directory.display()))
    };
    std::fs::create_dir_all(&args.directory).map_err(failed)?;
    let command = crate::Cli::command().disable_help_subcommand(true);
    clap_mangen::generate_to(command, &args.directory).map_err(failed)?;
    Ok(0)
}
