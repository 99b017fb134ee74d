//! What a program may ask of a descriptor: which open file of which session it is.
//!
//! An ioctl(2), which any file system that is not Atoll's answers with an error. It tells nothing that
//! could be used without a connection to the server of one's own.

/// The first word of the answer.
const MAGIC: u32 = 0x4c4f_5441;
/// The version of the answer.
const VERSION: u32 = 1;
/// Bytes of the answer.
const SIZE: usize = 32;

/// The number of the request: `_IOR('A', 0xf5, ...)` of Linux.
pub(super) const REQUEST: u32 = 2 << 30 | (SIZE as u32) << 16 | (b'A' as u32) << 8 | 0xf5;

/// An open file as the server knows it.
pub(super) struct Identity {
    /// The session whose handle it is.
    pub(super) session: u64,
    /// Its inode number.
    pub(super) ino: u64,
    /// Its handle.
    pub(super) handle: u64,
}

impl Identity {
    /// The answer, in the machine's byte order.
    pub(super) fn to_bytes(&self) -> [u8; SIZE] {
        let mut bytes = [0; SIZE];
        bytes[0..4].copy_from_slice(&MAGIC.to_ne_bytes());
        bytes[4..8].copy_from_slice(&VERSION.to_ne_bytes());
        bytes[8..16].copy_from_slice(&self.session.to_ne_bytes());
        bytes[16..24].copy_from_slice(&self.ino.to_ne_bytes());
        bytes[24..32].copy_from_slice(&self.handle.to_ne_bytes());
        bytes
    }
}
