//! The View: memory that a server writes and one client reads, so that attributes, names and file
//! data which the server has put there cost no round trip.
//!
//! Read in this order: `layout` what is where; `sequence` how a record is read whole while it is
//! being changed; `reader` the client's half; `ways` and `writer` the server's half. Every field,
//! and why a client sees the truth and nothing else, is in docs/PROTOCOL.md.
//!
//! The client trusts the server, never the reverse: the server makes the memory, the client can map
//! it only for reading, and the server decides nothing by what is in it.

mod copy;
mod layout;
#[cfg(test)]
mod model;
mod reader;
mod sequence;
#[cfg(test)]
mod tests;
mod ways;
mod writer;

pub use layout::{Malformed, NAME_MAX, PAGE, SHORT_NAME_MAX, Size};
pub use reader::{Entry, ViewReader};
pub use writer::ViewWriter;
