//! `atoll trim`: gives a volume's free space back.

use std::path::PathBuf;

use serde::Serialize;

use crate::failure::{Failure, Outcome};
use crate::output;
use crate::size;
use crate::volume::{self, Access};

/// Give a volume's free space back to where it is stored.
///
/// A file takes less space afterwards; a block device may forget what is not in use, as with
/// fstrim(8). Volumes in files give back most of what is freed by themselves.
#[derive(clap::Args)]
pub struct Args {
    /// Print JSON for programs; sizes are in bytes.
    #[arg(long)]
    json: bool,
    /// The volume.
    volume: PathBuf,
}

#[derive(Serialize)]
struct Trimmed {
    volume: String,
    trimmed: u64,
}

/// Trims it.
pub fn run(args: &Args) -> Outcome {
    let path = &args.volume;
    let shown = output::shown(path.as_os_str());
    let mut volume = volume::open(path, Access::Write)?;
    let trimmed = volume.trim();
    volume::close(path, volume)?;
    let blocks = trimmed.map_err(|error| Failure::new(format!("cannot trim {shown}: {error}")))?;
    let trimmed = size::of_blocks(blocks);
    if args.json {
        output::json(&Trimmed { volume: output::text(path.as_os_str()), trimmed })?;
    } else {
        output::line(format!("{shown}: {} given back", size::show(trimmed)).as_bytes())?;
    }
    Ok(0)
}
