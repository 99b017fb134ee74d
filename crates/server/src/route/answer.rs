//! An answer, and what it waits for.

use std::sync::Arc;

use atoll_vfs::server::Reply;
use atoll_vfs::wire::header::OutHeader;
use atoll_vfs::wire::{Fixed, REPLY_MAX};
use atoll_vfs::{Errno, FileSystem, Ino, Result};

use crate::leases::caches::KernelCache;
use crate::leases::gate::{Cut, Ticket};
use crate::route::wait::Wait;
use crate::session::Session;
use crate::syncs::queue::Wanted;

/// Why a request was served too early.
#[derive(Clone)]
pub(crate) enum Early {
    /// What the client has said already, and nobody has read, may make its answer another one.
    Others,
    /// It was not carried out: the client's kernel has to take notices first.
    Until(Ticket),
}

/// The outcome of the latest request. It is filled in where it stands: handing it up through
/// results took as long as the processor takes to load what it has just stored in other pieces.
pub(crate) struct Routed {
    /// A place for the message of the answer.
    pub message: [u8; REPLY_MAX],
    /// The lengths of the answer.
    pub reply: Reply,
    /// The answer's wait, if it has to wait.
    pub wait: Option<Arc<Wait>>,
    /// The inode that the answer gives to a mount's kernel.
    pub entry: Option<Ino>,
    /// The client has said that it ends.
    pub is_last: bool,
    /// The request is to come again, if its carrier can set it aside.
    pub early: Option<Early>,
    /// The next request is to be carried out as things are.
    pub settled: bool,
}

impl Default for Routed {
    fn default() -> Self {
        let (message, reply) = ([0; REPLY_MAX], Reply { message: 0, data: 0 });
        Routed {
            message,
            reply,
            wait: None,
            entry: None,
            is_last: false,
            early: None,
            settled: false,
        }
    }
}

impl Routed {
    /// The answer is `reply`, and waits for what `later` says from here on.
    #[inline]
    pub fn set<F: FileSystem + Send>(
        &mut self,
        session: &Session<F>,
        reply: Reply,
        later: &mut Later,
        entry: Option<(&Arc<KernelCache>, Ino)>,
    ) {
        self.reply = reply;
        self.entry = entry.map(|(_, ino)| ino);
        (self.is_last, self.early) = (false, None);
        let left = session.take_left();
        self.wait = match later {
            Later { sync: None, ticket: None, lock, .. } if left.is_none() => lock.take(),
            later => Some(waits(session, std::mem::take(later), left, entry)),
        };
    }
}

/// The events that an answer has to wait for, before it does.
#[derive(Default)]
pub(crate) struct Later {
    /// A sync.
    pub sync: Option<Wanted>,
    /// The kernels of mounts.
    pub ticket: Option<Ticket>,
    /// The file that it has cut.
    pub cut: Option<Cut>,
    /// A lock.
    pub lock: Option<Arc<Wait>>,
}

/// Writes the header of an answer whose body is written; `result` has the body's length.
pub fn finish(unique: u64, result: Result<usize>, reply: &mut [u8]) -> Reply {
    let (body, error) = result.map_or_else(|error| (0, -error.raw()), |body| (body, 0));
    let message = OutHeader::SIZE + body;
    OutHeader { len: message as u32, error, unique }.store(reply);
    Reply { message, data: 0 }
}

/// Makes of a held answer, whose message this is, one that says `error` and nothing else: it has no
/// data any more.
pub fn fail(message: &mut Vec<u8>, error: Errno) {
    let unique = OutHeader::load(message).unique;
    let failed = finish(unique, Err(error), message);
    message.truncate(failed.message);
}

/// Begins to wait for a sync, a ticket or the blocks of an inode, and the lock if there is one.
#[cold]
fn waits<F: FileSystem + Send>(
    session: &Session<F>,
    Later { sync, ticket, cut, lock }: Later,
    left: Option<Ino>,
    entry: Option<(&Arc<KernelCache>, Ino)>,
) -> Arc<Wait> {
    let begin = || Wait::new(entry.map(|(cache, ino)| (Arc::clone(cache), ino)));
    let wait = lock.unwrap_or_else(begin);
    if let Some(ticket) = ticket {
        let one = wait.more();
        session.volume().gate().after_cut(ticket, cut, move || one.come(Ok(())));
    }
    if let Some(ino) = left {
        let one = wait.more();
        // The call has done what it says, whatever becomes of the blocks.
        session.volume().removals.after(ino, Box::new(move |_| one.come(Ok(()))));
    }
    if let Some(wanted) = sync {
        let one = wait.more();
        let then = Box::new(move |outcome| one.come(outcome));
        session.volume().sync_for(Some(session.peer().uid), wanted, then);
    }
    wait
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fails_says_so_and_nothing_else() {
        let mut message = vec![7; 100];
        let answered = finish(42, Ok(24), &mut message);
        message.truncate(answered.message);
        fail(&mut message, Errno::EINTR);
        let len = OutHeader::SIZE;
        assert_eq!(message.len(), len);
        let said = OutHeader { len: len as u32, error: -Errno::EINTR.raw(), unique: 42 };
        assert_eq!(OutHeader::load(&message), said);
    }
}
