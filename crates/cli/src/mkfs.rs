//! `atoll mkfs`: makes a volume.

use std::path::PathBuf;

use serde::Serialize;

use crate::failure::Outcome;
use crate::output;
use crate::size;
use crate::volume::{self, CreateOptions};

/// Make a volume in a new file, an empty file, or a block device.
///
/// A file grows with what is in the volume: it takes the space that is used, and from the start up
/// to 50 MiB for the journal. What holds data already is left alone without --force.
#[derive(clap::Args)]
pub struct Args {
    /// The volume's size, as 64M or 2T; 1G for a new file, all of what is there otherwise. A file
    /// that is longer is cut.
    #[arg(short, long, value_parser = size::parse)]
    size: Option<u64>,
    /// A name for people, at most 64 bytes.
    #[arg(short, long, default_value = "")]
    label: String,
    /// The size of the journal; a sixteenth of the volume, at most 256M, if not given.
    #[arg(long, value_parser = size::parse)]
    journal: Option<u64>,
    /// Replace what is there, whatever it is.
    #[arg(long)]
    force: bool,
    /// Print JSON for programs.
    #[arg(long)]
    json: bool,
    /// The file or block device.
    volume: PathBuf,
}

#[derive(Serialize)]
struct Made {
    volume: String,
    uuid: String,
    label: String,
    size: u64,
}

/// Makes it.
pub fn run(args: &Args) -> Outcome {
    let options = CreateOptions {
        size: args.size,
        label: &args.label,
        force: args.force,
        journal: args.journal,
    };
    let volume = volume::create(&args.volume, &options)?;
    let info = volume.info();
    volume::close(&args.volume, volume)?;
    let size = size::of_blocks(info.superblock.block_count);
    if args.json {
        output::json(&Made {
            volume: output::text(args.volume.as_os_str()),
            uuid: output::uuid(&info.superblock.uuid),
            label: args.label.clone(),
            size,
        })?;
    } else {
        let shown = output::shown(args.volume.as_os_str());
        output::line(format!("{shown}: a volume of {}", size::show(size)).as_bytes())?;
    }
    Ok(0)
}
