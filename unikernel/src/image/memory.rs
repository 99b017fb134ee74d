//! The program's memory: which addresses it has, and what the image reads and writes there for it.
//!
//! Pages get memory when they are first touched, by the program or by the image (`traps`). What a
//! system call is given is looked up in the program's areas first, so that a wrong address is
//! EFAULT and no fault.
#![allow(unsafe_code)]

use core::ops::Range;
use core::slice;
use core::sync::atomic::{AtomicBool, Ordering};

use atoll_posix::PATH_MAX;
use atoll_unikernel::PAGE;
use atoll_unikernel::areas::{Areas, pages};
use atoll_unikernel::elf::{END, Protection};
use atoll_vfs::Errno;

use crate::calls::Error;
use crate::sole::Sole;
use crate::{frames, mappings, paging};

/// The end of the program's stack.
pub const STACK_TOP: u64 = END - PAGE;
/// Bytes of the program's stack. Below it nothing is ever laid.
pub const STACK_BYTES: u64 = 8 << 20;

/// The state of the program's memory.
struct Memory {
    areas: Areas,
    /// What brk(2) moves: from, and to its byte.
    heap: Range<u64>,
    /// The areas that were used last, for the image: most calls are about the same ones.
    last: [(Range<u64>, Protection); 2],
    /// Which of those is replaced next.
    next: usize,
}

static MEMORY: Sole<Memory> = Sole::new();
static BEGUN: AtomicBool = AtomicBool::new(false);

/// An area that nothing is in.
const NOWHERE: (Range<u64>, Protection) = (0..0, Protection::empty());

/// The state. It is used within a function of this module, and none of them touches the program's
/// memory while it has it: a fault asks for the state too.
#[inline]
fn memory() -> &'static mut Memory {
    // SAFETY: set by `begin`, before any other function; see above.
    unsafe { MEMORY.get() }
}

/// Begins with no memory.
pub fn begin() {
    let memory = Memory { areas: Areas::new(), heap: 0..0, last: [NOWHERE, NOWHERE], next: 0 };
    // SAFETY: called once.
    unsafe { MEMORY.set(memory) };
    BEGUN.store(true, Ordering::Relaxed);
}

/// What the page at `address` may be used for, if the program has it.
pub fn protection_at(address: u64) -> Option<Protection> {
    if !BEGUN.load(Ordering::Relaxed) || address >= END {
        return None;
    }
    // A page of a file's is there, or is nothing.
    let found = memory().areas.find(address).map(|(_, protection)| protection);
    found.filter(|_| !mappings::touches(&(address..address + 1)))
}

/// Fails unless the program may use `len` bytes at `address` so.
#[inline]
fn check(address: u64, len: u64, wanted: Protection) -> Result<(), Error> {
    let memory = memory();
    for (range, protection) in &memory.last {
        // Where `address` is above the start the difference is no overflow.
        if address >= range.start
            && protection.contains(wanted)
            && len <= range.end.wrapping_sub(address)
            && address < range.end
        {
            return Ok(());
        }
    }
    look_up(memory, address, len, wanted)
}

#[inline(never)]
fn look_up(memory: &mut Memory, address: u64, len: u64, wanted: Protection) -> Result<(), Error> {
    if len == 0 {
        return Ok(());
    }
    let range = pages(address, len).ok_or(Error::FAULT)?;
    if !memory.areas.allow(range.clone(), wanted) || mappings::misses(&range) {
        return Err(Error::FAULT);
    }
    if let Some(area) = memory.areas.find(address).filter(|area| !mappings::touches(&area.0)) {
        memory.last[memory.next] = area;
        memory.next ^= 1;
    }
    Ok(())
}

/// `len` bytes of the program's at `address`, to read.
///
/// # Errors
/// EFAULT where the program could not read them.
#[inline]
pub fn bytes(address: u64, len: u64) -> Result<&'static [u8], Error> {
    if len == 0 {
        return Ok(&[]);
    }
    check(address, len, Protection::READ)?;
    // SAFETY: the program's memory, which is there or comes by a fault. It does not run during the
    // call that this is for, and no call keeps the bytes, or changes areas that it has bytes of.
    Ok(unsafe { slice::from_raw_parts(address as *const u8, len as usize) })
}

/// `len` bytes of the program's at `address`, to write.
///
/// # Errors
/// EFAULT where the program could not write them.
#[inline]
pub fn bytes_mut(address: u64, len: u64) -> Result<&'static mut [u8], Error> {
    if len == 0 {
        return Ok(&mut []);
    }
    check(address, len, Protection::WRITE)?;
    // SAFETY: as in `bytes`. A call that takes several pieces takes them one after the other.
    Ok(unsafe { slice::from_raw_parts_mut(address as *mut u8, len as usize) })
}

/// The array at `address`.
///
/// # Errors
/// EFAULT.
pub fn array<const N: usize>(address: u64) -> Result<[u8; N], Error> {
    let mut array = [0; N];
    array.copy_from_slice(bytes(address, N as u64)?);
    Ok(array)
}

