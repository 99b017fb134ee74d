//! The memory of a guest, as its front end hands it over.
//!
//! The front end can take memory away again: it can cut the file short that the memory is, upon
//! which an access by a mapping would end this process. So memory is mapped only where it is sealed
//! against that (QEMU seals its memfds, unless told not to); other files are read and written by
//! system calls, which then fail, and only that front end is dropped. Both ways see the same pages.
//!
//! Nothing in it is trusted: words are read once, bytes are copied out before they are looked at,
//! and addresses are looked up anew each time.
//!
//! All that is written goes by here, or by places that are handed out here: so here it is marked in
//! the dirty log (`dirty_log`), while the front end wants that.

use std::os::fd::OwnedFd;
use std::sync::atomic::{Ordering, fence};

use atoll_transport::channel::Mapped;
use atoll_transport::{Memory, Shared};
use rustix::fs::FileType;

use super::Broken;
use super::dirty_log::DirtyLog;
use super::overwrite::overwrite;
use crate::shm::SharedMemory;

/// The most regions of one guest. Each keeps a descriptor.
pub(super) const REGIONS: usize = 64;

/// The most that is mapped of one file, and of all files of a guest. A longer file costs no memory:
/// it could take all addresses that this process has.
const MAPPED_MAX: u64 = 1 << 40;
const MAPPED_TOTAL: u64 = 4 * MAPPED_MAX;

/// A part of the memory, by the front end's own words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// Its address in the guest.
    pub guest: u64,
    /// Its address in the front end, by which rings are named.
    pub user: u64,
    /// Bytes.
    pub len: u64,
    /// Where it begins in its file.
    pub at: u64,
}

impl Place {
    /// Whether all of its ends are numbers.
    fn is_sound(&self) -> bool {
        let Place { guest, user, len, at } = *self;
        len > 0 && [guest, user, at].iter().all(|start| start.checked_add(len).is_some())
    }

    fn overlaps(&self, other: &Place) -> bool {
        let overlap = |a: u64, b: u64| a < b + other.len && b < a + self.len;
        overlap(self.guest, other.guest) || overlap(self.user, other.user)
    }
}

/// How the bytes of a region are reached.
#[derive(Debug)]
enum Backing {
    /// By a mapping of the whole file, whose length cannot change.
    Mapped(SharedMemory),
    /// By system calls.
    File(OwnedFd),
}

#[derive(Debug)]
struct Region {
    place: Place,
    backing: Backing,
}

impl Region {
    /// Maps at most `most` bytes.
    fn open(place: Place, file: OwnedFd, most: u64) -> Result<Region, Broken> {
        let stat = rustix::fs::fstat(&file).map_err(|_| Broken("handed over no memory"))?;
        // A file of any other kind may block the thread that reads it.
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(Broken("handed over memory that is no file"));
        }
        if place.at + place.len > stat.st_size as u64 {
            return Err(Broken("handed over less memory than it says"));
        }
        let again = file.try_clone().map_err(|_| Broken("has no descriptor left"))?;
        let backing = match SharedMemory::attach(again, most as usize) {
            Ok(memory) => Backing::Mapped(memory),
            Err(_) => Backing::File(file),
        };
        Ok(Region { place, backing })
    }

    /// How many bytes are mapped for it.
    fn mapped(&self) -> u64 {
        match &self.backing {
            Backing::Mapped(memory) => memory.len() as u64,
            Backing::File(_) => 0,
        }
    }

    /// Copies bytes from `offset` of the region, all of which are inside.
    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), Broken> {
        let mut at = self.place.at + offset;
        match &self.backing {
            Backing::Mapped(memory) => memory.shared().read(at as usize, out),
            Backing::File(file) => {
                let mut rest = out;
                while !rest.is_empty() {
                    let done = again(|| rustix::io::pread(file, &mut *rest, at))?;
                    at += done as u64;
                    rest = &mut rest[done..];
                }
            }
        }
        Ok(())
    }

    /// The same for writing.
    fn write(&self, offset: u64, data: &[u8]) -> Result<(), Broken> {
        let at = self.place.at + offset;
        match &self.backing {
            Backing::Mapped(memory) => memory.shared().write(at as usize, data),
            Backing::File(file) => overwrite(file, at, data).map_err(|_| GONE)?,
        }
        Ok(())
    }
}

