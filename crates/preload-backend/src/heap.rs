//! Memory of this library's own: the program may have called us in the middle of its malloc(3),
//! from a signal handler, and after fork(2) the C library's locks and this library's differ.
#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout};
use std::cell::UnsafeCell;
use std::ptr::null_mut;

use dlmalloc::Dlmalloc;
use rustix::mm::{MapFlags, ProtFlags};

use crate::lock::Lock;

/// The allocator of this library.
pub struct Heap {
    lock: Lock,
    state: UnsafeCell<Dlmalloc<Pages>>,
}

// SAFETY: the state is touched under the lock.
unsafe impl Sync for Heap {}

impl Heap {
    /// An empty one.
    pub const fn new() -> Heap {
        let state = UnsafeCell::new(Dlmalloc::new_with_allocator(Pages));
        Heap { lock: Lock::new(), state }
    }

    /// Begins anew in a child, whose parent may have been anywhere in here. Earlier allocations
    /// stay as they are.
    ///
    /// # Safety
    /// No other thread of this process is in this library. Earlier allocations are not freed from
    /// here on: the allocator knows their neighbours no more.
    pub unsafe fn restart(&self) {
        self.lock.reset();
        // SAFETY: as the caller promises.
        unsafe { *self.state.get() = Dlmalloc::new_with_allocator(Pages) };
    }
}

// SAFETY: blocks are the allocator's, whose state is touched under the lock.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let _held = self.lock.lock();
        // SAFETY: under the lock.
        unsafe { (*self.state.get()).malloc(layout.size(), layout.align()) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        let _held = self.lock.lock();
        // SAFETY: under the lock; allocated by `alloc` with this layout.
        unsafe { (*self.state.get()).free(block, layout.size(), layout.align()) };
    }
}

/// Where the allocator gets its memory: mappings of its own, never those of the C library.
struct Pages;

// SAFETY: what is given out is a new mapping of that length, which nobody else has.
unsafe impl dlmalloc::Allocator for Pages {
    fn alloc(&self, size: usize) -> (*mut u8, usize, u32) {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping, which takes no address that is in use.
        let mapped =
            unsafe { rustix::mm::mmap_anonymous(null_mut(), size, protection, MapFlags::PRIVATE) };
        (mapped.map_or(null_mut(), |mapped| mapped.cast()), size, 0)
    }

    fn remap(&self, _: *mut u8, _: usize, _: usize, _: bool) -> *mut u8 {
        null_mut()
    }

    fn free_part(&self, _: *mut u8, _: usize, _: usize) -> bool {
        false
    }

    fn free(&self, at: *mut u8, size: usize) -> bool {
        // SAFETY: the allocator gives back what it has no block in.
        unsafe { rustix::mm::munmap(at.cast(), size) }.is_ok()
    }

    fn can_release_part(&self, _: u32) -> bool {
        false
    }

    fn allocates_zeros(&self) -> bool {
        true
    }

    fn page_size(&self) -> usize {
        4096
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
