//! What brings requests and takes answers: the lane of a ring, the kernel's FUSE device, a queue of a virtual
//! machine, a socket. A carrier knows nothing of files. What it brings goes one way:
//!
//! ```text
//!     carrier.take -> router -> session -> volume
//!                       |
//!                       +-> carrier.answer              the answer is there, or none is due
//!                       +-> carrier.hold -> Held        it waits: for a lock, a sync, the kernels of mounts
//! ```

use atoll_vfs::{FileSystem, Result};

use crate::revocable::Revocable;
use crate::router::{Router, Serving};
use crate::session::Session;

/// A request with its pieces of memory.
#[derive(Debug)]
pub struct Incoming<'a> {
    /// Its message, which nobody changes, with its data behind it where those come in one piece.
    pub message: &'a [u8],
    /// Its data, if that comes apart from the message. The client may change it meanwhile: it is passed on and
    /// not looked at.
    pub data: &'a [u8],
    /// The place for the data of its answer, which is only written.
    pub room: &'a mut [u8],
}

/// What brings the requests of one client.
pub trait Carrier {
    /// Names a request until it has its answer.
    type Slot;
    /// Why it brings nothing any more.
    type Error;

    /// Takes the next request; `None` when none has come.
    ///
    /// # Errors
    /// The client has gone, or breaks the carrier's rules: it is to be served no more.
    fn take(&mut self) -> std::result::Result<Option<Self::Slot>, Self::Error>;

    /// The request.
    fn incoming(&mut self, slot: &Self::Slot) -> Incoming<'_>;

    /// Whether nobody but this client has sent requests for a while, and none of its own can be behind this
    /// one: what it waits for holds up nobody.
    fn is_alone(&self) -> bool {
        false
    }

    /// Gives the answer: `message`, and `data` bytes in the room. An empty message says that none is due.
    /// Returns whether somebody still wants it.
    ///
    /// # Errors
    /// As [`take`](Self::take).
    fn answer(
        &mut self,
        slot: Self::Slot,
        message: &[u8],
        data: usize,
    ) -> std::result::Result<bool, Self::Error>;

    /// Keeps the answer until it is released, maybe by another thread, while the carrier goes on.
    fn hold(&mut self, slot: Self::Slot, message: &[u8], data: usize) -> Box<dyn Held>;
}

/// An answer that waits.
pub trait Held: Send {
    /// Gives the answer, or the error that it has become. Returns whether somebody still wants it. It must not
    /// block.
    fn release(self: Box<Self>, outcome: Result<()>) -> bool;
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
