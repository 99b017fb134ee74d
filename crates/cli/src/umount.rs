//! `atoll umount`: takes a volume out of the file tree.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use atoll_host::fuse::mount;

use crate::failure::{Failure, Outcome};
use crate::volume;

/// How long the server may take to close the volume before this command says that it waits.
const PATIENCE: Duration = Duration::from_secs(2);

/// Symbolic links that are followed to the mount point.
const LINKS_MAX: u32 = 40;

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
    let table = |error| Failure::new(format!("cannot read the table of mounts: {error}"));
    let mut target = args.directory.clone();
    let mut mounted = None;
    for _ in 0..LINKS_MAX {
        target = itself(&target)
            .map_err(|error| Failure::new(format!("cannot unmount {shown}: {error}")))?;
        mounted = mount::mounted_at(&target).map_err(table)?;
        // A path that is no mount point can be asked whether it is a link to one.
        if mounted.is_some() {
            break;
        }
        let Ok(link) = std::fs::read_link(&target) else { break };
        target.pop();
        target.push(link);
    }
    let mounted =
        mounted.ok_or_else(|| Failure::new(format!("no volume is mounted at {shown}")))?;
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

/// `path` from the root without links, but for its last part, which is not asked: a volume that is
/// mounted there may have lost its server.
fn itself(path: &Path) -> std::io::Result<PathBuf> {
    match (path.parent(), path.file_name()) {
        (Some(parent), Some(name)) => {
            let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
            Ok(parent.canonicalize()?.join(name))
        }
        _ => path.canonicalize(),
    }
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
            say!("waiting until {} is closed", volume.display());
            told = true;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}
