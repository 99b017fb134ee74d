//! A carrier brings requests and takes answers: the lane of a ring, the kernel's FUSE device, a
//! queue of a virtual machine, a socket. It knows nothing of files. Its requests go one way:
//!
//! ```text
//!     carrier.take -> router -> session -> volume
//!                       |
//!                       +-> carrier.answer         the answer is there, or none is due
//!                       +-> carrier.put_back       a part is done: it comes again
//!                       +-> carrier.set_aside      it comes again after others of its client
//!                       +-> carrier.put_back_until it comes again when others have done their work
//!                       +-> carrier.hold -> Held   it waits: for a lock, a sync, kernels of mounts
//! ```

use atoll_vfs::{Data, Rest, Result, Room};

/// A request with its pieces of memory.
#[derive(Debug)]
pub struct Incoming<'a> {
    /// Its message, which nobody changes, with its data behind it where both come in one piece.
    pub message: &'a [u8],
    /// Its data, if that comes apart from the message. The client may change it meanwhile: it is
    /// passed on and not looked at. In several pieces only for a write.
    pub data: Data<'a>,
    /// The place for the data of its answer, which is only written. In several pieces only for a
    /// read.
    pub room: Room<'a>,
}

/// The carrier of one client's requests.
pub trait Carrier {
    /// Names a request until it has its answer.
    type Slot;
    /// The reason why it brings nothing any more.
    type Error;

    /// Takes the next request; `None` when none has come.
    ///
    /// # Errors
    /// The client has gone, or breaks the carrier's rules: it is to be served no more.
    fn take(&mut self) -> std::result::Result<Option<Self::Slot>, Self::Error>;

    /// The request.
    fn incoming(&mut self, slot: &Self::Slot) -> Incoming<'_>;

    /// Whether nobody but this client has sent requests for a while, and none of its own can be
    /// behind this one: waiting for this one holds up nobody.
    fn is_alone(&self) -> bool {
        false
    }

    /// Whether it takes requests back that are done in part, for [`put_back`](Self::put_back).
    fn takes_back(&self) -> bool {
        false
    }

    /// Takes a request back, of which a part is done: it is served again from where `rest` says,
    /// when others have had their turn.
    fn put_back(&mut self, slot: Self::Slot, rest: Rest) {
        let _ = (slot, rest);
    }

    /// The same for one of which nothing more can be done until what is returned is released, maybe
    /// by another thread: it is not served before. A request for which there is no place is given
    /// back. Without more this is [`put_back`](Self::put_back).
    ///
    /// # Errors
    /// The request.
    fn put_back_until(
        &mut self,
        slot: Self::Slot,
        rest: Rest,
    ) -> std::result::Result<Box<dyn Held>, Self::Slot> {
        struct Served;
        impl Held for Served {
            fn release(self: Box<Self>, _: Result<()>) -> bool {
                true
            }
        }
        self.put_back(slot, rest);
        Ok(Box::new(Served))
    }

    /// Keeps a request whose outcome depends on others of the same client: it comes again when what
    /// is returned is released, maybe by another thread, and those that stand already have been
    /// served. Without more no carrier can.
    ///
    /// # Errors
    /// The request, where it has come again, or there is no place for it: it is to be answered.
    fn set_aside(&mut self, slot: Self::Slot) -> std::result::Result<Box<dyn Held>, Self::Slot> {
        Err(slot)
    }

    /// Whether the request that was taken last had been set aside.
    fn is_again(&self) -> bool {
        false
    }

    /// Gives the answer: `message`, and `data` bytes in the room. An empty message says that none
    /// is due. Returns whether somebody still wants it.
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
    /// Gives the answer, or the error that it has become. Returns whether somebody still wants it.
    /// It must not block.
    fn release(self: Box<Self>, outcome: Result<()>) -> bool;
}
