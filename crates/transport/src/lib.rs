//! The transport below both seams: messages between two sides that do not trust each other.
//!
//! Read in this order: [`transport`] the trait that clients of both seams speak through; [`shared`]
//! memory that the other side changes at the same time, and [`memory`] its words; [`ring`] a ring
//! of indices in it; [`channel`] a connection between two processes, made of these.
#![no_std]
#![deny(unsafe_code)]

extern crate alloc;

pub mod channel;
pub mod memory;
pub mod ring;
pub mod shared;
pub mod transport;

pub use memory::Memory;
pub use shared::Shared;
pub use transport::{Lost, Received, SendError, Token, Transport};
