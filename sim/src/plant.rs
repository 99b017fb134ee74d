//! Defects that are planted, to see that the judges find them. None is in the product: each is one of the
//! machine, of a carrier or of a kernel.

/// A defect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plant {
    /// One ring of the syncer's bell is lost.
    LostRing,
    /// Kernels say that they have forgotten attributes, and have not.
    KeptAttributes,
    /// Kernels say that they have forgotten pages, and have not.
    KeptPages,
    /// Answers are given before the kernels have taken what they are told.
    HastyAnswer,
    /// The device says that it has flushed, and has not.
    LyingFlush,
    /// The session of a client that died is never ended.
    LeakedSession,
}

/// All of them.
pub const PLANTS: [Plant; 6] = [
    Plant::LostRing,
    Plant::KeptAttributes,
    Plant::KeptPages,
    Plant::HastyAnswer,
    Plant::LyingFlush,
    Plant::LeakedSession,
];
