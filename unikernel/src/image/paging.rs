//! Addresses: the page tables, made anew after the boot.
//!
//! | addresses | content |
//! |---|---|
//! | from 1 MiB | the image: text, constants, data, stacks with guard pages between |
//! | from 4 MiB to [`END`](atoll_unikernel::elf::END) | the program |
//! | [`DIRECT`] | physical memory from 4 MiB on, not executable |
//! | registers of devices | as [`virtio`](crate::virtio) finds them, not cached |
//! | windows of devices | as [`window`](crate::window) maps them, not executable |
//! | [`heap`](crate::heap) | the image's heap, by pages as they are used |
//!
//! All runs in the most privileged mode, and pages that are not writable are not (CR0.WP). No page
//! of the image is both writable and executable, and none is at address 0.
#![allow(unsafe_code)]

use core::arch::asm;
use core::ops::Range;
use core::sync::atomic::{AtomicU64, Ordering};

use atoll_unikernel::PAGE;
use atoll_unikernel::elf::Protection;

use crate::frames::{self, DIRECT};

const PRESENT: u64 = 1;
const WRITABLE: u64 = 2;
const LARGE: u64 = 1 << 7;
/// Not cached: written through, and read past the cache.
const DEVICE: u64 = 1 << 3 | 1 << 4;
const NOT_EXECUTABLE: u64 = 1 << 63;
const ADDRESS: u64 = 0x000f_ffff_ffff_f000;
/// Bytes of a large page.
const LARGE_PAGE: u64 = 2 << 20;
/// Entries of a table.
const ENTRIES: usize = 512;

unsafe extern "C" {
    static image_start: u8;
    static image_rodata: u8;
    static image_data: u8;
    static image_end: u8;
    static guard_call: u8;
    static guard_trap: u8;
    static guard_double: u8;
    static guard_interrupt: u8;
}

/// The address of a place that the linker names.
macro_rules! place {
    ($name:ident) => {
        (&raw const $name) as u64
    };
}

/// The addresses of the image's instructions.
pub fn text() -> Range<u64> {
    place!(image_start)..place!(image_rodata)
}

/// The pages below the image's stacks.
pub fn guards() -> [u64; 4] {
    [place!(guard_call), place!(guard_trap), place!(guard_double), place!(guard_interrupt)]
}

fn bits(protection: Protection) -> u64 {
    let mut bits = PRESENT;
    if protection.contains(Protection::WRITE) {
        bits |= WRITABLE;
    }
    if !protection.contains(Protection::EXECUTE) {
        bits |= NOT_EXECUTABLE;
    }
    bits
}

/// The table at the physical address `at`.
///
/// # Safety
/// It is one, and no other reference to it is used meanwhile.
unsafe fn table(at: u64) -> &'static mut [u64; ENTRIES] {
    // SAFETY: as the caller promises.
    unsafe { &mut *((DIRECT + at) as *mut [u64; ENTRIES]) }
}

fn root() -> u64 {
    let root: u64;
    // SAFETY: reads a control register.
    unsafe { asm!("mov {}, cr3", out(reg) root, options(nomem, nostack)) };
    root & ADDRESS
}

/// The entry for `address` in the table of `level` (1 has pages) below `root`; tables on the way
/// are made if `make`.
///
/// # Safety
/// `root` is a root table, and no reference to an entry of its tables is used meanwhile.
unsafe fn entry(root: u64, address: u64, level: u32, make: bool) -> Option<&'static mut u64> {
    let mut at = root;
    let mut depth = 4;
    loop {
        let index = (address >> (12 + 9 * (depth - 1))) as usize % ENTRIES;
        // SAFETY: `at` is a table: the root, or what an entry of a table names.
        let entry = unsafe { &mut table(at)[index] };
        if depth == level {
            return Some(entry);
        }
        if *entry & PRESENT == 0 {
            if !make {
                return None;
            }
            *entry = frames::take_zeroed()? | PRESENT | WRITABLE;
        }
        if *entry & LARGE != 0 {
            return None;
        }
        at = *entry & ADDRESS;
        depth -= 1;
    }
}

