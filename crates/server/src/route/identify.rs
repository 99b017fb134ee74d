//! Requests of a program about a descriptor: to say which open file of which session it is, and, on
//! a mount of a server, to map it.
//!
//! Each is an ioctl(2), which any file system that is not Atoll's answers with an error. To a
//! program with its own connection to the server, the token allows what the descriptor does.

use atoll_vfs::abi;

use crate::{MapToken, Mapping};

/// A number that C takes from the same header.
const fn number(name: &str) -> usize {
    abi::number(abi::HEADER, name) as usize
}

/// The first word of the answer.
const MAGIC: u32 = number("ATOLL_MAGIC") as u32;
/// The version of the answer.
const VERSION: u32 = number("ATOLL_VERSION") as u32;

/// The number of the request: `_IOR('A', 0xf5, ...)` of Linux.
pub(crate) const REQUEST: u32 = number("ATOLL_IDENTIFY") as u32;

/// Where the fields of the answer begin.
mod at {
    use super::number;

    pub(crate) const MAGIC: usize = number("ATOLL_IDENTITY_MAGIC");
    pub(crate) const VERSION: usize = number("ATOLL_IDENTITY_VERSION");
    pub(crate) const SESSION: usize = number("ATOLL_IDENTITY_SESSION");
    pub(crate) const INO: usize = number("ATOLL_IDENTITY_INO");
    pub(crate) const HANDLE: usize = number("ATOLL_IDENTITY_HANDLE");
    pub(crate) const TOKEN: usize = number("ATOLL_IDENTITY_TOKEN");
    pub(crate) const SIZE: usize = number("ATOLL_IDENTITY_SIZE");
}

const _: () = {
    assert!(REQUEST == request(2, at::SIZE, 0xf5) && MAP == request(3, MAP_SIZE, 0xf6));
    assert!(at::MAGIC == 0 && at::VERSION == 4 && at::SESSION == 8);
    assert!(at::INO == at::SESSION + 8 && at::HANDLE == at::INO + 8);
    assert!(at::TOKEN == at::HANDLE + 8 && at::SIZE == at::TOKEN + 16);
    assert!(map_at::MAGIC == 0 && map_at::VERSION == 4 && map_at::OFFSET == 8);
    assert!(map_at::LENGTH == map_at::OFFSET + 8 && map_at::TOKEN == map_at::LENGTH + 8);
    assert!(map_at::WRITABLE == map_at::TOKEN + size_of::<MapToken>());
    assert!(map_at::ADDRESS_LENGTH == map_at::WRITABLE + 4);
    assert!(map_at::ADDRESS == map_at::ADDRESS_LENGTH + 4 && MAP_SIZE == map_at::ZERO + 4);
};

/// The number of an ioctl(2) of ours: 2 to answer, 3 to take an argument too, of `size` bytes.
const fn request(direction: u32, size: usize, number: u32) -> u32 {
    direction << 30 | (size as u32) << 16 | (b'A' as u32) << 8 | number
}

/// An open file as the server knows it.
pub(crate) struct Identity {
    /// The session whose handle it is.
    pub session: u64,
    /// Its inode number.
    pub ino: u64,
    /// Its handle.
    pub handle: u64,
    /// The token by which it can be used through a ring; zeros where there are none.
    pub token: [u64; 2],
}

impl Identity {
    /// Bytes of the answer.
    pub(crate) const SIZE: usize = at::SIZE;

    /// The answer, in the machine's byte order.
    pub(crate) fn to_bytes(&self) -> [u8; Self::SIZE] {
        let mut bytes = [0; Self::SIZE];
        bytes[at::MAGIC..at::VERSION].copy_from_slice(&MAGIC.to_ne_bytes());
        bytes[at::VERSION..at::SESSION].copy_from_slice(&VERSION.to_ne_bytes());
        bytes[at::SESSION..at::INO].copy_from_slice(&self.session.to_ne_bytes());
        bytes[at::INO..at::HANDLE].copy_from_slice(&self.ino.to_ne_bytes());
        bytes[at::HANDLE..at::TOKEN].copy_from_slice(&self.handle.to_ne_bytes());
        let [first, second] = self.token.map(u64::to_ne_bytes);
        bytes[at::TOKEN..at::SIZE].copy_from_slice(&[first, second].concat());
        bytes
    }
}

