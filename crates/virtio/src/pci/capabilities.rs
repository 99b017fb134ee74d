//! Where virtio's structures are in a function's memory: VIRTIO 1.2, 4.1.4.

use alloc::vec::Vec;

use super::bars::{BARS, Bar};
use super::space::{ConfigSpace, Function, command, words};
use crate::device::Window;

/// The most capabilities that fit the space.
const MOST: usize = 48;
const VENDOR: u8 = 0x09;
const MSIX: u8 = 0x11;

// Kinds of structures.
const COMMON: u8 = 1;
const NOTIFY: u8 = 2;
const DEVICE: u8 = 4;
const SHARED_MEMORY: u8 = 8;

/// The bytes of the common configuration that every device has.
pub const COMMON_LEN: u64 = 56;

/// A structure's place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Its first byte.
    pub address: u64,
    /// Its length in bytes.
    pub len: u64,
}

/// The table of messages that a device sends instead of interrupts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Msix {
    /// The capability's own place in the configuration space.
    pub at: u16,
    /// Where the table is.
    pub table: Place,
}

/// The structures of a device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Capabilities {
    /// The common configuration.
    pub common: Option<Place>,
    /// Where queues are rung, and by how much their places are apart.
    pub notify: Option<(Place, u32)>,
    /// The device's own configuration.
    pub device: Option<Place>,
    /// Memory of the device's, with its number.
    pub windows: Vec<(u8, Window)>,
    /// The table of messages.
    pub msix: Option<Msix>,
}

/// The range within one of `bars`, if it lies inside.
fn place(bars: &[Bar; BARS], bar: u8, offset: u64, len: u64) -> Option<Place> {
    let bar = bars.get(usize::from(bar)).filter(|bar| bar.len > 0)?;
    offset.checked_add(len).filter(|&end| end <= bar.len)?;
    Some(Place { address: bar.address.checked_add(offset)?, len })
}

/// As [`place`], of registers, which begin at a multiple of `align`, as the specification has it
/// for each kind: others no driver could read.
fn registers(bars: &[Bar; BARS], bar: u8, offset: u64, len: u64, align: u64) -> Option<Place> {
    place(bars, bar, offset, len).filter(|it| it.address.is_multiple_of(align))
}

/// Reads a function's capabilities. Of several structures of a kind the first counts, as the
/// device prefers it; one that lies outside of the function's memory, or askew, is passed over.
pub fn read<C: ConfigSpace>(space: &mut C, function: Function, bars: &[Bar; BARS]) -> Capabilities {
    let mut found = Capabilities::default();
    if space.read(function, words::COMMAND) & command::HAS_CAPABILITIES == 0 {
        return found;
    }
    let mut at = space.read(function, words::CAPABILITIES) as u16 & 0xfc;
    for _ in 0..MOST {
        if !(0x40..=0xf0).contains(&at) {
            break;
        }
        let head = space.read(function, at);
        let [kind, next, len, type_] = head.to_le_bytes();
        match kind {
            VENDOR if len >= 16 => {
                // Not beyond the space: the longest begins at 0xe8.
                let mut word = |number: u16| match at + 4 * number {
                    at if at < 0x100 => space.read(function, at),
                    _ => 0,
                };
                let [bar, id, ..] = word(1).to_le_bytes();
                let (offset, size) = (u64::from(word(2)), u64::from(word(3)));
                match type_ {
                    COMMON if found.common.is_none() => {
                        found.common =
                            registers(bars, bar, offset, size, 4).filter(|it| it.len >= COMMON_LEN);
                    }
                    NOTIFY if found.notify.is_none() && len >= 20 => {
                        let apart = word(4);
                        found.notify = registers(bars, bar, offset, size, 2).map(|it| (it, apart));
                    }
                    DEVICE if found.device.is_none() => {
                        found.device = registers(bars, bar, offset, size, 4);
                    }
                    SHARED_MEMORY if len >= 24 => {
                        let offset = u64::from(word(4)) << 32 | offset;
                        let size = u64::from(word(5)) << 32 | size;
                        let known = found.windows.iter().any(|(known, _)| *known == id);
                        if let Some(Place { address, len }) =
                            place(bars, bar, offset, size).filter(|_| !known)
                        {
                            found.windows.push((id, Window { address, len }));
                        }
                    }
                    _ => {}
                }
            }
            MSIX if found.msix.is_none() && at + 8 < 0x100 => {
                let count = u64::from(head >> 16 & 0x7ff) + 1;
                let table = space.read(function, at + 4);
                let table = place(bars, table as u8 & 7, u64::from(table & !7), 16 * count);
                found.msix = table.map(|table| Msix { at, table });
            }
            _ => {}
        }
        at = u16::from(next & 0xfc);
    }
    found
}
