//! What a program may ask of a descriptor: which open file of which session it is, and on a mount of a
//! server, to map it.
//!
//! An ioctl(2), which any file system that is not Atoll's answers with an error. With a connection to the
//! server of one's own the token allows what the descriptor does.

use crate::Mapping;

/// The first word of the answer.
const MAGIC: u32 = 0x4c4f_5441;
/// The version of the answer.
const VERSION: u32 = 2;
/// Bytes of the answer.
const SIZE: usize = 48;

/// The number of the request: `_IOR('A', 0xf5, ...)` of Linux.
pub const REQUEST: u32 = 2 << 30 | (SIZE as u32) << 16 | (b'A' as u32) << 8 | 0xf5;

/// An open file as the server knows it.
pub struct Identity {
    /// The session whose handle it is.
    pub session: u64,
    /// Its inode number.
    pub ino: u64,
    /// Its handle.
    pub handle: u64,
    /// By which it can be used through a ring; zeros where there are none.
    pub token: [u64; 2],
}

impl Identity {
    /// Bytes of the answer.
    pub const SIZE: usize = SIZE;

    /// The answer, in the machine's byte order.
    pub fn to_bytes(&self) -> [u8; SIZE] {
        let mut bytes = [0; SIZE];
        bytes[0..4].copy_from_slice(&MAGIC.to_ne_bytes());
        bytes[4..8].copy_from_slice(&VERSION.to_ne_bytes());
        bytes[8..16].copy_from_slice(&self.session.to_ne_bytes());
        bytes[16..24].copy_from_slice(&self.ino.to_ne_bytes());
        bytes[24..32].copy_from_slice(&self.handle.to_ne_bytes());
        bytes[32..40].copy_from_slice(&self.token[0].to_ne_bytes());
        bytes[40..48].copy_from_slice(&self.token[1].to_ne_bytes());
        bytes
    }
}

/// The number of the request to map: `_IOWR('A', 0xf6, ...)` of Linux. Its argument says in the
/// beginning which bytes, and is the answer afterwards, in the machine's byte order:
///
/// ```text
/// magic u32 | version u32 | offset u64 | length u64
///     | token, 16 bytes | writable u32 | address length u32 | address, 108 bytes | 0 u32
/// ```
///
/// The address is the path of the server's socket, where the token is exchanged for the memory
/// (`control`). Whoever can make the request has the open file.
pub const MAP: u32 = 3 << 30 | (MAP_SIZE as u32) << 16 | (b'A' as u32) << 8 | 0xf6;
/// Bytes of its argument.
pub const MAP_SIZE: usize = 160;
/// The longest address.
const ADDRESS_MAX: usize = 107;

/// The offset and the length that a request to map names.
pub fn map_range(argument: &[u8]) -> Option<(u64, u64)> {
    let argument: &[u8; MAP_SIZE] = argument.try_into().ok()?;
    let word = |at: usize| u64::from_ne_bytes(std::array::from_fn(|i| argument[at + i]));
    let head = [MAGIC.to_ne_bytes(), VERSION.to_ne_bytes()].concat();
    (argument[..8] == head[..]).then(|| (word(8), word(16)))
}

/// The answer to a request to map; `None` when the address is too long.
pub fn map_answer(mapping: &Mapping, address: &[u8]) -> Option<[u8; MAP_SIZE]> {
    if address.len() > ADDRESS_MAX {
        return None;
    }
    let mut bytes = [0; MAP_SIZE];
    bytes[0..4].copy_from_slice(&MAGIC.to_ne_bytes());
    bytes[4..8].copy_from_slice(&VERSION.to_ne_bytes());
    bytes[24..40].copy_from_slice(&mapping.token.0);
    bytes[40..44].copy_from_slice(&u32::from(mapping.writable).to_ne_bytes());
    bytes[44..48].copy_from_slice(&(address.len() as u32).to_ne_bytes());
    bytes[48..][..address.len()].copy_from_slice(address);
    Some(bytes)
}
