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

/// Whether the process at `socket`'s other end has received all that was sent to it, or cannot any
/// more. So it is where the kernel does not say.
pub(super) fn has_received(socket: impl AsFd) -> bool {
    // linux/socket.h and linux/sock_diag.h; before Linux 4.12 there is none.
    const SO_MEMINFO: libc::c_int = 55;
    const SK_MEMINFO_WMEM_ALLOC: usize = 2;
    let mut memory = [0u32; 9];
    let mut length = size_of_val(&memory) as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes, which `memory` has.
    let result = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            SO_MEMINFO,
            memory.as_mut_ptr().cast(),
            &raw mut length,
        )
    };
    result != 0 || memory[SK_MEMINFO_WMEM_ALLOC] == 0
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
    fn what_has_not_been_received_is_known() {
        let (ours, theirs) = crate::control::pair().unwrap();
        let send = || crate::control::send(&ours, b"one", &[ours.as_fd()]).unwrap();
        assert!(has_received(&ours));
        send();
        assert!(!has_received(&ours));
        crate::control::receive(&theirs).unwrap();
        assert!(has_received(&ours));
        send();
        // A side that only shuts down can still receive it.
        rustix::net::shutdown(&theirs, rustix::net::Shutdown::Both).unwrap();
        rustix::net::shutdown(&ours, rustix::net::Shutdown::Both).unwrap();
        assert!(!has_received(&ours));
        drop(theirs);
        assert!(has_received(&ours));
    }

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
