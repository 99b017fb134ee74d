//! The transport below both seams: messages between two sides that do not trust each other.
//!
//! Read in this order: [`transport`] the trait that clients of both seams speak through; [`shared`]
//! memory that the other side changes at the same time.
#![no_std]

pub mod shared;
pub mod transport;
pub mod view;

pub use shared::Shared;
pub use transport::{Lost, Received, SendError, Token, Transport};
