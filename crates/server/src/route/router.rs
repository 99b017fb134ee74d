//! The one way of a request from its carrier to its session, and of its answer back.
//!
//! The codec's server turns bytes into verbs. The router answers what is not a verb: syncs, which
//! the syncer makes; appends whose client says so with each write; files that are adopted from
//! other sessions; locks (`locks`, beside this); and it holds answers that have to wait until the
//! kernels of mounts are invalidated. The requests that only a kernel makes, and its leases, are in
//! [`kernel`](crate::route::kernel).

use std::sync::Arc;

use atoll_vfs::server::{Caller, Identity, Reply, Server, ServerOptions};
use atoll_vfs::wire::files::{O_APPEND, WriteOut};
use atoll_vfs::wire::header::OutHeader;
use atoll_vfs::wire::{Extensions, Fixed, Malformed, Message, Request};
use atoll_vfs::{Context, Errno, FileSystem, Handle, Ino, Rest};

use crate::revocable::Revocable;
use crate::route::answer::{Early, Later, Routed, finish};
use crate::route::carrier::{Carrier, Held, Incoming};
use crate::route::kernel::Kernel;
use crate::route::locks::LockRequests;
use crate::session::Session;
use crate::syncs::Ask;

/// Routes the requests of one client, or of one lane: each begins with an INIT.
pub struct Router {
    codec: Server,
    kernel: Option<Kernel>,
    /// The locks that a program waits for; a kernel has its own.
    locks: LockRequests,
    pub(super) out: Routed,
}

impl Router {
    /// For a program, which agrees to `options`.
    pub fn new(options: ServerOptions) -> Router {
        let (locks, out) = (LockRequests::default(), Routed::default());
        Router { codec: Server::new(options), kernel: None, locks, out }
    }

    /// For the kernel of a mount.
    pub fn of_kernel(options: ServerOptions, kernel: Kernel) -> Router {
        Router { kernel: Some(kernel), ..Router::new(options) }
    }

    /// Whether the client has begun with INIT, and something was agreed.
    pub fn has_begun(&self) -> bool {
        self.codec.agreed().is_some()
    }

    /// Carries out a request and writes the message of the answer. The answer may not go out before
    /// what it waits for has come.
    ///
    /// # Errors
    /// For bytes that are no message.
    #[inline]
    pub(crate) fn route<F: FileSystem + Send>(
        &mut self,
        session: &mut Session<F>,
        incoming: Incoming<'_>,
        is_alone: bool,
    ) -> Result<(), Malformed> {
        let Incoming { message: raw, data, room } = incoming;
        // Looked at where it is: it is large.
        let mut decoded = Message::decode(raw, data);
        let Ok(message) = &mut decoded else { return Err(Malformed) };
        let now = session.volume().host().now();
        if let Some(kernel) = &self.kernel {
            kernel.prepare(session, message, now);
        }
        let message = &*message;
        let Router { codec, kernel, locks, out } = self;
        if let Some(kernel) = kernel
            && !std::mem::take(&mut out.settled)
            && let Some(ticket) = kernel.settle(session, message)
        {
            out.set(session, Reply { message: 0, data: 0 }, &mut Later::default(), None);
            out.early = Some(Early::Until(ticket));
            return Ok(());
        }
        let header = &message.header;
        let cx = Context { uid: header.uid, gid: header.gid, now };
        let caller = Caller { identity: Identity::FromHeader, now };
        let mut later = Later::default();
        let reply = &mut out.message;
        let result = match (&message.request, kernel) {
            (Ok(request), _)
                if let Some(ask) = Ask::of(request)
                    && (!is_alone
                        || session.volume().is_shared()
                        || session.volume().is_foreign())
                    && session.volume().has_syncer()
                    && codec.agreed().is_some() =>
            {
                session.prepare_sync(&cx, Ino(header.nodeid), ask).map(|wanted| {
                    later.sync = Some(wanted);
                    0
                })
            }
            (Ok(request), Some(kernel)) => {
                let asked = (message, request, &caller);
                let ended = session.volume().removals.ended();
                kernel.route(session, codec, asked, out, room)?;
                // What the kernel has forgotten meanwhile gives its space back.
                let error = OutHeader::load(&out.message).error;
                let full = [Errno::ENOSPC, Errno::EDQUOT].map(|errno| -errno.raw());
                let depends = full.contains(&error) || matches!(request, Request::Statfs);
                if depends && out.reply.message > 0 {
                    out.early = session.holds_any().then_some(Early::Others);
                    session.waits_for_removals(ended);
                }
                return Ok(());
            }
            (Ok(request), _) if LockRequests::takes(request) && codec.agreed().is_some() => {
                let of = (header.unique, Ino(header.nodeid));
                locks.answer(session, of, request, reply, &mut later)
            }
            (Ok(Request::Interrupt(args)), _) => {
                locks.interrupt(session, args.unique);
                out.set(session, Reply { message: 0, data: 0 }, &mut later, None);
                return Ok(());
            }
            // The client says with each write whether it goes to the end, as the kernel does.
            (Ok(Request::Write { args, data }), _)
                if args.flags & O_APPEND != 0
                    && codec.agreed().is_some_and(|a| a.contains(Extensions::APPEND)) =>
            {
                session.append(&cx, Ino(header.nodeid), Handle(args.fh), *data).map(|written| {
                    let body = &mut reply[OutHeader::SIZE..];
                    WriteOut { size: written.len as u32, padding: 0 }.store(body);
                    written.offset.store(&mut body[WriteOut::SIZE..]);
                    WriteOut::SIZE + u64::SIZE
                })
            }
            _ => {
                let answered = codec.answer(session, &caller, message, reply, room)?;
                later.ticket = session.take_needs();
                out.set(session, answered, &mut later, None);
                return Ok(());
            }
        };
        later.ticket = session.take_needs();
        let answered = finish(header.unique, result, reply);
        out.set(session, answered, &mut later, None);
        Ok(())
    }
}

