//! `atoll grow`: makes a volume larger.

use std::path::{Path, PathBuf};

use atoll::storage;
use atoll_fs::{FsError, GrowError, MountOptions};
use atoll_host::device::{OpenError, OpenOptions};
use atoll_host::memory;
use serde::Serialize;

use crate::failure::{Failure, Outcome};
use crate::notes;
use crate::output;
use crate::size;
use crate::volume;

/// Make a volume larger.
///
/// Its file is made longer with --size; a volume on a block device takes what the device has got.
/// The journal grows with the volume. Nothing is lost whatever happens meanwhile, and where the
/// volume cannot grow its file keeps its length. Volumes cannot be made smaller.
#[derive(clap::Args)]
pub struct Args {
    /// The volume's new size, as 64M or 2T; all of the file or device if not given.
    #[arg(short, long, value_parser = size::parse)]
    size: Option<u64>,
    /// Print JSON for programs; sizes are in bytes.
    #[arg(long)]
    json: bool,
    /// The volume.
    volume: PathBuf,
}

#[derive(Serialize)]
struct Result {
    volume: String,
    before: u64,
    after: u64,
}

/// Why the volume at `path` did not grow, or not for certain.
fn refused(path: &Path, error: FsError, kept_size: bool) -> Failure {
    let shown = output::shown(path.as_os_str());
    match error {
        _ if !kept_size => Failure::new(format!(
            "cannot grow {shown}: {error}; it has its old size or the new one, and `atoll info {shown}` says which"
        )),
        FsError::Device(error) => Failure::new(format!("cannot grow {shown}: {error}")),
        error => volume::unusable(path, error),
    }
}

/// Grows it.
pub fn run(args: &Args) -> Outcome {
    let path = &args.volume;
    let shown = output::shown(path.as_os_str());
    // Looked at before its file is made longer, which happens to volumes only.
    let mut device = volume::open_device(path, volume::Access::Read)?;
    let now = atoll_fs::read_superblock(&mut device)
        .map_err(|error| volume::unusable(path, error))?
        .block_count;
    drop(device);
    let blocks = args.size.map(size::to_blocks);
    if let Some(blocks) = blocks
        && blocks < now
    {
        return Err(Failure::new(format!(
            "{shown} has {}, and volumes cannot be made smaller; make a new one of that size, and copy with \
             `atoll cp -r {shown}:/ NEW:/`",
            size::show(size::of_blocks(now))
        )));
    }
    let options = OpenOptions { blocks, ..OpenOptions::default() };
    let mut device = storage::open(path, &options).map_err(|error| match error {
        OpenError::TooSmall { bytes, .. } => Failure::new(format!(
            "cannot grow {shown}: the device has {}; give a smaller --size, or none",
            size::show(bytes)
        )),
        error => volume::cannot_open(path, error),
    })?;
    let mount = storage::mounting(&device, false, memory::cache_bytes());
    let mount = MountOptions { listener: Some(notes::listener(path)), ..mount };
    let grown = match atoll_fs::grow(&mut device, &mount) {
        Ok(grown) => grown,
        Err(GrowError { error, kept_size }) => {
            if kept_size {
                device.close_as_found();
            }
            return Err(refused(path, error, kept_size));
        }
    };
    let (before, after) = (size::of_blocks(grown.before), size::of_blocks(grown.after));
    if args.json {
        output::json(&Result { volume: output::text(path.as_os_str()), before, after })?;
    } else if before == after {
        output::line(
            format!("{shown}: {}, as before; give a --size to make it larger", size::show(after))
                .as_bytes(),
        )?;
    } else {
        output::line(
            format!("{shown}: {}, where it had {}", size::show(after), size::show(before))
                .as_bytes(),
        )?;
    }
    Ok(0)
}
