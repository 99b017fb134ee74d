//! Which process has sent what comes by a UNIX socket, as the kernel attests it of each message.
//!
//! A process that this one cannot see has the number 0, for which rustix has no value.
#![allow(unsafe_code)]

use std::io;
use std::mem::{MaybeUninit, size_of};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;

/// Room for what comes beside the bytes, aligned as the kernel's headers are.
const BESIDE: usize = 16;

/// Receives what has come, at most `buf`, of a socket with SO_PASSCRED: how many bytes, and the
/// process that has sent them, if this one can see it. Descriptors that come too are closed.
///
/// # Errors
/// Those of recvmsg(2).
pub(super) fn receive(socket: &UnixStream, buf: &mut [u8]) -> io::Result<(usize, Option<u32>)> {
    let mut beside = [0u64; BESIDE];
    let mut part = libc::iovec { iov_base: buf.as_mut_ptr().cast(), iov_len: buf.len() };
    // SAFETY: zeros are a message of nothing.
    let mut message: libc::msghdr = unsafe { MaybeUninit::zeroed().assume_init() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = beside.as_mut_ptr().cast();
    // Too little for credentials with descriptors behind them: the kernel keeps those.
    message.msg_controllen = control_len() as _;
    // SAFETY: the kernel writes to `buf` and `beside` no more than their lengths.
    let got = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, 0) };
    let got = usize::try_from(got).map_err(|_| io::Error::last_os_error())?;
    // SAFETY: the kernel has said how much of `beside` it has written.
    let first = unsafe { libc::CMSG_FIRSTHDR(&raw const message) };
    if first.is_null() {
        return Ok((got, None));
    }
    // SAFETY: it lies in `beside`, whole.
    let head = unsafe { first.read_unaligned() };
    // SAFETY: a number.
    let whole = unsafe { libc::CMSG_LEN(size_of::<libc::ucred>() as u32) } as usize;
    let is_sender = head.cmsg_level == libc::SOL_SOCKET
        && head.cmsg_type == libc::SCM_CREDENTIALS
        && head.cmsg_len as usize >= whole;
    if !is_sender {
        return Ok((got, None));
    }
    // SAFETY: behind the header there is as much as it says.
    let sender = unsafe { libc::CMSG_DATA(first).cast::<libc::ucred>().read_unaligned() };
    Ok((got, u32::try_from(sender.pid).ok().filter(|&process| process > 0)))
}

/// The length of credentials with their header.
fn control_len() -> usize {
    // SAFETY: a number.
    let space = unsafe { libc::CMSG_SPACE(size_of::<libc::ucred>() as u32) } as usize;
    space.min(size_of::<[u64; BESIDE]>())
}
