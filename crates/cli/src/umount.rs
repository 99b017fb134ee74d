//! `atoll umount`: takes a volume out of the file tree.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use atoll_host::fuse::{holders, mount};

use crate::failure::{Failure, Outcome};
use crate::volume;

/// How long the server may take to close the volume before this command says that it waits.
const PATIENCE: Duration = Duration::from_secs(2);

/// Symbolic links that are followed to the mount point.
const LINKS_MAX: u32 = 40;

/// How long it waits for others who still have the volume, and for its server to close it.
const USERS: Duration = Duration::from_secs(5);
const SERVER: Duration = Duration::from_secs(100);

/// How long a lazy unmount waits, should nobody use the volume.
const LAZY: Duration = Duration::from_millis(500);

/// Unmount a volume, and wait until it is closed, but not for ever.
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
    // Asked before it is out of sight; who has it is known by this.
    let device = holders::device(&target).ok();
    let result = match (rustix::process::geteuid().is_root(), args.lazy) {
        (true, true) => mount::detach(&target),
        (true, false) => mount::unmount(&target),
        (false, lazy) => mount::unmount_by_helper(&target, lazy),
    };
    result.map_err(|error| match error.kind() {
        std::io::ErrorKind::ResourceBusy => Failure::new(format!(
            "cannot unmount {shown}: programs use it{}; end them, or unmount with --lazy",
            users(device).map_or_else(
                || format!(" (`fuser -m {shown}` lists them)"),
                |all| format!(": {all}")
            ),
        )),
        _ => Failure::new(format!("cannot unmount {shown}: {error}")),
    })?;
    if args.lazy {
        // Without users it is closed at once, and the next command should find it so.
        let _ = wait_closed(&mounted.source, None, LAZY);
        return Ok(0);
    }
    wait_closed(&mounted.source, device, SERVER).map(|()| 0)
}

/// The processes that have something of the file system `device`, if any are found.
fn users(device: Option<holders::Device>) -> Option<String> {
    let all = holders::of(device?).into_iter().map(|(pid, name)| format!("{name} ({pid})"));
    let all = all.collect::<Vec<_>>().join(", ");
    if all.is_empty() { None } else { Some(all) }
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

/// Waits until no process has the volume open any more: so long for its server, and less for those
/// who have it mounted elsewhere, or something of it in their hands.
///
/// # Errors
/// That it is not closed by then, with who has it.
fn wait_closed(
    volume: &Path,
    device: Option<holders::Device>,
    most: Duration,
) -> Result<(), Failure> {
    let start = Instant::now();
    let shown = volume.display();
    let mut told = false;
    let mut ends = most;
    while volume::is_in_use(volume) {
        if start.elapsed() > ends {
            let who = users(device).unwrap_or_else(|| "its server".to_owned());
            return Err(Failure::new(format!("unmounted, but {who} still has {shown} open")));
        }
        if !told && device.is_some() && start.elapsed() > PATIENCE {
            match users(device) {
                Some(all) => {
                    say!("waiting until {shown} is closed by {all}");
                    ends = USERS;
                }
                None => say!("waiting until {shown} is closed"),
            }
            told = true;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}
