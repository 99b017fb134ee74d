//! `atoll mount`: a volume in the file tree of all.

use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use atoll_host::fuse::mount::{self, MountError, MountOptions};
use atoll_host::fuse::{Ended, Options, Server};
use atoll_host::process::fork;
use nix::sys::signal::{SigSet, SigmaskHow, Signal, pthread_sigmask};

use crate::failure::{FAILED, Failure, Outcome};
use crate::volume::{self, Access};

/// Show a volume's files in a directory, until it is unmounted.
///
/// atoll returns once the volume can be used, and serves it in the background. `atoll umount DIRECTORY`
/// ends that; so does SIGTERM to the process that serves. Users other than the superuser need the package fuse3,
/// and are the only ones to see the files.
#[derive(clap::Args)]
pub struct Args {
    /// Take no changes.
    #[arg(short, long)]
    read_only: bool,
    /// Serve in the foreground, until Ctrl-C or unmounted.
    #[arg(short, long)]
    foreground: bool,
    /// The volume.
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
    if args.foreground {
        return serve(&volume, &target, access, || {
            eprintln!("atoll: {} is at {}; Ctrl-C unmounts it", volume.display(), target.display());
        });
    }
    let (reader, writer) = nix::unistd::pipe2(nix::fcntl::OFlag::O_CLOEXEC)
        .map_err(|errno| Failure::new(format!("cannot make a pipe: {errno}")))?;
    let child = fork(|| {
        let _ = nix::unistd::setsid();
        let outcome = serve(&volume, &target, access, || {
            leave_streams();
            let _ = nix::unistd::write(&writer, b"+");
        });
        outcome.unwrap_or_else(|failure| {
            eprintln!("atoll: {failure}");
            failure.status
        })
    })
    .map_err(|error| Failure::new(format!("cannot start a process: {error}")))?;
    drop(writer);
    if ready(&reader) {
        return Ok(0);
    }
    // It has said why.
    let _ = nix::sys::wait::waitpid(child, None);
    Ok(FAILED)
}

/// Waits for the word of the process that serves.
fn ready(reader: &OwnedFd) -> bool {
    let mut word = [0];
    loop {
        match nix::unistd::read(reader, &mut word) {
            Err(nix::errno::Errno::EINTR) => {}
            other => return matches!(other, Ok(1)),
        }
    }
}

fn leave_streams() {
    if let Ok(null) = std::fs::File::options().read(true).write(true).open("/dev/null") {
        let _ = nix::unistd::dup2_stdin(&null);
        let _ = nix::unistd::dup2_stdout(&null);
        let _ = nix::unistd::dup2_stderr(&null);
    }
    let _ = nix::unistd::chdir("/");
}

/// Mounts, says so by `mounted`, and serves until unmounted.
fn serve(volume: &Path, target: &Path, access: Access, mounted: impl FnOnce()) -> Outcome {
    let cannot = |error: &dyn fmt::Display| {
        Failure::new(format!("cannot mount {}: {error}", volume.display()))
    };
    // Before there are threads, all of which inherit it.
    let signals: SigSet = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP].into_iter().collect();
    pthread_sigmask(SigmaskHow::SIG_BLOCK, Some(&signals), None).map_err(|e| cannot(&e))?;

    let fs = volume::open(volume, access)?;
    let privileged = nix::unistd::geteuid().is_root();
    let read_only = access == Access::Read;
    let server = if privileged {
        let device = mount::open_device().map_err(|error| cannot(&error))?;
        let options = MountOptions { source: volume, read_only, owner: (0, 0) };
        mount::mount(&device, target, &options).map_err(|error: MountError| cannot(&error))?;
        Server::start(fs, device, &Options::default())
    } else {
        Server::mount_by_helper(fs, volume, target, read_only, &Options::default())
    }
    .map_err(|error: io::Error| cannot(&error))?;
    mounted();

    let place = target.to_owned();
    std::thread::spawn(move || {
        let mut asked = false;
        while signals.wait().is_ok() {
            if asked {
                // The journal has everything that was acknowledged.
                std::process::exit(FAILED.into());
            }
            asked = true;
            let detached = if privileged {
                mount::detach(&place)
            } else {
                mount::unmount_by_helper(&place, true)
            };
            if detached.is_ok() {
                eprintln!(
                    "atoll: unmounted; programs that have files open keep them (again: end at once)"
                );
            }
        }
    });
    let Ended { fs, error } = server.run();
    match fs {
        Some(fs) => volume::close(volume, fs)?,
        None => return Err(cannot(&"an internal error ended it; what had been written is safe")),
    }
    match error {
        Some(error) => Err(cannot(&error)),
        None => Ok(0),
    }
}
