//! The process at the other end of a UNIX socket, as the kernel attests it.
#![allow(unsafe_code)]

use std::io;
use std::mem::size_of;
use std::os::fd::{AsFd, AsRawFd};

use atoll_server::Credentials;

/// The most supplementary groups that Linux gives a process (NGROUPS_MAX).
const GROUPS_MAX: usize = 65536;

/// The credentials that the process at `socket`'s other end had when it connected. Identities of
/// another user namespace come as this one's: its superuser is none here.
///
/// # Errors
/// Those of getsockopt(2) for SO_PEERCRED and SO_PEERGROUPS.
pub fn credentials(socket: impl AsFd) -> io::Result<Credentials> {
    let ucred = rustix::net::sockopt::socket_peercred(&socket)?;
    Ok(Credentials {
        uid: ucred.uid.as_raw(),
        gid: ucred.gid.as_raw(),
        groups: groups(&socket)?.into(),
        pid: ucred.pid.as_raw_nonzero().get().unsigned_abs(),
    })
}

/// SO_PEERGROUPS, which no crate wraps.
fn groups(socket: &impl AsFd) -> io::Result<Vec<u32>> {
    let mut groups: Vec<u32> = vec![0; 64];
    loop {
        let room = groups.len() * size_of::<u32>();
        let mut length = room as libc::socklen_t;
        // SAFETY: the kernel writes at most `length` bytes, which `groups` has.
        let result = unsafe {
            libc::getsockopt(
                socket.as_fd().as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_PEERGROUPS,
                groups.as_mut_ptr().cast(),
                &raw mut length,
            )
        };
        if result == 0 {
            groups.truncate(length as usize / size_of::<u32>());
            return Ok(groups);
        }
        let error = io::Error::last_os_error();
        // It says how much room it wants.
        let wanted = length as usize / size_of::<u32>();
        if error.raw_os_error() != Some(libc::ERANGE)
            || wanted > GROUPS_MAX
            || wanted <= groups.len()
        {
            return Err(error);
        }
        groups.resize(wanted, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    #[test]
    fn this_process() {
        let (a, _b) = UnixStream::pair().unwrap();
        let peer = credentials(&a).unwrap();
        assert_eq!(peer.pid, std::process::id());
        assert_eq!(peer.uid, rustix::process::geteuid().as_raw());
        assert_eq!(peer.gid, rustix::process::getegid().as_raw());
        let mine: Vec<u32> =
            rustix::process::getgroups().unwrap().iter().map(|gid| gid.as_raw()).collect();
        assert_eq!(*peer.groups, *mine);
    }
}
