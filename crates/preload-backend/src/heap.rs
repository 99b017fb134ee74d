//! Memory of this library's own: the program may have called us in the middle of its malloc(3), from a
//! signal handler, and after fork(2) the C library's locks and this library's differ.
#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout};
use std::cell::UnsafeCell;
use std::ptr::null_mut;

use rustix::mm::{MapFlags, ProtFlags};

use crate::lock::Lock;

/// The smallest size class, by its power of two.
const FIRST: u32 = 4;
/// Classes: up to 32 KiB. What is larger has a mapping of its own.
const CLASSES: usize = 12;
/// How much is asked of the system at a time.
const CHUNK: usize = 64 << 10;
const PAGE: usize = 4096;

struct HeapState {
    /// Lists of free blocks by class; the first word of each is the next one's address.
    free: [*mut u8; CLASSES],
    /// What is left of the newest chunk.
    at: *mut u8,
    left: usize,
}

/// The allocator of this library.
pub struct Heap {
    lock: Lock,
    state: UnsafeCell<HeapState>,
}

// SAFETY: the state is touched under the lock.
unsafe impl Sync for Heap {}

impl Heap {
    /// An empty one.
    pub const fn new() -> Heap {
        let state = HeapState { free: [null_mut(); CLASSES], at: null_mut(), left: 0 };
        Heap { lock: Lock::new(), state: UnsafeCell::new(state) }
    }

    /// Begins anew in a child, whose parent may have been anywhere in here. What was allocated before
    /// stays as it is.
    ///
    /// # Safety
    /// No other thread of this process is in this library.
    pub unsafe fn restart(&self) {
        self.lock.reset();
        // SAFETY: as the caller promises.
        unsafe {
            *self.state.get() = HeapState { free: [null_mut(); CLASSES], at: null_mut(), left: 0 }
        };
    }
}

/// The class that holds `layout`, if any does.
fn class(layout: &Layout) -> Option<usize> {
    let size = layout.size().max(layout.align()).max(1 << FIRST).checked_next_power_of_two()?;
    let class = (size.trailing_zeros() - FIRST) as usize;
    (class < CLASSES).then_some(class)
}

fn map(len: usize) -> *mut u8 {
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping, which takes no address that is in use.
    let mapped =
        unsafe { rustix::mm::mmap_anonymous(null_mut(), len, protection, MapFlags::PRIVATE) };
    mapped.map_or(null_mut(), |mapped| mapped.cast())
}

// SAFETY: blocks are as long and as aligned as their class, a power of two within whole pages, and in
// no two hands; mappings are pages.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let Some(class) = class(&layout) else {
            if layout.align() > PAGE {
                return null_mut();
            }
            return map(layout.size());
        };
        let size = 1usize << (class as u32 + FIRST);
        let _held = self.lock.lock();
        // SAFETY: under the lock.
        let state = unsafe { &mut *self.state.get() };
        let block = state.free[class];
        if !block.is_null() {
            // SAFETY: a free block, which `dealloc` has written.
            state.free[class] = unsafe { block.cast::<*mut u8>().read() };
            return block;
        }
        // Chunks are aligned to pages only, and blocks to their size up to that.
        let skip = state.at.align_offset(size.min(PAGE));
        if state.at.is_null() || state.left < skip + size {
            state.at = map(CHUNK);
            state.left = if state.at.is_null() { 0 } else { CHUNK };
            if state.left == 0 {
                return null_mut();
            }
        } else {
            // SAFETY: within the chunk.
            state.at = unsafe { state.at.add(skip) };
            state.left -= skip;
        }
        let block = state.at;
        // SAFETY: as above; at the most one past its end.
        state.at = unsafe { state.at.add(size) };
        state.left -= size;
        if layout.align() > PAGE { null_mut() } else { block }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        let Some(class) = class(&layout) else {
            // SAFETY: mapped by `alloc` with this length.
            let _ = unsafe { rustix::mm::munmap(block.cast(), layout.size()) };
            return;
        };
        let _held = self.lock.lock();
        // SAFETY: under the lock; a block of this class, 16 bytes or more, which nobody uses any more.
        unsafe {
            let state = &mut *self.state.get();
            block.cast::<*mut u8>().write(state.free[class]);
            state.free[class] = block;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_apart_and_come_again() {
        let heap = Heap::new();
        let mut held: Vec<(*mut u8, Layout)> = Vec::new();
        let mut random = 1u64;
        for round in 0..20_000u64 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let bits = random >> 33;
            if held.len() > 200 || bits.is_multiple_of(3) && !held.is_empty() {
                let (block, layout) = held.swap_remove(bits as usize % held.len());
                // SAFETY: written below with its low byte; not freed yet.
                unsafe {
                    let first = *block;
                    let all = std::slice::from_raw_parts(block, layout.size());
                    assert!(all.iter().all(|&byte| byte == first));
                    heap.dealloc(block, layout);
                }
                continue;
            }
            let size =
                1 + (bits as usize * 7919) % if bits.is_multiple_of(50) { 100_000 } else { 700 };
            let layout = Layout::from_size_align(size, 1 << (bits % 7)).unwrap();
            // SAFETY: not of size zero; written within its length.
            unsafe {
                let block = heap.alloc(layout);
                assert!(!block.is_null() && block.addr().is_multiple_of(layout.align()));
                block.write_bytes(round as u8, size);
                held.push((block, layout));
            }
        }
        for (block, layout) in held {
            // SAFETY: not freed yet.
            unsafe { heap.dealloc(block, layout) };
        }
        // SAFETY: there is no other thread.
        unsafe { heap.restart() };
        // SAFETY: not of size zero.
        assert!(!unsafe { heap.alloc(Layout::new::<u64>()) }.is_null());
    }
}
