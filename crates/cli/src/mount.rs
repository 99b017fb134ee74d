//! `atoll mount`: a volume in the file tree of all.

use std::fmt;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use atoll_host::client::{Address, Connection};
use atoll_host::fuse::mount::{self, MountOptions};
use atoll_host::process::fork;
use atoll_host::server::rules::Mode;
use atoll_host::server::sole::SoleOptions;
use atoll_vfs::AccessTimes;
use rustix::process::{Signal, WaitOptions};

use crate::failure::{FAILED, Failure, Outcome};
use crate::notes;
use crate::served::{OfDirectory, Served};
use crate::signals::{self, SignalSet};
use crate::sole::{self, Cache};
use crate::volume::{self, Access, Atime};

/// Show a volume's files in a directory, until it is unmounted; or those of another directory, of
/// which the host's changes are seen at once.
///
/// A volume that `atoll serve` serves is named by the server's socket: SOCKET, or SOCKET/VOLUME if
/// it serves several.
///
/// atoll returns once the volume can be used, and serves it in the background.
/// `atoll umount DIRECTORY` ends that; so does SIGTERM to the process that serves. Users other than
/// the superuser need the package fuse3, and are the only ones to see the files.
#[derive(clap::Args)]
pub struct Args {
    /// Take no changes.
    #[arg(short, long)]
    read_only: bool,
    /// What reading does to the time of last access of files and directories: nothing if not given.
    /// What programs read again and again from memory may be counted when they open it next.
    #[arg(long, value_name = "WHEN")]
    atime: Option<Atime>,
    /// What the kernel keeps of what programs write: with `writeback` a write ends in its cache,
    /// and what is not synced is lost if atoll is killed. For volumes that no server has.
    #[arg(long, value_name = "MODE", default_value = "writethrough")]
    cache: Cache,
    /// Serve in the foreground, until Ctrl-C or unmounted.
    #[arg(short, long)]
    foreground: bool,
    /// The volume or directory, or the socket of a server.
    #[arg(value_name = "VOLUME|SOCKET[/VOLUME]")]
    volume: PathBuf,
    /// Where its files are to appear.
    directory: PathBuf,
}

/// Mounts.
pub fn run(args: &Args) -> Outcome {
    let volume = volume::absolute(&args.volume)?;
    let target = args.directory.canonicalize().map_err(|error| {
        Failure::new(format!(
            "cannot mount at {0}: {error}; make the directory with `mkdir -p {0}`",
            args.directory.display()
        ))
    })?;
    let access = if args.read_only { Access::Read } else { Access::Write };
    let place = Address::find(&volume);
    let access_times = volume::access_times(args.atime, &volume, place.is_some())?;
    let writes_back = args.cache.writes_back(&volume, place.is_some())?;
    let read_only = access == Access::Read;
    let options = SoleOptions { read_only, access_times, writes_back, owner: None };
    let serve = |mounted: &mut dyn FnMut()| match &place {
        Some(place) => attach(place, &volume, &target, access, mounted),
        None => serve(&volume, &target, access, &options, mounted),
    };
    if args.foreground {
        return serve(&mut || {
            say!("{} is at {}; Ctrl-C unmounts it", volume.display(), target.display());
        });
    }
    let (reader, writer) =
        io::pipe().map_err(|error| Failure::new(format!("cannot make a pipe: {error}")))?;
    let child = fork(|| {
        let _ = rustix::process::setsid();
        let outcome = serve(&mut || {
            leave_streams();
            let _ = (&writer).write_all(b"+");
        });
        outcome.unwrap_or_else(|failure| {
            say!("{failure}");
            failure.status
        })
    })
    .map_err(|error| Failure::new(format!("cannot start a process: {error}")))?;
    drop(writer);
    if (&reader).read_exact(&mut [0]).is_ok() {
        return Ok(0);
    }
    // It has said why.
    let _ = rustix::process::waitpid(Some(child), WaitOptions::empty());
    Ok(FAILED)
}

fn leave_streams() {
    notes::go_to(notes::Destination::System);
    if let Ok(null) = std::fs::File::options().read(true).write(true).open("/dev/null") {
        let _ = rustix::stdio::dup2_stdin(&null);
        let _ = rustix::stdio::dup2_stdout(&null);
        let _ = rustix::stdio::dup2_stderr(&null);
    }
    let _ = rustix::process::chdir("/");
}

