//! The tables of what clients have open or may name: bounded, and of numbers alone.

pub(crate) mod handles;
pub(crate) mod implicit;
pub(crate) mod inodes;
pub(crate) mod known;
