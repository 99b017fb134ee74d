//! Defects that are planted, to see that the judges find them. None is in the product: each is one
//! of the machine, of a carrier, of the world that serves carriers, or of a kernel.

/// A defect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plant {
    /// One ring of the syncer's bell is lost.
    LostRing,
    /// Kernels say that they have forgotten attributes, and have not.
    KeptAttributes,
    /// Kernels say that they have forgotten pages, and have not.
    KeptPages,
    /// Answers are given before the kernels have taken their notices.
    HastyAnswer,
    /// The device says that it has flushed, and has not.
    LyingFlush,
    /// The session of a client that died is never ended.
    LeakedSession,
    /// Nobody else is served while there is a hostile client.
    HostileFirst,
    /// With a hostile client another is dropped.
    DroppedNeighbour,
    /// A flush that fails is said to have succeeded.
    SwallowedError,
    /// A View shows what it showed when it was last looked at.
    StaleView,
    /// Permissions are not checked.
    UncheckedUser,
    /// A hostile client's locks are not counted.
    EndlessLocks,
    /// The carrier gives each connection so many requests, whatever time these take.
    TurnsByRequests,
    /// A user has as many shares of the time as it has connections.
    ConnectionsAsUsers,
    /// Mounts of all users are waited for like the superuser's.
    TrustedStrangers,
    /// The server does not give back what a session took of its user's share.
    KeptCharges,
    /// A removal frees all that a file has in one call.
    WholeRemovals,
    /// The carrier fills the room for a listing in one turn, however large it is.
    WholeListings,
    /// A session that ends closes all that it has open in one hold of the volume's lock.
    WholeEnds,
    /// The server keeps an account for each connection of a user.
    ConnectionsAsAccounts,
    /// The locks of each connection of a user are counted by themselves.
    ConnectionsAsHolders,
    /// A server that begins after a crash gives directories no quotas.
    ForgottenQuotas,
    /// A user whose mount has lied is trusted when it mounts again.
    ForgivenLies,
}

/// All of them.
pub const PLANTS: [Plant; 23] = [
    Plant::LostRing,
    Plant::KeptAttributes,
    Plant::KeptPages,
    Plant::HastyAnswer,
    Plant::LyingFlush,
    Plant::LeakedSession,
    Plant::HostileFirst,
    Plant::DroppedNeighbour,
    Plant::SwallowedError,
    Plant::StaleView,
    Plant::UncheckedUser,
    Plant::EndlessLocks,
    Plant::TurnsByRequests,
    Plant::ConnectionsAsUsers,
    Plant::TrustedStrangers,
    Plant::KeptCharges,
    Plant::WholeRemovals,
    Plant::WholeListings,
    Plant::WholeEnds,
    Plant::ConnectionsAsAccounts,
    Plant::ConnectionsAsHolders,
    Plant::ForgottenQuotas,
    Plant::ForgivenLies,
];
