//! The beginning of every use of a volume: mounts, checks, growing, dumps.

use atoll_block::Addressable;

use crate::error::Result;
use crate::journal::{self, Beyond, Extent, Header, Headers, ScanEnd};
use crate::layout::Superblock;
use crate::report::MountNote;
use crate::superblocks::Superblocks;

/// The blocks that stand twice, superblocks and journal headers, as read.
pub(crate) struct Opening {
    pub superblocks: Superblocks,
    pub headers: Headers,
    /// The newest journal header, or why there is none.
    pub header: Result<Header>,
    /// Whether the device had failed when the volume was mounted last: then only the medium is
    /// believed, and of its records only the committed ones.
    pub failed: bool,
}

/// A journal as found, and the part of it that counts.
pub(crate) struct Found {
    /// Where the journal begins.
    pub tail: ScanEnd,
    pub extent: Extent,
    /// No memory was lost since the last write: all records count, and not only those that a mark
    /// covers.
    pub trusted: bool,
    /// The end of the records that count.
    pub end: ScanEnd,
    /// Committed records are missing; or, if no memory was lost, any records are.
    pub is_cut: bool,
}

impl Opening {
    /// Reads superblocks and journal headers. Where the device had failed, or nothing tells whether
    /// it had, the memory above the medium is not believed: a use that `writes` notes the failure
    /// on the medium and has the device forget that memory; one that does not write reads past it.
    ///
    /// # Errors
    /// There is no volume; the device's, if it still fails or its memory cannot be forgotten.
    pub fn begin<M: Addressable>(device: &mut M, writes: bool) -> Result<Opening> {
        let found = Opening::read(device)?;
        match &found.header {
            Ok(header) if !header.failed => return Ok(found),
            Err(_) if !writes => return Ok(found),
            // The header may be only in the memory that is about to go.
            Ok(header) if writes => header.write(device, found.sb())?,
            _ => {}
        }
        match writes {
            true => device.forget_cached()?,
            false => device.read_past_cache()?,
        }
        let mut again = Opening::read(device)?;
        if writes
            && found.failed
            && let Ok(header) = &again.header
            && !header.failed
        {
            // The medium has another superblock than memory had.
            header.following_failure().write(device, again.sb())?;
            again = Opening::read(device)?;
        }
        again.failed |= found.failed;
        Ok(again)
    }

    fn read<M: Addressable>(device: &mut M) -> Result<Opening> {
        let superblocks = Superblocks::read(device)?;
        let headers = Headers::read(device, &superblocks.sb);
        let header = headers.newest();
        let failed = header.as_ref().is_ok_and(|header| header.failed);
        Ok(Opening { superblocks, headers, header, failed })
    }

    /// The superblock that counts.
    pub fn sb(&self) -> &Superblock {
        &self.superblocks.sb
    }

    /// Examines the journal that begins as `header` says, for the life of memory `incarnation`.
    ///
    /// # Errors
    /// The device's.
    pub fn journal<M: Addressable>(
        &self,
        device: &mut M,
        header: &Header,
        incarnation: [u8; 16],
    ) -> Result<Found> {
        let tail =
            ScanEnd { position: header.tail, sequence: header.sequence, chain: header.chain };
        let extent = journal::extent(device, self.sb(), tail, header.clean)?;
        let trusted =
            !self.failed && header.incarnation != [0; 16] && header.incarnation == incarnation;
        let end = if trusted { extent.end } else { extent.committed };
        let is_cut =
            extent.beyond == Beyond::Committed || trusted && extent.beyond > Beyond::Nothing;
        Ok(Found { tail, extent, trusted, end, is_cut })
    }

    /// The notes for the volume's operator.
    pub fn notes(&self, journal: Option<&Found>) -> impl Iterator<Item = MountNote> {
        let unconfirmed =
            journal.is_some_and(|found| !found.is_cut && found.extent.beyond >= Beyond::Marks);
        let superblocks = self.superblocks.damaged().map(|copy| MountNote::Superblock { copy });
        let headers = self.headers.damaged().map(|b| MountNote::JournalHeader { block: b.0 });
        let headers = headers.filter(|_| self.header.is_ok());
        unconfirmed
            .then_some(MountNote::Journal)
            .into_iter()
            .chain(self.failed.then_some(MountNote::Failed))
            .chain(superblocks)
            .chain(headers)
    }
}
