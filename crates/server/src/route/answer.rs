//! An answer, and what it waits for.

use std::sync::Arc;

use atoll_vfs::server::Reply;
use atoll_vfs::wire::Fixed;
use atoll_vfs::wire::header::OutHeader;
use atoll_vfs::{FileSystem, Ino, Result};

use crate::leases::caches::KernelCache;
use crate::leases::gate::{Cut, Ticket};
use crate::route::wait::Wait;
use crate::session::Session;

/// What has become of a request.
pub(crate) struct Routed {
    pub reply: Reply,
    /// What the answer waits for.
    pub wait: Option<Arc<Wait>>,
    /// The inode that the answer gives to a mount's kernel.
    pub entry: Option<Ino>,
    /// The client has said that it ends.
    pub is_last: bool,
}

/// What an answer has to wait for, before it does.
#[derive(Default)]
pub(crate) struct Later {
    /// A sync, and whether timestamps may be left behind.
    pub sync: Option<bool>,
    /// The kernels of mounts.
    pub ticket: Option<Ticket>,
    /// The file that it has cut.
    pub cut: Option<Cut>,
    /// A lock.
    pub lock: Option<Arc<Wait>>,
}

/// Writes the header of an answer whose body, of so many bytes, is written.
pub(crate) fn finish(unique: u64, result: Result<usize>, reply: &mut [u8]) -> Reply {
    let (body, error) = result.map_or_else(|error| (0, -error.raw()), |body| (body, 0));
    let message = OutHeader::SIZE + body;
    OutHeader { len: message as u32, error, unique }.store(reply);
    Reply { message, data: 0 }
}

/// An answer, and what it waits for from here on.
pub(crate) fn routed<F: FileSystem + Send>(
    session: &Session<F>,
    reply: Reply,
    later: Later,
    entry: Option<(&Arc<KernelCache>, Ino)>,
) -> Routed {
    let Later { sync, ticket, cut, lock } = later;
    let ino = entry.map(|(_, ino)| ino);
    let mut wait = lock;
    if sync.is_some() || ticket.is_some() {
        let begin = || Wait::new(entry.map(|(cache, ino)| (Arc::clone(cache), ino)));
        let wait = wait.get_or_insert_with(begin);
        if let Some(ticket) = ticket {
            let one = wait.more();
            session.volume().gate().after_cut(ticket, cut, move || one.come(Ok(())));
        }
        if let Some(data_only) = sync {
            let one = wait.more();
            session.volume().sync_later(data_only, Box::new(move |outcome| one.come(outcome)));
        }
    }
    Routed { reply, wait, entry: ino, is_last: false }
}
