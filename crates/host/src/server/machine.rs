//! The machine below a server's volumes: this one.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::OnceLock;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use atoll_server::host::{Done, Host, ViewMemory};
use atoll_server::{MapToken, Session, Volume};
use atoll_vfs::view::{Size, ViewWriter};
use atoll_vfs::{Errno, FileSystem, Result, Timespec};

use super::pages::Pages;
use crate::errno::errno_of;
use crate::shm::WrittenView;

/// The time of day. The layers below read no clock: it is read here.
pub fn now() -> Timespec {
    match SystemTime::now().duration_since(UNIX_EPOCH) {
        Ok(since) => Timespec { sec: since.as_secs() as i64, nsec: since.subsec_nanos() },
        Err(_) => Timespec::default(),
    }
}

/// This machine.
#[derive(Debug, Default)]
pub struct Machine;

impl Host for Machine {
    fn now(&self) -> Timespec {
        now()
    }

    fn uptime(&self) -> Duration {
        static BEGAN: OnceLock<Instant> = OnceLock::new();
        BEGAN.get_or_init(Instant::now).elapsed()
    }

    fn random(&self, bytes: &mut [u8]) -> Result<()> {
        let got = rustix::rand::getrandom(&mut *bytes, rustix::rand::GetRandomFlags::empty());
        if got == Ok(bytes.len()) { Ok(()) } else { Err(Errno::EIO) }
    }

    fn wait(&self, begin: &mut dyn FnMut(Done)) {
        // A call that panics gives no answer.
        if std::thread::panicking() {
            return;
        }
        let (done, waiting) = channel();
        begin(Box::new(move || {
            // It waits below.
            let _ = done.send(());
        }));
        // Also when it was dropped without a call.
        let _ = waiting.recv();
    }

    fn pages(&self) -> Result<Box<dyn atoll_server::host::Pages>> {
        Ok(Box::new(Pages::new().map_err(errno_of)?))
    }

    fn view(&self, bytes: usize, bounded: bool) -> Result<Option<Box<dyn ViewMemory>>> {
        let view = WrittenView::new(bytes, bounded).map_err(errno_of)?;
        Ok(view.map(|view| Box::new(view) as Box<dyn ViewMemory>))
    }
}

impl ViewMemory for WrittenView {
    #[inline]
    fn writer(&mut self) -> &mut ViewWriter<'static> {
        WrittenView::writer(self)
    }

    fn size(&self) -> Size {
        WrittenView::size(self)
    }
}

/// Gives a client of `session` a View, of at most `most` bytes; see [`Session::begin_view`].
///
/// # Errors
/// Those of making memory and descriptors; `EIO` after a panic in the file system.
pub fn open_view<F: FileSystem + Send>(
    session: &mut Session<F>,
    most: usize,
) -> Result<Option<OwnedFd>> {
    session.begin_view(most, |memory| {
        let view = memory.downcast_ref::<WrittenView>().ok_or(Errno::ENOSYS)?;
        view.as_fd().try_clone_to_owned().map_err(errno_of)
    })
}

/// A descriptor of the memory that is the content of a mapped file, and whether it is for stores
/// too; see [`Volume::mapped_memory`].
///
/// # Errors
/// `ESTALE` if nobody has the file mapped any more; `EMFILE`, `ENFILE`.
pub fn mapped_memory<F: FileSystem + Send>(
    volume: &Volume<F>,
    token: MapToken,
) -> Result<(OwnedFd, bool)> {
    volume.mapped_memory(token, |memory, writable| {
        let pages = memory.downcast_ref::<Pages>().ok_or(Errno::ENOSYS)?;
        pages.grant(writable).map_err(errno_of)
    })
}
