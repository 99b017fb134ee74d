//! The journal's headers: where the journal begins, and what the volume's state was there.

use atoll_block::{BLOCK_SIZE, BlockIndex, Memory};

use super::Position;
use crate::error::{Corruption, Result};
use crate::layout::{
    self, Block, Superblock, VolumeState, get32, get64, journal_header as header, magic, put32,
    put64,
};

/// What a journal header says.
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
    /// Whether a write or flush failed, so that the medium may lack what was acknowledged.
    pub failed: bool,
    /// Who has the volume mounted, in words of the host's own; zeros: nobody, or it does not say.
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
    pub(crate) fn read_one<M: Memory>(
        device: &mut M,
        index: BlockIndex,
        superblock: &Superblock,
    ) -> Result<Option<Header>> {
        let mut b = [0; BLOCK_SIZE];
        device.read(index, &mut b)?;
        Ok(Header::parse(&b, index, superblock))
    }

    /// Reads both headers and returns the newer of those that are valid.
    ///
    /// # Errors
    /// [`Corruption::JournalHeader`] if neither is.
    pub(crate) fn read<M: Memory>(device: &mut M, superblock: &Superblock) -> Result<Header> {
        let mut newest: Option<Header> = None;
        let mut failure = None;
        for index in superblock.journal_headers() {
            match Header::read_one(device, index, superblock) {
                Ok(Some(h)) if newest.is_none_or(|n| h.generation > n.generation) => {
                    newest = Some(h);
                }
                Ok(_) => {}
                Err(e) => failure = Some(e),
            }
        }
        match (newest, failure) {
            (Some(h), _) => Ok(h),
            (None, Some(e)) => Err(e),
            (None, None) => Err(Corruption::JournalHeader.into()),
        }
    }

    /// Writes the header over the older of the two blocks; the caller flushes it.
    pub(crate) fn write<M: Memory>(&self, device: &mut M, superblock: &Superblock) -> Result<()> {
        let index = superblock.journal_headers()[(self.generation % 2) as usize];
        let mut b = [0; BLOCK_SIZE];
        self.emit(&mut b, index, superblock);
        Ok(device.write(index, &b)?)
    }
}
