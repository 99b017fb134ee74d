//! The headers of requests and replies, and the extensions that a request may end with.

use super::fixed::{Fixed, fixed};
use crate::types::Timespec;

fixed! {
    /// The front of a request. `len` counts message and data; `total_extlen` counts the extensions
    /// at the end of the message, in units of 8 bytes.
    InHeader = "fuse_in_header" 40 {
        len: u32,
        opcode: u32,
        unique: u64,
        nodeid: u64,
        uid: u32,
        gid: u32,
        pid: u32,
        total_extlen: u16,
        padding: u16,
    }
    /// The front of a reply. `len` counts message and data; `error` is 0 or a negative error
    /// number.
    OutHeader = "fuse_out_header" 16 {
        len: u32,
        error: i32,
        unique: u64,
    }
    /// The front of an extension at the end of a request. `size` includes it.
    ExtHeader = "fuse_ext_header" 8 {
        size: u32,
        kind: u32,
    }
}

/// The extension that carries the client's time: an [`ExtHeader`] and a
/// [`super::attributes::Time`]. Far from the numbers that FUSE has given out (0 to 32).
pub const EXT_TIME: u32 = 0x4154_0001;
/// The length of the extension that carries the time, in bytes.
pub const EXT_TIME_SIZE: usize = ExtHeader::SIZE + super::attributes::Time::SIZE;
const _: () = assert!(EXT_TIME_SIZE.is_multiple_of(8));

/// Writes the extension that carries `time` to the front of `out`, which has room.
pub(super) fn put_time(time: Timespec, out: &mut [u8]) {
    ExtHeader { size: EXT_TIME_SIZE as u32, kind: EXT_TIME }.store(out);
    super::attributes::Time::from(time).store(&mut out[ExtHeader::SIZE..]);
}

/// The client's time among `extensions`, if there is one and it is a time. Unknown extensions are
/// passed over.
pub(super) fn find_time(mut extensions: &[u8]) -> Option<Timespec> {
    // Each turn passes over at least eight bytes.
    while let Some((header, rest)) = ExtHeader::get(extensions) {
        let size = header.size as usize;
        if size < ExtHeader::SIZE || size > extensions.len() {
            return None;
        }
        if header.kind == EXT_TIME && size == EXT_TIME_SIZE {
            return super::attributes::Time::load(rest).checked();
        }
        extensions = &extensions[size.next_multiple_of(8).min(extensions.len())..];
    }
    None
}
