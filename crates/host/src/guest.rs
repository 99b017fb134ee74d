//! A process as the guest: the front end of vhost-user, by which a program is the driver of a
//! virtio device that another process offers, at the speed of this machine.
//!
//! The device sees what is shared with it, memfds that cannot be cut short, and nothing else of
//! this process: buffers of callers are copied through them.
//!
//! Where the device tells of changes the process keeps what it learns ([`Told`]).

mod bells;
mod memory;
mod told;
mod window;

use std::fmt;
use std::io;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use atoll_vfs::windowed::{Policy, Windowed};
use atoll_vfs::wire::Extensions;
use atoll_vfs::{Client, ClientOptions, Keeping};
use atoll_virtio::device::Window;
use atoll_virtio::fs::VirtioFs;
use atoll_virtio::queue::Addresses;
use atoll_virtio::{Device, DeviceError};
use vhost::vhost_user::message::{
    VhostUserConfigFlags, VhostUserHeaderFlag, VhostUserProtocolFeatures,
};
use vhost::vhost_user::{Frontend, VhostUserFrontend};
use vhost::{VhostBackend, VringConfigData};
use vmm_sys_util::epoll::{ControlOperation, Epoll, EpollEvent, EventSet};
use vmm_sys_util::eventfd::EventFd;

use crate::spin::{Limit, SPIN_MAX, Spin};
use crate::virtio::device::{RANGE, WINDOW_MAX};
use bells::Kick;
pub use memory::Shares;
pub use told::Told;
pub use window::Shown;
use window::{Over, Questions};

/// Features of the connection itself.
const F_PROTOCOL: u64 = 1 << 30;
/// The most queues that are asked for.
const QUEUES: u64 = 8;
/// The most entries of a queue: a device that is a process says no number.
const ENTRIES: u16 = 1024;
/// How long the device may take to answer a word of the protocol. Requests may take as long as
/// they do.
const PATIENCE: Duration = Duration::from_secs(30);
/// The place for data that is copied, in bytes each way.
const COPIED: usize = 1 << 20;
/// In a place before the path of a socket: a device of virtio-fs is there.
pub const PREFIX: &str = "vhost-user:";

/// The same for a disk, of vhost-user-blk.
pub const DISK_PREFIX: &str = "vhost-user-blk:";

/// The socket of a disk that `place` names, if it begins with [`DISK_PREFIX`].
pub fn disk_socket(place: &Path) -> Option<&Path> {
    after(place, DISK_PREFIX)
}

/// The socket that `place` names, if it begins with [`PREFIX`].
pub fn socket(place: &Path) -> Option<&Path> {
    after(place, PREFIX)
}

/// The words before a socket with which `place` begins: [`PREFIX`], or [`DISK_PREFIX`].
pub fn prefix(place: &[u8]) -> Option<&'static str> {
    [PREFIX, DISK_PREFIX].into_iter().find(|prefix| place.starts_with(prefix.as_bytes()))
}

/// What is behind `prefix` in `place`, if it begins so and there is more.
fn after<'a>(place: &'a Path, prefix: &str) -> Option<&'a Path> {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;
    let rest = place.as_os_str().as_bytes().strip_prefix(prefix.as_bytes())?;
    Some(Path::new(OsStr::from_bytes(rest))).filter(|rest| !rest.as_os_str().is_empty())
}

/// Why a device cannot be used.
#[derive(Debug)]
pub enum AttachError {
    /// Nobody listens at the socket, or it is none.
    Connect(PathBuf, io::Error),
    /// The listener there speaks no vhost-user, or is no such device.
    Device(PathBuf, DeviceError),
    /// The device has another front end, or lets none in.
    Refused(PathBuf),
    /// It begins no session of FUSE.
    Session(PathBuf, atoll_vfs::Errno),
}

impl fmt::Display for AttachError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AttachError::Connect(path, error) => {
                write!(f, "no virtio device at {}: {error}", path.display())
            }
            AttachError::Device(path, error) => {
                write!(f, "the virtio device at {} cannot be used: {error}", path.display())
            }
            AttachError::Refused(path) => write!(
                f,
                "the device at {} hung up: it speaks no vhost-user, or has another guest",
                path.display()
            ),
            AttachError::Session(path, error) => {
                write!(f, "the file system at {} begins no session: {error}", path.display())
            }
        }
    }
}

impl std::error::Error for AttachError {}