/// Mounts, says so by `mounted`, and serves until unmounted.
fn serve(
    volume: &Path,
    target: &Path,
    access: Access,
    sole: &SoleOptions,
    mounted: impl FnOnce(),
) -> Outcome {
    let cannot = |error: &dyn fmt::Display| {
        Failure::new(format!("cannot mount {}: {error}", volume.display()))
    };
    let signals = block_signals().map_err(|error| cannot(&error))?;
    let fs = Served::open(volume, access, OfDirectory::default())?;
    let SoleOptions { read_only, access_times, .. } = *sole;
    let owner = (0, 0);
    let options = MountOptions { source: volume, read_only, owner, checked: true, access_times };
    let device = match mount_at(target, &options) {
        Ok(device) => device,
        Err(error) => {
            fs.close(volume)?;
            return Err(cannot(&error));
        }
    };
    let server = sole::start(fs, device, sole, volume).inspect_err(|_| {
        let _ = detach(target);
    })?;
    mounted();

    unmount_when_asked(signals, target);
    let ended = server.run();
    if ended.error.is_some() || ended.fs.is_none() {
        // A mount that is left there could only fail.
        let _ = detach(target);
    }
    sole::close(ended, volume)?;
    Ok(0)
}

/// Mounts what the server at `place` serves, says so by `mounted`, and waits until it is unmounted.
fn attach(
    place: &Address,
    source: &Path,
    target: &Path,
    access: Access,
    mounted: impl FnOnce(),
) -> Outcome {
    let cannot = |error: &dyn fmt::Display| Failure::new(format!("cannot mount {place}: {error}"));
    let signals = block_signals().map_err(|error| cannot(&error))?;
    let read_only = access == Access::Read;
    let mode = if read_only { Mode::Read } else { Mode::Write };
    let gone = || {
        // A mount that is left there could only fail.
        let _ = detach(target);
        Err(Failure::new(format!(
            "the server of {place} has gone; {} is unmounted, and what had been written is safe",
            target.display()
        )))
    };
    if let Some((connection, number)) = attach_shared(place, target, mode)? {
        mounted();
        unmount_when_asked(signals, target);
        return match mount::wait_gone(number, &connection) {
            Ok(true) => Ok(0),
            Ok(false) | Err(_) => gone(),
        };
    }
    let connection = Connection::open(place).map_err(Failure::new)?;
    let options = MountOptions {
        source,
        read_only,
        owner: (0, 0),
        checked: rustix::process::geteuid().is_root(),
        access_times: AccessTimes::default(),
    };
    let device = mount_at(target, &options).map_err(|error| cannot(&error))?;
    if let Err(error) = connection.mount(device.as_fd(), mode, false) {
        let _ = detach(target);
        return Err(Failure::new(error));
    }
    // Only the server may have it now, so that its end is the mount's.
    drop(device);
    mounted();
    unmount_when_asked(signals, target);
    if connection.wait() { Ok(0) } else { gone() }
}

/// Attaches a mount that the server at `place` makes, if it makes one, and returns its number. Only
/// the superuser may attach it.
fn attach_shared(
    place: &Address,
    target: &Path,
    mode: Mode,
) -> Result<Option<(Connection, u64)>, Failure> {
    if !rustix::process::geteuid().is_root() {
        return Ok(None);
    }
    let connection = Connection::open(place).map_err(Failure::new)?;
    let Some(mount) = connection.attached(mode).map_err(Failure::new)? else { return Ok(None) };
    let number = mount::number(&mount);
    // Where that cannot be, what this process mounts itself may be, or the reason is told.
    let attached = number.and_then(|number| mount::attach(&mount, target).map(|()| number));
    Ok(attached.ok().map(|number| (connection, number)))
}

/// Mounts at `target`, and returns the device by which it is served. A user who may not mount has
/// the helper do it.
fn mount_at(target: &Path, options: &MountOptions) -> Result<OwnedFd, Box<dyn std::error::Error>> {
    if !rustix::process::geteuid().is_root() {
        return Ok(mount::mount_by_helper(target, options)?);
    }
    let device = mount::open_device()?;
    mount::mount(&device, target, options)?;
    Ok(device)
}

/// Takes what is mounted at `target` out of sight.
fn detach(target: &Path) -> io::Result<()> {
    if rustix::process::geteuid().is_root() {
        mount::detach(target)
    } else {
        mount::unmount_by_helper(target, true)
    }
}

/// Signals that end a mount. Before there are threads, all of which inherit this.
fn block_signals() -> io::Result<SignalSet> {
    let signals = signals::ending(&[Signal::INT, Signal::HUP]);
    signals.block()?;
    Ok(signals)
}

/// Unmounts `target` at the first of `signals`; a second one ends the process.
fn unmount_when_asked(signals: SignalSet, target: &Path) {
    let target = target.to_owned();
    std::thread::spawn(move || {
        let mut asked = false;
        while signals.wait() {
            if asked {
                // The journal has everything that was acknowledged.
                std::process::exit(FAILED.into());
            }
            asked = true;
            if detach(&target).is_ok() {
                say!("unmounted; programs that have files open keep them (again: end at once)");
            }
        }
    });
}
