//! Calls about the program's memory.

use atoll_unikernel::PAGE;
use atoll_unikernel::areas::pages;
use atoll_unikernel::elf::{Protection, START};
use atoll_vfs::Errno;

use super::{Answer, Error};
use crate::process::files;
use crate::{mappings, memory};

/// MAP_SHARED (MAP_SHARED_VALIDATE has it too), MAP_FIXED, MAP_ANONYMOUS, MAP_FIXED_NOREPLACE.
const SHARED: u32 = 1;
const FIXED: u32 = 0x10;
const ANONYMOUS: u32 = 0x20;
const FIXED_NOREPLACE: u32 = 0x10_0000;
/// MREMAP_MAYMOVE.
const MAY_MOVE: u32 = 1;
/// MS_ASYNC, MS_INVALIDATE, MS_SYNC.
const ASYNC: u32 = 1;
const INVALIDATE: u32 = 2;
const SYNC: u32 = 4;
/// MADV_DONTNEED.
const NOT_NEEDED: u32 = 4;

/// What PROT_READ, PROT_WRITE and PROT_EXEC say: on this processor what is writable is readable.
fn protection(bits: u32) -> Protection {
    let mut protection = Protection::empty();
    protection.set(Protection::READ, bits & 7 != 0);
    protection.set(Protection::WRITE, bits & 2 != 0);
    protection.set(Protection::EXECUTE, bits & 4 != 0);
    protection
}

/// The pages from `at` on, which is the beginning of one.
fn range(at: u64, len: u64) -> Result<core::ops::Range<u64>, Error> {
    let range = pages(at, len).filter(|range| range.start == at && at >= START);
    Ok(range.ok_or(Errno::EINVAL)?)
}

pub fn mmap(at: u64, len: u64, bits: u32, flags: u32, fd: i32, offset: u64) -> Answer {
    if len == 0 || !offset.is_multiple_of(PAGE) {
        return Err(Errno::EINVAL.into());
    }
    let protection = protection(bits);
    let file = flags & ANONYMOUS == 0;
    let mut may_write = false;
    if file {
        let status = files().status_flags(fd)?;
        if status.intersects(atoll_posix::OFlags::WRONLY | atoll_posix::OFlags::PATH) {
            return Err(Errno::EACCES.into());
        }
        may_write = status.contains(atoll_posix::OFlags::RDWR);
        if flags & SHARED != 0 && protection.contains(Protection::WRITE) && !may_write {
            return Err(Errno::EACCES.into());
        }
    }
    let len = len.checked_next_multiple_of(PAGE).ok_or(Error::NO_MEMORY)?;
    if file && offset.checked_add(len).is_none_or(|end| end > i64::MAX as u64) {
        return Err(Errno::EOVERFLOW.into());
    }
    let place = if flags & (FIXED | FIXED_NOREPLACE) != 0 {
        let range = range(at, len).map_err(|_| Error::NO_MEMORY)?;
        if flags & FIXED_NOREPLACE != 0 && !memory::is_free(range.clone()) {
            return Err(Errno::EEXIST.into());
        }
        range
    } else {
        let at = memory::place(at, len).ok_or(Error::NO_MEMORY)?;
        at..at + len
    };
    if !file {
        memory::lay(place.clone(), protection)?;
        return Ok(place.start as i64);
    }
    if flags & SHARED != 0 {
        match mappings::map(place.clone(), protection, fd, offset, may_write) {
            // What is only read may be a copy, as where there is no window.
            Err(_) if !protection.contains(Protection::WRITE) => {}
            mapped => return mapped.map(|()| place.start as i64),
        }
    }
    memory::lay(place.clone(), Protection::READ | Protection::WRITE)?;
    let read = fill(place.start, len, fd, offset).map_err(|error| match error {
        Error(number) if number == Errno::EISDIR.raw() => Errno::ENODEV.into(),
        error => error,
    });
    // What could not be read is not there.
    if let Err(error) = read.and_then(|()| memory::protect(place.clone(), protection)) {
        memory::unmap(place)?;
        return Err(error);
    }
    Ok(place.start as i64)
}

/// Brings `len` bytes of a file from `offset` on to `at`; behind its end there are zeros.
fn fill(at: u64, len: u64, fd: i32, offset: u64) -> Result<(), Error> {
    let size = files().fstat(fd)?.size;
    let len = len.min(size.saturating_sub(offset));
    let to = memory::bytes_mut(at, len)?;
    let mut done = 0;
    while done < to.len() {
        match files().pread(fd, &mut to[done..], (offset + done as u64) as i64)? {
            0 => break,
            read => done += read,
        }
    }
    Ok(())
}

pub fn mprotect(at: u64, len: u64, bits: u32) -> Answer {
    if !at.is_multiple_of(PAGE) {
        return Err(Errno::EINVAL.into());
    }
    if len > 0 {
        memory::protect(range(at, len).map_err(|_| Error::NO_MEMORY)?, protection(bits))?;
    }
    Ok(0)
}

pub fn munmap(at: u64, len: u64) -> Answer {
    memory::unmap(range(at, len)?)?;
    Ok(0)
}

pub fn brk(to: u64) -> Answer {
    Ok(memory::set_break(to) as i64)
}

pub fn mremap(at: u64, len: u64, new: u64, flags: u32, _to: u64) -> Answer {
    let old = range(at, len)?;
    if new == 0 || flags & !MAY_MOVE != 0 {
        return Err(Errno::EINVAL.into());
    }
    let new = new.checked_next_multiple_of(PAGE).ok_or(Error::NO_MEMORY)?;
    let len = old.end - old.start;
    let protection = memory::area(old.clone()).ok_or(Error::FAULT)?;
    if new <= len {
        if new < len {
            memory::unmap(at + new..old.end)?;
        }
        return Ok(at as i64);
    }
    // Where a file would have to go too.
    if mappings::touches(&old) {
        return Err(Error::NO_MEMORY);
    }
    if let Some(more) = pages(old.end, new - len).filter(|more| memory::is_free(more.clone())) {
        memory::lay(more, protection)?;
        return Ok(at as i64);
    }
    if flags & MAY_MOVE == 0 {
        return Err(Error::NO_MEMORY);
    }
    let to = memory::place(0, new).ok_or(Error::NO_MEMORY)?;
    memory::lay(to..to + new, Protection::READ | Protection::WRITE)?;
    if protection.contains(Protection::READ) {
        memory::put(to, memory::bytes(at, len)?)?;
    }
    memory::protect(to..to + new, protection)?;
    memory::unmap(old)?;
    Ok(to as i64)
}

pub fn msync(at: u64, len: u64, flags: u32) -> Answer {
    if !at.is_multiple_of(PAGE) || flags & !(ASYNC | INVALIDATE | SYNC) != 0 {
        return Err(Errno::EINVAL.into());
    }
    if len == 0 {
        return Ok(0);
    }
    let range = range(at, len).map_err(|_| Error::NO_MEMORY)?;
    if !memory::is_all(range.clone()) {
        return Err(Error::NO_MEMORY);
    }
    if flags & SYNC != 0 {
        mappings::sync(&range)?;
    }
    Ok(0)
}

pub fn madvise(at: u64, len: u64, advice: u32) -> Answer {
    if len > 0 {
        let range = range(at, len)?;
        // What a file has stays.
        if advice == NOT_NEEDED && !mappings::touches(&range) {
            // Fresh pages, which are zeros.
            let protection = memory::area(range.clone()).ok_or(Error::NO_MEMORY)?;
            memory::lay(range, protection)?;
        }
    }
    Ok(0)
}
