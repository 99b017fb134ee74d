//! The journal's headers: where the journal begins, and the volume's state there.

use atoll_block::{Addressable, BLOCK_SIZE, BlockIndex};

use super::Position;
use crate::error::{Corruption, FsError, Result};
use crate::layout::{
    self, Block, Superblock, VolumeState, get32, get64, journal_header as header, magic, put32,
    put64,
};

/// A journal header, parsed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Counts the headers written.
    pub generation: u64,
    /// Which life of the memory below has the volume mounted.
    pub incarnation: [u8; 16],
    /// The oldest record that is needed.
    pub tail: Position,
    /// Its sequence number.
    pub sequence: u64,
    /// The checksum that it is chained to.
    pub chain: u64,
    /// The state before it.
    pub state: VolumeState,
    /// Whether the volume was unmounted cleanly.
    pub clean: bool,
    /// Whether a write or flush failed, so that the medium may lack acknowledged changes.
    pub failed: bool,
    /// The owner that has the volume mounted, in its own words; zeros: none, or it gives no name.
    pub owner: [u8; 32],
    /// Blocks in the volume.
    pub block_count: u64,
}

impl Header {
    /// Writes the header as the content of block `index`.
    pub(crate) fn emit(&self, b: &mut Block, index: BlockIndex, superblock: &Superblock) {
        layout::init_block(b, index, magic::JOURNAL_HEADER);
        put64(b, header::GENERATION, self.generation);
        b[header::INCARNATION..header::INCARNATION + 16].copy_from_slice(&self.incarnation);
        put64(b, header::TAIL, self.tail);
        put64(b, header::SEQUENCE, self.sequence);
        put64(b, header::CHAIN, self.chain);
        self.state.emit(&mut b[header::STATE..header::STATE + VolumeState::LEN]);
        let clean = if self.clean { header::CLEAN } else { 0 };
        let failed = if self.failed { header::FAILED } else { 0 };
        put32(b, header::FLAGS, clean | failed);
        put64(b, header::BLOCK_COUNT, self.block_count);
        b[header::UUID..header::UUID + 16].copy_from_slice(&superblock.uuid);
        b[header::OWNER..header::OWNER + 32].copy_from_slice(&self.owner);
        layout::seal(b);
    }

    /// The header to write when the device has failed: this one with the next generation and a mark
    /// of the failure.
    pub(crate) fn following_failure(&self) -> Header {
        Header { generation: self.generation + 1, failed: true, clean: false, ..*self }
    }

    fn parse(b: &Block, index: BlockIndex, superblock: &Superblock) -> Option<Header> {
        layout::verify(b, index, magic::JOURNAL_HEADER).ok()?;
        let mut incarnation = [0; 16];
        incarnation.copy_from_slice(&b[header::INCARNATION..header::INCARNATION + 16]);
        let mut owner = [0; 32];
        owner.copy_from_slice(&b[header::OWNER..header::OWNER + 32]);
        let flags = get32(b, header::FLAGS);
        let tail = get64(b, header::TAIL);
        let generation = get64(b, header::GENERATION);
        let sequence = get64(b, header::SEQUENCE);
        // Positions and counts stay far from wrapping: 2^62 bytes outlast any medium.
        let block_count = get64(b, header::BLOCK_COUNT);
        if block_count != superblock.block_count
            || b[header::UUID..header::UUID + 16] != superblock.uuid
            || !tail.is_multiple_of(8)
            || tail.max(generation).max(sequence) > 1 << 62
        {
            return None;
        }
        Some(Header {
            generation,
            incarnation,
            tail,
            sequence,
            chain: get64(b, header::CHAIN),
            state: VolumeState::parse(&b[header::STATE..], superblock)?,
            clean: flags & header::CLEAN != 0,
            failed: flags & header::FAILED != 0,
            owner,
            block_count,
        })
    }

    /// Reads the header in block `index`; `None` if it is not valid.
    ///
    /// # Errors
    /// The device's.
    pub(crate) fn read_one<M: Addressable>(
        device: &mut M,
        index: BlockIndex,
        superblock: &Superblock,
    ) -> Result<Option<Header>> {
        let mut b = [0; BLOCK_SIZE];
        device.read(index, &mut b)?;
        Ok(Header::parse(&b, index, superblock))
    }

    /// Writes the header over both copies of the slot that its generation gives, and makes it
    /// durable.
    ///
    /// A crash within leaves the newest header before it, or it.
    pub(crate) fn write<M: Addressable>(
        &self,
        device: &mut M,
        superblock: &Superblock,
    ) -> Result<()> {
        self.store(device, superblock)?;
        self.flush(device, superblock)
    }

