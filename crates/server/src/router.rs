//! The one way of a request from whatever brings it to its session, and of its answer back.
//!
//! The codec's server turns bytes into verbs. What is not a verb is answered here: syncs, which the syncer
//! makes; appends whose client says so with each write; files that are adopted from other sessions; locks
//! that are waited for; and answers that have to wait until the kernels of mounts have forgotten what they
//! belie. What only a kernel asks for, and what it may keep, is in [`kernel`](crate::kernel).

use std::sync::Arc;

use atoll_vfs::server::{Caller, Identity, Reply, Server, ServerOptions};
use atoll_vfs::wire::files::{O_APPEND, OpenOut, WriteOut, open_flags};
use atoll_vfs::wire::header::OutHeader;
use atoll_vfs::wire::{Extensions, Fixed, Malformed, Message, REPLY_MAX, Request};
use atoll_vfs::{Context, FileSystem, Handle, Ino, Result};

use crate::carrier::Incoming;
use crate::gate::{Cut, Ticket};
use crate::kernel::Kernel;
use crate::session::Session;
use crate::syncs::Ask;
use crate::tokens::Token;
use crate::wait::Wait;

/// A place for the message of an answer.
pub(crate) struct Serving {
    pub reply: [u8; REPLY_MAX],
}

impl Default for Serving {
    #[inline]
    fn default() -> Self {
        Serving { reply: [0; REPLY_MAX] }
    }
}

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

/// Routes the requests of one client, or of one lane: each begins with an INIT.
pub struct Router {
    pub(crate) codec: Server,
    pub(crate) kernel: Option<Kernel>,
}

impl Router {
    /// For a program, which agrees to `options`.
    pub fn new(options: ServerOptions) -> Router {
        Router { codec: Server::new(options), kernel: None }
    }

    /// For the kernel of a mount.
    pub fn of_kernel(options: ServerOptions, kernel: Kernel) -> Router {
        Router { codec: Server::new(options), kernel: Some(kernel) }
    }

    /// Whether the client has begun with INIT, and something was agreed.
    pub fn has_begun(&self) -> bool {
        self.codec.agreed().is_some()
    }

    /// Carries out a request and writes the message of the answer. The answer may not go out before what it
    /// waits for has come.
    ///
    /// # Errors
    /// For what is no message.
    #[inline]
    pub(crate) fn route<F: FileSystem + Send>(
        &mut self,
        session: &mut Session<F>,
        incoming: Incoming<'_>,
        is_alone: bool,
        serving: &mut Serving,
    ) -> std::result::Result<Routed, Malformed> {
        let Incoming { message: raw, data, room } = incoming;
        let message = Message::decode(raw, data)?;
        let now = session.volume().host().now();
        let header = &message.header;
        let cx = Context { uid: header.uid, gid: header.gid, now };
        let caller = Caller { identity: Identity::FromHeader, now };
        let mut later = Later::default();
        let reply = &mut serving.reply;
        let result = match &message.request {
            Ok(Request::Fsync(_) | Request::Fsyncdir(_) | Request::Syncfs)
                if !is_alone && session.volume().has_syncer() && self.has_begun() =>
            {
                sync(session, &cx, &message, &mut later).map(|()| 0)
            }
            Ok(request) if self.kernel.is_some() => {
                let Router { codec, kernel } = self;
                let Some(kernel) = kernel else { return Err(Malformed) };
                return kernel.route(
                    session,
                    codec,
                    (raw, &message, request, &caller),
                    later,
                    reply,
                    room,
                );
            }
            Ok(Request::Adopt(args)) => {
                session.adopt(Token(args.token)).map(|(_, handle)| opened(reply, handle))
            }
            Ok(Request::AdoptOpen(args)) => session
                .adopt_open(Ino(header.nodeid), open_flags(args.flags))
                .map(|(_, handle)| opened(reply, handle)),
            // It says at each write whether it is to be at the end, as the kernel does.
            Ok(Request::Write { args, data })
                if args.flags & O_APPEND != 0
                    && self.codec.agreed().is_some_and(|a| a.contains(Extensions::APPEND)) =>
            {
                session.append(&cx, Ino(header.nodeid), Handle(args.fh), data).map(|written| {
                    let body = &mut reply[OutHeader::SIZE..];
                    WriteOut { size: written.len as u32, padding: 0 }.store(body);
                    written.offset.store(&mut body[WriteOut::SIZE..]);
                    WriteOut::SIZE + u64::SIZE
                })
            }
            _ => {
                let answered = self.codec.answer(session, &caller, &message, reply, room)?;
                later.ticket = session.take_needs();
                return Ok(routed(session, answered, later, None));
            }
        };
        later.ticket = session.take_needs();
        let answered = finish(header.unique, result, reply);
        Ok(routed(session, answered, later, None))
    }

    /// Nobody wants the answer that gave `entry` to the client.
    pub(crate) fn is_lost(&self, entry: Option<Ino>) {
        if let (Some(kernel), Some(ino)) = (&self.kernel, entry) {
            kernel.cache.hold(ino);
        }
    }
}

/// Does everything that a sync takes but the sync itself.
pub(crate) fn sync<F: FileSystem + Send>(
    session: &mut Session<F>,
    cx: &Context,
    message: &Message<'_>,
    later: &mut Later,
) -> Result<()> {
    let Some(ask) = message.request.as_ref().ok().and_then(Ask::of) else { return Ok(()) };
    let data_only = session.prepare_sync(cx, Ino(message.header.nodeid), ask)?;
    later.sync = Some(data_only);
    Ok(())
}

/// Writes the body of an answer that gives `handle`; returns its length.
fn opened(reply: &mut [u8], handle: Handle) -> usize {
    OpenOut { fh: handle.0, ..OpenOut::default() }.store(&mut reply[OutHeader::SIZE..]);
    OpenOut::SIZE
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
    entry: Option<(&Kernel, Ino)>,
) -> Routed {
    let Later { sync, ticket, cut, lock } = later;
    let ino = entry.map(|(_, ino)| ino);
    let mut wait = lock;
    if sync.is_some() || ticket.is_some() {
        let begin = || Wait::new(entry.map(|(kernel, ino)| (Arc::clone(&kernel.cache), ino)));
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
