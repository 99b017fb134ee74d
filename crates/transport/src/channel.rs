//! A connection between two processes: shared memory that the client makes and both map.
//!
//! Read in this order: [`layout`] what stands where (docs/PROTOCOL.md has every field); [`client`]
//! the half that sends; [`server`] the half that answers and trusts nothing.
//!
//! The memory holds a header and *lanes*. A lane is a ring, as many *slots*, and a data window. A
//! request travels in the ring with the index of the slot whose answer is to be its own. So the
//! place for the answer is there before the request is, and the server never waits for one; and
//! each side waits for a line of memory that holds all of what comes.

pub mod client;
mod data;
pub mod layout;
pub mod server;

pub use client::{ClientChannel, Lane, WaitStrategy};
pub use data::Mapped;
pub use layout::{AttachError, Config, Layout, Span};
pub use server::{Limits, Request, ServerChannel};

pub use crate::ring::Broken;
