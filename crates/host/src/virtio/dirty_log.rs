//! The dirty log: where a device marks what it has written of the guest's memory, for a front
//! end that copies this memory to another machine while the guest runs. vhost-user, "Migration".
//!
//! It is a bit for each page of 4 KiB, by the guest's addresses: the lowest bit of the first byte
//! is the first page. The front end takes bits out of it at any time and copies those pages, so a
//! page is marked after it has been written, always, and by an operation that loses no bit of
//! others.
//!
//! The log is the front end's, as the guest's memory is (`memory`): it is mapped where nobody can
//! cut it short. Any other is written by system calls, which cannot set a single bit without a
//! moment in which the front end's bits of the same byte are lost; all bits of the byte are set
//! there, which costs copies of some pages and loses none.

use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;

use atoll_transport::channel::Mapped;
use rustix::fs::{FileType, fstat};

use super::Broken;
use super::overwrite::overwrite;
use crate::shm::SharedMemory;

/// Bytes of the guest's memory that a bit stands for: VHOST_LOG_PAGE.
const PAGE: u64 = 4096;
/// Pages that a byte stands for.
const BITS: u64 = 8;
/// Bytes of a word of the log, in which bits are set at once.
const WORD: u64 = 8;
/// The most bytes of the log's file that are mapped: some 32 TiB of a guest.
const MAPPED_MAX: usize = 1 << 30;

const NONE: Broken = Broken("handed over a dirty log that is none");
const SHORT: Broken = Broken("has a dirty log that is shorter than its memory");

/// How the log is reached.
#[derive(Debug)]
enum Backing {
    /// By a mapping of its file, whose length cannot change.
    Mapped(SharedMemory),
    /// By system calls.
    File(OwnedFd),
}

/// A dirty log.
#[derive(Debug)]
pub(super) struct DirtyLog {
    backing: Backing,
    /// Where it begins in its file, and its bytes.
    at: u64,
    len: u64,
}

impl DirtyLog {
    /// The log of `len` bytes from `at` of `file`.
    ///
    /// # Errors
    /// When the file is none, or ends before.
    pub fn open(file: OwnedFd, at: u64, len: u64) -> Result<DirtyLog, Broken> {
        let stat = fstat(&file).map_err(|_| NONE)?;
        // A file of any other kind may block the thread that writes it.
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(NONE);
        }
        let end = at.checked_add(len).ok_or(NONE)?;
        if len == 0 || end > stat.st_size as u64 {
            return Err(NONE);
        }
        let again = file.try_clone().map_err(|_| Broken("has no descriptor left"))?;
        let whole = at.is_multiple_of(WORD) && len.is_multiple_of(WORD);
        let backing = match whole.then(|| SharedMemory::attach_words(again, MAPPED_MAX)) {
            Some(Ok(memory)) => Backing::Mapped(memory),
            _ => Backing::File(file),
        };
        Ok(DirtyLog { backing, at, len })
    }

    /// Marks the pages of the `len` bytes at the guest's address `addr`, which have been written.
    ///
    /// # Errors
    /// When the log has no place for them, or has been taken away.
    pub fn mark(&self, addr: u64, len: u64) -> Result<(), Broken> {
        let Some(last) = len.checked_sub(1) else { return Ok(()) };
        let last = addr.checked_add(last).ok_or(SHORT)? / PAGE;
        if last / BITS >= self.len {
            return Err(SHORT);
        }
        let first = addr / PAGE;
        match &self.backing {
            Backing::Mapped(memory) => {
                set(memory, self.at, first, last);
                Ok(())
            }
            Backing::File(file) => fill(file, self.at + first / BITS, self.at + last / BITS),
        }
    }
}

/// Sets the bits `first` to `last` of the log at `at` of `memory`, which are inside.
fn set(memory: &SharedMemory, at: u64, first: u64, last: u64) {
    let bits = BITS * WORD;
    for word in first / bits..=last / bits {
        let from = first.max(word * bits) % bits;
        let to = last.min(word * bits + bits - 1) % bits;
        let mask = (u64::MAX << from) & (u64::MAX >> (bits - 1 - to));
        // The front end takes the word out before it reads the pages: it gets this bit, or the
        // bytes that were written before.
        let word = memory.shared().u64((at + WORD * word) as usize);
        word.fetch_or(mask.to_le(), Ordering::SeqCst);
    }
}

