//! FUSE messages: requests and replies as bytes, checked.
//!
//! A request and a reply are each a *message* and *data*, as [`atoll_transport`] carries them.
//! Message and data one after the other are what linux/fuse.h defines; a request may also come with
//! its data at the end of its message.
//!
//! Read in this order: [`fixed`] how structures are declared; [`header`] what is in front of every
//! message, [`opcode`] the requests' numbers, [`session`] what both sides agree on first; the
//! arguments and answers by theme: [`attributes`], [`names`], [`files`], [`directory`], [`xattrs`],
//! [`locks`], [`mappings`]; [`notices`] what a server says unasked; [`request`] all
//! requests as one type. docs/PROTOCOL-MESSAGES.md explains each, and Atoll's additions;
//! docs/PROTOCOL-FUSE.md has every number of FUSE with what Atoll makes of it.

pub mod attributes;
pub mod directory;
pub mod files;
pub mod fixed;
pub mod header;
pub mod locks;
pub mod mappings;
pub mod names;
pub mod notices;
pub mod opcode;
pub mod request;
pub mod session;
pub mod xattrs;

pub use fixed::Fixed;
pub use request::{Malformed, Message, Request};
pub use session::Extensions;

/// The longest message of a request that Atoll sends, in bytes: a SETXATTR, RENAME2 or
/// BATCH_FORGET, with extensions.
pub const REQUEST_MAX: usize = 1024;
/// The longest message of a reply, in bytes: that of CREATE, with extensions.
pub const REPLY_MAX: usize = 192;
