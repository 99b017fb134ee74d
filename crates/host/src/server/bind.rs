//! The socket that clients find a server by.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FileType, FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

/// Connections that may wait to be accepted.
const BACKLOG: i32 = 128;

/// Why there is no socket, in words for the person who asked.
#[derive(Debug)]
pub enum BindError {
    /// Another server listens there.
    InUse(PathBuf),
    /// Something that is no socket is there.
    Occupied(PathBuf),
    /// The system refused.
    Failed(PathBuf, io::Error),
}

impl fmt::Display for BindError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BindError::InUse(path) => write!(
                f,
                "another server listens at {}; end it, or choose another place with --socket",
                path.display()
            ),
            BindError::Occupied(path) => write!(
                f,
                "{} is there and is no socket; nothing was changed. Choose another place with --socket",
                path.display()
            ),
            BindError::Failed(path, error) => {
                write!(f, "cannot make the socket {}: {error}", path.display())
            }
        }
    }
}

impl std::error::Error for BindError {}

/// Listens at `path`: for this user alone, or with `for_all` for everybody, whom then the server's
/// rules let in or not. The socket of a server that has died is replaced.
///
/// # Errors
/// See [`BindError`].
pub fn bind(path: &Path, for_all: bool) -> Result<OwnedFd, BindError> {
    listen(path, for_all, SocketType::SEQPACKET)
}

/// The same for front ends of virtual machines, whose connections are streams.
///
/// # Errors
/// See [`BindError`].
pub fn bind_stream(path: &Path, for_all: bool) -> Result<OwnedFd, BindError> {
    listen(path, for_all, SocketType::STREAM)
}

fn listen(path: &Path, for_all: bool, kind: SocketType) -> Result<OwnedFd, BindError> {
    let socket = |flags| {
        let flags = SocketFlags::CLOEXEC | flags;
        rustix::net::socket_with(AddressFamily::UNIX, kind, flags, None)
    };
    let failed = |errno: Errno| BindError::Failed(path.to_owned(), errno.into());
    let address = SocketAddrUnix::new(path).map_err(failed)?;
    let directory = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = rustix::fs::open(directory, flags, Mode::empty()).map_err(failed)?;
    // Of two servers that find the same dead socket, the second must not remove the first one's.
    // The lock goes with the descriptor.
    rustix::fs::flock(&directory, FlockOperation::LockExclusive).map_err(failed)?;
    match rustix::fs::statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW) {
        Err(Errno::NOENT) => {}
        Err(errno) => return Err(failed(errno)),
        Ok(stat) if FileType::from_raw_mode(stat.st_mode) != FileType::Socket => {
            return Err(BindError::Occupied(path.to_owned()));
        }
        Ok(_) => {
            let probe = socket(SocketFlags::NONBLOCK).map_err(failed)?;
            match rustix::net::connect(&probe, &address) {
                Err(Errno::CONNREFUSED) => rustix::fs::unlink(path).map_err(failed)?,
                Err(Errno::NOENT) => {}
                // EAGAIN is a server too busy to accept, EPROTOTYPE one of another kind.
                _ => return Err(BindError::InUse(path.to_owned())),
            }
        }
    }
    let listener = socket(SocketFlags::NONBLOCK).map_err(failed)?;
    // Nobody else may connect between this and the next line.
    let before = rustix::process::umask(Mode::from_raw_mode(0o177));
    let bound = rustix::net::bind(&listener, &address);
    rustix::process::umask(before);
    bound.map_err(failed)?;
    if for_all {
        rustix::fs::chmod(path, Mode::from_raw_mode(0o666)).map_err(failed)?;
    }
    rustix::net::listen(listener.as_fd(), BACKLOG).map_err(failed)?;
    Ok(listener)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_dead_socket_is_replaced_and_a_live_one_kept() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let first = bind(&path, false).unwrap();
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&path), 0o600);
        assert!(matches!(bind(&path, false), Err(BindError::InUse(_))));
        drop(first);
        let second = bind(&path, true).unwrap();
        assert_eq!(mode(&path), 0o666);
        assert!(matches!(bind_stream(&path, false), Err(BindError::InUse(_))));
        drop(second);
        let third = bind_stream(&path, false).unwrap();
        assert_eq!(mode(&path), 0o600);
        assert!(matches!(bind(&path, false), Err(BindError::InUse(_))));
        drop(third);

        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, "mine").unwrap();
        assert!(matches!(bind(&path, false), Err(BindError::Occupied(_))));
        assert_eq!(std::fs::read(&path).unwrap(), b"mine");
        let none = dir.path().join("none/s");
        assert!(matches!(bind(&none, false), Err(BindError::Failed(..))));
        let long = dir.path().join("l".repeat(200));
        assert!(matches!(bind(&long, false), Err(BindError::Failed(..))));
    }
}
