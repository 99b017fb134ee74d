//! The tables of what clients have open or may name: bounded, and of numbers alone.

pub(crate) mod handles;
pub(crate) mod inodes;
pub(crate) mod known;
pub(crate) mod standing;
pub mod tokens;