/// What a device has to speak for its window, and acknowledge.
const SHOWS: VhostUserProtocolFeatures = VhostUserProtocolFeatures::SHMEM
    .union(VhostUserProtocolFeatures::BACKEND_REQ)
    .union(VhostUserProtocolFeatures::BACKEND_SEND_FD)
    .union(VhostUserProtocolFeatures::REPLY_ACK);
/// In so many turns of a wait it is looked once whether the device wants to show something.
const LOOKS: u64 = 32;

/// A file system on the other side of vhost-user, what is kept of it, and the device's window if it
/// has one.
pub type GuestFs = Windowed<Keeping<Client<VirtioFs<VhostUser, Shares>>, Told>, Shown>;

/// Attaches to the file system whose device listens at `socket`, and begins a session.
///
/// # Errors
/// [`AttachError`].
pub fn attach(socket: &Path) -> Result<GuestFs, AttachError> {
    attach_with(socket, Policy::default())
}

/// The same, with a `policy` of what goes by the window.
///
/// # Errors
/// [`AttachError`].
pub fn attach_with(socket: &Path, policy: Policy) -> Result<GuestFs, AttachError> {
    let at = || socket.to_owned();
    let shares = Shares::default();
    let device =
        VhostUser::connect(socket, &shares).map_err(|error| AttachError::Connect(at(), error))?;
    let failed = |error| match error {
        DeviceError::Lost => AttachError::Refused(at()),
        error => AttachError::Device(at(), error),
    };
    let (mut fs, notices) = VirtioFs::with_notices(device, shares, COPIED).map_err(failed)?;
    let told = match notices {
        Some(notices) => {
            let bells = fs.device().take_bells(notices.number()).map_err(failed)?;
            Told::begin(notices, bells).map_err(failed)?
        }
        None => Told::of_nothing(),
    };
    let shown = fs.device().shown();
    let options = ClientOptions { max_data: COPIED as u32, extensions: Extensions::all() };
    let client = Client::connect(fs, options);
    let client = client.map_err(|error| AttachError::Session(at(), error))?;
    Ok(Windowed::new(Keeping::new(client, told), shown, policy))
}

/// A queue as it was set up.
#[derive(Debug)]
struct Ring {
    size: u16,
    addresses: Addresses,
    kick: Kick,
    call: EventFd,
}

/// A device that is another process.
pub struct VhostUser {
    front_end: Frontend,
    socket: UnixStream,
    shares: Shares,
    rings: Vec<Option<Ring>>,
    /// Ready when the device rings, or hangs up.
    sleep: Epoll,
    /// What was offered, and what was settled on, of the connection.
    protocol: VhostUserProtocolFeatures,
    /// What is in the device's window, if it has one, and how it says so.
    shown: Option<Shown>,
    questions: Option<Questions>,
    spin: Spin,
    limit: Limit,
    now: Duration,
    slept: bool,
    is_lost: bool,
}

impl fmt::Debug for VhostUser {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VhostUser").field("socket", &self.socket).finish_non_exhaustive()
    }
}

fn lost(_: vhost::Error) -> DeviceError {
    DeviceError::Lost
}

impl VhostUser {
    /// Connects to the device that listens at `path`, and that is going to see `shares`.
    ///
    /// # Errors
    /// The error of connect(2).
    pub fn connect(path: &Path, shares: &Shares) -> io::Result<VhostUser> {
        let socket = UnixStream::connect(path)?;
        socket.set_read_timeout(Some(PATIENCE))?;
        socket.set_write_timeout(Some(PATIENCE))?;
        let front_end = Frontend::from_stream(socket.try_clone()?, QUEUES);
        let sleep = Epoll::new()?;
        let file = socket.as_raw_fd();
        let event = EpollEvent::new(EventSet::READ_HANG_UP, file as u64);
        sleep.ctl(ControlOperation::Add, file, event)?;
        Ok(VhostUser {
            front_end,
            socket,
            shares: shares.clone(),
            rings: Vec::new(),
            sleep,
            protocol: VhostUserProtocolFeatures::empty(),
            shown: None,
            questions: None,
            spin: Spin::of_calls(),
            limit: Limit::new(SPIN_MAX),
            now: Duration::ZERO,
            slept: false,
            is_lost: false,
        })
    }
}