pub(super) const GONE: Broken = Broken("took its memory away");

/// Makes a call that moves bytes, and has to move some.
fn again(call: impl FnMut() -> rustix::io::Result<usize>) -> Result<usize, Broken> {
    match rustix::io::retry_on_intr(call) {
        Ok(0) | Err(_) => Err(GONE),
        Ok(done) => Ok(done),
    }
}

/// The memory of a guest.
#[derive(Debug, Default)]
pub(super) struct GuestMemory {
    regions: Vec<Region>,
    /// The most regions beside [`REGIONS`], for ranges of a window.
    more: usize,
    /// Where pages are marked that were written, while the front end wants it.
    log: Option<DirtyLog>,
    logs: bool,
}

impl GuestMemory {
    /// None yet, of a guest whose window may have so many ranges.
    pub fn with_ranges(more: usize) -> GuestMemory {
        GuestMemory { more, ..GuestMemory::default() }
    }

    /// The most regions that there may be.
    pub fn regions_max(&self) -> usize {
        REGIONS + self.more
    }

    /// How many regions there are.
    pub fn len(&self) -> usize {
        self.regions.len()
    }

    /// Lets go of all.
    pub fn clear(&mut self) {
        self.regions.clear();
    }

    /// Sets where pages are marked.
    pub fn set_log(&mut self, log: DirtyLog) {
        self.log = Some(log);
    }

    /// Sets whether pages are marked. A log that is not wanted any more is let go of.
    pub fn set_logs(&mut self, logs: bool) {
        if std::mem::replace(&mut self.logs, logs) && !logs {
            self.log = None;
        }
    }

    /// Whether pages are marked.
    pub fn logs(&self) -> bool {
        self.logs
    }

    /// Marks the pages of the `len` bytes at `addr`, if pages are marked: they have been written.
    pub fn mark(&self, addr: u64, len: u64) -> Result<(), Broken> {
        match &self.log {
            _ if !self.logs => Ok(()),
            Some(log) => log.mark(addr, len),
            // A page that is not marked would be another at the other machine.
            None => Err(Broken("wants pages marked and has no log")),
        }
    }

    /// Adds a region.
    pub fn add(&mut self, place: Place, file: OwnedFd) -> Result<(), Broken> {
        if self.regions.len() >= self.regions_max() {
            return Err(Broken("has too many regions of memory"));
        }
        let taken = |place: &Place| self.regions.iter().any(|other| other.place.overlaps(place));
        if !place.is_sound() || taken(&place) {
            return Err(Broken("has memory at addresses that make no sense"));
        }
        let mapped: u64 = self.regions.iter().map(Region::mapped).sum();
        let most = (MAPPED_TOTAL - mapped).min(MAPPED_MAX);
        self.regions.push(Region::open(place, file, most)?);
        Ok(())
    }

    /// Lets go of a region; its place in the file does not count. Returns whether there was one.
    pub fn remove(&mut self, place: &Place) -> bool {
        let before = self.regions.len();
        self.regions.retain(|region| Place { at: region.place.at, ..*place } != region.place);
        before != self.regions.len()
    }

    /// The guest's address of `len` bytes at an address of the front end's.
    pub fn guest_address(&self, user: u64, len: u64) -> Option<u64> {
        let inside = |place: &Place| {
            let offset = user.checked_sub(place.user)?;
            (offset <= place.len && len <= place.len - offset).then_some(place.guest + offset)
        };
        self.regions.iter().find_map(|region| inside(&region.place))
    }

    /// The region with `addr`, the offset there, and how many bytes follow.
    fn find(&self, addr: u64) -> Result<(&Region, u64, u64), Broken> {
        let inside = |region: &&Region| {
            addr.checked_sub(region.place.guest).is_some_and(|offset| offset < region.place.len)
        };
        let region = self.regions.iter().find(inside);
        let region = region.ok_or(Broken("named an address where it has no memory"))?;
        let offset = addr - region.place.guest;
        Ok((region, offset, region.place.len - offset))
    }

