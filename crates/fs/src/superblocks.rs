//! Where the superblock stands: in the first block, and its copy in the volume's last.
//!
//! The one with the higher generation counts. So a volume grows with the first of the two that is
//! written, and an older content that is put back in either place does no harm.

use atoll_block::{BLOCK_SIZE, BlockDevice, BlockIndex};

use crate::error::{Corruption, FsError, Result};
use crate::layout::{self, Block, Superblock, get64, journal_header, magic, superblock};

/// The state of one of the two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Found {
    /// As it should be.
    Right,
    /// The superblock before the last change: the change was interrupted.
    Old,
    /// Neither.
    Damaged,
    /// The device does not give the block.
    Unreadable,
}

/// Both superblocks.
#[derive(Clone, Debug)]
pub(crate) struct Superblocks {
    /// The superblock that counts.
    pub sb: Superblock,
    /// The first and the copy.
    found: [Found; 2],
}

impl Superblocks {
    /// Reads both.
    ///
    /// # Errors
    /// Those of the first, if neither counts.
    pub fn read<D: BlockDevice>(device: &mut D) -> Result<Superblocks> {
        let count = device.block_count();
        if count == 0 {
            return Err(Corruption::NotAVolume.into());
        }
        let mut b = [0; BLOCK_SIZE];
        let first = read_at(device, BlockIndex(0), &mut b);
        // The device may have been cut off, so that an older copy is now at its end.
        let least = match first {
            Err(FsError::Corrupt(Corruption::Truncated)) => get64(&b, superblock::GENERATION),
            _ => 0,
        };
        let mut best = first.clone().ok();
        // Mostly all three are one.
        let copies = copies(device, best.as_ref());
        for (at, &index) in copies.iter().enumerate() {
            if copies[..at].contains(&index) {
                continue;
            }
            let Ok(copy) = read_at(device, index, &mut b) else { continue };
            let is_newer = best.as_ref().is_none_or(|best| {
                // The copy may be of another volume that was there before.
                copy.uuid == best.uuid && copy.generation > best.generation
            });
            if copy.copy_index() == index && copy.generation >= least && is_newer {
                best = Some(copy);
            }
        }
        let Some(sb) = best else {
            return first.map(|sb| Superblocks { sb, found: [Found::Right; 2] });
        };
        let mut found = [Found::Damaged; 2];
        let again = [first, read_at(device, sb.copy_index(), &mut b)];
        for (found, read) in found.iter_mut().zip(again) {
            *found = match read {
                Ok(other) if other == sb => Found::Right,
                Ok(other) if other.uuid == sb.uuid && other.generation < sb.generation => {
                    Found::Old
                }
                Err(FsError::Device(_)) => Found::Unreadable,
                _ => Found::Damaged,
            };
        }
        Ok(Superblocks { sb, found })
    }

    /// Which are damaged: whether it is the copy.
    pub fn damaged(&self) -> impl Iterator<Item = bool> {
        let found = self.found;
        let is_damaged = |found| matches!(found, Found::Damaged | Found::Unreadable);
        [false, true].into_iter().filter(move |&copy| is_damaged(found[usize::from(copy)]))
    }

    /// Whether the device does not give the first, or the copy.
    pub fn is_unreadable(&self, copy: bool) -> bool {
        self.found[usize::from(copy)] == Found::Unreadable
    }

    /// Writes the superblock over a copy that is not as it should be, and makes that durable.
    ///
    /// # Errors
    /// The device's.
    pub fn restore<D: BlockDevice>(&self, device: &mut D) -> Result<()> {
        let places = [BlockIndex(0), self.sb.copy_index()];
        for (at, index) in places.into_iter().enumerate() {
            if self.found[at] != Found::Right {
                // The one that counts stays whole until the other is. A process that ended while
                // the volume grew may have left it in memory alone.
                device.flush_range(places[1 - at], 1)?;
                let mut b = [0; BLOCK_SIZE];
                self.sb.emit(&mut b, index);
                device.write(index, &b)?;
                device.flush_range(index, 1)?;
            }
        }
        Ok(())
    }
}

fn read_at<D: BlockDevice>(device: &mut D, index: BlockIndex, b: &mut Block) -> Result<Superblock> {
    device.read(index, b)?;
    Superblock::parse(b, index, device.block_count())
}

/// Where a copy may be: at the end of the device, of the volume that the first superblock gives, or
/// of that which the journal's headers give, if the device has become larger and the first is lost.
fn copies<D: BlockDevice>(device: &mut D, first: Option<&Superblock>) -> [BlockIndex; 3] {
    let last = BlockIndex(device.block_count() - 1);
    let mut found = [last; 3];
    match first {
        Some(sb) => found[1] = sb.copy_index(),
        None => {
            for slot in [1, 2] {
                let (index, mut b) = (BlockIndex(slot), [0; BLOCK_SIZE]);
                if device.read(index, &mut b).is_ok()
                    && layout::verify(&b, index, magic::JOURNAL_HEADER).is_ok()
                {
                    let end = get64(&b, journal_header::BLOCK_COUNT).clamp(1, last.0 + 1);
                    found[slot as usize] = BlockIndex(end - 1);
                }
            }
        }
    }
    found
}

/// Reads the superblock of the volume on `device`: the newer of the first and its copy.
///
/// # Errors
/// Those of the first, if neither counts.
pub fn read_superblock<D: BlockDevice>(device: &mut D) -> Result<Superblock> {
    Ok(Superblocks::read(device)?.sb)
}