impl VhostUser {
    /// The descriptors by which the device learns of this process's end: no other process may have
    /// them.
    pub fn descriptors(&self) -> [RawFd; 2] {
        [self.socket.as_raw_fd(), self.front_end.as_raw_fd()]
    }

    /// The connection.
    ///
    /// # Errors
    /// Those of fcntl(2).
    pub(crate) fn connection(&self) -> io::Result<UnixStream> {
        self.socket.try_clone()
    }

    /// What is in the device's window, if it has one.
    pub fn shown(&self) -> Option<Shown> {
        self.shown.clone()
    }

    /// Learns how large the window is, and hands over the connection by which the device says what
    /// it shows there.
    fn open_window(&mut self) -> Result<(), DeviceError> {
        self.hear_no_more();
        self.shown = None;
        let config = self.front_end.get_shmem_config().map_err(lost)?;
        let len = if config.nregions == 0 { 0 } else { config.memory_sizes[0].min(WINDOW_MAX) };
        if len < RANGE {
            return Ok(());
        }
        let shown = Shown::new(len - len % RANGE);
        let (questions, other) =
            Questions::new(shown.clone()).map_err(|_| DeviceError::NoMemory)?;
        let file = questions.as_fd().as_raw_fd();
        let event = EpollEvent::new(EventSet::IN | EventSet::READ_HANG_UP, file as u64);
        let added = self.sleep.ctl(ControlOperation::Add, file, event);
        added.map_err(|_| DeviceError::NoMemory)?;
        self.front_end.set_backend_request_fd(&other).map_err(lost)?;
        (self.shown, self.questions) = (Some(shown), Some(questions));
        Ok(())
    }

    /// Answers what the device wants to show.
    fn answer(&mut self) {
        if let Some(questions) = &mut self.questions
            && questions.answer() == Err(Over)
        {
            self.hear_no_more();
        }
    }

    fn hear_no_more(&mut self) {
        if let Some(questions) = self.questions.take() {
            let file = questions.as_fd().as_raw_fd();
            let _ = self.sleep.ctl(ControlOperation::Delete, file, EpollEvent::default());
        }
        if let Some(shown) = &self.shown {
            shown.clear();
        }
    }

    /// The bells of a queue that somebody else looks after from now on: the device's thread hears
    /// the first, and rings the second.
    fn take_bells(&mut self, number: u16) -> Result<(Kick, EventFd), DeviceError> {
        let ring = self.rings.get_mut(usize::from(number)).and_then(Option::as_mut);
        let ring = ring.ok_or(DeviceError::Unsupported)?;
        let kick = ring.kick.try_clone().map_err(|_| DeviceError::NoMemory)?;
        let call = ring.call.try_clone().map_err(|_| DeviceError::NoMemory)?;
        let event = EpollEvent::default();
        let removed = self.sleep.ctl(ControlOperation::Delete, ring.call.as_raw_fd(), event);
        removed.map_err(|_| DeviceError::NoMemory)?;
        Ok((kick, call))
    }
}

impl Device for VhostUser {
    fn begin(&mut self) -> Result<u64, DeviceError> {
        self.front_end.set_owner().map_err(lost)?;
        let offered = self.front_end.get_features().map_err(lost)?;
        self.rings = (0..QUEUES).map(|_| None).collect();
        if offered & F_PROTOCOL != 0 {
            let offers = self.front_end.get_protocol_features().map_err(lost)?;
            let mut wanted = VhostUserProtocolFeatures::MQ
                | VhostUserProtocolFeatures::CONFIG
                | VhostUserProtocolFeatures::REPLY_ACK;
            if offers.contains(SHOWS) {
                wanted |= SHOWS;
            }
            let protocol = offers & wanted;
            self.front_end.set_protocol_features(protocol).map_err(lost)?;
            if protocol.contains(VhostUserProtocolFeatures::REPLY_ACK) {
                self.front_end.set_hdr_flags(VhostUserHeaderFlag::NEED_REPLY);
            }
            self.protocol = protocol;
            if protocol.contains(SHOWS) {
                self.open_window()?;
            }
        }
        // The bit is the connection's, not the device's.
        self.is_lost = false;
        Ok(offered)
    }

    fn accept(&mut self, features: u64) -> Result<(), DeviceError> {
        let own = if self.protocol.is_empty() { 0 } else { F_PROTOCOL };
        self.front_end.set_features(features | own).map_err(lost)
    }

