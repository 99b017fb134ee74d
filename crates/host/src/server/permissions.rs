//! What a caller may do: the rules of Linux on permission bits.

/// Who a client is, as the kernel attests it (`SO_PEERCRED`, `SO_PEERGROUPS`).
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Credentials {
    /// Effective user.
    pub uid: u32,
    /// Effective group.
    pub gid: u32,
    /// Supplementary groups.
    pub groups: Vec<u32>,
    /// Process, for messages and for the holder that F_GETLK names.
    pub pid: u32,
}