/// Makes the tables and uses them. `memory`: the end of physical memory.
///
/// # Safety
/// Called once, at the boot, whose own tables have [`DIRECT`] too.
pub unsafe fn begin(memory: u64) -> Option<()> {
    let root = frames::take_zeroed()?;
    let read = Protection::READ;
    let parts = [
        (place!(image_start)..place!(image_rodata), read | Protection::EXECUTE),
        (place!(image_rodata)..place!(image_data), read),
        (place!(image_data)..place!(image_end), read | Protection::WRITE),
    ];
    for (part, protection) in parts {
        for at in part.step_by(PAGE as usize) {
            if guards().contains(&at) {
                continue;
            }
            // SAFETY: nobody else has the new tables.
            *unsafe { entry(root, at, 1, true) }? = at | bits(protection);
        }
    }
    let large = bits(read | Protection::WRITE) | LARGE;
    for at in (frames::FIRST..memory).step_by(LARGE_PAGE as usize) {
        // SAFETY: as above.
        *unsafe { entry(root, DIRECT + at, 2, true) }? = at | large;
    }
    // SAFETY: the image, its stack and the tables are where they were.
    unsafe { asm!("mov cr3, {}", in(reg) root, options(nostack)) };
    Some(())
}

fn invalidate(address: u64) {
    // SAFETY: forgets what the processor remembers of a page.
    unsafe { asm!("invlpg [{}]", in(reg) address, options(nostack)) };
}

/// Puts the frame at `frame` at the page `address`, which has none. False: there is no memory for
/// tables.
///
/// # Safety
/// Nothing relies on the page being absent, and the frame is not used otherwise.
pub unsafe fn map(address: u64, frame: u64, protection: Protection) -> bool {
    // SAFETY: no reference to an entry outlives these functions.
    match unsafe { entry(root(), address, 1, true) } {
        Some(entry) => {
            *entry = frame | bits(protection);
            true
        }
        None => false,
    }
}

/// The mark of a page that is a device's, and no frame of this machine: a bit that the processor
/// leaves alone.
const FOREIGN: u64 = 1 << 10;

/// Puts the page of a device's memory at the physical address `page` at the page `address`, which
/// has none. False: there is no memory for tables.
///
/// # Safety
/// Nothing relies on the page being absent, and the device's page is there.
pub unsafe fn map_foreign(address: u64, page: u64, protection: Protection) -> bool {
    let present = if protection.is_empty() { HIDDEN } else { bits(protection) };
    // SAFETY: no reference to an entry outlives these functions.
    let entry = unsafe { entry(root(), address, 1, true) };
    entry.map(|entry| *entry = page | present | FOREIGN).is_some()
}

/// Where registers of devices are found, one range behind the other.
const DEVICES: u64 = 0xffff_d000_0000_0000;
/// Where the next range begins.
static NEXT_DEVICE: AtomicU64 = AtomicU64::new(DEVICES);

/// Maps `len` bytes of a device's at the physical address `at`; where they are found.
///
/// # Safety
/// There are a device's registers.
pub unsafe fn map_device(at: u64, len: u64) -> Option<u64> {
    let first = at & !(PAGE - 1);
    let end = at.checked_add(len)?.checked_next_multiple_of(PAGE)?;
    if end > ADDRESS {
        return None;
    }
    let begin = NEXT_DEVICE.fetch_add(end - first, Ordering::Relaxed);
    for page in (first..end).step_by(PAGE as usize) {
        let protection = bits(Protection::READ | Protection::WRITE);
        // SAFETY: addresses that nothing else has.
        *unsafe { entry(root(), begin + (page - first), 1, true) }? = page | protection | DEVICE;
    }
    Some(begin + (at - first))
}

/// Where windows of devices are found, one behind the other.
const WINDOWS: u64 = 0xffff_e000_0000_0000;
/// Where the next one begins.
static NEXT_WINDOW: AtomicU64 = AtomicU64::new(WINDOWS);