    fn queue_size(&mut self, number: u16) -> u16 {
        if u64::from(number) < QUEUES { ENTRIES } else { 0 }
    }

    fn start_queue(
        &mut self,
        number: u16,
        size: u16,
        addresses: &Addresses,
    ) -> Result<(), DeviceError> {
        let kick = Kick::new().map_err(|_| DeviceError::NoMemory)?;
        let call = bells::heard_by(&self.sleep).map_err(|_| DeviceError::NoMemory)?;
        let ring = Ring { size, addresses: *addresses, kick, call };
        let place = self.rings.get_mut(usize::from(number)).ok_or(DeviceError::Unsupported)?;
        *place = Some(ring);
        Ok(())
    }

    /// Hands over the memory and the queues, all that there are by now.
    fn start(&mut self) -> Result<(), DeviceError> {
        let front_end = &mut self.front_end;
        self.shares.with_regions(|regions| front_end.set_mem_table(regions)).map_err(lost)?;
        for (index, ring) in self.rings.iter().enumerate() {
            let Some(ring) = ring else { continue };
            let parts = VringConfigData {
                queue_max_size: ring.size,
                queue_size: ring.size,
                flags: 0,
                desc_table_addr: memory::user_address(ring.addresses.descriptors),
                avail_ring_addr: memory::user_address(ring.addresses.available),
                used_ring_addr: memory::user_address(ring.addresses.used),
                log_addr: None,
            };
            front_end.set_vring_num(index, ring.size).map_err(lost)?;
            front_end.set_vring_base(index, 0).map_err(lost)?;
            front_end.set_vring_addr(index, &parts).map_err(lost)?;
            front_end.set_vring_call(index, &ring.call).map_err(lost)?;
            front_end.set_vring_kick(index, &ring.kick.theirs).map_err(lost)?;
            // Without features of the connection a queue runs when it has its bell.
            if !self.protocol.is_empty() {
                front_end.set_vring_enable(index, true).map_err(lost)?;
            }
        }
        Ok(())
    }

    fn ring(&mut self, number: u16) {
        if let Some(Some(ring)) = self.rings.get(usize::from(number)) {
            ring.kick.ring();
        }
    }

    fn pause(&mut self, _: u16, turn: u64) -> Result<bool, DeviceError> {
        if self.is_lost {
            return Err(DeviceError::Lost);
        }
        if turn == 0 {
            self.now = self.limit.next(self.slept, true);
            self.slept = false;
            self.spin.begin();
        }
        if turn % LOOKS == LOOKS - 1 {
            self.answer();
        }
        Ok(!self.now.is_zero() && self.spin.turn(self.now))
    }

    fn sleep(&mut self, _: u16) -> Result<(), DeviceError> {
        self.slept = true;
        let mut events = [EpollEvent::default(); QUEUES as usize + 2];
        // A signal ends it sooner, which is allowed.
        let count = self.sleep.wait(-1, &mut events).unwrap_or(0);
        let gone = self.socket.as_raw_fd() as u64;
        for event in &events[..count.min(events.len())] {
            if event.data() == gone {
                self.is_lost = true;
            }
        }
        self.answer();
        // The bells of other queues wake nobody else: their answers are found when looked for.
        if self.is_lost { Err(DeviceError::Lost) } else { Ok(()) }
    }

    fn configuration(&mut self, offset: usize, out: &mut [u8]) -> Result<(), DeviceError> {
        if !self.protocol.contains(VhostUserProtocolFeatures::CONFIG) {
            return Err(DeviceError::Unsupported);
        }
        // From the beginning: QEMU's back ends pass over the offset that they are asked for.
        let end = offset + out.len();
        let flags = VhostUserConfigFlags::empty();
        let read = self.front_end.get_config(0, end as u32, flags, &vec![0; end]);
        let (_, bytes) = read.map_err(|_| DeviceError::Unsupported)?;
        out.copy_from_slice(bytes.get(offset..end).ok_or(DeviceError::Broken)?);
        Ok(())
    }

    fn window(&mut self, _: u8) -> Option<Window> {
        None
    }

    /// Stops the queues by hanging up: there is nothing that the device sees but what was shared.
    fn stop(&mut self) -> bool {
        self.is_lost = true;
        self.hear_no_more();
        let _ = self.socket.shutdown(std::net::Shutdown::Both);
        true
    }
}

#[cfg(test)]
mod tests;
