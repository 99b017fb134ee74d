//! `atoll run`: a program with volumes in its file tree.
//!
//! Three processes share the work. This one, which the shell sees, waits, passes signals on and
//! ends with the program's status ([`job`](crate::job)). The *server* owns the volumes and serves
//! them ([`attend`]); it has a session of its own, so that neither the terminal nor job control
//! stops it while programs still use it. The *command* enters a private mount namespace, mounts,
//! and becomes the program.

use std::ffi::{OsStr, OsString};
use std::io::{self, PipeWriter, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use atoll_host::client::Address;
use atoll_host::control;
use atoll_host::fuse::mount::{self, MountOptions};
use atoll_host::guest;
use atoll_host::namespace::{self, Namespace};
use atoll_host::process::{close, fork};
use atoll_vfs::AccessTimes;

use crate::attend::{self, Attachment, CommandSide};
use crate::failure::{Failure, Outcome, RUN_FAILED, RUN_NOT_EXECUTABLE, RUN_NOT_FOUND};
use crate::job::Job;
use crate::signals;
use crate::size;
use crate::sole::Cache;
use crate::volume::{self, Access, Atime, CreateOptions, DEFAULT_SIZE};

/// The volume when none is named.
const DEFAULT_VOLUME: &str = "atoll.vol";
/// Where it is found by the program.
const DEFAULT_PATH: &str = "/vol";

/// Run a program with volumes in its file tree.
///
/// The program, and everything that it starts, finds each volume at its PATH; nobody else sees it
/// there. With no volume named, ./atoll.vol is used at /vol, and made if it is missing.
///
/// atoll ends when the last process that sees the volumes has ended, with the status of COMMAND:
/// its own, or 128 and the number of the signal that killed it. 125: atoll itself failed; 126:
/// COMMAND cannot be run; 127: COMMAND was not found.
#[derive(clap::Args)]
pub struct Args {
    /// A volume or a directory, and the directory where it appears (/vol); `:ro` after both for
    /// looking only. One below / need not exist. A volume that `atoll serve` serves is named by the
    /// server's socket: SOCKET, or SOCKET/VOLUME if it serves several. `vhost-user:SOCKET` is a
    /// file system that another process offers to virtual machines there, by virtio-fs.
    #[arg(short, long = "volume", value_name = "VOLUME[:PATH[:ro]]")]
    volumes: Vec<OsString>,
    /// What reading does to the time of last access of files and directories: nothing if not given.
    /// What a program reads again and again from memory may be counted when it is opened next.
    #[arg(long, value_name = "WHEN")]
    atime: Option<Atime>,
    /// What the kernel keeps of what programs write: with `writeback` a write ends in its cache,
    /// and what is not synced is lost if atoll is killed. For volumes that no server has.
    #[arg(long, value_name = "MODE", default_value = "writethrough")]
    cache: Cache,
    /// Say nothing about the volume that is used by default.
    #[arg(short, long)]
    quiet: bool,
    /// The program and its arguments.
    #[arg(required = true, trailing_var_arg = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// Reads `VOLUME[:PATH[:ro]]`; `alone` if it is the only volume, which then needs no path.
fn attachment(
    text: &OsStr,
    alone: bool,
    cwd: &Path,
    (atime, cache): (Option<Atime>, Cache),
) -> Result<Attachment, Failure> {
    let bytes = text.as_bytes();
    let (rest, access) = match bytes.strip_suffix(b":ro") {
        Some(rest) => (rest, Access::Read),
        None => (bytes.strip_suffix(b":rw").unwrap_or(bytes), Access::Write),
    };
    let prefix = guest::prefix(rest);
    let rest = &rest[prefix.map_or(0, str::len)..];
    let (volume, target) = match rest.iter().rposition(|&b| b == b':') {
        Some(at) => (&rest[..at], Some(&rest[at + 1..])),
        None => (rest, None),
    };
    let shown = text.to_string_lossy();
    if volume.is_empty() || target.is_some_and(<[u8]>::is_empty) {
        return Err(Failure::new(format!(
            "`-v {shown}` names no volume and path: write -v VOLUME:PATH, for example -v data.vol:/data"
        )));
    }
    let target = match target {
        Some(target) => OsStr::from_bytes(target),
        None if alone => OsStr::new(DEFAULT_PATH),
        None => {
            return Err(Failure::new(format!(
                "`-v {shown}` needs a path since there are several volumes: -v {shown}:PATH"
            )));
        }
    };
    let (mut volume, target) = (cwd.join(OsStr::from_bytes(volume)), normal(&cwd.join(target)));
    if let Some(prefix) = prefix {
        let mut text = OsString::from(prefix);
        text.push(&volume);
        volume = text.into();
    }
    if target == Path::new("/") {
        return Err(Failure::new(format!(
            "`-v {shown}` would hide all other files, the program's among them; give a directory below /"
        )));
    }
    let served = Address::find(&volume);
    let access_times = volume::access_times(atime, &volume, served.is_some())?;
    let writes_back = cache.writes_back(&volume, served.is_some())?;
    Ok(Attachment { served, volume, target, access, access_times, writes_back })
}

/// `path`, absolute, without `.`; `..` is taken by name.
fn normal(path: &Path) -> PathBuf {
    use std::path::Component;
    let mut out = PathBuf::new();
    for component in path.components() {
        match component {
            Component::CurDir => {}
            Component::ParentDir => {
                out.pop();
            }
            other => out.push(other),
        }
    }
    out
}

/// Runs the command.
pub fn run(args: &Args) -> Outcome {
    attempt(args).map_err(|failure| failure.with_status(RUN_FAILED))
}

fn attempt(args: &Args) -> Outcome {
    let cwd = std::env::current_dir()
        .map_err(|error| Failure::new(format!("the working directory is gone: {error}")))?;
    let mut attachments = Vec::new();
    if args.volumes.is_empty() {
        let volume = cwd.join(DEFAULT_VOLUME);
        let made = match std::fs::symlink_metadata(&volume) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                // Where nothing can be mounted no volume is left behind.
                drop(mount::open_device().map_err(Failure::new)?);
                match volume::create(&volume, &CreateOptions::default()) {
                    Ok(made) => {
                        volume::close(&volume, made)?;
                        true
                    }
                    // Another process was faster.
                    Err(_) if volume.exists() => false,
                    Err(failure) => return Err(failure),
                }
            }
            _ => false,
        };
        if !args.quiet {
            let what = if made {
                format!(
                    "made the volume ./{DEFAULT_VOLUME} ({}, takes 50 MiB and then what is used)",
                    size::show(DEFAULT_SIZE)
                )
            } else {
                format!("using the volume ./{DEFAULT_VOLUME}")
            };
            say!("{what}; it is at {DEFAULT_PATH}");
        }
        attachments.push(Attachment {
            volume,
            served: None,
            target: DEFAULT_PATH.into(),
            access: Access::Write,
            access_times: args.atime.map(AccessTimes::from).unwrap_or_default(),
            writes_back: args.cache == Cache::Writeback,
        });
    }
    for text in &args.volumes {
        let new = attachment(text, args.volumes.len() == 1, &cwd, (args.atime, args.cache))?;
        let file = new.volume.canonicalize().ok().filter(|_| new.served.is_none());
        let alone = |a: &Attachment| a.access == Access::Write || new.access == Access::Write;
        let same = |a: &Attachment| a.volume.canonicalize().ok() == file && alone(a);
        if file.is_some() && attachments.iter().any(same) {
            return Err(Failure::new(format!(
                "`-v {}` names a volume for the second time, which can be done for looking only (`:ro`). A \
                 symbolic link can show it at another place",
                text.display()
            )));
        }
        attachments.push(new);
    }

    let failed = |error: io::Error| Failure::new(format!("cannot start a process: {error}"));
    let (server_end, command_end) = control::pair().map_err(failed)?;
    let (report, reporter) = io::pipe().map_err(failed)?;
    let job = Job::prepare().map_err(failed)?;
    let server = fork(|| {
        // Only the command may hold the other ends, so that its end is noticed.
        close([command_end.as_fd(), report.as_fd(), reporter.as_fd()]);
        attend::attend(&attachments, &server_end)
    })
    .map_err(failed)?;
    drop(server_end);
    let command = fork(|| {
        let failure = match job.restore_signals().map_err(Failure::new) {
            Ok(()) => become_program(&attachments, command_end, &reporter, args, &cwd),
            Err(failure) => failure.with_status(RUN_FAILED),
        };
        if !failure.message.is_empty() {
            say!("{failure}");
        }
        failure.status
    });
    let command = match command {
        Ok(command) => command,
        Err(error) => return Err(failed(error)),
    };
    drop(reporter);
    job.run(command, server, report)
}