/// Maps `len` bytes of memory of a device's at the physical address `at`, whole large pages of
/// them, cached; where they are found, and how many they are. `None`: they do not begin at a large
/// page, there are none, or there is no memory for tables.
///
/// # Safety
/// There is a device's memory, and nothing else.
pub unsafe fn map_window(at: u64, len: u64) -> Option<(u64, u64)> {
    let len = len & !(LARGE_PAGE - 1);
    let end = at.checked_add(len)?;
    if len == 0 || !at.is_multiple_of(LARGE_PAGE) || end > ADDRESS {
        return None;
    }
    let begin = NEXT_WINDOW.fetch_add(len, Ordering::Relaxed);
    let large = bits(Protection::READ | Protection::WRITE) | LARGE;
    for page in (at..end).step_by(LARGE_PAGE as usize) {
        // SAFETY: addresses that nothing else has.
        *unsafe { entry(root(), begin + (page - at), 2, true) }? = page | large;
    }
    Some((begin, len))
}

/// Where the byte at `address` is in physical memory, if its page is there.
pub fn physical(address: u64) -> Option<u64> {
    // SAFETY: as in `map`.
    if let Some(entry) = unsafe { entry(root(), address, 2, false) }
        && *entry & (PRESENT | LARGE) == PRESENT | LARGE
    {
        return Some(*entry & ADDRESS & !(LARGE_PAGE - 1) | address & (LARGE_PAGE - 1));
    }
    // SAFETY: as above.
    let entry = unsafe { entry(root(), address, 1, false) }?;
    (*entry & PRESENT != 0).then_some(*entry & ADDRESS | address & (PAGE - 1))
}

/// Takes the pages of `range` away, with their frames. A device's page stays the device's.
///
/// # Safety
/// Nothing uses them any more.
pub unsafe fn unmap(range: Range<u64>) {
    // SAFETY: as in `map`.
    each(range, |address, entry| unsafe {
        let before = *entry;
        *entry = 0;
        invalidate(address);
        if before & FOREIGN == 0 {
            frames::give(before & ADDRESS);
        }
    });
}

/// Gives back the page tables that have nothing but `range`, which begins at one.
///
/// # Safety
/// Its pages have been taken away, and no page of those tables is used.
pub unsafe fn forget(range: Range<u64>) {
    for address in range.step_by(LARGE_PAGE as usize) {
        // SAFETY: as in `map`.
        if let Some(entry) = unsafe { entry(root(), address, 2, false) }
            && *entry & PRESENT != 0
        {
            let table = *entry & ADDRESS;
            *entry = 0;
            invalidate(address);
            // SAFETY: the entry was the only way to it.
            unsafe { frames::give(table) };
        }
    }
}

/// Changes what the pages of `range` may be used for, as far as they are there. Those that may not
/// be used at all stay, unreachable.
///
/// # Safety
/// They are a program's.
pub unsafe fn protect(range: Range<u64>, protection: Protection) {
    each(range, |address, entry| {
        let present = if protection.is_empty() { HIDDEN } else { bits(protection) };
        *entry = *entry & (ADDRESS | FOREIGN) | present;
        invalidate(address);
    });
}

/// The mark of a page that is there and may not be used: a bit that the processor leaves alone.
const HIDDEN: u64 = 1 << 9;

/// Calls `act` for the pages of `range` that have frames. Parts without tables are passed over.
fn each(range: Range<u64>, mut act: impl FnMut(u64, &mut u64)) {
    let mut address = range.start;
    let root = root();
    while address < range.end {
        let missing = (2..=4).rev().find(|&level| {
            // SAFETY: as in `map`.
            unsafe { entry(root, address, level, false) }.is_none_or(|e| *e & PRESENT == 0)
        });
        if let Some(level) = missing {
            let size = 1_u64 << (12 + 9 * (level - 1));
            match (address & !(size - 1)).checked_add(size) {
                Some(next) => address = next,
                None => return,
            }
            continue;
        }
        // SAFETY: as in `map`.
        if let Some(entry) = unsafe { entry(root, address, 1, false) }
            && *entry & (PRESENT | HIDDEN) != 0
        {
            act(address, entry);
        }
        address += PAGE;
    }
}