    /// As [`write`](Self::write), for the caller to make it durable.
    pub(crate) fn store<M: Addressable>(
        &self,
        device: &mut M,
        superblock: &Superblock,
    ) -> Result<()> {
        let slot = superblock.header_slot(self.generation);
        let copies = slot.map(|index| {
            let mut b = [0; BLOCK_SIZE];
            self.emit(&mut b, index, superblock);
            b
        });
        Ok(device.write_all(&[(slot[0], &copies[0]), (slot[1], &copies[1])])?)
    }

    /// Makes a stored header durable.
    pub(crate) fn flush<M: Addressable>(
        &self,
        device: &mut M,
        superblock: &Superblock,
    ) -> Result<()> {
        let (first, count) = self.blocks(superblock);
        Ok(device.flush_range(first, count)?)
    }

    /// The blocks from one copy to the other. The journal's ring between them is flushed too: one
    /// flush of the medium costs more than the little of the ring that has changed since the flush
    /// before.
    pub(crate) fn blocks(&self, superblock: &Superblock) -> (BlockIndex, u64) {
        let [first, second] = superblock.header_slot(self.generation);
        (first, second.0 + 1 - first.0)
    }
}

/// The content of a block where a copy of a header belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Found {
    /// A header of this volume.
    Valid(Header),
    /// A header, but not one of the volume as the superblock has it: as a crash leaves while the
    /// volume grows.
    Foreign,
    /// Neither.
    Damaged,
    /// The device does not give the block.
    Failed(FsError),
}

/// All journal headers: two slots that are written in turn, each stored twice.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Headers {
    found: [(BlockIndex, Found); 4],
}

impl Headers {
    /// Reads them.
    pub fn read<M: Addressable>(device: &mut M, superblock: &Superblock) -> Headers {
        let mut b = [0; BLOCK_SIZE];
        let found = superblock.journal_headers().map(|index| {
            let found = match device.read(index, &mut b) {
                Err(e) => Found::Failed(e.into()),
                Ok(()) => match Header::parse(&b, index, superblock) {
                    Some(header) => Found::Valid(header),
                    None if layout::verify(&b, index, magic::JOURNAL_HEADER).is_ok() => {
                        Found::Foreign
                    }
                    None => Found::Damaged,
                },
            };
            (index, found)
        });
        Headers { found }
    }

    /// The newest of those that are valid. It says that the device failed if one of its copies
    /// does: a failing device may have taken only that copy.
    ///
    /// # Errors
    /// The device's, or [`Corruption::JournalHeader`], if none is valid.
    pub fn newest(&self) -> Result<Header> {
        let mut newest: Option<Header> = None;
        let mut failure = None;
        for (_, found) in &self.found {
            match (*found, &mut newest) {
                (Found::Valid(h), Some(n)) if h.generation == n.generation => n.failed |= h.failed,
                (Found::Valid(h), n) if n.is_none_or(|n| h.generation > n.generation) => {
                    *n = Some(h);
                }
                (Found::Failed(e), _) => failure = Some(e),
                _ => {}
            }
        }
        newest.ok_or(failure.unwrap_or(Corruption::JournalHeader.into()))
    }

    /// The blocks whose headers are damaged. The end of a process within a store leaves such too:
    /// power loss alone leaves none, since headers lie within a sector.
    pub fn damaged(&self) -> impl Iterator<Item = BlockIndex> {
        let is_damaged = |f: &Found| matches!(f, Found::Damaged | Found::Failed(_));
        self.found.iter().filter(move |(_, f)| is_damaged(f)).map(|(index, _)| *index)
    }

    /// Whether the device does not give `block`.
    pub fn is_unreadable(&self, block: u64) -> bool {
        self.found.iter().any(|(index, f)| index.0 == block && matches!(f, Found::Failed(_)))
    }

    /// Writes `newest` over the copies that differ from it in its slot, and makes that durable:
    /// every later mount then finds it too.
    ///
    /// # Errors
    /// The device's.
    pub fn restore<M: Addressable>(
        &self,
        device: &mut M,
        superblock: &Superblock,
        newest: &Header,
    ) -> Result<()> {
        for index in superblock.header_slot(newest.generation) {
            let is_right = |(at, found): &(BlockIndex, Found)| {
                *at == index && matches!(found, Found::Valid(h) if h == newest)
            };
            if !self.found.iter().any(is_right) {
                let mut b = [0; BLOCK_SIZE];
                newest.emit(&mut b, index, superblock);
                device.write(index, &b)?;
                device.flush_range(index, 1)?;
            }
        }
        Ok(())
    }
}