/// In the command's process: enters the namespace, mounts, and becomes the program. Returns only
/// to say why not.
fn become_program(
    attachments: &[Attachment],
    line: OwnedFd,
    mut report: &PipeWriter,
    args: &Args,
    cwd: &Path,
) -> Failure {
    if let Err(failure) = mount_all(attachments, &CommandSide(&line)) {
        return failure.with_status(RUN_FAILED);
    }
    drop(line);
    let number = namespace::number("self").unwrap_or(0);
    if let Err(error) = report.write_all(&number.to_ne_bytes()) {
        return Failure::new(format!("cannot report to atoll: {error}")).with_status(RUN_FAILED);
    }
    if let Err(error) = std::env::set_current_dir(cwd) {
        return Failure::new(format!("cannot enter the directory {}: {error}", cwd.display()))
            .with_status(RUN_FAILED);
    }
    let mut program = std::process::Command::new(&args.command[0]);
    program.args(&args.command[1..]);
    let error = signals::exec(&mut program);
    let status = match error.kind() {
        io::ErrorKind::NotFound => RUN_NOT_FOUND,
        _ => RUN_NOT_EXECUTABLE,
    };
    Failure::new(format!("cannot run {}: {error}", args.command[0].display())).with_status(status)
}

/// Mounts all.
fn mount_all(attachments: &[Attachment], line: &CommandSide<'_>) -> Result<(), Failure> {
    let mut made = line.wait()?;
    let mut namespace = Namespace::enter().map_err(Failure::new)?;
    let owner = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    for attachment in attachments {
        namespace.mount_point(&attachment.target).map_err(Failure::new)?;
        if let Some(mount) = made.take()
            && let Ok(watch) = mount::attach_watched(&mount, &attachment.target)
        {
            line.attached(watch.as_fd())?;
            made = line.wait()?;
            continue;
        }
        let device = mount::open_device().map_err(Failure::new)?;
        let options = MountOptions {
            source: &attachment.volume,
            read_only: attachment.access == Access::Read,
            owner,
            // The server of a served volume knows who may do what; in a user namespace the kernel
            // cannot be told. The owner of a volume may do what the modes of its files say.
            checked: attachment.served.is_none() || !namespace.is_user(),
            access_times: attachment.access_times,
        };
        mount::mount(&device, &attachment.target, &options).map_err(Failure::new)?;
        line.hand_over(device.as_fd(), namespace.is_user().then_some(owner))?;
        // Only the server may have it now, so that its end is the mount's.
        drop(device);
        made = line.wait()?;
        // Until the kernel has asked for them, the root's owner is one that a user namespace does
        // not know, and whose directories nobody there may write. A failure shows by itself.
        let _ = std::fs::metadata(&attachment.target);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn volumes_and_paths() {
        let cwd = Path::new("/home/u");
        let read = |text: &str, alone| {
            attachment(OsStr::new(text), alone, cwd, (None, Cache::default()))
                .map(|a| (a.volume.display().to_string(), a.target.display().to_string(), a.access))
        };
        let expect =
            |volume: &str, target: &str, access| (volume.to_owned(), target.to_owned(), access);
        assert_eq!(read("a.vol", true).ok(), Some(expect("/home/u/a.vol", "/vol", Access::Write)));
        assert_eq!(read("/a.vol:/d:ro", false).ok(), Some(expect("/a.vol", "/d", Access::Read)));
        assert_eq!(
            read("a:b:./x/../y", true).ok(),
            Some(expect("/home/u/a:b", "/home/u/y", Access::Write))
        );
        let guest = ("vhost-user:/home/u/s".to_owned(), "/vol".to_owned(), Access::Write);
        assert_eq!(read("vhost-user:s", true).ok(), Some(guest));
        let guest = ("vhost-user:/run/s".to_owned(), "/d".to_owned(), Access::Read);
        assert_eq!(read("vhost-user:/run/s:/d:ro", false).ok(), Some(guest));
        let disk = ("vhost-user-blk:/run/s".to_owned(), "/d".to_owned(), Access::Read);
        assert_eq!(read("vhost-user-blk:/run/s:/d:ro", false).ok(), Some(disk));
        for wrong in ["vhost-user:", "vhost-user-blk:", ":", "a:", ":/vol", "", "a:/", "a:/x/.."] {
            assert!(read(wrong, true).is_err(), "{wrong}");
        }
        assert!(read("a.vol", false).is_err());
    }
}
