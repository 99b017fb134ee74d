//! What a device says when it cannot do what it was asked.

use core::fmt;

/// Why a device could not do what it was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum BlockError {
    /// The medium failed, or shrank under us; the content of the range is not known.
    Io,
    /// The medium has no room to store the range (a sparse host file on a full host).
    NoSpace,
    /// The range is not on the device, or a buffer is not a whole number of blocks.
    OutOfRange,
    /// The device was opened for reading only.
    ReadOnly,
    /// The medium cannot do that.
    Unsupported,
}

impl fmt::Display for BlockError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            BlockError::Io => "input/output error on the device",
            BlockError::NoSpace => "no space left for the device's storage",
            BlockError::OutOfRange => "the range is not on the device",
            BlockError::ReadOnly => "the device is read-only",
            BlockError::Unsupported => "the device cannot do that",
        })
    }
}

impl core::error::Error for BlockError {}