/// The array at `address`, to write.
///
/// # Errors
/// EFAULT.
#[inline]
pub fn array_mut<const N: usize>(address: u64) -> Result<&'static mut [u8; N], Error> {
    bytes_mut(address, N as u64)?.first_chunk_mut().ok_or(Error::FAULT)
}

/// Writes `data` at `address`.
///
/// # Errors
/// EFAULT.
pub fn put(address: u64, data: &[u8]) -> Result<(), Error> {
    bytes_mut(address, data.len() as u64)?.copy_from_slice(data);
    Ok(())
}

/// The string at `address`, without its NUL.
///
/// # Errors
/// EFAULT, ENAMETOOLONG.
pub fn string(address: u64) -> Result<&'static [u8], Error> {
    check(address, 1, Protection::READ)?;
    let mut len = 0;
    while len < PATH_MAX as u64 {
        // As far as the page goes, whose bytes are all readable if one is.
        let page = PAGE - (address + len) % PAGE;
        let piece = bytes(address + len, page.min(PATH_MAX as u64 - len))?;
        match piece.iter().position(|&byte| byte == 0) {
            Some(at) => return bytes(address, len + at as u64),
            None => len += piece.len() as u64,
        }
    }
    Err(Error::NAME_TOO_LONG)
}

/// Gives the program fresh pages at `range`, in place of what is there.
///
/// # Errors
/// ENOMEM.
pub fn lay(range: Range<u64>, protection: Protection) -> Result<(), Error> {
    let memory = memory();
    let usable = if protection.is_empty() { 0 } else { range.end - range.start };
    if !memory.areas.has_room() || !frames::promise(usable / PAGE) {
        return Err(Error::NO_MEMORY);
    }
    take_away(range.clone());
    memory.areas.insert(range, protection);
    Ok(())
}

/// Takes `range` away from the program.
///
/// # Errors
/// ENOMEM: a part of an area is left, and there are too many.
pub fn unmap(range: Range<u64>) -> Result<(), Error> {
    if !memory().areas.has_room() {
        return Err(Error::NO_MEMORY);
    }
    take_away(range);
    Ok(())
}

fn take_away(range: Range<u64>) {
    let memory = memory();
    frames::release(memory.areas.usable(range.clone()) / PAGE);
    memory.areas.remove(range.clone());
    memory.last = [NOWHERE, NOWHERE];
    // SAFETY: the program's pages, which it has no more.
    unsafe { paging::unmap(range.clone()) };
    mappings::remove(&range);
}

/// Changes what `range` may be used for.
///
/// # Errors
/// ENOMEM: part of it is nothing, or there is no memory for it; EACCES: a file is mapped there that
/// may not be written.
pub fn protect(range: Range<u64>, protection: Protection) -> Result<(), Error> {
    if !mappings::allow(&range, protection) {
        return Err(Errno::EACCES.into());
    }
    let memory = memory();
    let before = memory.areas.usable(range.clone());
    let after = if protection.is_empty() { 0 } else { range.end - range.start };
    let more = after.saturating_sub(before) / PAGE;
    if !memory.areas.has_room() || !frames::promise(more) {
        return Err(Error::NO_MEMORY);
    }
    if !memory.areas.protect(range.clone(), protection) {
        frames::release(more);
        return Err(Error::NO_MEMORY);
    }
    frames::release(before.saturating_sub(after) / PAGE);
    memory.last = [NOWHERE, NOWHERE];
    // SAFETY: the program's pages.
    unsafe { paging::protect(range, protection) };
    Ok(())
}

/// A free place for `len` bytes, whole pages: at `wish`, if it is a free one.
pub fn place(wish: u64, len: u64) -> Option<u64> {
    let areas = &memory().areas;
    let free = pages(wish, len).filter(|range| {
        range.start == wish
            && range.start >= atoll_unikernel::elf::START
            && areas.is_free(range.clone())
    });
    free.map(|range| range.start).or_else(|| areas.free(len))
}

/// Whether the program has nothing in `range`.
pub fn is_free(range: Range<u64>) -> bool {
    memory().areas.is_free(range)
}

/// Whether all of `range` is the program's.
pub fn is_all(range: Range<u64>) -> bool {
    memory().areas.allow(range, Protection::empty())
}

/// What all of `range` may be used for, if that is the same, and it is one area's.
pub fn area(range: Range<u64>) -> Option<Protection> {
    let (area, protection) = memory().areas.find(range.start)?;
    (range.end <= area.end).then_some(protection)
}

/// Says where the memory of brk(2) begins.
pub fn set_heap(start: u64) {
    memory().heap = start..start;
}

/// brk(2): moves the end to `to`, if that can be; returns where it is.
pub fn set_break(to: u64) -> u64 {
    let heap = memory().heap.clone();
    if to < heap.start || to > END {
        return heap.end;
    }
    let (old, new) = (heap.end.next_multiple_of(PAGE), to.next_multiple_of(PAGE));
    let moved = if new > old {
        let free = is_free(old..new);
        if free {
            lay(old..new, Protection::READ | Protection::WRITE)
        } else {
            Err(Error::NO_MEMORY)
        }
    } else if new < old {
        unmap(new..old)
    } else {
        Ok(())
    };
    if moved.is_ok() {
        memory().heap.end = to;
    }
    memory().heap.end
}
