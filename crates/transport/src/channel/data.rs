//! A request's data where it lies, for a server that moves it with one copy.
#![allow(unsafe_code)]

use super::layout::Span;
use super::server::{Request, ServerChannel};
use crate::{Memory, Shared};

/// Memory that is mapped into this process, not only modelled.
pub trait Mapped: Memory {
    /// Where.
    fn shared(&self) -> Shared<'_>;
}

impl Mapped for Shared<'_> {
    #[inline]
    fn shared(&self) -> Shared<'_> {
        *self
    }
}

impl<M: Mapped> ServerChannel<M> {
    /// The request's data where it lies.
    ///
    /// # Safety
    /// As [`Shared::bytes`]: the bytes may change meanwhile. No slice from [`room`](Self::room)
    /// that covers any of them exists.
    pub unsafe fn data(&self, request: &Request) -> &[u8] {
        let Span { offset, len } = request.data();
        // SAFETY: passed on.
        unsafe { self.memory().shared().bytes(offset, len) }
    }

    /// The place for the answer's data.
    ///
    /// # Safety
    /// As [`Shared::bytes_mut`]. Places of different requests may overlap, if the client says so:
    /// only one is used at a time. The two of one request never do.
    #[allow(clippy::mut_from_ref)]
    pub unsafe fn room(&self, request: &Request) -> &mut [u8] {
        let Span { offset, len } = request.room();
        // SAFETY: passed on.
        unsafe { self.memory().shared().bytes_mut(offset, len) }
    }
}
