//! A disk that another process offers by vhost-user-blk, as the storage of a volume.
//!
//! A write is with the back end when it has answered, whatever becomes of this process, and durable
//! when it has answered a FLUSH. What was written and not flushed lives as long as the back end's
//! process: that names the [incarnation](GuestDisk::incarnation).

use std::io;
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;

use atoll_block::{BlockDevice, BlockError, BlockIndex};
use atoll_virtio::DeviceError;
use atoll_virtio::disk::Disk;
use rustix::io::Errno;
use rustix::net::sockopt;

use super::error::OpenError;
use super::{owner, sender};
use crate::guest::{Shares, VhostUser};
use crate::medium::wait_for;

/// The place for data that is copied, in bytes of each request under way.
const COPIED: usize = 128 << 10;

/// VHOST_USER_GET_FEATURES, as it is asked and as it is answered: the request, the version with
/// the flag of an answer, the length of what follows (the vhost-user protocol, "Header").
const ASKS: [u8; 12] = [1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0];
const ANSWERS: [u8; 12] = [1, 0, 0, 0, 5, 0, 0, 0, 8, 0, 0, 0];
const ANSWER_LEN: usize = ANSWERS.len() + 8;

/// A disk that another process offers, and that is this process's alone while it is connected.
#[derive(Debug)]
pub struct GuestDisk {
    disk: Disk<VhostUser, Shares>,
    /// The same connection as the disk's.
    socket: UnixStream,
    incarnation: [u8; 16],
    read_only: bool,
}

impl GuestDisk {
    /// Attaches to the disk whose back end listens at `socket`.
    ///
    /// # Errors
    /// `InUse` for a back end that does not answer, as one does not that has another front end;
    /// `ReadOnlyMedium` for one that takes no writes, unless `read_only`; `BackEnd` for one that is
    /// no disk; the host's.
    pub(crate) fn attach(socket: &Path, read_only: bool) -> Result<GuestDisk, OpenError> {
        let failed = |call| {
            move |error: io::Error| OpenError::Host {
                call,
                errno: error.raw_os_error().unwrap_or(libc::EIO),
            }
        };
        let shares = Shares::default();
        let device = VhostUser::connect(socket, &shares).map_err(failed("connect"))?;
        let socket = device.connection().map_err(failed("fcntl"))?;
        let process = first_answer(&socket)?;
        let disk = Disk::with_copies(device, shares, COPIED).map_err(OpenError::BackEnd)?;
        if disk.is_read_only() && !read_only {
            return Err(OpenError::ReadOnlyMedium);
        }
        let incarnation = process.map_or([0; 16], owner::life_of);
        Ok(GuestDisk { disk, socket, incarnation, read_only })
    }

    /// Names the life of the back end's process. While it lives it has what it has completed, by
    /// what a read tells afterwards (VIRTIO 1.2, 5.2.6.1). After its end it may have kept some of
    /// its writes to itself, as formats of disk images do, and all that was not flushed counts as
    /// lost. Zeros where the process cannot be known.
    pub fn incarnation(&self) -> [u8; 16] {
        self.incarnation
    }

    /// The connection, which has the disk for as long as any copy of it is open.
    pub fn claim(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Lets others have the disk. It is not used any more.
    pub fn release(&self) {
        let _ = self.socket.shutdown(Shutdown::Both);
    }

    /// Whether discards give storage back.
    pub fn gives_back(&self) -> bool {
        !self.read_only && self.disk.gives_back()
    }

    /// How many requests the back end was sent, and how often it was told of some.
    pub fn counts(&self) -> (u64, u64) {
        self.disk.counts()
    }

    fn writable(&self) -> Result<(), BlockError> {
        if self.read_only { Err(BlockError::ReadOnly) } else { Ok(()) }
    }
}

/// Asks the back end for its features, and returns the process that answers: as the kernel says of
/// the answer itself. The socket may have been bound by another process, and its credentials are
/// those of that one. `None` for a process that this one cannot see.
fn first_answer(socket: &UnixStream) -> Result<Option<u32>, OpenError> {
    let failed = |call| {
        move |errno: Errno| match errno {
            Errno::AGAIN => OpenError::InUse { pid: None },
            Errno::CONNRESET | Errno::PIPE => OpenError::BackEnd(DeviceError::Lost),
            errno => OpenError::Host { call, errno: errno.raw_os_error() },
        }
    };
    let pass = |pass| sockopt::set_socket_passcred(socket, pass).map_err(failed("setsockopt"));
    pass(true)?;
    rustix::io::write(socket, &ASKS).map_err(failed("write"))?;
    let mut answer = [0; ANSWER_LEN];
    let (mut process, mut come) = (None, 0);
    while come < ANSWER_LEN {
        let received = sender::receive(socket, &mut answer[come..]);
        let (got, sender) = match received {
            // A time limit keeps the kernel from going on by itself.
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            received => received.map_err(|error| {
                failed("recvmsg")(Errno::from_io_error(&error).unwrap_or(Errno::IO))
            })?,
        };
        if got == 0 {
            return Err(OpenError::BackEnd(DeviceError::Lost));
        }
        // Of one process, or of none that is known.
        process = if come == 0 || process == sender { sender } else { None };
        come += got;
    }
    pass(false)?;
    if !answer.starts_with(&ANSWERS) {
        return Err(OpenError::BackEnd(DeviceError::Broken));
    }
    Ok(process)
}

impl BlockDevice for GuestDisk {
    fn block_count(&self) -> u64 {
        self.disk.block_count()
    }

    fn read(&mut self, first: BlockIndex, buf: &mut [u8]) -> Result<(), BlockError> {
        wait_for(|| self.disk.read(first, buf))
    }

    fn write(&mut self, first: BlockIndex, data: &[u8]) -> Result<(), BlockError> {
        self.writable()?;
        wait_for(|| self.disk.write(first, data))
    }

    fn write_all(&mut self, writes: &[(BlockIndex, &[u8])]) -> Result<(), BlockError> {
        self.writable()?;
        wait_for(|| self.disk.write_all(writes))
    }

    fn flush(&mut self) -> Result<(), BlockError> {
        wait_for(|| self.disk.flush())
    }

    fn discard(&mut self, first: BlockIndex, count: u64) -> Result<(), BlockError> {
        self.writable()?;
        wait_for(|| self.disk.discard(first, count))
    }
}

#[cfg(test)]
mod tests;