/// The number of the request to map: `_IOWR('A', 0xf6, ...)` of Linux. Its argument says at first
/// which bytes, and is the answer afterwards, in the machine's byte order:
///
/// ```text
/// magic u32 | version u32 | offset u64 | length u64
///     | token, 16 bytes | writable u32 | address length u32 | address, 108 bytes | 0 u32
/// ```
///
/// The address is the path of the server's socket, where the token is exchanged for the memory
/// (`control`). A program that can make the request has the open file. If its `writable` is
/// [`PARTS`], it takes the bytes in parts: the answer's length says how many of them are in that
/// memory, and the program asks for the rest.
pub(crate) const MAP: u32 = number("ATOLL_MAP") as u32;
/// The program takes what it maps in parts.
const PARTS: u32 = number("ATOLL_MAP_PARTS") as u32;
/// Bytes of its argument.
pub(crate) const MAP_SIZE: usize = number("ATOLL_MAP_SIZE");

/// Where the fields of the argument begin.
mod map_at {
    use super::number;

    pub(crate) const MAGIC: usize = number("ATOLL_MAP_MAGIC");
    pub(crate) const VERSION: usize = number("ATOLL_MAP_VERSION");
    pub(crate) const OFFSET: usize = number("ATOLL_MAP_OFFSET");
    pub(crate) const LENGTH: usize = number("ATOLL_MAP_LENGTH");
    pub(crate) const TOKEN: usize = number("ATOLL_MAP_TOKEN");
    pub(crate) const WRITABLE: usize = number("ATOLL_MAP_WRITABLE");
    pub(crate) const ADDRESS_LENGTH: usize = number("ATOLL_MAP_ADDRESS_LENGTH");
    pub(crate) const ADDRESS: usize = number("ATOLL_MAP_ADDRESS");
    pub(crate) const ZERO: usize = number("ATOLL_MAP_ZERO");
}

/// The offset and the length that a request to map names, and whether it takes parts.
pub(crate) fn map_range(argument: &[u8]) -> Option<(u64, u64, bool)> {
    let argument: &[u8; MAP_SIZE] = argument.try_into().ok()?;
    let word = |at: usize| u64::from_ne_bytes(std::array::from_fn(|i| argument[at + i]));
    let flag = std::array::from_fn(|i| argument[map_at::WRITABLE + i]);
    let parts = u32::from_ne_bytes(flag) == PARTS;
    let head = [MAGIC.to_ne_bytes(), VERSION.to_ne_bytes()].concat();
    (argument[map_at::MAGIC..map_at::OFFSET] == head[..])
        .then(|| (word(map_at::OFFSET), word(map_at::LENGTH), parts))
}

/// The answer to a request to map; `None` when the address is too long. A zero follows the address.
pub(crate) fn map_answer(mapping: &Mapping, address: &[u8]) -> Option<[u8; MAP_SIZE]> {
    if address.len() >= map_at::ZERO - map_at::ADDRESS {
        return None;
    }
    let (writable, length) = (u32::from(mapping.writable), address.len() as u32);
    let mut bytes = [0; MAP_SIZE];
    bytes[map_at::MAGIC..map_at::VERSION].copy_from_slice(&MAGIC.to_ne_bytes());
    bytes[map_at::VERSION..map_at::OFFSET].copy_from_slice(&VERSION.to_ne_bytes());
    bytes[map_at::LENGTH..map_at::TOKEN].copy_from_slice(&mapping.len.to_ne_bytes());
    bytes[map_at::TOKEN..map_at::WRITABLE].copy_from_slice(&mapping.token.0);
    bytes[map_at::WRITABLE..map_at::ADDRESS_LENGTH].copy_from_slice(&writable.to_ne_bytes());
    bytes[map_at::ADDRESS_LENGTH..map_at::ADDRESS].copy_from_slice(&length.to_ne_bytes());
    bytes[map_at::ADDRESS..][..address.len()].copy_from_slice(address);
    Some(bytes)
}
