//! The one way of a request from whatever brings it to its session, and of its answer back.
//!
//! The codec's server turns bytes into verbs. What is not a verb is answered here: syncs, which the syncer
//! makes; appends whose client says so with each write; files that are adopted from other sessions; locks
//! that are waited for; and answers that have to wait until the kernels of mounts have forgotten what they
//! belie. What only a kernel asks for, and what it may keep, is in [`kernel`](crate::route::kernel).

use atoll_vfs::server::{Caller, Identity, Server, ServerOptions};
use atoll_vfs::wire::files::{O_APPEND, OpenOut, WriteOut, open_flags};
use atoll_vfs::wire::header::OutHeader;
use atoll_vfs::wire::{Extensions, Fixed, Malformed, Message, REPLY_MAX, Request};
use atoll_vfs::{Context, FileSystem, Handle, Ino, Result};

use crate::open::tokens::Token;
use crate::revocable::Revocable;
use crate::route::answer::{Later, Routed, finish, routed};
use crate::route::carrier::{Carrier, Incoming};
use crate::route::kernel::Kernel;
use crate::session::Session;
use crate::syncs::Ask;

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

/// Why a client is served no more.
#[derive(Debug)]
pub enum Ended<E> {
    /// Its carrier says so.
    Carrier(E),
    /// It has sent what is no message.
    Malformed,
    /// Its session was revoked.
    Revoked,
    /// It has said that it ends.
    Destroyed,
}

/// Serves the next request of a carrier, if there is one. Returns whether there was.
///
/// # Errors
/// When there will be no more.
pub fn serve_next<C: Carrier, F: FileSystem + Send>(
    carrier: &mut C,
    router: &mut Router,
    place: &Revocable<Session<F>>,
) -> std::result::Result<bool, Ended<C::Error>> {
    let Some(slot) = carrier.take().map_err(Ended::Carrier)? else { return Ok(false) };
    let is_alone = carrier.is_alone();
    let mut serving = Serving::default();
    let routed = place
        .with(|session| router.route(session, carrier.incoming(&slot), is_alone, &mut serving))
        .ok_or(Ended::Revoked)?
        .map_err(|_| Ended::Malformed)?;
    let message = &serving.reply[..routed.reply.message];
    match routed.wait {
        None => {
            let taken = carrier.answer(slot, message, routed.reply.data).map_err(Ended::Carrier)?;
            if !taken {
                router.is_lost(routed.entry);
            }
        }
        Some(wait) => wait.arm(carrier.hold(slot, message, routed.reply.data)),
    }
    if routed.is_last { Err(Ended::Destroyed) } else { Ok(true) }
}
