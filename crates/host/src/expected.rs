//! Whose server a client expects at a socket. Where others can make sockets, as in /tmp, anybody
//! can have one that looks like another's.

use std::ffi::CString;
use std::fmt;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::io::Errno;

use crate::process;
use crate::unmapped::Unmapped;

/// The variable that says whose server a client expects, by number or name. Without it the server
/// is the superuser's, the client's own, or that of the owner of the directory in which its socket
/// is.
pub const SERVER_USER: &str = "ATOLL_SERVER_USER";

/// Why a server is not the one that is meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unexpected {
    /// It is this user's, whom there is no reason to trust.
    User(u32),
    /// [`SERVER_USER`] names nobody.
    Nobody(String),
    /// The kernel does not say whose it is.
    Unknown(Errno),
}

impl fmt::Display for Unexpected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unexpected::User(uid) => write!(
                f,
                "it is run by user {uid}, who may have put it there to be found; if it is the one \
                 that you mean, say so with {SERVER_USER}={uid}"
            ),
            Unexpected::Nobody(user) => write!(f, "{SERVER_USER} says {user}, which is nobody"),
            Unexpected::Unknown(errno) => write!(f, "the kernel does not say who runs it: {errno}"),
        }
    }
}

/// Looks who listens at `path`, to which `socket` is connected. In a user namespace that has no
/// number for the server's user, only what the variable says can be wrong.
pub(crate) fn check(socket: impl AsFd, path: &Path) -> Result<(), Unexpected> {
    let peer = rustix::net::sockopt::socket_peercred(socket).map_err(Unexpected::Unknown)?;
    let uid = peer.uid.as_raw();
    let said = std::env::var(SERVER_USER).ok().filter(|user| !user.is_empty());
    let expected = match said {
        Some(user) => {
            let named = || process::user(&CString::new(user.as_str()).ok()?);
            match user.parse().ok().or_else(named) {
                Some(number) => uid == number,
                None => return Err(Unexpected::Nobody(user)),
            }
        }
        None => {
            let above = path.parent().filter(|above| !above.as_os_str().is_empty());
            let owner = std::fs::metadata(above.unwrap_or(Path::new("."))).map(|of| of.uid());
            uid == 0
                || uid == rustix::process::geteuid().as_raw()
                || owner.is_ok_and(|owner| owner == uid)
                || Unmapped::read().has_user(uid)
        }
    };
    if expected { Ok(()) } else { Err(Unexpected::User(uid)) }
}
