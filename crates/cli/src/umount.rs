//! `atoll umount`: takes a volume out of the file tree.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use atoll_host::fuse::mount;

use crate::failure::{Failure, Outcome};
use crate::volume;

/// How long the server may take to close the volume before this command says that it waits.
const PATIENCE: Duration = Duration::from_secs(2);

/// How long a lazy unmount waits, should nobody use the volume.
const LAZY: Duration = Duration::from_millis(500);

/// Unmount a volume, and wait until it is closed.
#[derive(clap::Args)]
pub struct Args {
    /// Unmount although programs use it: they keep what they have open, and the volume is closed
    /// after them.
    #[arg(short, long)]
    lazy: bool,
    /// The directory that it was mounted at.
    directory: PathBuf,
}

/// Unmounts.
pub fn run(args: &Args) -> Outcome {
    let shown = args.directory.display();
    // Not by asking the volume, whose server may have gone.
    let target = match args.directory.parent() {
        Some(parent) if args.directory.file_name().is_some() => {
            let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
            parent
                .canonicalize()
                .map(|parent| parent.join(args.directory.file_name().unwrap_or_default()))
        }
        _ => args.directory.canonicalize(),
    }
    .map_err(|error| Failure::new(format!("cannot unmount {shown}: {error}")))?;
    let mounted = mount::mounted_at(&target)
        .map_err(|error| Failure::new(format!("cannot read the table of mounts: {error}")))?
        .ok_or_else(|| Failure::new(format!("no volume is mounted at {shown}")))?;
    let result = match (rustix::process::geteuid().is_root(), args.lazy) {
        (true, true) => mount::detach(&target),
        (true, false) => mount::unmount(&target),
        (false, lazy) => mount::unmount_by_helper(&target, lazy),
    };
    result.map_err(|error| match error.kind() {
        std::io::ErrorKind::ResourceBusy => Failure::new(format!(
            "cannot unmount {shown}: programs use it (`fuser -m {shown}` lists them); end them, \
             or unmount with --lazy"
        )),
        _ => Failure::new(format!("cannot unmount {shown}: {error}")),
    })?;
    if args.lazy {
        // Without users it is closed at once, and the next command should find it so.
        wait_closed(&mounted.source, Some(LAZY));
    } else {
        wait_closed(&mounted.source, None);
    }
    Ok(0)
}

/// Waits until no process has the volume open any more, at most so long.
fn wait_closed(volume: &Path, at_most: Option<Duration>) {
    let start = Instant::now();
    let mut told = false;
    while volume::is_in_use(volume) {
        if at_most.is_some_and(|time| start.elapsed() > time) {
            return;
        }
        if !told && start.elapsed() > PATIENCE {
            eprintln!("atoll: waiting until {} is closed", volume.display());
            told = true;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}