/// Why a client is served no more.
#[derive(Debug)]
pub enum Ended<E> {
    /// Its carrier says so.
    Carrier(E),
    /// The client has sent bytes that are no message.
    Malformed,
    /// The client's session was revoked.
    Revoked,
    /// The client has said that it ends.
    Destroyed,
}

/// Has a request come again that was served too early.
fn comes_again<F: FileSystem + Send>(
    held: Box<dyn Held>,
    early: Early,
    place: &Revocable<Session<F>>,
) {
    let come = move || {
        held.release(Ok(()));
    };
    let gate = place.with(|session| Arc::clone(session.volume().gate()));
    match (early, gate) {
        (Early::Until(ticket), Some(gate)) => gate.after(ticket, come),
        _ => come(),
    }
}

/// Serves the next request of a carrier, if there is one. Returns whether there was.
///
/// # Errors
/// When there will be no more.
pub fn serve_next<C: Carrier, F: FileSystem + Send>(
    carrier: &mut C,
    router: &mut Router,
    place: &Revocable<Session<F>>,
) -> Result<bool, Ended<C::Error>> {
    match carrier.take().map_err(Ended::Carrier)? {
        Some(slot) => serve(carrier, slot, router, place).map(|()| true),
        None => Ok(false),
    }
}

/// Serves a request that was taken from `carrier`.
///
/// # Errors
/// When there will be no more.
#[inline]
pub fn serve<C: Carrier, F: FileSystem + Send>(
    carrier: &mut C,
    slot: C::Slot,
    router: &mut Router,
    place: &Revocable<Session<F>>,
) -> Result<(), Ended<C::Error>> {
    serve_from(carrier, slot, None, router, place)
}

/// The same for a request of which all was done but this `rest`, if there is one.
///
/// # Errors
/// As [`serve`].
#[inline]
pub fn serve_from<C: Carrier, F: FileSystem + Send>(
    carrier: &mut C,
    slot: C::Slot,
    rest: Option<Rest>,
    router: &mut Router,
    place: &Revocable<Session<F>>,
) -> Result<(), Ended<C::Error>> {
    let (is_alone, takes_back) = (carrier.is_alone(), carrier.takes_back());
    let mut slot = slot;
    router.out.settled = carrier.is_again();
    let left = loop {
        let (left, volume) = place
            .with(|session| {
                session.begins(rest, takes_back);
                let routed = router.route(session, carrier.incoming(&slot), is_alone);
                let left = session.left.take();
                let waits = matches!(left, Some(Rest::Until(_)));
                routed.map(|()| (left, waits.then(|| Arc::clone(session.volume()))))
            })
            .ok_or(Ended::Revoked)?
            .map_err(|_| Ended::Malformed)?;
        if let Some(early) = router.out.early.take() {
            match carrier.set_aside(slot) {
                Ok(held) => {
                    router.out.wait = None;
                    comes_again(held, early, place);
                    return Ok(());
                }
                Err(given_back) => slot = given_back,
            }
            if let Early::Until(_) = early {
                router.out.settled = true;
                continue;
            }
        }
        let (Some(Rest::Until(ino)), Some(volume)) = (left, volume) else { break left };
        // As for a request that is put back.
        router.out.wait = None;
        if !takes_back {
            // The thread is this client's alone.
            volume.host.wait(&mut |done| volume.after_work(ino, Box::new(move |_| done())));
            continue;
        }
        match carrier.put_back_until(slot, rest.unwrap_or(Rest::Until(ino))) {
            Ok(held) => {
                // What becomes of the work the call finds when it is made.
                let serve_again = move |_| {
                    held.release(Ok(()));
                };
                volume.after_work(ino, Box::new(serve_again));
                return Ok(());
            }
            Err(given_back) => slot = given_back,
        }
        // There is no place for it.
        let message = &mut router.out.message;
        let unique = OutHeader::load(&*message).unique;
        router.out.reply = finish(unique, Err(Errno::ENOMEM), message);
        break None;
    };
    if let Some(rest) = left {
        // Nobody hears of an answer that is none yet. The one that comes of the last part goes by
        // the same inode, and so waits for the notices of all.
        router.out.wait = None;
        carrier.put_back(slot, rest);
        return Ok(());
    }
    let Reply { message, data } = router.out.reply;
    let message = &router.out.message[..message];
    match router.out.wait.take() {
        None => {
            if !carrier.answer(slot, message, data).map_err(Ended::Carrier)? {
                // A kernel does not have to forget an inode that it never learns of.
                if let Some(ino) = router.out.entry {
                    place.with(|session| session.forget(session.own.inodes.outer(ino), 1));
                }
            }
        }
        Some(wait) => wait.arm(carrier.hold(slot, message, data)),
    }
    if router.out.is_last { Err(Ended::Destroyed) } else { Ok(()) }
}