    /// Copies the bytes at `addr` to `out`.
    pub fn read(&self, mut addr: u64, mut out: &mut [u8]) -> Result<(), Broken> {
        while !out.is_empty() {
            let (region, offset, follow) = self.find(addr)?;
            let len = follow.min(out.len() as u64);
            let (part, rest) = out.split_at_mut(len as usize);
            region.read(offset, part)?;
            // No region ends beyond the last address.
            (addr, out) = (addr + len, rest);
        }
        Ok(())
    }

    /// Copies `data` to `addr`.
    pub fn write(&self, mut addr: u64, mut data: &[u8]) -> Result<(), Broken> {
        while !data.is_empty() {
            let (region, offset, follow) = self.find(addr)?;
            let len = follow.min(data.len() as u64);
            let (part, rest) = data.split_at(len as usize);
            region.write(offset, part)?;
            self.mark(addr, len)?;
            (addr, data) = (addr + len, rest);
        }
        Ok(())
    }

    /// The 16-bit word at `addr`, before all that is read after it.
    pub fn load(&self, addr: u64) -> Result<u16, Broken> {
        match self.word(addr)? {
            Some((memory, at)) => Ok(u16::from_le(memory.shared().u16(at).load(Ordering::Acquire))),
            None => {
                let mut bytes = [0; 2];
                self.read(addr, &mut bytes)?;
                fence(Ordering::Acquire);
                Ok(u16::from_le_bytes(bytes))
            }
        }
    }

    /// Stores a 16-bit word at `addr`, after all that was written before it.
    pub fn store(&self, addr: u64, value: u16) -> Result<(), Broken> {
        match self.word(addr)? {
            Some((memory, at)) => {
                memory.shared().u16(at).store(value.to_le(), Ordering::Release);
                self.mark(addr, 2)
            }
            None => {
                fence(Ordering::Release);
                self.write(addr, &value.to_le_bytes())
            }
        }
    }

    /// Where the `len` bytes at `addr` are, if they are mapped in one piece: the memory, and the
    /// offset there. Who writes there [marks](Self::mark) it afterwards.
    pub fn mapped(&self, addr: u64, len: u64) -> Option<(Shared<'_>, usize)> {
        let (region, offset, follow) = self.find(addr).ok()?;
        match &region.backing {
            Backing::Mapped(memory) if len <= follow => {
                Some((memory.shared(), (region.place.at + offset) as usize))
            }
            _ => None,
        }
    }