/// Sets all bits of the bytes `first` to `last` of `file`.
fn fill(file: &OwnedFd, first: u64, last: u64) -> Result<(), Broken> {
    const GONE: Broken = Broken("took its dirty log away");
    const ONES: [u8; 512] = [0xff; 512];
    let mut at = first;
    while at <= last {
        let now = (last + 1 - at).min(ONES.len() as u64) as usize;
        overwrite(file, at, &ONES[..now]).map_err(|_| GONE)?;
        at += now as u64;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
    use rustix::io::{dup, pread};

    use super::*;

    fn file(len: u64, sealed: bool) -> OwnedFd {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = memfd_create("log", flags).unwrap();
        ftruncate(&file, len).unwrap();
        if sealed {
            fcntl_add_seals(&file, SealFlags::GROW | SealFlags::SHRINK).unwrap();
        }
        file
    }

    /// The pages that are marked in the log of `len` bytes at `at`; none is outside of it.
    fn marked(file: &OwnedFd, at: u64, len: u64) -> Vec<u64> {
        let mut bytes = vec![0; fstat(file).unwrap().st_size as usize];
        assert_eq!(pread(file, &mut bytes, 0), Ok(bytes.len()));
        let inside = at as usize..(at + len) as usize;
        let outside = |(number, byte): (usize, &u8)| *byte != 0 && !inside.contains(&number);
        assert!(!bytes.iter().enumerate().any(outside));
        let log = &bytes[inside];
        let page = |page: &u64| log[(page / 8) as usize] >> (page % 8) & 1 != 0;
        (0..8 * len).filter(page).collect()
    }

    /// Ranges of bytes, and the pages that they lie in.
    const RANGES: [(u64, u64, &[u64]); 9] = [
        (0, 1, &[0]),
        (4095, 1, &[0]),
        (4095, 2, &[0, 1]),
        (4096, 4096, &[1]),
        (62 * 4096 + 5, 2 * 4096, &[62, 63, 64]),
        (63 * 4096, 4096, &[63]),
        (64 * 4096, 1, &[64]),
        (127 * 4096 + 4095, 4098, &[127, 128, 129]),
        (500, 0, &[]),
    ];

    #[test]
    fn the_pages_of_a_range_are_marked() {
        // Lengths that are no multiple of a page are those of front ends.
        for (len, at) in [(4096, 0), (24, 0), (24, 8), (8200, 16)] {
            for (addr, bytes, pages) in RANGES {
                let file = file(at + len, true);
                let log = DirtyLog::open(dup(&file).unwrap(), at, len).unwrap();
                assert!(matches!(log.backing, Backing::Mapped(_)));
                log.mark(addr, bytes).unwrap();
                assert_eq!(marked(&file, at, len), pages, "{addr} {bytes}");
                // Bits of others stay.
                log.mark(5 * 4096, 1).unwrap();
                let mut both = [pages, &[5]].concat();
                both.sort_unstable();
                assert_eq!(marked(&file, at, len), both);
            }
        }
        let file = file(1 << 20, true);
        let log = DirtyLog::open(dup(&file).unwrap(), 0, 1 << 20).unwrap();
        log.mark(1 << 30, 1 << 30).unwrap();
        assert_eq!(marked(&file, 0, 1 << 20), (1 << 18..1 << 19).collect::<Vec<_>>());
    }

    #[test]
    fn a_log_that_is_no_sealed_memory_has_whole_bytes() {
        for (len, at, sealed) in [(24, 0, false), (4096, 0, false), (25, 0, true), (24, 3, true)] {
            for (addr, bytes, pages) in RANGES {
                let file = file(at + len, sealed);
                let log = DirtyLog::open(dup(&file).unwrap(), at, len).unwrap();
                assert!(matches!(log.backing, Backing::File(_)));
                log.mark(addr, bytes).unwrap();
                let mut wanted: Vec<u64> =
                    pages.iter().flat_map(|page| page / 8 * 8..page / 8 * 8 + 8).collect();
                wanted.dedup();
                wanted.sort_unstable();
                wanted.dedup();
                assert_eq!(marked(&file, at, len), wanted, "{addr} {bytes}");
            }
        }
        // More than goes by one call.
        let file = file(8192, false);
        let log = DirtyLog::open(dup(&file).unwrap(), 0, 8192).unwrap();
        log.mark(0, 1 << 26).unwrap();
        assert_eq!(marked(&file, 0, 8192), (0..1 << 14).collect::<Vec<_>>());
    }

    #[test]
    fn what_a_log_has_no_place_for() {
        for sealed in [true, false] {
            let file = file(32, sealed);
            // What lies behind it in its file is not its own.
            let log = DirtyLog::open(dup(&file).unwrap(), 8, 16).unwrap();
            for (addr, len) in [
                (128 * 4096, 1),
                (127 * 4096, 4097),
                (0, u64::MAX),
                (4096, u64::MAX),
                (u64::MAX, 1),
                (u64::MAX, u64::MAX),
            ] {
                assert_eq!(log.mark(addr, len), Err(SHORT), "{addr} {len}");
            }
            assert!(marked(&file, 8, 16).is_empty());
            log.mark(127 * 4096, 4096).unwrap();
        }
    }

    #[test]
    fn what_is_no_log() {
        for sealed in [true, false] {
            let refused = |at, len| DirtyLog::open(file(4096, sealed), at, len).is_err();
            assert!(refused(0, 0) && refused(0, 4097) && refused(4096, 1) && refused(1, 4096));
            assert!(refused(u64::MAX, 2) && refused(2, u64::MAX) && refused(u64::MAX, 0));
        }
        assert!(DirtyLog::open(std::io::pipe().unwrap().1.into(), 0, 8).is_err());
        assert!(DirtyLog::open(std::fs::File::open("/dev/null").unwrap().into(), 0, 8).is_err());
    }

    #[test]
    fn a_log_that_is_taken_away_is_missed() {
        let file = file(4096, false);
        let log = DirtyLog::open(dup(&file).unwrap(), 0, 4096).unwrap();
        ftruncate(&file, 100).unwrap();
        log.mark(0, 4096).unwrap();
        assert!(log.mark(99 * 8 * 4096, 16 * 4096).is_err());
        assert_eq!(fstat(&file).unwrap().st_size, 100, "it does not grow");
    }
}
