//! Defects that are planted, to see that the judges find them. None is in the product: each is one of the
//! machine, of a carrier or of a kernel.

/// A defect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plant {
    /// One ring of the syncer's bell is lost.
    LostRing,
    /// Kernels say that they have forgotten what they were told to, and have not.
    DeafKernel,
    /// Answers are given before the kernels have taken what they are told.
    HastyAnswer,
    /// The device says that it has flushed, and has not.
    LyingFlush,
    /// The session of a client that died is never ended.
    LeakedSession,
}

/// All of them.
pub const PLANTS: [Plant; 5] = [
    Plant::LostRing,
    Plant::DeafKernel,
    Plant::HastyAnswer,
    Plant::LyingFlush,
    Plant::LeakedSession,
];