    /// Where the word at `addr` is mapped in one piece.
    fn word(&self, addr: u64) -> Result<Option<(&SharedMemory, usize)>, Broken> {
        let (region, offset, follow) = self.find(addr)?;
        let at = region.place.at + offset;
        Ok(match &region.backing {
            Backing::Mapped(memory) if follow >= 2 && at.is_multiple_of(2) => {
                debug_assert!(at + 2 <= memory.len() as u64);
                Some((memory, at as usize))
            }
            _ => None,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use rustix::fs::{MemfdFlags, SealFlags};
    use rustix::io::dup;

    use super::*;

    const LEN: u64 = 64 << 10;

    fn unsealed() -> OwnedFd {
        let file = rustix::fs::memfd_create("test", MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&file, LEN).unwrap();
        file
    }

    fn sealed() -> OwnedFd {
        let memory = SharedMemory::create("test", LEN as usize).unwrap();
        memory.as_fd().try_clone_to_owned().unwrap()
    }

    fn place(guest: u64) -> Place {
        Place { guest, user: guest + (1 << 40), len: LEN, at: 0 }
    }

    #[test]
    fn both_ways_reach_the_same_bytes() {
        for (file, mapped) in [(sealed(), true), (unsealed(), false)] {
            let mut memory = GuestMemory::default();
            memory.add(place(4096), dup(&file).unwrap()).unwrap();
            assert_eq!(matches!(memory.regions[0].backing, Backing::Mapped(_)), mapped);
            memory.write(5000, b"bytes").unwrap();
            let mut found = [0; 5];
            rustix::io::pread(&file, &mut found, 904).unwrap();
            assert_eq!(&found, b"bytes");
            rustix::io::pwrite(&file, b"other", 905).unwrap();
            memory.read(5001, &mut found).unwrap();
            assert_eq!(&found, b"other");
            memory.store(4098, 0x1234).unwrap();
            assert_eq!(memory.load(4098).unwrap(), 0x1234);
            memory.store(4099, 0x5678).unwrap();
            memory.read(4099, &mut found[..2]).unwrap();
            assert_eq!(found[..2], [0x78, 0x56]);
            for outside in [0, 4095, 4096 + LEN, u64::MAX] {
                assert!(memory.read(outside, &mut [0]).is_err());
                assert!(memory.write(outside, &[0]).is_err());
                assert!(memory.load(outside).is_err() && memory.store(outside, 1).is_err());
            }
            assert!(memory.load(4095 + LEN).is_err());
            assert!(memory.read(4096, &mut vec![0; LEN as usize + 1]).is_err());
        }
    }

    #[test]
    fn bytes_may_lie_in_two_regions() {
        let (low, high) = (place(0), place(LEN));
        let mut memory = GuestMemory::default();
        memory.add(high, sealed()).unwrap();
        memory.add(low, unsealed()).unwrap();
        memory.write(LEN - 2, b"across").unwrap();
        let mut found = [0; 6];
        memory.read(LEN - 2, &mut found).unwrap();
        assert_eq!(&found, b"across");
        memory.store(LEN - 1, 0xabcd).unwrap();
        assert_eq!(memory.load(LEN - 1).unwrap(), 0xabcd);
        assert_eq!(memory.guest_address(low.user + 5, LEN - 5), Some(5));
        assert_eq!(memory.guest_address(low.user + 5, LEN), None);
        assert!(memory.remove(&Place { at: 77, ..low }) && !memory.remove(&low));
        assert!(memory.write(LEN - 2, b"across").is_err());
        assert_eq!(memory.guest_address(low.user, 1), None);
    }

    #[test]
    fn memory_that_is_taken_away_is_missed() {
        let file = unsealed();
        let mut memory = GuestMemory::default();
        memory.add(place(0), dup(&file).unwrap()).unwrap();
        rustix::fs::ftruncate(&file, 4096).unwrap();
        assert!(memory.read(0, &mut [0; 8]).is_ok());
        assert!(memory.read(4092, &mut [0; 8]).is_err());
        assert!(memory.write(4092, &[0; 8]).is_err());
        assert!(memory.load(8192).is_err() && memory.store(8192, 1).is_err());
        assert_eq!(rustix::fs::fstat(&file).unwrap().st_size, 4096, "it does not grow");
    }

    /// As much as it may be, it takes a bounded part of this process's addresses.
    #[test]
    fn what_is_mapped_is_bounded() {
        let long = |len: u64| {
            let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
            let file = rustix::fs::memfd_create("test", flags).unwrap();
            rustix::fs::ftruncate(&file, len).unwrap();
            let seals = SealFlags::GROW | SealFlags::SHRINK;
            rustix::fs::fcntl_add_seals(&file, seals).unwrap();
            file
        };
        let mut memory = GuestMemory::default();
        for at in 0..8 {
            memory.add(place(at * LEN), long(MAPPED_MAX)).unwrap();
            memory.write(at * LEN + 5, b"there").unwrap();
        }
        memory.add(place(8 * LEN), long(MAPPED_MAX + 4096)).unwrap();
        let mapped = memory.regions.iter().filter(|region| region.mapped() > 0).count();
        assert_eq!(mapped as u64, MAPPED_TOTAL / MAPPED_MAX);
    }

    #[test]
    fn memory_that_makes_no_sense() {
        let mut memory = GuestMemory::default();
        memory.add(place(LEN), sealed()).unwrap();
        let wrong = [
            place(LEN),
            place(2 * LEN - 1),
            place(1),
            Place { user: place(LEN).user + 1, ..place(8 * LEN) },
            Place { len: 0, ..place(8 * LEN) },
            Place { len: LEN + 1, ..place(8 * LEN) },
            Place { at: 1, ..place(8 * LEN) },
            Place { at: u64::MAX, ..place(8 * LEN) },
            Place { guest: u64::MAX - 5, ..place(8 * LEN) },
        ];
        for place in wrong {
            assert!(memory.add(place, sealed()).is_err(), "{place:?}");
        }
        let pipe = std::io::pipe().unwrap().0.into();
        assert!(memory.add(place(8 * LEN), pipe).is_err());
        for at in 1..REGIONS as u64 {
            memory.add(place((2 + at) * LEN), sealed()).unwrap();
        }
        assert!(memory.add(place(1000 * LEN), sealed()).is_err());
    }
}
